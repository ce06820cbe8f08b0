"""Search as it is served: an encoder in front of a FAISS index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import faiss
import numpy as np

from armor_ray.retrieval.dense import search


class IndexSearch:
    """Inner products through an index, exact or not.

    Args:
        encode: questions → vectors fp32 [Q, D].
    """

    def __init__(self, encode: Callable[[Sequence[str]], np.ndarray], index: faiss.Index) -> None:
        self._encode, self._index = encode, index

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `FirstStage.search`."""
        return search(self._index, self._encode(questions), k)
