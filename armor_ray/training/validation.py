"""Validation recall against the whole corpus: the number that picks checkpoints, hyper-parameters and the interpolation weight."""

from __future__ import annotations

import numpy as np

from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.training.table import TrainingTable

RECALL_AT = (1, 3, 5, 16)


class Validator:
    """Holds the validation questions and their gold passages."""

    def __init__(self, table: TrainingTable) -> None:
        self._questions = table.validation.questions
        self._positives = table.validation.positives
        self._passages_CD = table.passages_CD

    def recall(self, encoder: BiEncoder) -> dict[str, float]:
        """`R@k`: share of questions with at least one gold passage among the top k of all passages, in [0, 1]."""
        query_QD = encoder.encode(self._questions, "query")
        _, rows_QK = exact_top_k(query_QD, self._passages_CD, min(max(RECALL_AT), len(self._passages_CD)))
        hits_QK = np.stack([np.isin(rows, gold) for rows, gold in zip(rows_QK, self._positives, strict=True)])
        return {f"R@{k}": float(hits_QK[:, :k].any(1).mean()) for k in RECALL_AT}
