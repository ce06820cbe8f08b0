"""The hard pools of the test questions, for the methods that the evaluation ranks itself (UAE, evaluation protocol)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from armor_ray.retrieval.pools import PoolSearch, hard_pools
from armor_ray.retrieval.protocols import ExhaustiveStage, FirstStage
from armor_ray.stages.rankings import Ranking, SplitQuestions


@dataclass(frozen=True, slots=True)
class HardPools:
    """One pool a test question, the same for every method: passage rows int64 [Q, N]."""

    questions: list[str]
    pool_QN: np.ndarray

    @classmethod
    def of(cls, base: FirstStage, split: SplitQuestions, size: int, num_passages: int) -> HardPools:
        """See `retrieval.pools.hard_pools`; a corpus of fewer passages is its own pool."""
        _, rows_QK = base.search(split.questions, min(size, num_passages))
        return cls(split.questions, hard_pools(rows_QK, split.gold, rows_QK.shape[1]))

    @property
    def size(self) -> int:
        """N."""
        return self.pool_QN.shape[1]

    def depths(self, ks: Sequence[int]) -> list[int]:
        """The cut-offs that a pool reaches; its size alone where none is that small."""
        return [k for k in ks if k <= self.size] or [self.size]

    def ranked(self, stages: Sequence[ExhaustiveStage]) -> list[Ranking]:
        """The pools in each stage's order."""
        found = [PoolSearch(stage, self.questions, self.pool_QN).search(self.questions, self.size) for stage in stages]
        return [Ranking(rows, scores) for scores, rows in found]
