"""The retriever's training loop: one function for one process, for DDP under Ray Train, and for every recipe.

A step encodes the batch's questions, gathers frozen vectors and scores, and does small matrix work (`Batcher`); the rest here is
optimisation: two parameter groups, the joint or alternating temperature schedule, validation, early stop, checkpoints.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.objectives.recipes import LossTerms, Objective
from armor_ray.training.batches import Batcher, BatchPlan, StepInputs
from armor_ray.training.gradient_cache import average_gradients, cached_backward
from armor_ray.training.host import Host, PairScorer, average_over_ranks
from armor_ray.training.lora import add_lora
from armor_ray.training.optimization import ENCODER, TEMPERATURES, learning_rate, make_optimizers
from armor_ray.training.refresh import PoolRefresher
from armor_ray.training.state import Progress, RetrieverStep, load_checkpoint, load_weights, save_checkpoint
from armor_ray.training.table import QuestionPools, TrainingTable
from armor_ray.training.validation import Validator

HistorySink = Callable[[dict[str, float]], None]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run went; the same on every rank.

    Attributes:
        encoder: at the best validation step, in eval mode; with its adapters under LoRA (`lora.merged`).
        temperatures: τ of "rag" and "infonce" at that step.
        progress: where the run ended, with its history.
        validation: recall of `encoder`, by "R@k".
    """

    encoder: BiEncoder
    temperatures: dict[str, float]
    progress: Progress
    validation: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Phase:
    """Questions that one kind of step learns from: how they are batched, and their names for error messages."""

    pools: QuestionPools
    plan: BatchPlan
    batcher: Batcher


