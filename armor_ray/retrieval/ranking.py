"""From scores to a ranking: one rule for ties, so that the same scores always give the same passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from armor_ray.errors import ArmorError

_QUESTIONS_A_BLOCK = 64


def top_k(scores_QC: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best-scored columns of every row: scores [Q, k] and columns int64 [Q, k], best first; ties go to the lower column.

    Raises:
        ArmorError: k is not between 1 and C.
    """
    num_passages = scores_QC.shape[1]
    if not 1 <= k <= num_passages:
        hint = f"choose k between 1 and {num_passages}"
        raise ArmorError(f"k is {k}, the corpus has {num_passages} passages", where="search", hint=hint)
    columns = np.empty((len(scores_QC), k), np.int64)
    for question, scores_C in enumerate(scores_QC):
        # A partition alone would keep an arbitrary few of the passages that tie at the k-th place.
        least = np.partition(scores_C, num_passages - k)[num_passages - k]
        candidates = np.flatnonzero(scores_C >= least)
        columns[question] = candidates[np.argsort(-scores_C[candidates], kind="stable")[:k]]
    return np.take_along_axis(scores_QC, columns, 1), columns


def question_blocks(questions: Sequence[str]) -> Iterator[Sequence[str]]:
    """The questions, a block at a time: a score matrix [Q, C] of a whole test set would not fit."""
    for start in range(0, len(questions), _QUESTIONS_A_BLOCK):
        yield questions[start : start + _QUESTIONS_A_BLOCK]


def top_k_in_blocks(score_matrix: Callable[[Sequence[str]], np.ndarray], questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
    """`top_k` of an exhaustive scorer, block by block: scores fp32 [Q, k] and rows int64 [Q, k].

    Raises:
        ArmorError: k is not between 1 and the number of passages.
    """
    found = [top_k(score_matrix(block), k) for block in question_blocks(questions)]
    scores = [np.empty((0, k), np.float32), *(scores for scores, _ in found)]
    rows = [np.empty((0, k), np.int64), *(rows for _, rows in found)]
    return np.concatenate(scores), np.concatenate(rows)
