"""Stage `latency`: how long each method takes for one question, end to end, all in one process and on the same questions.

An artifact of its own, so that a rerun of the evaluation does not measure anew and its other numbers do not depend on a clock.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import ray

from armor_ray.config import Config
from armor_ray.evaluation.labels import BASE, BM25, FUSION_PREFIX
from armor_ray.evaluation.latency import time_stages
from armor_ray.models.hardware import choose_device
from armor_ray.retrieval.fusion import ConvexFusion
from armor_ray.retrieval.protocols import ExhaustiveStage, FirstStage
from armor_ray.retrieval.rerankers import build_reranker
from armor_ray.retrieval.rerankers.composition import Reranked
from armor_ray.stages.baseline_methods import RerankedRow, reranked_rows
from armor_ray.stages.baselines import Stages, open_tools
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.methods import adapted_methods
from armor_ray.stages.rankings import load_split
from armor_ray.workspace import Draft, Workspace, read_parquet

STAGE = "latency"
_FILE = "latencies.parquet"
_SECONDS = 120.0  # a reranker's; the first stages share as many
_ANY_WEIGHT = 0.5  # takes as long as any other


def run_all(context: Context, todo: list[Plan]) -> None:
    [plan] = todo
    connect(context.workspace)
    options = plan_actors(context.config.resources, 1, 1).options
    actor: Any = ray.remote(Stopwatch).options(**options).remote(context.config, context.workspace.uri)
    with user_errors():
        latencies: dict[str, list[float]] = ray.get(actor.first_stages.remote())
        for row in reranked_rows(context.config):
            context.say(f"{STAGE}: {row.method}")
            latencies |= ray.get(actor.reranked.remote(row))
        machine: dict[str, object] = ray.get(actor.machine.remote())

    def write(draft: Draft) -> None:
        rows = [{"method": name, "milliseconds": value} for name, values in latencies.items() for value in values]
        pq.write_table(pa.Table.from_pylist(rows), draft.path / _FILE)
        draft.rows["measurements"] = len(rows)
        draft.details |= machine

    context.publish(plan, write)


def load_latencies(workspace: Workspace) -> dict[str, list[float]]:
    """Method → milliseconds of each question."""
    found: dict[str, list[float]] = {}
    for row in read_parquet(workspace.local(STAGE) / _FILE, STAGE).to_pylist():
        found.setdefault(row["method"], []).append(row["milliseconds"])
    return found


class Stopwatch:
    """Times methods in the process of one actor."""

    def __init__(self, config: Config, workspace_uri: str) -> None:
        self._config, self._workspace = config, Workspace(workspace_uri)
        self._test = load_split(self._workspace, "test")
        self._questions = self._test.questions[: config.evaluation.latency_questions]
        self._warm_up = load_split(self._workspace, "validation").questions[0]
        self._k = max(config.evaluation.ks)
        self._stages = Stages(config, self._workspace)

    def machine(self) -> dict[str, object]:
        """What the numbers were measured on."""
        return {"device": str(choose_device()), "cpus": os.cpu_count(), "k": self._k}

    def first_stages(self) -> dict[str, list[float]]:
        """Base, trained rows (first seed), BM25, its fusions, and the listed first stages, all in turn."""
        return time_stages(dict(self._first_stages()), self._warm_up, self._questions, self._k, _SECONDS)

    def _first_stages(self) -> Iterator[tuple[str, FirstStage]]:
        trained = adapted_methods(self._config)
        for name in (BASE, *(row.method for row in trained)):
            yield name, self._stages.served(name)
        yield BM25, self._stages.get(BM25)
        for name in (BASE, *(row.method for row in trained if row.is_fused)):
            parts = [cast(ExhaustiveStage, self._stages.get(part)) for part in (name, BM25)]
            yield FUSION_PREFIX + name, ConvexFusion(parts[0], parts[1], _ANY_WEIGHT)
        for stage in self._config.baselines.first_stages:
            yield stage.label, self._stages.get(stage.label)

    def reranked(self, row: RerankedRow) -> dict[str, list[float]]:
        """One reranker over its first stage. Chat models are asked anew: a reply from the cache would take no time."""
        with ExitStack() as opened:
            cache = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "judges.sqlite"
            reranker = build_reranker(row.reranker, open_tools(self._config, self._test, cache, opened))
            texts = self._stages.texts
            stage = Reranked(self._stages.served(row.over), reranker, texts.__getitem__, len(texts), row.reranker.depth)
            return time_stages({row.method: stage}, self._warm_up, self._questions, self._k, _SECONDS)
