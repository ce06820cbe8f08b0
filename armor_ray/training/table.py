"""The training table: everything a training step reads, as arrays, so that no step touches the LLM or the corpus encoder.

Shape legend: Q questions, N pool columns, D embedding dimension, C corpus passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.retrieval.lexical import Bm25

PADDING = -1


@dataclass(slots=True)
class QuestionPools:
    """Questions of one split with their candidate pools.

    Attributes:
        example_ids: as in the examples artifact.
        questions: their texts, without prefix.
        positives: gold passage rows of each, at least one.
        base_query_QD: unit vectors of the frozen base encoder.
        pool_QN: candidate passage rows, right-padded with `PADDING`.
        log_likelihood_QN: nats, reference answers already combined; meaningful only where `scored_QN`.
        scored_QN: False for padding and for pairs that the generator could not score.
        reward_QN: R of the reward model, NaN for padding; None where no recipe needs it.
        gated_QN: negatives that passed the utility gate; None together with `reward_QN`.
    """

    example_ids: list[str]
    questions: list[str]
    positives: list[np.ndarray]
    base_query_QD: np.ndarray
    pool_QN: np.ndarray
    log_likelihood_QN: np.ndarray
    scored_QN: np.ndarray
    reward_QN: np.ndarray | None = None
    gated_QN: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.questions)

    def with_own_pools(self) -> QuestionPools:
        """The same questions with pools that may be extended; a table's arrays are shared and often read-only."""
        return replace(self, pool_QN=self.pool_QN.copy(), log_likelihood_QN=self.log_likelihood_QN.copy(), scored_QN=self.scored_QN.copy())


@dataclass(slots=True)
class TrainingTable:
    """Both splits plus what tells passages apart.

    Attributes:
        train, validation: questions that move the weights, and questions that pick the checkpoint.
        passages_CD: frozen unit vectors of the whole corpus.
        document_C: integer code ≥ 0 of each passage's document.
        text_C: integer code ≥ 0 of each passage's text, equal for equal texts.
        texts_C: the passages, to be encoded anew while training (`objective.towers: shared`); None where nothing needs them.
        lexical: BM25 over the passages (`objective.lexical_weight`); None where nothing needs it.

    Raises:
        ArmorError: a split without questions, a question without positives, or vectors that do not match the passages.
    """

    train: QuestionPools
    validation: QuestionPools
    passages_CD: np.ndarray
    document_C: np.ndarray
    text_C: np.ndarray
    texts_C: Sequence[str] | None = None
    lexical: Bm25 | None = None

    def __post_init__(self) -> None:
        num_passages = len(self.passages_CD)
        if not (len(self.document_C) == len(self.text_C) == num_passages):
            message = f"{num_passages} vectors but {len(self.document_C)} passages"
            raise ArmorError(message, where="training table", hint="rerun --force embed")
        if not len(self.train):
            raise ArmorError("no training questions", where="training table")
        if not len(self.validation):
            raise ArmorError("no validation questions", where="training table", hint="raise data.validation_fraction")
        for pools in (self.train, self.validation):
            for example, rows in zip(pools.example_ids, pools.positives, strict=True):
                if not len(rows):
                    raise ArmorError("question without positives", where=f"example {example}")


def pad_pools(pools: Sequence[np.ndarray]) -> np.ndarray:
    """Stacks row lists to int64 [Q, N], right-padded with `PADDING`."""
    width = max((len(rows) for rows in pools), default=0)
    padded_QN = np.full((len(pools), width), PADDING, np.int64)
    for i, rows in enumerate(pools):
        padded_QN[i, : len(rows)] = rows
    return padded_QN
