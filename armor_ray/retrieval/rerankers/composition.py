"""Any reranker over any first stage is a first stage again: "UAE + SePer" is `Reranked(uae, seper)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.retrieval.protocols import FirstStage, Reranker


class Reranked:
    """The first stage's ranking with its top `depth` in the reranker's order; the passages below keep theirs.

    Args:
        texts: passage row → text.
        num_passages: of the corpus.
        depth: passages to rerank; all of a smaller corpus.
        workers: questions reranked at once, in threads; more than one for rerankers that wait for an endpoint.
    """

    def __init__(
        self,
        first: FirstStage,
        reranker: Reranker,
        texts: Callable[[int], str],
        num_passages: int,
        depth: int,
        workers: int = 1,
    ) -> None:
        self._first, self._reranker, self._texts = first, reranker, texts
        self._depth = min(depth, num_passages)
        self._workers = workers

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `FirstStage.search`. Above: the reranker's scores; below: the first stage's, moved to less than the lowest of these."""
        scores, rows = self._first.search(questions, max(k, self._depth))
        with ThreadPoolExecutor(self._workers) as pool:
            parts = list(pool.map(self._rerank, questions, scores, rows))
        return (
            np.array([new for new, _ in parts], np.float32).reshape(scores.shape)[:, :k],
            np.array([order for _, order in parts], np.int64).reshape(scores.shape)[:, :k],
        )

    def _rerank(self, question: str, scores_K: np.ndarray, rows_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        head, tail = rows_K[: self._depth], rows_K[self._depth :]
        new = self._reranker.rerank(question, [self._texts(row) for row in head], scores_K[: self._depth])
        if new.shape != head.shape or not np.isfinite(new).all():
            raise ArmorError("the reranker did not give every passage a finite score", where=repr(question[:60]))
        order = np.argsort(-new, kind="stable")
        below = new.min() - 1 - (scores_K[self._depth] - scores_K[self._depth :]) if len(tail) else scores_K[:0]
        return np.concatenate([new[order], below]), np.concatenate([head[order], tail])
