"""The reward model's training loop (UAE §2.1): pairs drawn per question, margin loss, validation on held-out documents.

One function for one process and for DDP under Ray Train; it knows no Ray. A question's drawn pairs share their passages, so each
(question, passage) is encoded once a step. Shape legend: P encoded (question, passage) pairs, M drawn pairs, L tokens.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from armor_ray.config import LoraConfig, RewardConfig
from armor_ray.errors import ArmorError
from armor_ray.evaluation.agreement import agreement
from armor_ray.models.cross_encoder import CrossEncoder
from armor_ray.models.hardware import choose_dtype
from armor_ray.models.reward_model import RewardModel
from armor_ray.objectives.losses import pairwise_margin
from armor_ray.training.batches import BatchPlan
from armor_ray.training.host import Host, average_over_ranks
from armor_ray.training.optimization import learning_rate
from armor_ray.training.reward_pairs import RewardPools, RewardTable, draw_pairs
from armor_ray.training.reward_priors import fit_priors
from armor_ray.training.state import Progress, load_checkpoint, load_weights, save_checkpoint
from armor_ray.training.table import PADDING

_MODEL = "reward model"


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """One rank's share of a step.

    Attributes:
        inputs: P padded (question, passage) pairs.
        prior_PF: fp32, their priors' scores.
        better_M, worse_M: which of them are compared.
        weight_M: share of each comparison in the loss: every question counts the same, whatever the number of its pairs.
    """

    inputs: dict[str, Tensor]
    prior_PF: Tensor
    better_M: Tensor
    worse_M: Tensor
    weight_M: Tensor


class RewardStep(nn.Module):
    """Reward model and loss as one module, so that DDP's hooks run on its `forward`."""

    def __init__(self, model: RewardModel, margin: float) -> None:
        super().__init__()
        self.model = model
        self._margin = margin

    def forward(self, batch: RewardBatch) -> Tensor:
        """Sum over questions of their share times the mean margin loss over their pairs."""
        reward_P = self.model(batch.inputs, batch.prior_PF)
        return (batch.weight_M * pairwise_margin(reward_P[batch.better_M], reward_P[batch.worse_M], self._margin)).sum()


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The reward model at the best validation step, in eval mode and without adapters; and how the run went."""

    model: RewardModel
    progress: Progress
    validation: dict[str, float]


class RewardTrainer:
    """Owns module, optimizer and data of one run; `run` trains to the end and returns the best checkpoint.

    Args:
        config: the `reward` section.
        seed: decides pairs, order and dropout.
        table: never written to.
        encoder: the cross-encoder, trained in place.
        host: process group, reports, checkpoints. A checkpoint found there is resumed from at once.
        sink: receives each history row as it is made, on rank 0.

    Raises:
        ArmorError: batches that ranks cannot share, fewer questions than one batch, a damaged checkpoint.
    """

    def __init__(
        self,
        config: RewardConfig,
        seed: int,
        table: RewardTable,
        encoder: CrossEncoder,
        host: Host,
        sink: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        self.config = config
        self.host = host
        self._seed = seed
        self._table = table
        self._sink = sink
        torch.manual_seed(seed)
        if config.lora is not None:
            _add_lora(encoder, config.lora)
        model = RewardModel(encoder, fit_priors(table, seed)).to(host.device)
        self.module = RewardStep(model, config.margin)
        self._weights = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(_groups(model, config))
        self._questions = table.train.with_pairs(table.noise_floor)
        if len(self._questions) < config.batch_size:
            message = f"{len(self._questions)} questions with unequal utilities do not fill one batch of {config.batch_size}"
            raise ArmorError(message, where="reward.batch_size", hint="lower it")
        self._plan = BatchPlan(len(self._questions), config.batch_size, seed, host.rank, host.world_size)
        self.progress = self._restore()
        self._ddp = host.wrap(self.module)

    def _restore(self) -> Progress:
        with self.host.resume_from() as folder:
            return Progress() if folder is None else load_checkpoint(folder, self.module, {_MODEL: self._optimizer}, None)

    @property
    def total_steps(self) -> int:
        return self._plan.steps_per_epoch * self.config.epochs

    def run(self) -> RewardResult:
        """Trains from where the newest checkpoint left off to the last step.

        Raises:
            ArmorError: a loss or gradient that is not finite; no weight moves in that step.
        """
        while self.progress.step < self.total_steps:
            self._train_step(self.progress.step)
            self.progress.step += 1
            if self._plan.ends_interval(self.progress.step, self.config.evaluations_per_epoch):
                self._end_interval()
        load_weights(self.module, self.progress.best_weights)
        best = next(row for row in reversed(self.progress.history) if row["step"] == self.progress.best_step and self.config.metric in row)
        return RewardResult(_merged(self.module.model), self.progress, {k: v for k, v in best.items() if k != "step"})

    def _train_step(self, step: int) -> None:
        _, mine = self._plan.batch(step)
        rate = learning_rate(step, self.total_steps, self.config)
        self._optimizer.param_groups[0]["lr"] = rate
        self._plan.seed_dropout(step)
        self.module.train()
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._accumulate(step, self._questions[mine])
        norm = float(nn.utils.clip_grad_norm_(self._weights, self.config.gradient_clip))
        mean = float(average_over_ranks(loss, self.host))
        if not (math.isfinite(mean) and math.isfinite(norm)):
            where, hint = f"reward training step {step + 1}", "lower reward.learning_rate"
            raise ArmorError(f"loss or gradient is not finite ({mean:g}, {norm:g})", where=where, hint=hint)
        self._optimizer.step()
        self._remember({"step": float(step + 1), "loss": mean, "gradient_norm": norm, "learning_rate": rate})

    def _accumulate(self, step: int, questions: np.ndarray) -> Tensor:
        """Loss of the rank's questions; gradients gathered over `reward.micro_batch` of them at a time, exchanged with the last."""
        total = torch.zeros((), device=self.host.device)
        starts = range(0, len(questions), self.config.micro_batch)
        for start in starts:
            batch = self._batch(step, questions[start : start + self.config.micro_batch], len(questions))
            with self._exchange(start == starts[-1]):
                with self._arithmetic():
                    loss = self._ddp(batch)
                loss.backward()
            total += loss.detach()
        return total

    def _exchange(self, wanted: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if wanted or not isinstance(self._ddp, DistributedDataParallel) else self._ddp.no_sync()

    def _arithmetic(self) -> torch.autocast:
        dtype = choose_dtype(self.config.precision, self.host.device)
        return torch.autocast(self.host.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)

    def _batch(self, step: int, questions: np.ndarray, share: int) -> RewardBatch:
        """Each question is one of `share`. Pairs are a function of (seed, step, question), so ranks and resumed runs draw the same ones."""
        pools, places = self._table.train, dict[tuple[int, int], int]()
        better: list[int] = []
        worse: list[int] = []
        weight: list[float] = []
        for question in questions.tolist():
            random = np.random.default_rng([self._seed, step, question])
            drawn = draw_pairs(pools.utility_QN[question], pools.base_QN[question], self._table.noise_floor, self.config.pairs, random)
            for columns, target in zip(drawn, (better, worse), strict=True):
                target += [places.setdefault((question, column), len(places)) for column in columns.tolist()]
            weight += [1.0 / (len(drawn[0]) * share)] * len(drawn[0])
        texts = [(pools.questions[q], self._table.texts_C[int(pools.pool_QN[q, column])]) for q, column in places]
        prior_PF = np.stack([pools.prior_QNF[q, column] for q, column in places])
        encoder = self.module.model.encoder
        better_M, worse_M, weight_M = (torch.tensor(numbers, device=self.host.device) for numbers in (better, worse, weight))
        priors = torch.from_numpy(prior_PF).to(self.host.device)
        return RewardBatch(encoder.pad(encoder.tokenize(texts)), priors, better_M, worse_M, weight_M)

    def _end_interval(self) -> None:
        """Validation by rank 0, checkpoint."""
        step = self.progress.step
        metrics = self.host.broadcast(self._validate() if self.host.rank == 0 else None)
        if not math.isfinite(metrics[self.config.metric]):
            message = f"no validation question tells {self.config.metric}"
            raise ArmorError(message, where="reward.metric", hint="choose another, or raise reward.validation_questions")
        self._remember({"step": float(step), **metrics})
        self.progress.observe(metrics[self.config.metric], self.module)
        with tempfile.TemporaryDirectory() as folder:
            if self.host.rank == 0:
                save_checkpoint(Path(folder), self.module, {_MODEL: self._optimizer}, self.progress, None)
            self.host.report({**metrics, "step": float(step)}, Path(folder))

    def _validate(self) -> dict[str, float]:
        pools = self._table.validation.between(0, self.config.validation_questions)
        dtype = choose_dtype(self.config.score_dtype, self.host.device)
        reward_QN = score_pools(self.module.model, pools, self._table.texts_C, self.config.batch_tokens, dtype)
        return agreement(reward_QN, pools.utility_QN, self._table.noise_floor, self._table.threshold)

    def _remember(self, row: dict[str, float]) -> None:
        self.progress.history.append(row)
        if self._sink is not None and self.host.rank == 0:
            self._sink(row)


def score_pools(model: RewardModel, pools: RewardPools, texts_C: Sequence[str], batch_tokens: int, dtype: torch.dtype) -> np.ndarray:
    """R of every pool entry, fp32 [Q, N]; NaN for padding."""
    questions, columns = np.nonzero(pools.pool_QN != PADDING)
    pairs = [(pools.questions[q], texts_C[int(pools.pool_QN[q, n])]) for q, n in zip(questions, columns, strict=True)]
    reward_QN = np.full(pools.pool_QN.shape, np.nan, np.float32)
    reward_QN[questions, columns] = model.score(pairs, pools.prior_QNF[questions, columns], batch_tokens, dtype)
    return reward_QN


def _add_lora(encoder: CrossEncoder, config: LoraConfig) -> None:
    """Adapters on every linear layer below the head, which is trained whole; in place."""
    adapters = PeftLoraConfig(
        task_type="SEQ_CLS", target_modules="all-linear", r=config.rank, lora_alpha=config.alpha, lora_dropout=config.dropout
    )
    encoder.body = get_peft_model(encoder.body, adapters)


def _groups(model: RewardModel, config: RewardConfig) -> list[dict[str, Any]]:
    """The cross-encoder, whose rate follows the schedule; and the priors, which move at their own rate and do not decay."""
    weights = [parameter for parameter in model.encoder.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [{"params": weights, "lr": config.learning_rate, "weight_decay": config.weight_decay}]
    if model.priors is not None:
        groups.append({"params": list(model.priors.parameters()), "lr": config.prior_learning_rate, "weight_decay": 0.0})
    return groups


def _merged(model: RewardModel) -> RewardModel:
    encoder = model.encoder
    body = encoder.body.merge_and_unload() if isinstance(encoder.body, PeftModel) else encoder.body
    return RewardModel(CrossEncoder(body, encoder.tokenizer, encoder.max_length), model.priors).eval()
