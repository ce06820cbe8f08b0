"""Exact search with one vector a text, whatever encodes the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.retrieval.exact import exact_top_k


class VectorSearch:
    """Inner products with a fixed matrix of passage vectors.

    Args:
        encode: questions → vectors [Q, D].
        passages_CD: floats; may be memory-mapped.
    """

    def __init__(self, encode: Callable[[Sequence[str]], np.ndarray], passages_CD: np.ndarray) -> None:
        self._encode = encode
        self._passages_CD = passages_CD

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `FirstStage.search`."""
        if not 1 <= k <= len(self._passages_CD):
            hint = f"choose k between 1 and {len(self._passages_CD)}"
            raise ArmorError(f"k is {k}, the corpus has {len(self._passages_CD)} passages", where="search", hint=hint)
        return exact_top_k(self._vectors(questions), self._passages_CD, k)

    def score_matrix(self, questions: Sequence[str]) -> np.ndarray:
        """Inner products fp32 [Q, C]."""
        return self._vectors(questions) @ np.asarray(self._passages_CD, np.float32).T

    def _vectors(self, questions: Sequence[str]) -> np.ndarray:
        # Libraries differ in the shape of nothing.
        return np.asarray(self._encode(questions), np.float32).reshape(len(questions), self._passages_CD.shape[1])
