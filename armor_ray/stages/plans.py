"""What every artifact is made of: the config sections and inputs that make it stale when they change.

Planning reads only the config, the data files and the models' files. It imports neither Ray nor torch, so `status`, a rerun with nothing
to do and every complaint about the config answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from armor_ray.config import REWARD_RECIPES, Config
from armor_ray.corpus.sources import source_files
from armor_ray.corpus.sources.files import data_path
from armor_ray.errors import ArmorError
from armor_ray.evaluation.labels import CLOSED_BOOK
from armor_ray.models.generators.identity import generator_identity
from armor_ray.models.hub import identify_model
from armor_ray.stages.baseline_methods import baselines_identity, check_names
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.curated import ARTIFACT
from armor_ray.stages.methods import (
    INTERPOLATED,
    Adapted,
    Variant,
    adapted_methods,
    answered_methods,
    corpus_of,
    is_swept,
    needs_rewards,
    recipe_config,
    training_identity,
    trains_passages,
    variants,
    with_own_settings,
)
from armor_ray.workspace import Workspace, fingerprint, fingerprint_files

DATA_SET = ("passages", "examples", "candidates", "embeddings")
"""What is asked and searched when a retriever is tried on data that it was not trained on."""

TABLE = ("passages", "examples", "embeddings", "candidates", "utilities")
"""What every training table is assembled from."""


def curate(context: Context) -> list[Plan]:
    """Begins everything, where a section `curation` says how the data files become a data set."""
    if context.config.curation is None:
        return []
    from armor_ray.stages.curation_plan import curation_settings  # the judges' client library, which no other plan needs

    data, questions = context.config.data, context.config.curation.questions
    inputs = _data_inputs(context)
    if context.config.curation.pipeline == "documents" and questions.writer == "generator":
        writer = questions.generator
        identity = _generator(context) if writer is None else context.once("writer", lambda: generator_identity(writer))
        inputs["writer"] = fingerprint("writer", identity, {})
    cutting = {"format": data.format, "passage_characters": data.passage_characters, "chunking": data.chunking.model_dump()}
    return [Plan(ARTIFACT, "curate", {"data": cutting, **curation_settings(context)}, inputs)]


def prepare(context: Context) -> list[Plan]:
    """Both come out of one pass over the data files; where these lie does not matter."""
    data = context.config.data
    young = _at_default(data, "chunking", "deduplicate", "duplicate_similarity")
    config = data.model_dump(exclude={"name", "path", *young})
    inputs = _data_inputs(context) if context.config.curation is None else context.inputs(ARTIFACT)
    return [Plan(name, "prepare", {"data": config, "seed": context.config.seed}, inputs) for name in ("passages", "examples")]


def _data_inputs(context: Context) -> dict[str, str]:
    """The data files, and what else decides how documents are cut."""
    data = context.config.data
    inputs = {"data files": fingerprint_files(source_files(data))}
    if data.format == "documents":
        # A document's name is its id.
        names = [path.relative_to(data_path(data)).as_posix() for path in source_files(data)]
        inputs["file names"] = fingerprint("names", {"names": names}, {})
    if data.chunking.mode == "tokens":
        inputs["encoder"] = fingerprint("tokens", _encoder(context), {})
    return inputs


def _at_default(section: BaseModel, *names: str) -> set[str]:
    """Those of the settings that are at their defaults. Settings younger than the first workspaces are left out of plans there: these
    workspaces stay valid.
    """
    return {name for name in names if getattr(section, name) == type(section).model_fields[name].get_default(call_default_factory=True)}


def embed(context: Context) -> list[Plan]:
    return [Plan("embeddings", "embed", {"encoder": _encoder(context)}, context.inputs("passages"))]


def index(context: Context) -> list[Plan]:
    return [Plan("index", "index", {"index": _index_settings(context.config)}, context.inputs("embeddings"))]


def _index_settings(config: Config) -> dict[str, Any]:
    return config.index.model_dump(exclude=_at_default(config.index, "hnsw_ef_search"))


def candidates(context: Context) -> list[Plan]:
    config = {"pool_size": context.config.candidates.pool_size, "encoder": _encoder(context)}
    picks = context.config.candidates.picks
    if picks is not None:
        _refuse_own(picks.model, context.config.workspace)
        config["picks"] = {**picks.model_dump(), "model": context.once("picks", lambda: identify_model(picks.model, None))}
    return [Plan("candidates", "candidates", config, context.inputs("examples", "index", "embeddings"))]


def _refuse_own(model: str, workspace: str) -> None:
    """Pools that depend on the reward model that is trained on them would never be up to date."""
    if Path(model).absolute().is_relative_to(Path(workspace).absolute()):
        hint = "use that of another workspace (a run that is to begin from this one may have a copy of it)"
        raise ArmorError("the reward model of this very workspace", where="candidates.picks.model", hint=hint)


def score(context: Context) -> list[Plan]:
    config = {"generator": _generator(context), "splits": scored_splits(context.config)}
    return [Plan("utilities", "score", config, context.inputs("candidates", "examples", "passages"))]


def scored_splits(config: Config) -> list[str]:
    """Training pools always; validation pools only where the temperature schedule trains on them."""
    return ["train", "validation"] if config.objective.temperature_schedule == "alternating" else ["train"]


def utility(context: Context) -> list[Plan]:
    """What only recipes with rewards need begins here."""
    if not needs_rewards(context.config):
        return []
    config = {"generator": _generator(context), "utility": context.config.utility.model_dump(), "seed": context.config.seed}
    return [Plan("pair_utilities", "utility", config, context.inputs("utilities", "candidates", "examples", "passages"))]


def reward(context: Context) -> list[Plan]:
    """The reward model, then its rewards for all pairs beside its validation."""
    if not needs_rewards(context.config):
        return []
    settings = context.config.reward
    model = context.once("reward model", lambda: identify_model(settings.model, settings.revision))
    unread = {"model", "revision", "stock", "gate_margin", "score_dtype", "batch_tokens", "workers", "max_failures"}
    config = {"seed": context.config.seed, "model": model, "reward": settings.model_dump(exclude=unread)}
    trained = Plan("reward_model", "reward", config, context.inputs("pair_utilities", "candidates", "examples", "passages"))
    inputs = {trained.name: trained.fingerprint, **trained.inputs}
    return [trained, Plan("rewards", "reward", {"stock": settings.stock, "score_dtype": settings.score_dtype}, inputs)]


def mine(context: Context) -> list[Plan]:
    if not needs_rewards(context.config):
        return []
    config = {"margin": context.config.reward.gate, "top_k": context.config.candidates.top_k}
    return [Plan("negatives", "mine", config, context.inputs("rewards", "candidates"))]


def table_inputs(recipe: str) -> tuple[str, ...]:
    """What a recipe's training table is assembled from."""
    return (*TABLE, "negatives") if recipe in REWARD_RECIPES else TABLE


