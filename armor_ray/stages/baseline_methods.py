"""Which baseline rows there are and what they are made of; read while planning, so without torch or Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from armor_ray.config import Config
from armor_ray.config_baselines import FusionStageConfig, NamedConfig, RerankerConfigBase
from armor_ray.errors import ArmorError
from armor_ray.evaluation.labels import BASE, BM25, RERANKED
from armor_ray.models.hub import identify_model
from armor_ray.stages.methods import adapted_methods

_WHERE = "baselines"
_MODEL_KEYS = ("model", "entailment_model")


@dataclass(frozen=True, slots=True)
class RerankedRow:
    """A reranker over one first stage."""

    reranker: RerankerConfigBase
    over: str

    @property
    def method(self) -> str:
        """The row's name in tables and summaries."""
        return f"{self.over}{RERANKED}{self.reranker.label}"


def reranked_rows(config: Config) -> list[RerankedRow]:
    """Every reranker over each of its first stages."""
    return [RerankedRow(reranker, name) for reranker in config.baselines.rerankers for name in reranker.over]


def check_names(config: Config) -> None:
    """Every first stage has a name of its own, and every name that is used belongs to one.

    Raises:
        ArmorError: a taken or unknown name, or a convex fusion of a stage that ranks without scoring all passages.
    """
    known = {BM25, BASE, *(row.method for row in adapted_methods(config))}
    partial: set[str] = set()
    for stage in config.baselines.first_stages:
        if stage.label in known:
            raise ArmorError(f"'{stage.label}' is the name of another row", where=f"{_WHERE}.first_stages", hint="set name")
        if isinstance(stage, FusionStageConfig):
            _check_fusion(stage, known, partial)
        known.add(stage.label)
    for row in reranked_rows(config):
        if row.over not in known:
            raise _unknown(row.over, f"{_WHERE}.rerankers.{row.reranker.label}.over", known)


def _check_fusion(stage: FusionStageConfig, known: set[str], partial: set[str]) -> None:
    where = f"{_WHERE}.first_stages.{stage.label}"
    for name in stage.of:
        if name not in known:
            raise _unknown(name, f"{where}.of", known)
        if stage.method == "convex" and name in partial:
            raise ArmorError(f"'{name}' gives no scores to mix", where=where, hint="use method: reciprocal-rank")
    if stage.method == "reciprocal-rank":
        partial.add(stage.label)


def _unknown(name: str, where: str, known: set[str]) -> ArmorError:
    return ArmorError(f"no first stage '{name}' before it", where=where, hint=f"known: {', '.join(sorted(known))}")


def baselines_identity(config: Config) -> dict[str, Any]:
    """The part of the config that decides the rows, its models by content and not by place; empty without baselines.

    Raises:
        ArmorError: a model that is not there.
    """
    found = {name: [_identity(item) for item in getattr(config.baselines, name)] for name in ("first_stages", "rerankers")}
    if not any(found.values()):
        return {}
    return {"baselines": found, "judge": config.judge.model_dump(include={"model", "base_url"})}


def _identity(item: NamedConfig) -> dict[str, Any]:
    values = item.model_dump(exclude={"revision"})
    models = {key: identify_model(values[key], getattr(item, "revision", None)) for key in _MODEL_KEYS if key in values}
    return {**values, **models}
