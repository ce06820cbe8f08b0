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

NewPairs = tuple[list[int], list[int], list[float | None]]


class PoolRefresher:
    """Extends the pools of one split; rank 0 retrieves and scores, all ranks receive the same new pairs, so their pools stay equal.

    Raises:
        ArmorError: there is nothing to score with.
    """

    def __init__(
        self, config: CandidatesConfig, passages_CD: np.ndarray, pools: QuestionPools, score: PairScorer | None, host: Host
    ) -> None:
        if score is None:
            raise ArmorError(f"candidates.refresh '{config.refresh}' needs a generator that scores", where="candidates.refresh")
        self._top_k = min(config.top_k, len(passages_CD))
        self._passages_CD = passages_CD
        self._pools = pools
        self._score = score
        self._host = host

    def refresh(self, encoder: BiEncoder, questions: np.ndarray) -> None:
        """Extends the pools of `questions` (distinct numbers) in place. Every rank calls it."""
        pairs = self._new_pairs(encoder, questions) if self._host.rank == 0 else None
        extend_pools(self._pools, *self._host.broadcast(pairs))

    def _new_pairs(self, encoder: BiEncoder, questions: np.ndarray) -> NewPairs:
        query_BD = encoder.encode([self._pools.questions[i] for i in questions], "query")
        _, top_BK = exact_top_k(query_BD, self._passages_CD, self._top_k)
        known_BK = (top_BK[:, :, None] == self._pools.pool_QN[questions][:, None, :]).any(-1)
        new_questions = np.repeat(questions, (~known_BK).sum(1)).tolist()
        new_rows = top_BK[~known_BK].tolist()
        values = self._score(self._pools, new_questions, new_rows) if new_rows else []
        return new_questions, new_rows, values


def extend_pools(pools: QuestionPools, questions: list[int], rows: list[int], values: list[float | None]) -> None:
    """Appends (question, passage row, log-likelihood or None) triples, in place; pairs must be new to their pools."""
    if not questions:
        return
    used = {question: int((pools.pool_QN[question] != PADDING).sum()) for question in set(questions)}
    columns = []
    for question in questions:
        columns.append(used[question])
        used[question] += 1
    _widen_to(pools, max(used.values()))
    pools.pool_QN[questions, columns] = rows
    pools.log_likelihood_QN[questions, columns] = [0.0 if value is None else value for value in values]
    pools.scored_QN[questions, columns] = [value is not None for value in values]


def _widen_to(pools: QuestionPools, width: int) -> None:
    missing = width - pools.pool_QN.shape[1]
    if missing <= 0:
        return
    # A quarter more than asked for: with `step`, pools grow by a few columns at a time, and each growth copies them all.
    room = ((0, 0), (0, missing + width // 4))
    pools.pool_QN = np.pad(pools.pool_QN, room, constant_values=PADDING)
    pools.log_likelihood_QN = np.pad(pools.log_likelihood_QN, room)
    pools.scored_QN = np.pad(pools.scored_QN, room)
