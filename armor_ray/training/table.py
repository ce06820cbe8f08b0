"""The training table: everything a training step reads, as arrays, so that no step touches the LLM or the corpus encoder.

Shape legend: Q questions, N pool columns, D embedding dimension, C corpus passages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from armor_ray.errors import ArmorError

PADDING = -1


@dataclass(slots=True)
class QuestionPools:
    """Questions of one split with their candidate pools.

    `pool_QN` holds passage rows, `PADDING` where a pool is shorter. `log_likelihood_QN` is in nats, one value a pair (reference
    answers already combined), meaningful only where `scored_QN`.
    """

    example_ids: list[str]
    questions: list[str]
    positives: list[np.ndarray]
    base_query_QD: np.ndarray
    pool_QN: np.ndarray
    log_likelihood_QN: np.ndarray
    scored_QN: np.ndarray

    def __len__(self) -> int:
        return len(self.questions)


@dataclass(slots=True)
class TrainingTable:
    """Both splits plus what tells passages apart: document and text identity per corpus row."""

    train: QuestionPools
    validation: QuestionPools
    passages_CD: np.ndarray
    document_C: np.ndarray
    text_C: np.ndarray

    def __post_init__(self) -> None:
        num_passages = len(self.passages_CD)
        if not (len(self.document_C) == len(self.text_C) == num_passages):
            raise ArmorError(f"{num_passages} vectors but {len(self.document_C)} passages", where="training table", hint="rerun --force embed")
        if not len(self.train):
            raise ArmorError("no training questions", where="training table")
        if not len(self.validation):
            raise ArmorError("no validation questions", where="training table", hint="raise data.validation_fraction")
        for pools in (self.train, self.validation):
            for example, rows in zip(pools.example_ids, pools.positives, strict=True):
                if not len(rows):
                    raise ArmorError("question without positives", where=f"example {example}")


def pad_pools(pools: list[np.ndarray]) -> np.ndarray:
    """Stacks row lists to int64 [Q, N], right-padded with `PADDING`."""
    width = max((len(rows) for rows in pools), default=0)
    padded = np.full((len(pools), width), PADDING, np.int64)
    for i, rows in enumerate(pools):
        padded[i, : len(rows)] = rows
    return padded
