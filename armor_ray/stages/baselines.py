"""Rows of the `baselines` section: published first stages, fusions, and rerankers over any first stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
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
from armor_ray.retrieval.first_stages.indexed import IndexSearch
from armor_ray.retrieval.first_stages.vectors import VectorSearch
from armor_ray.retrieval.fusion import ConvexFusion, ReciprocalRankFusion
from armor_ray.retrieval.index_file import open_index
from armor_ray.retrieval.lexical import Bm25
from armor_ray.retrieval.pools import PoolSearch
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
        pooled: the hard pools in the same method's order, where they are ranked.
        faults: replies of a judge that could not be used, by kind.
    """

    method: str
    ranking: Ranking
    weight: float | None = None
    faults: dict[str, int] = field(default_factory=dict)
    pooled: Ranking | None = None


def rank_baselines(
    config: Config, workspace: Workspace, depth: int, say: Callable[[str], None], pool_QN: np.ndarray | None = None
) -> Iterator[BaselineRow]:
    """Every baseline on the test split, one after the other in one Ray actor, so that each corpus is encoded once.

    Args:
        depth: passages of a ranking.
        say: told which row is being ranked; some take hours.
        pool_QN: the test questions' hard pools, which are ranked, too.
    """
    wanted: list[str | RerankedRow] = [*(stage.label for stage in config.baselines.first_stages), *reranked_rows(config)]
    if not wanted:
        return
    actor: Any = ray.remote(Baselines).options(**plan_actors(config.resources, 1, 1).options).remote(config, workspace.uri, depth, pool_QN)
    for number, row in enumerate(wanted, 1):
        say(f"evaluate: ranking with {row if isinstance(row, str) else row.method} (baseline {number} of {len(wanted)})")
        with user_errors():
            yield ray.get(actor.rank.remote(row))


class Baselines:
    """Ranks the test split by first stages and by rerankers over them."""

    def __init__(self, config: Config, workspace_uri: str, depth: int, pool_QN: np.ndarray | None = None) -> None:
        self._config, self._workspace, self._depth = config, Workspace(workspace_uri), depth
        self._test = load_split(self._workspace, "test")
        self._stages = Stages(config, self._workspace)
        self._pool_QN = pool_QN

    def rank(self, row: str | RerankedRow) -> BaselineRow:
        """A first stage by its name, or a reranked row."""
        if isinstance(row, RerankedRow):
            return self._rerank(row)
        stage = self._stages.get(row)
        weight = stage.weight if isinstance(stage, ConvexFusion) else None
        return BaselineRow(row, self._search(stage), weight, pooled=self._in_pools(row, lambda first, _: first))

    def _rerank(self, row: RerankedRow) -> BaselineRow:
        texts = self._stages.texts
        with ExitStack() as opened:
            tools = open_tools(self._config, self._test, reply_cache(self._workspace), opened)
            reranker = build_reranker(row.reranker, tools)

            def over(first: FirstStage, passages: int) -> FirstStage:
                return Reranked(first, reranker, texts.__getitem__, passages, row.reranker.depth, self._workers(row))

            ranking = self._search(over(self._stages.get(row.over), len(texts)))
            pooled = self._in_pools(row.over, over)
            return BaselineRow(row.method, ranking, faults=tools.faults.counts(), pooled=pooled)

    def _in_pools(self, name: str, over: Callable[[FirstStage, int], FirstStage]) -> Ranking | None:
        """The hard pools ranked by what `over` makes of the first stage and the size of a pool."""
        if self._pool_QN is None:
            return None
        size = self._pool_QN.shape[1]
        scores, rows = over(self._stages.confined(name, self._test.questions, self._pool_QN), size).search(self._test.questions, size)
        return Ranking(rows, scores)

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
        self._listed = {stage.label: stage for stage in config.baselines.first_stages}
        self.texts: list[str] = load_passages(workspace, "text").column("text").to_pylist()

    def get(self, name: str) -> FirstStage:
        """The stage of a name that passed `check_names`."""
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def confined(self, name: str, questions: list[str], pool_QN: np.ndarray) -> FirstStage:
        """The stage of that name over the questions' pools."""
        stage = self._listed.get(name)
        if isinstance(stage, FusionStageConfig) and stage.method == "reciprocal-rank":
            parts = [self.confined(part, questions, pool_QN) for part in stage.of]
            return ReciprocalRankFusion(parts, min(_FUSED_DEPTH, pool_QN.shape[1]))
        return PoolSearch(cast(ExhaustiveStage, self.get(name)), questions, pool_QN)  # all others score every passage

    def _build(self, name: str) -> FirstStage:
        if name == BM25:
            return Bm25(self.texts)
        if name not in self._listed:
            return self._own(name)
        stage = self._listed[name]
        return self._fusion(stage) if isinstance(stage, FusionStageConfig) else build_first_stage(stage, self.texts)

    def _own(self, name: str) -> VectorSearch:
        """The base encoder, or a trained row's first seed, over the vectors that it searches."""
        encoder, corpus = self._own_encoder(name)
        return VectorSearch(lambda questions: encoder.encode(questions, "query"), open_embeddings(self._workspace.local(corpus)))

    def served(self, name: str) -> FirstStage:
        """As `get`, but the base and the trained rows go through their index, as a server's do."""
        if name == BM25 or name in self._listed:
            return self.get(name)
        encoder, corpus = self._own_encoder(name)
        folder = self._workspace.local("index" if corpus == BASE_CORPUS else corpus)
        return IndexSearch(lambda questions: encoder.encode(questions, "query"), open_index(folder, encoder.identity.fingerprint()))

    def _own_encoder(self, name: str) -> tuple[BiEncoder, str]:
        """The encoder on the best device here, and the artifact of the vectors that it searches."""
        if name == BASE:
            return BiEncoder.load(self._config.encoder).to(choose_device()), BASE_CORPUS
        artifact = next(row.artifacts[0] for row in adapted_methods(self._config) if row.method == name)
        return BiEncoder.from_folder(self._workspace.local(artifact)).to(choose_device()), corpus_searched(self._workspace, artifact)

    def _fusion(self, stage: FusionStageConfig) -> FirstStage:
        if stage.method == "reciprocal-rank":
            return ReciprocalRankFusion([self.get(name) for name in stage.of], min(_FUSED_DEPTH, len(self.texts)))
        first, second = (cast(ExhaustiveStage, self.get(name)) for name in stage.of)  # `check_names` refuses others
        validation = load_split(self._workspace, "validation")
        grid, k = self._config.evaluation.fusion_grid, self._config.training.metric_depth
        return ConvexFusion.tuned(first, second, validation.questions, validation.gold, grid, k)


# -- what rerankers ask for ----------------------------------------------------------------------------------------------------


def open_tools(config: Config, split: SplitQuestions, cache: Path, opened: ExitStack) -> Tools:
    """Endpoints that close with `opened` and keep their replies in `cache`, and the split's reference answers."""
    faults = Faults()

    def chat(endpoint: EndpointConfig | None, max_tokens: int) -> Chat:
        judge = config.judge if endpoint is None else config.judge.model_copy(update=endpoint.model_dump())
        return _forgiving(opened.enter_context(BlockingChat(judge, cache, max_tokens=max_tokens)), faults)

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
