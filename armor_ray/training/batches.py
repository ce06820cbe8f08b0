"""From question numbers to the tensors of one training step.

Every rank computes the same global batch from (seed, epoch, step) and takes its slice of the questions, but sees the in-batch
passages of the whole batch: passages are frozen, so negatives across devices need no communication, and two ranks compute
exactly what one process with the double batch computes.

Shape legend: B questions of this rank, N pool columns, P in-batch passages, D embedding dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from armor_ray.errors import ArmorError
from armor_ray.objectives.batch import ObjectiveBatch
from armor_ray.training.table import PADDING, QuestionPools, TrainingTable

InBatch = Literal["none", "positives", "pools"]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which questions form each step: a seeded permutation per epoch, cut to whole batches so that all ranks take equal steps."""

    num_questions: int
    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world_size:
            raise ArmorError(
                f"batch_size {self.batch_size} is not a multiple of {self.world_size} workers", where="training.batch_size"
            )
        if self.num_questions < self.batch_size:
            raise ArmorError(
                f"{self.num_questions} questions do not fill one batch of {self.batch_size}", where="training.batch_size", hint="lower it"
            )

    @property
    def steps_per_epoch(self) -> int:
        return self.num_questions // self.batch_size

    def epoch(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (all questions of the step, this rank's share of them)."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.num_questions)
        share = self.batch_size // self.world_size
        for step in range(self.steps_per_epoch):
            everyone = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield everyone, everyone[self.rank * share : (self.rank + 1) * share]


class Batcher:
    """Gathers vectors and masks for a step. Pools may be extended between steps (`candidates.refresh`)."""

    def __init__(self, table: TrainingTable, pools: QuestionPools, in_batch: InBatch) -> None:
        self._table = table
        self._pools = pools
        self._in_batch = in_batch

    def build(
        self, everyone: np.ndarray, mine: np.ndarray, encode: Callable[[list[str]], torch.Tensor], device: torch.device
    ) -> ObjectiveBatch:
        """The step's tensors; `encode` maps question texts to query vectors [B, D] with gradient."""
        pools, table = self._pools, self._table
        pool = pools.pool_QN[mine]
        valid = pool != PADDING
        positives = [pools.positives[i] for i in mine]
        positive, forbidden = self._pool_masks(pool, valid, positives)
        extra = self._in_batch_rows(everyone)
        batch = {
            "base_query_BD": pools.base_query_QD[mine],
            "pool_BND": table.passages_CD[np.where(valid, pool, 0)],
            "pool_valid_BN": valid,
            "positive_BN": positive,
            "negative_BN": valid & ~forbidden,
            "log_likelihood_BN": np.where(pools.scored_QN[mine], pools.log_likelihood_QN[mine], 0.0).astype(np.float32),
            "scored_BN": pools.scored_QN[mine] & valid,
            "extra_PD": table.passages_CD[extra],
            "extra_negative_BP": self._extra_mask(extra, pool, positives),
        }
        tensors = {name: torch.as_tensor(np.ascontiguousarray(array)).to(device) for name, array in batch.items()}
        return ObjectiveBatch(query_BD=encode([pools.questions[i] for i in mine]), **tensors)

    def _pool_masks(self, pool: np.ndarray, valid: np.ndarray, positives: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        positive = np.zeros_like(valid)
        forbidden = np.zeros_like(valid)
        for b, rows in enumerate(positives):
            positive[b] = np.isin(pool[b], rows) & valid[b]
            forbidden[b] = self._near(pool[b], rows)
        return positive, forbidden

    def _in_batch_rows(self, everyone: np.ndarray) -> np.ndarray:
        if self._in_batch == "none":
            return np.empty(0, np.int64)
        if self._in_batch == "positives":
            return np.unique(np.concatenate([self._pools.positives[i] for i in everyone]))
        rows = np.unique(self._pools.pool_QN[everyone])
        return rows[rows != PADDING]

    def _extra_mask(self, extra: np.ndarray, pool: np.ndarray, positives: list[np.ndarray]) -> np.ndarray:
        # A passage already in the question's own pool would be counted twice in the denominator.
        allowed = [~self._near(extra, rows) & ~np.isin(extra, pool[b]) for b, rows in enumerate(positives)]
        return np.stack(allowed) if len(extra) else np.zeros((len(positives), 0), bool)

    def _near(self, rows: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """Whether each row is a positive, lies in a positive's document or repeats a positive's text: never a negative."""
        table = self._table
        same_document = np.isin(table.document_C[rows], table.document_C[positives])
        return same_document | np.isin(table.text_C[rows], table.text_C[positives])
