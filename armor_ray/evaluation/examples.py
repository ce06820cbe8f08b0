"""Questions where the adaptation helped or hurt most, for a reader who wants to see what a tenth of a point is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SNIPPET = 280


@dataclass(frozen=True, slots=True)
class Example:
    """One question: its gold passage's rank, from 1, before and after; 0 when it was not among the ranked passages."""

    question: str
    passage: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Examples:
    """The largest changes between the base and `method`, among the top `depth` passages."""

    method: str
    depth: int
    helped: Sequence[Example]
    hurt: Sequence[Example]


def choose_examples(
    method: str, depth: int, questions: Sequence[str], passages: Sequence[str], before: np.ndarray, after: np.ndarray, limit: int = 5
) -> Examples:
    """The `limit` questions whose reciprocal rank rose most, and those where it fell most; ties in the order of the questions.

    Args:
        depth: passages ranked per question.
        questions, passages: Q questions and a gold passage of each; long passages are cut.
        before, after: [Q] best gold rank from 1, or 0 (`metrics.gold_ranks`), of the base and of `method`.
    """

    def pick(places: np.ndarray) -> list[Example]:
        return [Example(questions[i], _cut(passages[i]), int(before[i]), int(after[i])) for i in places]

    helped, hurt = largest_changes(before, after, limit)
    return Examples(method, depth, pick(helped), pick(hurt))


def largest_changes(before: np.ndarray, after: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the at most `limit` questions whose reciprocal rank rose most, and of those where it fell most; ties in their order.

    Args:
        before, after: [Q] best gold rank from 1, or 0 for none.
    """
    gain = _reciprocal(after) - _reciprocal(before)
    best, worst = np.argsort(-gain, kind="stable"), np.argsort(gain, kind="stable")
    return best[gain[best] > 0][:limit], worst[gain[worst] < 0][:limit]


def _reciprocal(ranks: np.ndarray) -> np.ndarray:
    return np.where(ranks > 0, 1 / np.maximum(ranks, 1), 0.0)


def _cut(passage: str) -> str:
    text = " ".join(passage.split())
    return text if len(text) <= _SNIPPET else text[:_SNIPPET].rsplit(" ", 1)[0] + " …"
