"""Stage `train`: every recipe of `evaluation.recipes` with its preset, and the sweep's winner, for every seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from armor_ray.config import RECIPE_PARAMETERS, Config, validate_config
from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.sweep import best_parameters, is_swept
from armor_ray.stages.table import INPUTS, load_table
from armor_ray.stages.trials import INTERPOLATED, TrialSpec, run_trials

STAGE = "train"
SWEPT = "-swept"


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of the report: a recipe, with its preset's or the sweep's parameters."""

    recipe: str
    swept: bool = False

    @property
    def method(self) -> str:
        """The row's name in tables and summaries."""
        return f"{self.recipe}/swept" if self.swept else self.recipe

    def artifact(self, seed: int, interpolated: bool = False) -> str:
        """Where the seed's encoder is published."""
        return f"retrievers/{self.recipe}{SWEPT if self.swept else ''}-seed{seed}{INTERPOLATED if interpolated else ''}"


def variants(config: Config) -> list[Variant]:
    """All that is trained and reported."""
    presets = [Variant(recipe) for recipe in config.evaluation.recipes]
    return [*presets, Variant(config.objective.recipe, swept=True)] if is_swept(config) else presets


def plans(context: Context) -> list[Plan]:
    return [_plan(context, variant, seed) for variant in variants(context.config) for seed in context.config.evaluation.seeds]


def _plan(context: Context, variant: Variant, seed: int) -> Plan:
    inputs = context.inputs(*INPUTS, *(["sweep"] if variant.swept else []))
    config = recipe_config(context.config, variant.recipe, seed)
    return Plan(variant.artifact(seed), STAGE, {**training_identity(config), "swept": variant.swept}, inputs)


def training_identity(config: Config) -> dict[str, Any]:
    """The part of a config that decides a training run's numbers."""
    return {
        "seed": config.seed,
        "objective": config.objective.model_dump(),
        "training": config.training.model_dump(exclude={"max_failures", "workers"}),
        "candidates": config.candidates.model_dump(exclude={"pool_size"}),
    }


def recipe_config(config: Config, recipe: str, seed: int, overrides: dict[str, Any] | None = None) -> Config:
    """`config` for one recipe and seed: objective settings that the recipe does not read are left out, the sweep is dropped."""
    raw = config.model_dump(exclude_unset=True)
    raw["seed"] = seed
    raw.pop("sweep", None)
    objective = raw.get("objective", {})
    used = {key: value for key, value in objective.items() if recipe in RECIPE_PARAMETERS.get(key, {recipe})}
    raw["objective"] = {**used, "recipe": recipe}
    for key, value in (overrides or {}).items():
        section, _, name = key.partition(".")
        raw.setdefault(section, {})[name] = value
    return validate_config(raw, f"recipe {recipe}")


def run_all(context: Context, todo: list[Plan]) -> None:
    """Trains what is missing or stale as concurrent trials."""
    connect(context.workspace)
    table = load_table(context.workspace, context.config)
    specs = []
    for variant in variants(context.config):
        overrides = best_parameters(context.workspace) if variant.swept else {}
        for seed in context.config.evaluation.seeds:
            plan = _plan(context, variant, seed)
            if any(plan.name == wanted.name for wanted in todo):
                specs.append(TrialSpec(plan.name, recipe_config(context.config, variant.recipe, seed, overrides), plan))
    context.say(f"train: {len(specs)} runs of {len(table.train)} questions, {context.config.training.epochs} epochs each")
    run_trials(context, specs, table, STAGE)