class Trainer:
    """Owns module, optimizers and data of one run. `run` trains to the end and returns the best checkpoint.

    Args:
        config: the whole configuration; `seed`, `objective`, `training` and `candidates` are read.
        table: never written to.
        encoder: the base encoder; trained in place.
        host: process group, reports, checkpoints. A checkpoint found there is resumed from at once.
        score: scores pairs that no pool holds; needed unless `candidates.refresh` is `never`.
        sink: receives each history row as it is made, on rank 0.

    Raises:
        ArmorError: batches that ranks cannot share, too few questions for one batch, nothing to score with, a damaged checkpoint.
    """

    def __init__(
        self,
        config: Config,
        table: TrainingTable,
        encoder: BiEncoder,
        host: Host,
        score: PairScorer | None = None,
        sink: HistorySink | None = None,
    ) -> None:
        training = config.training
        self.config = config
        self.host = host
        self._shared = config.objective.towers == "shared"
        if self._shared and table.texts_C is None:
            raise ArmorError("shared towers need the passages' texts", where="training table")
        lexical_weight = config.objective.lexical_weight
        if lexical_weight and table.lexical is None:
            raise ArmorError("objective.lexical_weight needs BM25 over the passages", where="training table")
        self.validator = Validator(table, self._shared, lexical_weight)
        torch.manual_seed(config.seed)
        if training.lora is not None:
            add_lora(encoder, training.lora)
        self.module = RetrieverStep(encoder.to(host.device), Objective(config.objective, config.candidates.top_k).to(host.device))
        self.optimizers = make_optimizers(encoder, self.module.objective.temperature_parameters(), training)
        refreshed = config.candidates.refresh != "never"
        pools = table.train.with_own_pools() if refreshed else table.train
        self._refresher = PoolRefresher(config.candidates, table.passages_CD, pools, score, host) if refreshed else None
        self._train = self._phase(table, pools, training.batch_size, config.seed)
        alternating = config.objective.temperature_schedule == "alternating" and TEMPERATURES in self.optimizers
        self._held_out = self._validation_phase(table) if alternating else None
        self._sink = sink
        self.progress = self._restore()
        self._ddp = self.module if self._shared else host.wrap(self.module)

    def _phase(self, table: TrainingTable, pools: QuestionPools, batch_size: int, seed: int) -> _Phase:
        plan = BatchPlan(len(pools), batch_size, seed, self.host.rank, self.host.world_size)
        rewarded = self.module.objective.recipe.needs_rewards
        objective, encoder = self.config.objective, self.module.encoder
        lexical = objective.lexical_weight > 0
        batcher = Batcher(table, pools, objective.in_batch, encoder, shared=self._shared, rewarded=rewarded, lexical=lexical)
        return _Phase(pools, plan, batcher)

    def _validation_phase(self, table: TrainingTable) -> _Phase:
        """Validation batches are as large as training batches where there are questions enough; they repeat without end."""
        pools, ranks = table.validation, self.host.world_size
        size = min(self.config.training.batch_size, len(pools) // ranks * ranks)
        if not size:
            message = f"{len(pools)} validation questions for {ranks} workers; the alternating schedule needs one each"
            raise ArmorError(message, where="objective.temperature_schedule", hint="raise data.validation_fraction")
        return self._phase(table, pools, size, self.config.seed + 1)

    def _restore(self) -> Progress:
        with self.host.resume_from() as folder:
            if folder is None:
                return Progress()
            return load_checkpoint(folder, self.module, self.optimizers, self._growing_pools())

    def _growing_pools(self) -> QuestionPools | None:
        return self._train.pools if self._refresher is not None else None

    # -- the run ---------------------------------------------------------------------------------------------------------------

    @property
    def total_steps(self) -> int:
        return self._train.plan.steps_per_epoch * self.config.training.epochs

    def run(self) -> TrainingResult:
        """Trains from where the newest checkpoint left off to the last step or the early stop.

        Raises:
            ArmorError: a loss or gradient that is not finite; no weight moves in that step.
        """
        if self.progress.step == 0:
            self._evaluate()
        while self.progress.step < self.total_steps and not self._out_of_patience():
            self._train_step(self.progress.step)
            self.progress.step += 1
            if self._train.plan.ends_interval(self.progress.step, self.config.training.evaluations_per_epoch):
                self._end_interval()
        return self._finish()

    def _out_of_patience(self) -> bool:
        patience = self.config.training.patience
        return patience is not None and self.progress.stale_evaluations >= patience

    def _train_step(self, step: int) -> None:
        everyone, mine = self._train.plan.batch(step)
        if self._refresher is not None and self.config.candidates.refresh == "step":
            self._refresher.refresh(self.module.encoder, everyone)
        rate = learning_rate(step, self.total_steps, self.config.training)
        for group in self.optimizers[ENCODER].param_groups:
            group["lr"] = rate
        self._train.plan.seed_dropout(step)
        self.module.train(self.config.training.dropout)
        self._clear_gradients()
        terms = self._backward(self._train.batcher.build(everyone, mine))
        row = {"step": float(step + 1), "learning_rate": rate, **self._numbers(terms)}
        row["gradient_norm"] = float(nn.utils.clip_grad_norm_(self._weights(), self.config.training.gradient_clip))
        joint = [] if self._held_out is not None else self._temperature_gradients()
        self._require_finite(step, [row["loss"], row["gradient_norm"], *joint], self._train, everyone)
        for name in [ENCODER] if self._held_out is not None else self.optimizers:
            self.optimizers[name].step()
        if self._held_out is not None:
            row["temperature_loss"] = self._temperature_step(step, self._held_out)
        self._remember(row)

    def _backward(self, inputs: StepInputs) -> LossTerms:
        """Loss and, averaged over ranks, its gradients."""
        if not self._shared:
            with self._arithmetic():
                terms: LossTerms = self._ddp(inputs, True)
            terms.total.backward()
            return terms
        chunks = self.module.text_chunks(inputs, self.config.training.cache_texts)
        terms = cached_backward(self.module.encoder, chunks, lambda vectors: self.module.loss(inputs, vectors, True), self._arithmetic)
        average_gradients([*self._weights(), *self.module.objective.temperature_parameters()], self.host)
        return terms

    def _temperature_step(self, step: int, phase: _Phase) -> float:
        """The released schedule's second half: temperatures learn on validation batches, the regularisers off; returns that loss."""
        everyone, mine = phase.plan.batch(step)
        self.module.eval()
        with torch.no_grad(), self._arithmetic():
            batch = self.module.batch(phase.batcher.build(everyone, mine))
        terms = self.module.objective(batch, regularised=False)
        # Two scalars: averaged by hand, so that neither the encoder's backward pass nor DDP's hooks run.
        alphas = self.module.objective.temperature_parameters()
        gradients = average_over_ranks(torch.stack(torch.autograd.grad(terms.total, alphas)), self.host)
        loss = self._numbers(terms)["loss"]
        self._require_finite(step, [loss, *gradients.tolist()], phase, everyone)
        for alpha, gradient in zip(alphas, gradients, strict=True):
            alpha.grad = gradient
        self.optimizers[TEMPERATURES].step()
        return loss

    def _clear_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def _weights(self) -> list[Tensor]:
        return self.optimizers[ENCODER].param_groups[0]["params"]

    def _temperature_gradients(self) -> list[float]:
        return [float(alpha.grad) for alpha in self.module.objective.temperature_parameters() if alpha.grad is not None]

    def _arithmetic(self) -> torch.autocast:
        precision = self.config.training.precision
        wanted = precision == "bfloat16" or (precision == "auto" and self.host.device.type == "cuda")
        return torch.autocast(self.host.device.type, dtype=torch.bfloat16, enabled=wanted)

    def _require_finite(self, step: int, values: list[float], phase: _Phase, everyone: np.ndarray) -> None:
        # Losses and gradients are averages over ranks, so one rank's NaN is every rank's and all of them stop here, before any moves.
        if all(math.isfinite(value) for value in values):
            return
        names = ", ".join(phase.pools.example_ids[i] for i in everyone[:16])
        raise ArmorError(
            f"loss or gradient is not finite ({', '.join(f'{value:g}' for value in values)}) for the batch {names}",
            where=f"training step {step + 1}",
            hint="lower training.learning_rate or raise objective.tau_min",
        )

    # -- looking up from the work ----------------------------------------------------------------------------------------------

    def _numbers(self, terms: LossTerms) -> dict[str, float]:
        """A history row's losses and counts over the questions of all ranks."""
        means = {"loss": terms.total.detach(), **terms.terms, "drift": terms.drift}
        means |= {f"tau_{name}": tau for name, tau in terms.temperatures.items()}
        counts = {f"skipped_{name}": count for name, count in terms.skipped.items()}
        values = torch.stack([value.to(terms.total) for value in (*means.values(), *counts.values())])
        row = dict(zip([*means, *counts], average_over_ranks(values, self.host).tolist(), strict=True))
        return row | {name: row[name] * self.host.world_size for name in counts}

    def _remember(self, row: dict[str, float]) -> None:
        self.progress.history.append(row)
        if self._sink is not None and self.host.rank == 0:
            self._sink(row)

    def _evaluate(self) -> dict[str, float]:
        """Validation recall of the current encoder, computed by rank 0; into the history."""
        recall = self.host.broadcast(self.validator.recall(self.module.encoder) if self.host.rank == 0 else None)
        self._remember({"step": float(self.progress.step), **{f"validation_{name}": value for name, value in recall.items()}})
        return recall

    def _end_interval(self) -> None:
        """Refresh at the end of an epoch, evaluation, checkpoint."""
        step = self.progress.step
        epoch_ended = step % self._train.plan.steps_per_epoch == 0
        if self._refresher is not None and self.config.candidates.refresh == "epoch" and epoch_ended and step < self.total_steps:
            self._refresher.refresh(self.module.encoder, np.arange(len(self._train.pools)))
        recall = self._evaluate()
        self.progress.observe(recall[self.config.training.metric], self.module)
        with tempfile.TemporaryDirectory() as folder:
            if self.host.rank == 0:
                save_checkpoint(Path(folder), self.module, self.optimizers, self.progress, self._growing_pools())
            self.host.report({**recall, "step": float(step)}, Path(folder))

    def _finish(self) -> TrainingResult:
        load_weights(self.module, self.progress.best_weights)
        self._clear_gradients()
        self.module.eval()
        temperatures = {name: tau().item() for name, tau in self.module.objective.temperatures.items()}
        prefix = "validation_"
        rows = [row for row in self.progress.history if row["step"] == self.progress.best_step]
        validation = {name.removeprefix(prefix): value for row in rows for name, value in row.items() if name.startswith(prefix)}
        return TrainingResult(self.module.encoder, temperatures, self.progress, validation)
