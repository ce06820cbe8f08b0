"""Rows of the `baselines` section: published first stages, fusions, and rerankers over any first stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

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
from armor_ray.retrieval.protocols import Chat, ExhaustiveStage, FirstStage, Message
from armor_ray.retrieval.rerankers import build_reranker
from armor_ray.retrieval.rerankers.composition import Reranked
from armor_ray.retrieval.rerankers.tools import Faults, Sampler, Tools
from armor_ray.stages.baseline_methods import RerankedRow, reranked_rows
from armor_ray.stages.cluster import plan_actors, user_errors
from armor_ray.stages.embed import open_embeddings
from armor_ray.stages.methods import adapted_methods
from armor_ray.stages.prepare import load_passages
from armor_ray.stages.rankings import BASE_CORPUS, Ranking, SplitQuestions, corpus_searched, load_split
from armor_ray.stages.reply_cache import reply_cache
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


def rank_baselines(config: Config, workspace: Workspace, depth: int, say: Callable[[str], None]) -> Iterator[BaselineRow]:
    """Every baseline on the test split, one after the other in one Ray actor, so that each corpus is encoded once.

    Args:
        depth: passages of a ranking.
        say: told which row is being ranked; some take hours.
    """
    wanted: list[str | RerankedRow] = [*(stage.label for stage in config.baselines.first_stages), *reranked_rows(config)]
    if not wanted:
        return
    actor: Any = ray.remote(Baselines).options(**plan_actors(config.resources, 1, 1).options).remote(config, workspace.uri, depth)
    for number, row in enumerate(wanted, 1):
        say(f"evaluate: ranking with {row if isinstance(row, str) else row.method} (baseline {number} of {len(wanted)})")
        with user_errors():
            yield ray.get(actor.rank.remote(row))


class Baselines:
    """Ranks the test split by first stages and by rerankers over them."""

    def __init__(self, config: Config, workspace_uri: str, depth: int) -> None:
        self._config, self._workspace, self._depth = config, Workspace(workspace_uri), depth
        self._test = load_split(self._workspace, "test")
        self._stages = Stages(config, self._workspace)

    def rank(self, row: str | RerankedRow) -> BaselineRow:
        """A first stage by its name, or a reranked row."""
        if isinstance(row, RerankedRow):
            return self._rerank(row)
        stage = self._stages.get(row)
        return BaselineRow(row, self._search(stage), stage.weight if isinstance(stage, ConvexFusion) else None)

    def _rerank(self, row: RerankedRow) -> BaselineRow:
        texts = self._stages.texts
        with ExitStack() as opened:
            tools = _tools(self._config, self._workspace, self._test, opened)
            reranker = build_reranker(row.reranker, tools)
            stage = Reranked(self._stages.get(row.over), reranker, texts.__getitem__, len(texts), row.reranker.depth, self._workers(row))
            return BaselineRow(row.method, self._search(stage), faults=tools.faults.counts())

    def _workers(self, row: RerankedRow) -> int:
        """Questions at once: as many as the endpoint may be asked at once, one where the work is done here."""
        asks = isinstance(row.reranker, ChatRerankerConfig | SePerRerankerConfig)
        return self._config.judge.concurrency if asks else 1

    def _search(self, stage: FirstStage) -> Ranking:
        scores, rows = stage.search(self._test.questions, self._depth)
        return Ranking(rows, scores)


# -- first stages --------------------------------------------------------------------------------------------------------------


class Stages:
    """First stages by name, each built at its first use."""

    def __init__(self, config: Config, workspace: Workspace) -> None:
        self._config, self._workspace = config, workspace
        self._built: dict[str, FirstStage] = {}
        self.texts: list[str] = load_passages(workspace, "text").column("text").to_pylist()

    def get(self, name: str) -> FirstStage:
        """The stage of a name that passed `check_names`."""
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
        """The base encoder, or a trained row's first seed, over the vectors that it searches."""
        if name == BASE:
            loaded, corpus = BiEncoder.load(self._config.encoder), BASE_CORPUS
        else:
            artifact = next(row.artifacts[0] for row in adapted_methods(self._config) if row.method == name)
            loaded, corpus = BiEncoder.from_folder(self._workspace.local(artifact)), corpus_searched(self._workspace, artifact)
        encoder = loaded.to(choose_device())
        return VectorSearch(lambda questions: encoder.encode(questions, "query"), open_embeddings(self._workspace.local(corpus)))

    def _fusion(self, stage: FusionStageConfig) -> FirstStage:
        if stage.method == "reciprocal-rank":
            return ReciprocalRankFusion([self.get(name) for name in stage.of], min(_FUSED_DEPTH, len(self.texts)))
        first, second = (cast(ExhaustiveStage, self.get(name)) for name in stage.of)  # `check_names` refuses others
        validation = load_split(self._workspace, "validation")
        grid, k = self._config.evaluation.fusion_grid, self._config.training.metric_depth
        return ConvexFusion.tuned(first, second, validation.questions, validation.gold, grid, k)


# -- what rerankers ask for ----------------------------------------------------------------------------------------------------


def _tools(config: Config, workspace: Workspace, split: SplitQuestions, opened: ExitStack) -> Tools:
    faults = Faults()

    def chat(endpoint: EndpointConfig | None, max_tokens: int) -> Chat:
        judge = config.judge if endpoint is None else config.judge.model_copy(update=endpoint.model_dump())
        return _forgiving(opened.enter_context(BlockingChat(judge, reply_cache(workspace), max_tokens=max_tokens)), faults)

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
