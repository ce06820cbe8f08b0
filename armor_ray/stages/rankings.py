"""Rankings of whole splits by every method: base, adapted, BM25, and BM25 fused with either."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass

import numpy as np
import ray

from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.retrieval.first_stages.vectors import VectorSearch
from armor_ray.retrieval.fusion import ConvexFusion
from armor_ray.retrieval.lexical import Bm25
from armor_ray.stages.candidates import load_queries
from armor_ray.stages.cluster import user_errors
from armor_ray.stages.embed import open_embeddings
from armor_ray.stages.prepare import load_examples, load_passages
from armor_ray.workspace import Workspace

RANKED = 100
BASE_CORPUS = "embeddings"


@dataclass(frozen=True, slots=True)
class SplitQuestions:
    """The questions of one split with their gold passages."""

    example_ids: list[str]
    questions: list[str]
    answers: list[list[str]]
    domains: list[str]
    gold: list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Best passages per question: rows int64 [Q, K] and scores fp32 [Q, K]."""

    rows_QK: np.ndarray
    scores_QK: np.ndarray


QueryVectors = dict[str, np.ndarray]
"""Split name → query vectors fp32 [Q, D]."""


def load_split(workspace: Workspace, split: str) -> SplitQuestions:
    """The questions of one split of the workspace."""
    table = load_examples(workspace, split)
    columns = {name: table[name].to_pylist() for name in ("example_id", "question", "answers", "domain", "positive_ids")}
    gold = [np.asarray(ids, np.int64) for ids in columns["positive_ids"]]
    return SplitQuestions(columns["example_id"], columns["question"], columns["answers"], columns["domain"], gold)


def base_query_vectors(workspace: Workspace) -> QueryVectors:
    """What the `candidates` stage encoded, held-out splits only."""
    folder = workspace.local("candidates")
    return {split: load_queries(folder, split) for split in ("validation", "test")}


def adapted_query_vectors(workspace: Workspace, retrievers: list[str]) -> dict[str, QueryVectors]:
    """Encodes both held-out splits with every retriever, one Ray task a retriever."""
    encode = ray.remote(num_cpus=1)(_encode_held_out)
    with user_errors():
        found = ray.get([encode.remote(workspace.uri, name) for name in retrievers])
    return dict(zip(retrievers, found, strict=True))


def _encode_held_out(workspace_uri: str, retriever: str) -> QueryVectors:
    workspace = Workspace(workspace_uri)
    encoder = BiEncoder.from_folder(workspace.local(retriever))
    return {split: encoder.encode(load_split(workspace, split).questions, "query") for split in ("validation", "test")}


def corpus_searched(workspace: Workspace, retriever: str) -> str:
    """The artifact with the vectors that a retriever searches: the base encoder's, or those of its own passage tower."""
    return workspace.require(retriever).details.get("corpus", BASE_CORPUS)


class Rankers:
    """Ranks queries against the corpus; loads vectors and BM25 once.

    Args:
        deepest: how many passages a ranking must hold at least; it holds `RANKED` or more, as far as the corpus goes.
    """

    def __init__(self, workspace: Workspace, deepest: int = RANKED) -> None:
        self._workspace = workspace
        self.passages_CD = open_embeddings(workspace.local(BASE_CORPUS))
        self._texts = load_passages(workspace, "text").column("text")
        self.depth = min(max(RANKED, deepest), len(self._texts))

    def of(self, retriever: str) -> Rankers:
        """These rankers over the vectors that a retriever searches: the base encoder's, or those of its own passage tower."""
        corpus = corpus_searched(self._workspace, retriever)
        if corpus == BASE_CORPUS:
            return self
        own = copy.copy(self)
        own.passages_CD = open_embeddings(self._workspace.local(corpus))
        return own

    @functools.cached_property
    def bm25(self) -> Bm25:
        """The lexical first stage."""
        return Bm25(self._texts.to_pylist())

    def text(self, row: int) -> str:
        """The passage of that row."""
        return self._texts[int(row)].as_py()

    def dense(self, queries_QD: np.ndarray) -> Ranking:
        scores, rows = exact_top_k(queries_QD, self.passages_CD, self.depth)
        return Ranking(rows, scores)

    def lexical(self, questions: list[str]) -> Ranking:
        scores, rows = self.bm25.search(questions, self.depth)
        return Ranking(rows, scores)

    def fusion_weight(self, queries_QD: np.ndarray, questions: list[str], gold: list[np.ndarray], grid: list[float], k: int) -> float:
        """The weight of the dense score in the convex mix, tuned by recall@k on validation questions."""
        return ConvexFusion.tuned(self.dense_stage(queries_QD, questions), self.bm25, questions, gold, grid, k).weight

    def fused(self, queries_QD: np.ndarray, questions: list[str], weight: float) -> Ranking:
        """Convex fusion with BM25."""
        scores, rows = self.fused_stage(queries_QD, questions, weight).search(questions, self.depth)
        return Ranking(rows, scores)

    def fused_stage(self, queries_QD: np.ndarray, questions: list[str], weight: float) -> ConvexFusion:
        """The first stage behind `fused`."""
        return ConvexFusion(self.dense_stage(queries_QD, questions), self.bm25, weight)

    def dense_stage(self, queries_QD: np.ndarray, questions: list[str]) -> VectorSearch:
        """The first stage behind `dense`, for these questions, whose vectors are known."""
        known = dict(zip(questions, queries_QD, strict=True))
        return VectorSearch(lambda block: np.stack([known[question] for question in block]), self.passages_CD)
