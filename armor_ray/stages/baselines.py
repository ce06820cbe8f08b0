"""Rows of the `baselines` section: published first stages, fusions, and rerankers over any first stage."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from armor_ray.config import Config, GeneratorConfig
from armor_ray.config_baselines import (
    ChatRerankerConfig,
    EndpointConfig,
    FusionStageConfig,
    SePerRerankerConfig,
)
from armor_ray.errors import ArmorError
from armor_ray.evaluation.labels import BASE, BM25
from armor_ray.judges.blocking import BlockingChat
from armor_ray.judges.failures import BudgetExhausted, ChatError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.generators.openai import OpenAIGenerator
from armor_ray.models.hardware import choose_device
from armor_ray.retrieval.first_stages import build_first_stage
from armor_ray.retrieval.first_stages.vectors import VectorSearch
from armor_ray.retrieval.fusion import ConvexFusion, ReciprocalRankFusion
from armor_ray.retrieval.lexical import Bm25
from armor_ray.retrieval.protocols import Chat, FirstStage, Message
from armor_ray.retrieval.rerankers import build_reranker
from armor_ray.retrieval.rerankers.composition import Reranked
from armor_ray.retrieval.rerankers.tools import Faults, Sampler, Tools
from armor_ray.stages.baseline_methods import reranked_rows
from armor_ray.stages.cluster import plan_actors, user_errors
from armor_ray.stages.embed import open_embeddings
from armor_ray.stages.methods import adapted_methods
from armor_ray.stages.prepare import load_passages
from armor_ray.stages.rankings import Ranking, SplitQuestions, load_split
from armor_ray.workspace import Workspace

_FUSED_DEPTH = 100


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A ranking of the test split by one baseline.

    Attributes:
        weight: of the first side of a convex fusion.
        faults: replies of a judge that could not be used, by kind.
    """

    method: str
    ranking: Ranking
    weight: float | None = None
    faults: dict[str, int] = field(default_factory=dict)


def rank_baselines(config: Config, workspace: Workspace, depth: int) -> list[BaselineRow]:
    """Every baseline on the test split, in one Ray task, so that each corpus is encoded once; nothing without baselines.

    Args:
        depth: passages of a ranking.
    """
    if not config.baselines.first_stages and not config.baselines.rerankers:
        return []
    rank = ray.remote(_rank_all).options(**plan_actors(config.resources, 1, 1).options)
    with user_errors():
        return ray.get(rank.remote(config, workspace.uri, depth))


def _rank_all(config: Config, workspace_uri: str, depth: int) -> list[BaselineRow]:
    workspace = Workspace(workspace_uri)
    test = load_split(workspace, "test")
    stages = Stages(config, workspace)
    rows = []
    for stage in config.baselines.first_stages:
        found = stages.get(stage.label)
        weight = found.weight if isinstance(found, ConvexFusion) else None
        rows.append(BaselineRow(stage.label, _search(found, test, depth), weight))
    for row in reranked_rows(config):
        with ExitStack() as opened:
            tools = _tools(config, workspace, test, opened)
            reranker = build_reranker(row.reranker, tools)
            workers = config.judge.concurrency if isinstance(row.reranker, ChatRerankerConfig | SePerRerankerConfig) else 1
            reranked = Reranked(stages.get(row.over), reranker, stages.texts.__getitem__, len(stages.texts), row.reranker.depth, workers)
            rows.append(BaselineRow(row.method, _search(reranked, test, depth), faults=tools.faults.counts()))
    return rows


def _search(stage: FirstStage, split: SplitQuestions, depth: int) -> Ranking:
    scores, rows = stage.search(split.questions, depth)
    return Ranking(rows, scores)


# -- first stages --------------------------------------------------------------------------------------------------------------


class Stages:
    """First stages by name, each built at its first use."""

    def __init__(self, config: Config, workspace: Workspace) -> None:
        self._config, self._workspace = config, workspace
        self._built: dict[str, Any] = {}
        self.texts: list[str] = load_passages(workspace, "text").column("text").to_pylist()

    def get(self, name: str) -> Any:
        """The stage of a name that `check_names` knows."""
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def _build(self, name: str) -> FirstStage:
        if name == BM25:
            return Bm25(self.texts)
        listed = {stage.label: stage for stage in self._config.baselines.first_stages}
        if name not in listed:
            return self._own(name)
        stage = listed[name]
        return self._fusion(stage) if isinstance(stage, FusionStageConfig) else build_first_stage(stage, self.texts)

    def _own(self, name: str) -> VectorSearch:
        """The base encoder, or a trained row's first seed, over the frozen passage vectors."""
        artifacts = {row.method: row.artifacts[0] for row in adapted_methods(self._config)}
        loaded = BiEncoder.load(self._config.encoder) if name == BASE else BiEncoder.from_folder(self._workspace.local(artifacts[name]))
        encoder = loaded.to(choose_device())
        return VectorSearch(lambda questions: encoder.encode(questions, "query"), open_embeddings(self._workspace.local("embeddings")))

    def _fusion(self, stage: FusionStageConfig) -> FirstStage:
        first, second = (self.get(name) for name in stage.of)
        if stage.method == "reciprocal-rank":
            return ReciprocalRankFusion([first, second], min(_FUSED_DEPTH, len(self.texts)))
        validation = load_split(self._workspace, "validation")
        grid, k = self._config.evaluation.fusion_grid, int(self._config.training.metric.removeprefix("R@"))
        return ConvexFusion.tuned(first, second, validation.questions, validation.gold, grid, k)


# -- what rerankers ask for ----------------------------------------------------------------------------------------------------


def _tools(config: Config, workspace: Workspace, split: SplitQuestions, opened: ExitStack) -> Tools:
    faults = Faults()

    def chat(endpoint: EndpointConfig | None, max_tokens: int) -> Chat:
        judge = config.judge if endpoint is None else config.judge.model_copy(update=endpoint.model_dump())
        return _forgiving(opened.enter_context(BlockingChat(judge, _chat_cache(workspace), max_tokens=max_tokens)), faults)

    def sampler(endpoint: EndpointConfig, max_new_tokens: int) -> Sampler:
        return OpenAIGenerator(GeneratorConfig(engine="openai", max_new_tokens=max_new_tokens, **endpoint.model_dump()))

    return Tools(chat, sampler, dict(zip(split.questions, split.answers, strict=True)), faults)


def _forgiving(chat: BlockingChat, faults: Faults) -> Chat:
    """A request that fails for good is an empty reply, which no reranker can read, and is counted; an exhausted budget ends the run."""

    def ask(messages: list[Message]) -> str:
        try:
            return chat(messages)
        except BudgetExhausted as error:
            raise ArmorError(error.message, where="judge.budget", hint="raise it; paid replies are kept") from None
        except ChatError as error:
            faults.add(f"request failed: {error.failure}")
            return ""

    return ask


def _chat_cache(workspace: Workspace) -> Path:
    """On a local disk, as the cache needs it; one for each workspace, since budgets are kept in it."""
    if workspace.is_local:
        return Path(workspace.path("cache/judges.sqlite"))
    root = Path(os.environ.get("ARMOR_RAY_CACHE", Path.home() / ".cache" / "armor_ray"))
    return root / "judges" / f"{hashlib.sha256(workspace.uri.encode()).hexdigest()[:12]}.sqlite"
