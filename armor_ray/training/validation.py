"""Validation recall against the whole corpus: the number that picks checkpoints, hyper-parameters and the interpolation weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.retrieval.fusion import min_max
from armor_ray.retrieval.ranking import top_k_in_blocks
from armor_ray.training.table import PADDING, TrainingTable

RECALL_AT = (1, 3, 5, 16)


class Validator:
    """Holds the validation questions and their gold passages.

    With shared towers every evaluation would have to embed the corpus anew, so the passages of all validation pools stand for it.

    Args:
        shared: the encoder that is judged encodes the passages, too.
        lexical_weight: what the losses add of BM25 counts here, too (`objective.lexical_weight`).
    """

    def __init__(self, table: TrainingTable, shared: bool = False, lexical_weight: float = 0.0) -> None:
        self._questions = table.validation.questions
        self._positives = table.validation.positives
        self._passages_CD = table.passages_CD
        self._texts: list[str] | None = None
        self._lexical, self._lexical_weight = table.lexical, lexical_weight
        self._columns: np.ndarray | slice = slice(None)
        if shared and table.texts_C is not None:
            rows_U = np.unique(table.validation.pool_QN[table.validation.pool_QN != PADDING])
            self._texts = [table.texts_C[int(row)] for row in rows_U]
            self._columns = rows_U
            # Gold passages are in the pools of their questions, so none is lost here.
            self._positives = [np.searchsorted(rows_U, gold) for gold in self._positives]

    def recall(self, encoder: BiEncoder) -> dict[str, float]:
        """`R@k`: share of questions with at least one gold passage among the top k of all passages, in [0, 1]."""
        query_QD = encoder.encode(self._questions, "query")
        passages_CD = self._passages_CD if self._texts is None else encoder.encode(self._texts, "passage")
        k = min(max(RECALL_AT), len(passages_CD))
        rows_QK = self._fused_top_k(query_QD, passages_CD, k) if self._lexical_weight else exact_top_k(query_QD, passages_CD, k)[1]
        hits_QK = np.stack([np.isin(rows, gold) for rows, gold in zip(rows_QK, self._positives, strict=True)])
        return {f"R@{k}": float(hits_QK[:, :k].any(1).mean()) for k in RECALL_AT}

    def _fused_top_k(self, query_QD: np.ndarray, passages_CD: np.ndarray, k: int) -> np.ndarray:
        """Rows by cos + μ·b, as the losses score."""
        assert self._lexical is not None, "the training table holds BM25"
        bm25 = self._lexical
        passages_DC = np.asarray(passages_CD, np.float32).T
        known = dict(zip(self._questions, query_QD, strict=True))

        def score_matrix(questions: Sequence[str]) -> np.ndarray:
            dense_QC = np.stack([known[question] for question in questions]) @ passages_DC
            return dense_QC + self._lexical_weight * min_max(bm25.score_matrix(questions))[:, self._columns]

        return top_k_in_blocks(score_matrix, self._questions, k)[1]