def sweep(context: Context) -> list[Plan]:
    config = context.config
    if not is_swept(config):
        return []
    inputs = context.inputs(*table_inputs(config.objective.recipe))
    return [Plan("sweep", "sweep", {**training_identity(with_own_settings(config)), "sweep": config.sweep.model_dump()}, inputs)]


def train(context: Context) -> list[Plan]:
    """A retriever for every variant and seed, and its interpolation with the base encoder where that is asked for."""
    plans = []
    for variant in variants(context.config):
        for seed in context.config.evaluation.seeds:
            plan = train_one(context, variant, seed)
            # One training run makes both, so both are made of the same.
            mixed = [replace(plan, name=variant.artifact(seed, interpolated=True))] if context.config.training.interpolate else []
            plans += [plan, *mixed]
    return plans


def train_one(context: Context, variant: Variant, seed: int) -> Plan:
    inputs = context.inputs(*table_inputs(variant.recipe), *(["sweep"] if variant.swept else []))
    config = recipe_config(context.config, variant.recipe, seed)
    return Plan(variant.artifact(seed), "train", {**training_identity(config), "swept": variant.swept}, inputs)


def reindex(context: Context) -> list[Plan]:
    """A corpus for every retriever that moved the passage tower, interpolated ones included."""
    config = context.config
    settings = {"index": _index_settings(config), "embed_dtype": config.encoder.embed_dtype}
    return [
        Plan(corpus_of(name), "reindex", settings, context.inputs("passages", name))
        for variant in variants(config)
        if trains_passages(config, variant.recipe)
        for seed in config.evaluation.seeds
        for name in [variant.artifact(seed, mixed) for mixed in ([False, True] if config.training.interpolate else [False])]
    ]


def answer(context: Context) -> list[Plan]:
    """The answers of every row of the generation table."""
    config = context.config
    settings = {
        "generator": _generator(context),
        "max_new_tokens": config.generator.max_new_tokens,
        "context_characters": config.generator.context_characters,
        "questions": config.evaluation.generation_questions,
        "top_k": config.evaluation.generation_top_k,
    }
    planned = []
    for method in answered_methods(config):
        inputs = ["examples"] if method.method == CLOSED_BOOK else ["examples", "passages", "candidates", "embeddings"]
        inputs += [method.retriever.removesuffix(INTERPOLATED)] if method.retriever else []
        inputs += [corpus_of(method.retriever)] if method.retriever and corpus_of(method.retriever) in context.fingerprints else []
        planned.append(Plan(method.artifact, "answer", {**settings, "method": method.method}, context.inputs(*inputs)))
    return planned


def latency(context: Context) -> list[Plan]:
    """Measured once; only what is measured makes it stale."""
    config = context.config
    if not config.evaluation.latency_questions:
        return []
    check_names(config)
    settings = {"questions": config.evaluation.latency_questions, "k": max(config.evaluation.ks), **baselines_identity(config)}
    return [Plan("latency", "latency", settings, context.inputs(*_compared(context), "index"))]


