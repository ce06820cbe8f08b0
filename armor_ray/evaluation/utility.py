"""Metrics by generator utility instead of gold labels (UAE): expected utility of the top passage, and relevance by threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from armor_ray.errors import ArmorError

Utilities = Mapping[int, float]
"""Of one question: passage row → utility U(q, d, A_q), whatever its kind (METHODS §3)."""


def expected_utility_at_1(rows_QK: np.ndarray, utilities: Sequence[Utilities]) -> np.ndarray:
    """ExpUtil@1: the utility of each question's top passage, fp64 [Q] on the utility's own scale; its mean is the paper's figure.

    Args:
        rows_QK: passages by rank, best first.
        utilities: per question; the top passages must be among them.

    Raises:
        ArmorError: lists of different length, or a top passage that was never scored.
    """
    if len(rows_QK) != len(utilities):
        raise ArmorError(f"{len(rows_QK)} rankings for {len(utilities)} questions", where="evaluation")
    missing = sum(int(rows[0]) not in known for rows, known in zip(rows_QK, utilities, strict=True))
    if missing:
        hint = "score every method's top passages first"
        raise ArmorError(f"{missing} of {len(rows_QK)} top passages have no utility", where="ExpUtil@1", hint=hint)
    return np.array([known[int(rows[0])] for rows, known in zip(rows_QK, utilities, strict=True)])


def calibrated_threshold(utilities: Sequence[Utilities], share: float = 0.1) -> float:
    """The utility that the top ⌊share · pairs⌋ scored pairs (at least one) reach; more reach it where several tie at it.

    Calibrate once per data set, over all questions and methods together, on the split that is reported.

    Args:
        share: in (0, 1); the paper's 10 % by default.

    Raises:
        ArmorError: no pair was scored, or one is not finite.
    """
    scores = np.sort([utility for known in utilities for utility in known.values()])[::-1]
    if not len(scores) or not np.isfinite(scores).all():
        raise ArmorError("no utilities to calibrate on" if not len(scores) else "a utility is not finite", where="evaluation")
    return float(scores[max(int(share * len(scores)), 1) - 1])


def relevant_by_utility(utilities: Sequence[Utilities], threshold: float) -> list[np.ndarray]:
    """Per question the rows, ascending, whose utility is at least `threshold`: relevance as the UAE paper's R@k and MAP read it.

    A question may have none. Recall and MAP are undefined there: leave such questions out and say how many.
    """
    return [np.array(sorted(row for row, utility in known.items() if utility >= threshold), np.int64) for known in utilities]
