"""Validation recall against the whole corpus: the number that picks checkpoints, hyper-parameters and the interpolation weight."""

from __future__ import annotations

import numpy as np

from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.training.table import PADDING, TrainingTable

RECALL_AT = (1, 3, 5, 16)


class Validator:
    """Holds the validation questions and their gold passages.

    With shared towers every evaluation would have to embed the corpus anew, so the passages of all validation pools stand for it.

    Args:
        shared: the encoder that is judged encodes the passages, too.
    """

    def __init__(self, table: TrainingTable, shared: bool = False) -> None:
        self._questions = table.validation.questions
        self._positives = table.validation.positives
        self._passages_CD = table.passages_CD
        self._texts: list[str] | None = None
        if shared and table.texts_C is not None:
            rows_U = np.unique(table.validation.pool_QN[table.validation.pool_QN != PADDING])
            self._texts = [table.texts_C[int(row)] for row in rows_U]
            # Gold passages are in the pools of their questions, so none is lost here.
            self._positives = [np.searchsorted(rows_U, gold) for gold in self._positives]

    def recall(self, encoder: BiEncoder) -> dict[str, float]:
        """`R@k`: share of questions with at least one gold passage among the top k of all passages, in [0, 1]."""
        query_QD = encoder.encode(self._questions, "query")
        passages_CD = self._passages_CD if self._texts is None else encoder.encode(self._texts, "passage")
        _, rows_QK = exact_top_k(query_QD, passages_CD, min(max(RECALL_AT), len(passages_CD)))
        hits_QK = np.stack([np.isin(rows, gold) for rows, gold in zip(rows_QK, self._positives, strict=True)])
        return {f"R@{k}": float(hits_QK[:, :k].any(1).mean()) for k in RECALL_AT}
