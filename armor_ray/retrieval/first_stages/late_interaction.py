"""Late interaction (ColBERT): every token keeps its vector, and question tokens look for their best match.

Shape legend: Q questions, C passages, T tokens of all passages together, L tokens of one question, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from armor_ray.config_baselines import LateInteractionStageConfig
from armor_ray.models.sentence_encoders import open_late_interaction_encoder
from armor_ray.retrieval.ranking import top_k_in_blocks

TokenVectors = Sequence[np.ndarray]
"""Per text its unit token vectors [L, D], at least one."""

_TOKENS_A_BLOCK = 1 << 18


class MaxSimSearch:
    """Score of a passage: `Σ over question tokens of max over passage tokens of their inner product`; exhaustive.

    Args:
        encode: questions → their token vectors.
        passages: token vectors of the corpus.
        block: passage tokens compared at once; bounds the memory, changes nothing else.
    """

    def __init__(self, encode: Callable[[Sequence[str]], TokenVectors], passages: TokenVectors, block: int = _TOKENS_A_BLOCK) -> None:
        self._encode = encode
        self._tokens_TD = np.concatenate(passages).astype(np.float32)
        self._starts_C = np.concatenate([[0], np.cumsum([len(vectors) for vectors in passages])])
        self._blocks = _blocks(self._starts_C, block)

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `FirstStage.search`."""
        return top_k_in_blocks(self.score_matrix, questions, k)

    def score_matrix(self, questions: Sequence[str]) -> np.ndarray:
        """Scores fp32 [Q, C]; between -L and L for a question of L tokens."""
        scores_QC = np.empty((len(questions), len(self._starts_C) - 1), np.float32)
        for question, vectors_LD in enumerate(self._encode(questions)):
            for first, last in self._blocks:
                scores_QC[question, first:last] = self._max_sim(vectors_LD, first, last)
        return scores_QC

    def _max_sim(self, vectors_LD: np.ndarray, first: int, last: int) -> np.ndarray:
        start, end = self._starts_C[first], self._starts_C[last]
        similarity_TL = self._tokens_TD[start:end] @ vectors_LD.astype(np.float32).T
        return np.maximum.reduceat(similarity_TL, self._starts_C[first:last] - start, axis=0).sum(1)


def build(config: LateInteractionStageConfig, passages: Sequence[str]) -> MaxSimSearch:
    """Encodes the corpus once.

    Raises:
        ArmorError: see `open_late_interaction_encoder`.
    """
    model = open_late_interaction_encoder(config)
    options: dict[str, Any] = {"batch_size": config.batch_size, "show_progress_bar": False, "convert_to_numpy": True}

    def encode(questions: Sequence[str]) -> TokenVectors:
        return model.encode_query(list(questions), **options)

    return MaxSimSearch(encode, model.encode_document(list(passages), **options))


def _blocks(starts_C: np.ndarray, block: int) -> list[tuple[int, int]]:
    """Ranges of passages with at most `block` tokens each; a longer passage goes alone."""
    ranges, first = [], 0
    num_passages = len(starts_C) - 1
    while first < num_passages:
        last = int(np.searchsorted(starts_C, starts_C[first] + block, side="right")) - 1
        last = min(max(last, first + 1), num_passages)
        ranges.append((first, last))
        first = last
    return ranges
