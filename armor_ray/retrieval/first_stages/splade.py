"""Learned sparse retrieval (SPLADE): term weights of questions and passages in one vocabulary, matched in an inverted index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor

from armor_ray.config_baselines import SpladeStageConfig
from armor_ray.models.sentence_encoders import open_sparse_encoder
from armor_ray.retrieval.ranking import top_k_in_blocks


class InvertedIndex:
    """Score of a passage: `Σ over terms of weight(question) · weight(passage)`.

    Args:
        encode: questions → term weights [Q, V], non-negative.
        passages_CV: term weights of the corpus.
    """

    def __init__(self, encode: Callable[[Sequence[str]], csr_array], passages_CV: csr_array) -> None:
        self._encode = encode
        self._postings_VC = passages_CV.T.tocsr()  # a row a term: its passages and their weights

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `FirstStage.search`; passages without a common term score 0."""
        return top_k_in_blocks(self.score_matrix, questions, k)

    def score_matrix(self, questions: Sequence[str]) -> np.ndarray:
        """Scores fp32 [Q, C] ≥ 0."""
        return (self._encode(questions) @ self._postings_VC).toarray().astype(np.float32)


def build(config: SpladeStageConfig, passages: Sequence[str]) -> InvertedIndex:
    """Encodes the corpus once.

    Raises:
        ArmorError: see `open_sparse_encoder`.
    """
    model = open_sparse_encoder(config)
    options: dict[str, Any] = {"batch_size": config.batch_size, "show_progress_bar": False, "save_to_cpu": True}

    def encode(questions: Sequence[str]) -> csr_array:
        return _to_rows(model.encode_query(list(questions), **options))

    return InvertedIndex(encode, _to_rows(model.encode_document(list(passages), **options)))


def _to_rows(weights: Tensor) -> csr_array:
    coo = weights.coalesce()
    return csr_array((coo.values().numpy(), coo.indices().numpy()), shape=tuple(coo.shape))