def transfer(context: Context) -> list[Plan]:
    """The main recipe's rows on other data sets."""
    others = context.config.evaluation.transfer_to
    rows = [row for row in adapted_methods(context.config) if row.is_main]
    return [transfer_plan(context.config, context.fingerprints.__getitem__, others, rows)] if others else []


def transfer_plan(config: Config, made_of: Callable[[str], str], others: Sequence[str], rows: Sequence[Adapted]) -> Plan:
    """What trying `rows` on the data of other workspaces depends on.

    Args:
        made_of: fingerprint of an artifact of the own workspace.

    Raises:
        ArmorError: another workspace is not prepared.
    """
    own = {name: made_of(name) for name in (*DATA_SET, *(artifact for row in rows for artifact in row.artifacts))}
    # By number, as where a workspace lies does not matter: a config names it as it likes, the workspace's copy by its whole path.
    other = {f"other {i}/{name}": Workspace(uri).require(name).fingerprint for i, uri in enumerate(others, 1) for name in DATA_SET}
    settings = {"methods": [row.method for row in rows], "evaluation": config.evaluation.model_dump(include={"ks", "bootstrap"})}
    return Plan("transfer", "transfer", settings, {**own, **other})


def _compared(context: Context) -> list[str]:
    """The artifacts behind the rows of the retrieval table."""
    config = context.config
    trained = [variant.artifact(seed) for variant in variants(config) for seed in config.evaluation.seeds]
    return ["passages", "examples", "candidates", "embeddings", *trained, *(plan.name for plan in reindex(context))]


def evaluate(context: Context) -> list[Plan]:
    config = context.config
    check_names(config)
    inputs = _compared(context)
    inputs += [name for name in ("latency", "transfer") if name in context.fingerprints]
    inputs += ["pair_utilities", "rewards", "negatives"] if needs_rewards(config) else []
    inputs += [method.artifact for method in answered_methods(config)]
    unread = {"latency_questions", "transfer_to", *_at_default(config.evaluation, "hard_pool", "utility_questions")}
    settings = {
        "evaluation": config.evaluation.model_dump(exclude=unread),
        "dataset": config.data.name,
        "metric": config.training.metric,
        "seed": config.seed,
        **baselines_identity(config),
    }
    if config.evaluation.utility_questions:
        settings |= {"generator": _generator(context), "utility": config.utility.model_dump(include={"kind", "relevant_share"})}
    return [Plan("reports", "evaluate", settings, context.inputs(*inputs))]


def promote(context: Context) -> list[Plan]:
    """What was promoted by hand, for as long as it is there; else the best of the main recipe's encoders by validation, first seed."""
    by_hand = _promoted_by_hand(context)
    if by_hand is not None and context.forced != "promote":
        return [by_hand]
    trained = [name.removesuffix(INTERPOLATED) for name in main_retrievers(context.config)]
    return [Plan("promoted", "promote", {"metric": context.config.training.metric}, context.inputs(*dict.fromkeys(trained)))]


def _promoted_by_hand(context: Context) -> Plan | None:
    promoted = context.workspace.manifest("promoted")
    name = promoted.config.get("retriever") if promoted is not None else None
    if name is None:
        return None
    source = f"retrievers/{name}"
    published = context.workspace.manifest(source)
    # One that the config trains no longer is served as it is.
    made_of = context.fingerprints.get(source) or (published.fingerprint if published is not None else None)
    return promotion(name, made_of) if made_of is not None else None


def promotion(retriever: str, made_of: str) -> Plan:
    """`promoted` as a retriever that somebody chose, by the fingerprint of its artifact."""
    return Plan("promoted", "promote", {"retriever": retriever}, {f"retrievers/{retriever}": made_of})


def main_retrievers(config: Config) -> list[str]:
    """What may be promoted.

    Raises:
        ArmorError: the main recipe is not trained.
    """
    main = [row.artifacts[0] for row in adapted_methods(config) if row.is_main]
    if not main:
        message = f"'{config.objective.recipe}' is not among the trained recipes"
        raise ArmorError(message, where="evaluation.recipes", hint="add it: the main recipe is what gets promoted")
    return main


PLANS: dict[str, Callable[[Context], list[Plan]]] = {
    "curate": curate,
    "prepare": prepare,
    "embed": embed,
    "index": index,
    "candidates": candidates,
    "score": score,
    "utility": utility,
    "reward": reward,
    "mine": mine,
    "sweep": sweep,
    "train": train,
    "reindex": reindex,
    "answer": answer,
    "latency": latency,
    "transfer": transfer,
    "evaluate": evaluate,
    "promote": promote,
}
"""Stages in the order they run, each with the plans of its artifacts."""


def _encoder(context: Context) -> dict[str, Any]:
    """The encoder's settings, its model by content and not by place."""
    config = context.config.encoder
    model = context.once("encoder", lambda: identify_model(config.model, config.revision))
    return {**config.model_dump(exclude={"batch_tokens", "model", "revision"}), "model": model}


def _generator(context: Context) -> dict[str, Any]:
    return context.once("generator", lambda: generator_identity(context.config.generator))
