"""Hybrid search: dense and lexical scores of the same passages in one ranking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.retrieval.protocols import ExhaustiveStage, FirstStage
from armor_ray.retrieval.ranking import question_blocks, top_k_in_blocks


class ConvexFusion:
    """`weight · first + (1 - weight) · second` of two exhaustive first stages, each min-max normalised per question (`convex`)."""

    def __init__(self, first: ExhaustiveStage, second: ExhaustiveStage, weight: float) -> None:
        self._first, self._second = first, second
        self.weight = weight

    @classmethod
    def tuned(
        cls,
        first: ExhaustiveStage,
        second: ExhaustiveStage,
        questions: Sequence[str],
        gold: Sequence[np.ndarray],
        grid: Sequence[float],
        k: int,
    ) -> ConvexFusion:
        """With the weight of the highest recall@k; arguments as of `best_weight`, `questions` from validation."""
        scores = ((first.score_matrix(block), second.score_matrix(block)) for block in question_blocks(questions))
        weight, _ = best_weight(scores, gold, grid, k)
        return cls(first, second, weight)

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `FirstStage.search`."""
        return top_k_in_blocks(self.score_matrix, questions, k)

    def score_matrix(self, questions: Sequence[str]) -> np.ndarray:
        """Scores fp32 [Q, C] in [0, 1]."""
        return convex(self._first.score_matrix(questions), self._second.score_matrix(questions), self.weight)


class ReciprocalRankFusion:
    """Reciprocal rank fusion of any first stages; needs no tuning and no scores.

    Args:
        depth: passages of each stage that take part (k where that is more); at most the passages of the corpus.
    """

    def __init__(self, stages: Sequence[FirstStage], depth: int) -> None:
        self._stages, self._depth = stages, depth

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `FirstStage.search`."""
        rankings = [stage.search(questions, max(k, self._depth))[1] for stage in self._stages]
        scores, rows = reciprocal_rank(rankings)
        return scores[:, :k], rows[:, :k]


def convex(dense_QC: np.ndarray, lexical_QC: np.ndarray, weight: float) -> np.ndarray:
    """`weight · dense + (1 - weight) · lexical` as fp32 [Q, C] in [0, 1], each side min-max normalised per question.

    A side that scores all passages of a question alike (a question without any known word) counts as 0 and leaves the ranking to the other.

    Args:
        dense_QC, lexical_QC: scores of every passage of the corpus, on any scale.
        weight: of the dense side, in [0, 1].

    Raises:
        ArmorError: the shapes differ, or the weight lies outside [0, 1].
    """
    if dense_QC.shape != lexical_QC.shape:
        raise ArmorError(f"dense scores {dense_QC.shape} and lexical scores {lexical_QC.shape} differ in shape", where="fusion")
    if not 0 <= weight <= 1:
        raise ArmorError(f"the fusion weight is {weight}", where="fusion", hint="choose it in [0, 1]")
    return np.float32(weight) * min_max(dense_QC) + np.float32(1 - weight) * min_max(lexical_QC)


ScoreBlocks = Iterable[tuple[np.ndarray, np.ndarray]]
"""Dense and lexical scores [Q_i, C] of consecutive blocks of questions; together of all of them."""


def best_weight(blocks: ScoreBlocks, gold: Sequence[np.ndarray], grid: Sequence[float], k: int) -> tuple[float, dict[float, float]]:
    """The convex weight with the highest recall@k, and recall@k in [0, 1] for every weight of the grid.

    Use validation questions. Among equally good weights the one nearest an even mixture wins, then the lower: ends of a plateau overfit.

    Args:
        blocks: scores of every passage; read once, one block at a time, so a generator bounds the memory.
        gold: per question the rows of its gold passages, at least one.
        grid: weights in [0, 1], at least one.
        k: cut-off of the recall, ≥ 1.
    """
    hits = dict.fromkeys(grid, 0)
    start = 0
    for dense_QC, lexical_QC in blocks:
        block_gold = gold[start : start + len(dense_QC)]
        for weight in hits:
            hits[weight] += _count_hits(convex(dense_QC, lexical_QC, weight), block_gold, k)
        start += len(dense_QC)
    assert start == len(gold), f"scores of {start} questions, gold passages of {len(gold)}"
    curve = {weight: count / start for weight, count in hits.items()}
    best = max(curve, key=lambda weight: (curve[weight], -abs(weight - 0.5), -weight))
    return best, curve


def reciprocal_rank(rankings: Sequence[np.ndarray], k: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Reciprocal rank fusion, `Σ 1 / (k + rank)`: scores fp32 [Q, K] and passage rows int64 [Q, K], best first, ties to the lower row.

    Args:
        rankings: one array [Q, K_i] of distinct passage rows per retriever, best first; K is the longest K_i.
        k: smoothing constant of the method's authors, not a cut-off.
    """
    depth = max(ranking.shape[1] for ranking in rankings)
    scores_QK = np.empty((len(rankings[0]), depth), np.float32)
    rows_QK = np.empty((len(rankings[0]), depth), np.int64)
    for question in range(len(rows_QK)):
        lists = [ranking[question] for ranking in rankings]
        rows, place = np.unique(np.concatenate(lists), return_inverse=True)
        gains = np.concatenate([1.0 / (k + 1 + np.arange(len(found))) for found in lists])
        scores = np.bincount(place, gains)
        order = np.argsort(-scores, kind="stable")[:depth]
        scores_QK[question], rows_QK[question] = scores[order], rows[order]
    return scores_QK, rows_QK


def min_max(scores_QC: np.ndarray) -> np.ndarray:
    """Scores fp32 [Q, C] in [0, 1], per question 0 for the lowest and 1 for the highest; all 0 where all are alike."""
    low = scores_QC.min(1, keepdims=True)
    spread = scores_QC.max(1, keepdims=True) - low
    return ((scores_QC - low) / np.where(spread > 0, spread, 1)).astype(np.float32)


def _count_hits(scores_QC: np.ndarray, gold: Sequence[np.ndarray], k: int) -> int:
    return sum(_best_rank(scores_C, rows) <= k for scores_C, rows in zip(scores_QC, gold, strict=True))


def _best_rank(scores_C: np.ndarray, gold: np.ndarray) -> int:
    # The best gold passage's rank under the rule of `ranking.top_k`, without sorting the corpus.
    row = min(gold, key=lambda gold_row: (-scores_C[gold_row], gold_row))
    ahead = np.count_nonzero(scores_C > scores_C[row]) + np.count_nonzero(scores_C[:row] == scores_C[row])
    return 1 + int(ahead)
