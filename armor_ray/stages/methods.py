"""The rows of the results: which retrievers are trained, compared and used to answer, and what each is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from armor_ray.config import RECIPE_PARAMETERS, REWARD_RECIPES, Config, Recipe, validate_config, with_overrides
from armor_ray.evaluation.labels import BASE_RAG, CLOSED_BOOK

INTERPOLATED = "-interpolated"
SWEPT = "-swept"


@dataclass(frozen=True, slots=True)
class Variant:
    """A trained row: a recipe, with its preset's or the sweep's parameters."""

    recipe: str
    swept: bool = False

    @property
    def method(self) -> str:
        """The row's name in tables and summaries."""
        return f"{self.recipe}/swept" if self.swept else self.recipe

    def artifact(self, seed: int, interpolated: bool = False) -> str:
        """Where the seed's encoder is published."""
        return f"retrievers/{self.recipe}{SWEPT if self.swept else ''}-seed{seed}{INTERPOLATED if interpolated else ''}"


@dataclass(frozen=True, slots=True)
class Adapted:
    """A row of the retrieval table: its method name, one encoder a seed, and whether it also gets a row fused with BM25."""

    method: str
    artifacts: list[str]
    is_main: bool
    is_fused: bool


@dataclass(frozen=True, slots=True)
class AnsweredMethod:
    """A row of the generation table: its name, and the retriever behind it (None: base encoder or no retrieval)."""

    method: str
    retriever: str | None

    @property
    def artifact(self) -> str:
        return f"answers/{self.method.replace('/', '-')}"


def is_swept(config: Config) -> bool:
    """Whether there is anything to try."""
    return any(len(values) > 1 for values in config.sweep.parameters.values())


def variants(config: Config) -> list[Variant]:
    """All that is trained and reported."""
    presets = [Variant(recipe) for recipe in config.evaluation.recipes]
    return [*presets, Variant(config.objective.recipe, swept=True)] if is_swept(config) else presets


def needs_rewards(config: Config) -> bool:
    """Whether anything that is trained learns from the reward model."""
    return any(variant.recipe in REWARD_RECIPES for variant in variants(config))


def needs_bm25(config: Config) -> bool:
    """Whether anything that is trained reads BM25 scores (`objective.lexical_weight`)."""
    recipes = {variant.recipe for variant in variants(config)}
    fixed = (recipe_config(config, recipe, config.seed).objective.lexical_weight for recipe in recipes)
    return any((*fixed, *config.sweep.parameters.get("objective.lexical_weight", [])))


def trains_passages(config: Config, recipe: str) -> bool:
    """Whether the recipe moves the passage tower, so that its retrievers need the corpus embedded anew."""
    return recipe in REWARD_RECIPES and recipe_config(config, recipe, config.seed).objective.towers == "shared"


def corpus_of(retriever: str) -> str:
    """The artifact with vectors and index of a retriever that trained both towers."""
    return f"corpora/{retriever.removeprefix('retrievers/')}"


def retriever_of(corpus: str) -> str:
    """The inverse of `corpus_of`."""
    return f"retrievers/{corpus.removeprefix('corpora/')}"


def adapted_methods(config: Config) -> list[Adapted]:
    """Every trained row, the interpolated one below its plain one."""
    rows = []
    for variant in variants(config):
        for interpolated in [False, True] if config.training.interpolate else [False]:
            artifacts = [variant.artifact(seed, interpolated) for seed in config.evaluation.seeds]
            name = f"{variant.method}/interpolated" if interpolated else variant.method
            is_main = variant.recipe == config.objective.recipe
            rows.append(Adapted(name, artifacts, is_main, is_main or variant.recipe in config.evaluation.fused))
    return rows


def answered_methods(config: Config) -> list[AnsweredMethod]:
    """Closed book, Base RAG, and the main recipe's retrievers (first seed); nothing where no question is to be answered."""
    if not config.evaluation.generation_questions:
        return []
    adapted = [AnsweredMethod(row.method, row.artifacts[0]) for row in adapted_methods(config) if row.is_main]
    return [AnsweredMethod(CLOSED_BOOK, None), AnsweredMethod(BASE_RAG, None), *adapted]


def recipe_config(config: Config, recipe: str, seed: int, overrides: dict[str, Any] | None = None) -> Config:
    """`config` for one recipe and seed.

    Objective settings that the recipe does not read are left out, the sweep is dropped; above them stand the recipe's own settings, and
    above these `overrides`, both by dotted key.

    Raises:
        ArmorError: a key that does not exist or that the recipe does not read, or a value out of range.
    """
    raw = config.model_dump(exclude_unset=True)
    raw["seed"] = seed
    raw.pop("sweep", None)
    raw.get("evaluation", {}).pop("recipe_settings", None)
    objective = raw.get("objective", {})
    used = {key: value for key, value in objective.items() if recipe in RECIPE_PARAMETERS.get(key, {recipe})}
    raw["objective"] = {**used, "recipe": recipe}
    for key, value in {**config.evaluation.recipe_settings.get(cast(Recipe, recipe), {}), **(overrides or {})}.items():
        section, _, name = key.partition(".")
        raw.setdefault(section, {})[name] = value
    return validate_config(raw, f"recipe {recipe}")


def with_own_settings(config: Config) -> Config:
    """`config` with what `evaluation.recipe_settings` says of its main recipe."""
    own = config.evaluation.recipe_settings.get(config.objective.recipe, {})
    return with_overrides(config, own) if own else config


def trial_config(config: Config, point: dict[str, float]) -> Config:
    """A trial of the sweep: the main recipe with its own settings, and above these the point that is tried."""
    # Only the winner is exported, so trials skip the interpolation; the sweep itself is no part of a trial's identity.
    return with_overrides(with_own_settings(config), {**point, "training.interpolate": [], "sweep.parameters": {}})


def training_identity(config: Config) -> dict[str, Any]:
    """The part of a config that decides a training run's numbers."""
    # What only recipes with rewards read is no part of the others, nor is what is off by default and came later: trained retrievers outlive
    # the addition of either.
    unread = {
        key for key, readers in RECIPE_PARAMETERS.items() if readers <= set(REWARD_RECIPES) and config.objective.recipe not in readers
    }
    if not config.objective.lexical_weight:
        unread.add("lexical_weight")
    return {
        "seed": config.seed,
        "objective": config.objective.model_dump(exclude=unread),
        "training": config.training.model_dump(exclude={"max_failures", "workers", "cache_texts"}),
        "candidates": config.candidates.model_dump(exclude={"pool_size", "picks"}),
    }
