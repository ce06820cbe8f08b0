"""`candidates.refresh`: extends pools by the current encoder's top-k and scores only pairs that no pool held before.

Extending is enough for the paper's procedure: the RAG softmax runs over the top-k *of the pool* by current scores, and a pool that
contains the corpus' current top-k has the same top-k.
"""

from __future__ import annotations

import numpy as np

from armor_ray.config import CandidatesConfig
from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.training.host import Host, PairScorer
from armor_ray.training.table import PADDING, QuestionPools


class PoolRefresher:
    """Rank 0 retrieves and scores; all ranks receive the same new pairs, so their pools stay equal."""

    def __init__(self, config: CandidatesConfig, passages_CD: np.ndarray, score: PairScorer | None, host: Host) -> None:
        if score is None:
            raise ArmorError(f"candidates.refresh '{config.refresh}' needs a generator that scores", where="candidates.refresh")
        self._top_k = min(config.top_k, len(passages_CD))
        self._passages_CD = passages_CD
        self._score = score
        self._host = host

    def refresh(self, encoder: BiEncoder, pools: QuestionPools, questions: np.ndarray) -> int:
        """Extends the pools of `questions` in place; returns the number of new pairs."""
        found = self._new_pairs(encoder, pools, questions) if self._host.rank == 0 else None
        new_questions, new_rows, values = self._host.broadcast(found)
        extend_pools(pools, new_questions, new_rows, values)
        return len(new_questions)

    def _new_pairs(
        self, encoder: BiEncoder, pools: QuestionPools, questions: np.ndarray
    ) -> tuple[list[int], list[int], list[float | None]]:
        queries = encoder.encode([pools.questions[i] for i in questions], "query")
        _, top = exact_top_k(queries, self._passages_CD, self._top_k)
        pairs = [
            (int(question), int(row))
            for question, rows in zip(questions, top, strict=True)
            for row in rows[~np.isin(rows, pools.pool_QN[question])]
        ]
        new_questions, new_rows = [q for q, _ in pairs], [r for _, r in pairs]
        return new_questions, new_rows, self._score(pools, new_questions, new_rows) if pairs else []


def extend_pools(pools: QuestionPools, questions: list[int], rows: list[int], values: list[float | None]) -> None:
    """Appends (question, row, log-likelihood) triples to the pools, widening the arrays where needed."""
    used = (pools.pool_QN != PADDING).sum(1)
    added = np.bincount(questions, minlength=len(pools)) if questions else np.zeros(len(pools), np.int64)
    grow = max(0, int((used + added).max()) - pools.pool_QN.shape[1])
    pools.pool_QN = np.pad(pools.pool_QN, ((0, 0), (0, grow)), constant_values=PADDING)
    pools.log_likelihood_QN = np.pad(pools.log_likelihood_QN, ((0, 0), (0, grow)))
    pools.scored_QN = np.pad(pools.scored_QN, ((0, 0), (0, grow)))
    for question, row, value in zip(questions, rows, values, strict=True):
        column = used[question]
        used[question] += 1
        pools.pool_QN[question, column] = row
        pools.scored_QN[question, column] = value is not None
        pools.log_likelihood_QN[question, column] = 0.0 if value is None else value
