"""The hard pool protocol: every method orders the same few passages of a question (UAE, evaluation protocol).

Shape legend: Q questions, K passages of a ranking, N passages of a pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.retrieval.protocols import ExhaustiveStage
from armor_ray.retrieval.ranking import question_blocks


def hard_pools(rows_QK: np.ndarray, gold: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Pools int64 [Q, N] of exactly `size` passages: the best of a ranking, its last ones giving way to gold passages that it missed.

    Args:
        rows_QK: the base retriever's ranking, best first, K ≥ size.
        gold: per question the rows of its gold passages.

    Raises:
        ArmorError: a question with more gold passages than a pool holds.
    """
    most = max(len(wanted) for wanted in gold)
    if most > size:
        raise ArmorError(f"a question has {most} gold passages, a pool holds {size}", where="evaluation.hard_pool", hint="raise it")
    return np.stack([_pool(rows, wanted, size) for rows, wanted in zip(rows_QK, gold, strict=True)])


def _pool(rows_K: np.ndarray, gold: np.ndarray, size: int) -> np.ndarray:
    keep = size
    while keep + len(missed := gold[~np.isin(gold, rows_K[:keep])]) > size:
        keep -= 1
    return np.concatenate([rows_K[:keep], missed]).astype(np.int64)


class PoolSearch:
    """An exhaustive first stage confined to one pool a question; a first stage itself, so rerankers and fusions go over it.

    Args:
        questions: those that it can be asked, all at once and in this order (equal texts may have different pools).
        pool_QN: distinct passage rows.
    """

    def __init__(self, stage: ExhaustiveStage, questions: Sequence[str], pool_QN: np.ndarray) -> None:
        self._stage, self._questions, self._pool_QN = stage, list(questions), pool_QN

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `FirstStage.search`, with k between 1 and N."""
        assert list(questions) == self._questions, "a pool search answers its own questions"
        if not 1 <= k <= self._pool_QN.shape[1]:
            raise ArmorError(f"k is {k}, a pool holds {self._pool_QN.shape[1]} passages", where="search")
        scores_QN, start = np.empty(self._pool_QN.shape, np.float32), 0
        for block in question_blocks(self._questions):
            stop = start + len(block)
            scores_QN[start:stop] = np.take_along_axis(self._stage.score_matrix(block), self._pool_QN[start:stop], 1)
            start = stop
        order_QK = np.lexsort((self._pool_QN, -scores_QN), axis=1)[:, :k]
        return np.take_along_axis(scores_QN, order_QK, 1), np.take_along_axis(self._pool_QN, order_QK, 1)
