"""From question numbers to the tensors of one training step.

Every rank computes the same global batch from (seed, epoch, step) and takes its slice of the questions, but sees the in-batch
passages of the whole batch: passages are frozen, so negatives across devices need no communication, and two ranks compute
exactly what one process with the double batch computes. With shared towers a rank encodes the passages that its questions see, so
the same holds: the average of the ranks' gradients is the gradient of the whole batch.

Shape legend: Q questions of the split, B of this rank, N pool columns, K positives, P in-batch passages, U distinct passages of a step,
L tokens, D dimensions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.objectives.selection import allowed_negatives
from armor_ray.retrieval.fusion import min_max
from armor_ray.training.table import PADDING, QuestionPools, TrainingTable, pad_pools

InBatch = Literal["none", "positives", "pools"]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which questions form each step: a seeded permutation per epoch, cut to whole batches so that all ranks take equal steps.

    The up to `batch_size` - 1 questions left over differ from epoch to epoch.

    Raises:
        ArmorError: ranks cannot share a batch evenly, or there are too few questions for one batch.
    """

    num_questions: int
    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world_size or not self.batch_size:
            message = f"{self.batch_size} questions a batch cannot be shared evenly by {self.world_size} workers"
            raise ArmorError(message, where="training.batch_size", hint="use a multiple of training.workers")
        if self.num_questions < self.batch_size:
            message = f"{self.num_questions} questions do not fill one batch of {self.batch_size}"
            raise ArmorError(message, where="training.batch_size", hint="lower it")

    @property
    def steps_per_epoch(self) -> int:
        return self.num_questions // self.batch_size

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(all questions of a step, this rank's share of them); steps count on through the epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = _permutation(self.num_questions, self.seed, epoch)
        everyone = order[position * self.batch_size : (position + 1) * self.batch_size]
        share = self.batch_size // self.world_size
        return everyone, everyone[self.rank * share : (self.rank + 1) * share]

    def ends_interval(self, steps: int, per_epoch: int) -> bool:
        """Whether one of `per_epoch` evaluations follows after so many steps: they are spread evenly, the last at the epoch's end."""
        position = (steps - 1) % self.steps_per_epoch + 1
        return position * per_epoch // self.steps_per_epoch > (position - 1) * per_epoch // self.steps_per_epoch

    def seed_dropout(self, step: int) -> None:
        """Dropout as a function of (seed, step, rank): a resumed run repeats it without any stored random state."""
        torch.manual_seed(int(np.random.SeedSequence([self.seed, step, self.rank]).generate_state(1, np.uint64)[0]))


@functools.lru_cache(maxsize=4)
def _permutation(num_questions: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(num_questions)


@dataclass(frozen=True, slots=True)
class StepPassages:
    """Passages to be encoded in a step, each once: their token ids, and which of them stand where in pools and in-batch passages."""

    tokens: list[list[int]]
    pool_BN: Tensor
    extra_P: Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One rank's share of a step, on its device: tokenised questions, and the `ObjectiveBatch` fields that need no gradient.

    With shared towers, `passages` are encoded beside the questions, and `frozen` holds no passage vectors.
    """

    input_ids_BL: Tensor
    attention_mask_BL: Tensor
    frozen: dict[str, Tensor]
    passages: StepPassages | None = None


class Batcher:
    """Gathers tokens, vectors and masks for a step. `pools` may grow between steps (`candidates.refresh`).

    Args:
        shared: passages are encoded with the questions (`objective.towers`) instead of looked up.
        rewarded: rewards and gated negatives go into the batch.
        lexical: BM25 scores go into the batch.
    """

    def __init__(
        self,
        table: TrainingTable,
        pools: QuestionPools,
        in_batch: InBatch,
        encoder: BiEncoder,
        *,
        shared: bool = False,
        rewarded: bool = False,
        lexical: bool = False,
    ) -> None:
        self._rewarded = rewarded
        self._lexical = table.lexical if lexical else None
        self._texts_C = table.texts_C if shared else None
        self._passages_CD = table.passages_CD
        self._document_C = table.document_C
        self._text_C = table.text_C
        self._pools = pools
        self._in_batch = in_batch
        self._encoder = encoder
        self._tokens = encoder.tokenize(pools.questions, "query")
        self._positive_QK = pad_pools(pools.positives)

    def build(self, everyone: np.ndarray, mine: np.ndarray) -> StepInputs:
        """The inputs of the questions `mine`, with in-batch passages from `everyone`."""
        pool_BN, log_likelihood_BN, scored_BN = self._pool_columns(mine)
        valid_BN = pool_BN != PADDING
        positive_BK = self._positive_QK[mine]
        rows_BN = np.where(valid_BN, pool_BN, 0)
        extra_P = self._in_batch_rows(everyone)
        # A passage of the question's own pool would count twice in the denominator.
        known_BP = (extra_P[None, :, None] == pool_BN[:, None, :]).any(-1)
        arrays = {
            "base_query_BD": self._pools.base_query_QD[mine],
            "pool_valid_BN": valid_BN,
            "positive_BN": (pool_BN[:, :, None] == positive_BK[:, None, :]).any(-1) & valid_BN,
            "negative_BN": self._allowed(rows_BN, positive_BK) & valid_BN,
            "log_likelihood_BN": log_likelihood_BN,
            "scored_BN": scored_BN & valid_BN,
            "extra_negative_BP": self._allowed(extra_P[None], positive_BK) & ~known_BP,
        }
        arrays |= self._reward_columns(mine, pool_BN.shape[1]) | self._lexical_columns(mine, rows_BN, extra_P)
        passages = None
        if self._texts_C is None:
            arrays |= {"pool_BND": self._passages_CD[rows_BN], "extra_PD": self._passages_CD[extra_P]}
        else:
            passages = self._step_passages(np.where(valid_BN, pool_BN, pool_BN[:, :1]), extra_P)
        device = self._encoder.device
        frozen = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        input_ids_BL, attention_mask_BL = self._encoder.pad([self._tokens[i] for i in mine])
        return StepInputs(input_ids_BL, attention_mask_BL, frozen, passages)

    def _step_passages(self, rows_BN: np.ndarray, extra_P: np.ndarray) -> StepPassages:
        """Padding stands for the question's first passage, which is encoded anyway."""
        assert self._texts_C is not None
        rows_U, places = np.unique(np.concatenate([rows_BN.ravel(), extra_P]), return_inverse=True)
        tokens = self._encoder.tokenize([self._texts_C[int(row)] for row in rows_U], "passage")
        places_on_device = torch.from_numpy(places).to(self._encoder.device)
        return StepPassages(tokens, places_on_device[: rows_BN.size].view(rows_BN.shape), places_on_device[rows_BN.size :])

    def _pool_columns(self, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pools of these questions without the columns that are padding for all of them."""
        pool_BN = self._pools.pool_QN[mine]
        used = slice(int((pool_BN != PADDING).sum(1).max(initial=0)))
        return pool_BN[:, used], self._pools.log_likelihood_QN[mine, used], self._pools.scored_QN[mine, used]

    def _reward_columns(self, mine: np.ndarray, width: int) -> dict[str, np.ndarray]:
        if not self._rewarded:
            return {}
        if self._pools.reward_QN is None or self._pools.gated_QN is None:
            raise ArmorError("the recipe learns from rewards, the pools have none", where="training table")
        reward_BN = self._pools.reward_QN[mine, :width]
        return {"reward_BN": reward_BN, "rewarded_BN": ~np.isnan(reward_BN), "gated_BN": self._pools.gated_QN[mine, :width]}

    def _lexical_columns(self, mine: np.ndarray, rows_BN: np.ndarray, extra_P: np.ndarray) -> dict[str, np.ndarray]:
        if self._lexical is None:
            return {}
        scores_BC = min_max(self._lexical.score_matrix([self._pools.questions[i] for i in mine]))
        return {"lexical_BN": np.take_along_axis(scores_BC, rows_BN, 1), "lexical_BP": scores_BC[:, extra_P]}

    def _in_batch_rows(self, everyone: np.ndarray) -> np.ndarray:
        if self._in_batch == "none":
            return np.empty(0, np.int64)
        rows = np.unique(self._positive_QK[everyone] if self._in_batch == "positives" else self._pools.pool_QN[everyone])
        return rows[rows != PADDING]

    def _allowed(self, rows_BM: np.ndarray, positive_BK: np.ndarray) -> np.ndarray:
        """`allowed_negatives` by passage rows, [B, M] or [1, M] (the same for all questions)."""
        unused_BK = positive_BK == PADDING
        codes = [np.where(unused_BK, PADDING, codes_C[positive_BK]) for codes_C in (self._text_C, self._document_C)]
        arrays = (self._text_C[rows_BM], self._document_C[rows_BM], *codes)
        return allowed_negatives(*(torch.from_numpy(array) for array in arrays)).numpy()
