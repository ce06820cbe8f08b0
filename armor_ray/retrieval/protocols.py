"""What a first stage and a reranker promise; everything that searches is interchangeable behind these.

Shape legend: Q questions, C passages of the corpus, K passages of a ranking, N passages to rerank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

Message = dict[str, str]
"""One turn of a chat: `{"role": "system" | "user" | "assistant", "content": …}`."""

Chat = Callable[[list[Message]], str]
"""The assistant's reply to a conversation. Thread-safe; retries are its own business, and it raises ArmorError when it gives up."""


class FirstStage(Protocol):
    """Ranks the whole corpus for a question."""

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores fp32 [Q, k] and passage rows int64 [Q, k], best first; ties go to the lower row.

        Raises:
            ArmorError: k is not between 1 and C.
        """


class ExhaustiveStage(FirstStage, Protocol):
    """A first stage that can give every passage a score: what convex fusion needs."""

    def score_matrix(self, questions: Sequence[str]) -> np.ndarray:
        """Scores fp32 [Q, C] on the stage's own scale."""


class Reranker(Protocol):
    """Judges a few passages anew; knows nothing of the corpus behind them."""

    def rerank(self, question: str, passages: Sequence[str], scores: np.ndarray) -> np.ndarray:
        """New finite scores fp32 [N], higher is better; equal scores keep the order given.

        Args:
            passages: the candidates, best first by the first stage; N ≥ 1.
            scores: the first stage's, [N].
        """
