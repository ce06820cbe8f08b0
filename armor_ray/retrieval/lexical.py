"""Lexical retrieval: BM25 over passage texts, the baseline and the other half of hybrid search."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import bm25s
import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.retrieval.ranking import top_k

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG when imported

# The defaults of bm25s (and of Robertson's papers). Pyserini's 0.9 and 0.4 are tuned to passages of very unequal length.
K1, B = 1.5, 0.75


class Bm25:
    """BM25 as Lucene computes it (k1 1.5, b 0.75): lower-cased words of two or more characters, English stop words out, no stemming.

    Args:
        texts: of C passages, in row order.

    Raises:
        ArmorError: no passage holds a single indexable word.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        tokens = _tokenize(texts)
        if not any(tokens):
            raise ArmorError(f"none of {len(texts)} passages holds a word to index", where="bm25", hint="add documents with text")
        self._index = bm25s.BM25(k1=K1, b=B, method="lucene")
        self._index.index(tokens, show_progress=False)
        self.num_passages = len(texts)

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """BM25 scores fp32 [Q, k] and passage rows int64 [Q, k], best first; ties, also those at score 0, go to the lower row.

        Raises:
            ArmorError: k is not between 1 and the number of passages.
        """
        found = [top_k(scores_C[None], k) for scores_C in map(self._scores, _tokenize(questions))]
        scores = [scores_1k for scores_1k, _ in found]
        rows = [rows_1k for _, rows_1k in found]
        return np.concatenate([np.empty((0, k), np.float32), *scores]), np.concatenate([np.empty((0, k), np.int64), *rows])

    def score_matrix(self, questions: Sequence[str]) -> np.ndarray:
        """BM25 scores fp32 [Q, C] ≥ 0 of every passage; a question without any known word scores 0 everywhere."""
        scores_QC = np.empty((len(questions), self.num_passages), np.float32)
        for question, tokens in enumerate(_tokenize(questions)):
            scores_QC[question] = self._scores(tokens)
        return scores_QC

    def score_pools(self, questions: Sequence[str], pool_QN: np.ndarray) -> np.ndarray:
        """BM25 scores fp32 [Q, N] of every pool's passage rows int64 [Q, N]; of passage 0 where a row is negative, as in padding."""
        rows = [self.score_matrix([question])[0, np.maximum(pool, 0)] for question, pool in zip(questions, pool_QN, strict=True)]
        return np.stack(rows)

    def _scores(self, tokens: list[str]) -> np.ndarray:
        known = self._index.get_tokens_ids(tokens)
        if not known:
            return np.zeros(self.num_passages, np.float32)
        return self._index.get_scores_from_ids(known)


def _tokenize(texts: Sequence[str]) -> list[list[str]]:
    return bm25s.tokenize(list(texts), stopwords="english", return_ids=False, show_progress=False)
