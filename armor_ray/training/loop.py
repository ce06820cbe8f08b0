"""The retriever's training loop: one function for one process, for DDP under Ray Train, and for every recipe.

A step encodes the batch's questions, gathers frozen vectors and scores, and does small matrix work (`Batcher`); the rest here is
optimisation: two parameter groups, the joint or alternating temperature schedule, validation, early stop, checkpoints.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.objectives.losses import weight_anchor
from armor_ray.objectives.recipes import LossTerms, Objective
from armor_ray.training.batches import Batcher, BatchPlan
from armor_ray.training.host import Host, PairScorer
from armor_ray.training.lora import add_lora
from armor_ray.training.refresh import PoolRefresher
from armor_ray.training.state import Progress, RetrieverStep, load_checkpoint, load_weights, save_checkpoint, trainable_weights
from armor_ray.training.table import TrainingTable
from armor_ray.training.validation import Validator

HistorySink = Callable[[dict[str, float]], None]


@dataclass(slots=True)
class TrainingResult:
    """The best encoder by validation and how the run went; the same on every rank."""

    encoder: BiEncoder
    temperatures: dict[str, float]
    progress: Progress
    validation: dict[str, float]


class Trainer:
    """Owns module, optimizers and data of one run. `run` trains to the end and returns the best checkpoint."""

    def __init__(
        self, config: Config, table: TrainingTable, encoder: BiEncoder, host: Host, score: PairScorer | None = None, sink: HistorySink | None = None
    ) -> None:
        training = config.training
        self.config = config
        self.host = host
        self.table = table
        self.sink = sink
        self.plan = BatchPlan(len(table.train), training.batch_size, config.seed, host.rank, host.world_size)
        self.validator = Validator(table)
        torch.manual_seed(config.seed)
        if training.lora is not None:
            add_lora(encoder, training.lora)
        objective = Objective(config.objective, top_k=config.candidates.top_k)
        self.module = RetrieverStep(encoder, objective).to(host.device)
        self.base_weights = trainable_weights(encoder) if config.objective.weight_anchor else {}
        self.optimizers = self._optimizers()
        self.batcher = Batcher(table, table.train, config.objective.in_batch)
        self.alternating = config.objective.temperature_schedule == "alternating" and "temperatures" in self.optimizers
        self.refresher = PoolRefresher(config.candidates, table.passages_CD, score, host) if config.candidates.refresh != "never" else None
        self.progress = self._restore()
        self.ddp = host.wrap(self.module)

    @property
    def total_steps(self) -> int:
        return self.plan.steps_per_epoch * self.config.training.epochs

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        training = self.config.training
        weights = [p for p in self.module.encoder.parameters() if p.requires_grad]
        optimizers: dict[str, torch.optim.Optimizer] = {
            "encoder": torch.optim.AdamW(weights, lr=training.learning_rate, weight_decay=training.weight_decay)
        }
        temperatures = list(self.module.objective.temperature_parameters())
        if temperatures:
            optimizers["temperatures"] = torch.optim.AdamW(temperatures, lr=training.temperature_learning_rate, weight_decay=0.0)
        return optimizers

    def _restore(self) -> Progress:
        with self.host.resume_from() as folder:
            if folder is None:
                return Progress()
            return load_checkpoint(folder, self.module, self.optimizers, self._changing_pools())

    def _changing_pools(self) -> dict[str, Any]:
        return {"train": self.table.train} if self.refresher is not None else {}

    # -- the run ---------------------------------------------------------------------------------------------------------------

    def run(self) -> TrainingResult:
        """Trains from where the newest checkpoint left off to the last epoch or the early stop."""
        if self.progress.step == 0:
            self._evaluate()
        evaluate_at = self._evaluation_steps()
        for epoch in range(self.config.training.epochs):
            first = epoch * self.plan.steps_per_epoch
            for offset, (everyone, mine) in enumerate(self.plan.epoch(epoch)):
                step = first + offset
                if step < self.progress.step:
                    continue
                if self.progress.stopped:
                    break
                self._train_step(step, everyone, mine)
                self.progress.step = step + 1
                if self.progress.step in evaluate_at:
                    self._end_of_interval(epoch_ended=offset + 1 == self.plan.steps_per_epoch)
        return self._finish()

    def _evaluation_steps(self) -> set[int]:
        per_epoch = self.config.training.evaluations_per_epoch
        steps = self.plan.steps_per_epoch
        within = {max(1, round(steps * (i + 1) / per_epoch)) for i in range(per_epoch)}
        return {epoch * steps + step for epoch in range(self.config.training.epochs) for step in within}

    def _train_step(self, step: int, everyone: np.ndarray, mine: np.ndarray) -> None:
        # Dropout as a function of (seed, step, rank): a resumed run repeats it without any stored random state.
        torch.manual_seed(hash((self.config.seed, step, self.host.rank)) & 0x7FFFFFFF)
        self._set_learning_rate(step)
        if self.refresher is not None and self.config.candidates.refresh == "step":
            self.refresher.refresh(self.module.encoder, self.table.train, everyone)
        self.module.train(self.config.training.dropout)
        terms, gradient_norm = self._backward(self.batcher, everyone, mine, regularised=True)
        self._step(step, everyone, terms, gradient_norm, ["encoder"] if self.alternating else list(self.optimizers))
        if self.alternating:
            self._temperature_step(step)
        self._record(step, terms, gradient_norm)

    def _backward(self, batcher: Batcher, everyone: np.ndarray, mine: np.ndarray, regularised: bool) -> tuple[LossTerms, float]:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        build = functools.partial(batcher.build, everyone, mine, device=self.host.device)
        with self._arithmetic():
            terms = self.ddp(lambda encode: build(encode=encode), regularised)
            loss = terms.total
            if self.base_weights and regularised:
                loss = loss + self.config.objective.weight_anchor * weight_anchor(dict(self.module.encoder.named_parameters()), self.base_weights)
        loss.backward()
        weights = self.optimizers["encoder"].param_groups[0]["params"]
        return terms, float(nn.utils.clip_grad_norm_(weights, self.config.training.gradient_clip))

    def _step(self, step: int, everyone: np.ndarray, terms: LossTerms, gradient_norm: float, which: list[str]) -> None:
        # DDP has averaged the gradients, so a rank's NaN is every rank's NaN here and all of them stop together.
        if not (math.isfinite(gradient_norm) and math.isfinite(float(terms.total.detach()))):
            names = ", ".join(self.table.train.example_ids[i] for i in everyone[:8])
            raise ArmorError(
                f"loss or gradient is not finite (loss {float(terms.total.detach())}, gradient norm {gradient_norm}); batch: {names}",
                where=f"training step {step}",
                hint="lower training.learning_rate or raise objective.tau_min",
            )
        for name in which:
            self.optimizers[name].step()

    def _temperature_step(self, step: int) -> None:
        """The released schedule: temperatures learn on validation batches, the regulariser off."""
        validation = self.table.validation
        size = min(self.config.training.batch_size, len(validation) - len(validation) % self.host.world_size)
        plan = BatchPlan(len(validation), size, self.config.seed + 1, self.host.rank, self.host.world_size)
        batches = list(plan.epoch(step // plan.steps_per_epoch))
        everyone, mine = batches[step % plan.steps_per_epoch]
        batcher = Batcher(self.table, validation, self.config.objective.in_batch)
        self.module.eval()
        terms, gradient_norm = self._backward(batcher, everyone, mine, regularised=False)
        self._step(step, everyone, terms, gradient_norm, ["temperatures"])

    def _set_learning_rate(self, step: int) -> None:
        training = self.config.training
        warmup = max(1, round(training.warmup_fraction * self.total_steps))
        factor = min(1.0, (step + 1) / warmup)
        if training.schedule == "linear" and step >= warmup:
            factor = max(0.0, (self.total_steps - step) / max(1, self.total_steps - warmup))
        for group in self.optimizers["encoder"].param_groups:
            group["lr"] = training.learning_rate * factor

    def _arithmetic(self) -> Any:
        precision = self.config.training.precision
        wanted = precision == "bfloat16" or (precision == "auto" and self.host.device.type == "cuda")
        return torch.autocast(self.host.device.type, dtype=torch.bfloat16, enabled=wanted)

    # -- looking up from the work ----------------------------------------------------------------------------------------------

    def _record(self, step: int, terms: LossTerms, gradient_norm: float) -> None:
        row = {"step": float(step + 1), "loss": float(terms.total.detach()), "gradient_norm": gradient_norm}
        row |= {name: float(value) for name, value in terms.terms.items()}
        row |= {f"tau_{name}": value for name, value in self.module.objective.temperature_values().items()}
        self._remember(row)

    def _remember(self, row: dict[str, float]) -> None:
        self.progress.history.append(row)
        if self.sink is not None and self.host.rank == 0:
            self.sink(row)

    def _end_of_interval(self, epoch_ended: bool) -> None:
        if self.refresher is not None and epoch_ended and self.config.candidates.refresh == "epoch":
            self.refresher.refresh(self.module.encoder, self.table.train, np.arange(len(self.table.train)))
        metrics = self._evaluate()
        patience = self.config.training.patience
        self.progress.stopped = patience is not None and self.progress.stale_evaluations >= patience
        with tempfile.TemporaryDirectory() as folder:
            if self.host.rank == 0:
                save_checkpoint(Path(folder), self.module, self.optimizers, self.progress, self._changing_pools())
            self.host.report(metrics, Path(folder))

    def _evaluate(self) -> dict[str, float]:
        """Validation recall of the current encoder against the whole index, computed by rank 0 only."""
        metrics = self.validator.recall(self.module.encoder) if self.host.rank == 0 else None
        metrics = self.host.broadcast(metrics)
        self._remember({"step": float(self.progress.step), **{f"validation_{name}": value for name, value in metrics.items()}})
        metric = metrics[self.config.training.metric]
        if self.progress.step == 0:
            return metrics  # the base encoder: on record, but never the "best checkpoint" of a training that made things worse
        if metric > self.progress.best_metric:
            self.progress.best_metric, self.progress.best_step, self.progress.stale_evaluations = metric, self.progress.step, 0
            self.progress.best_weights = trainable_weights(self.module)
        else:
            self.progress.stale_evaluations += 1
        return {**metrics, "step": float(self.progress.step)}

    def _finish(self) -> TrainingResult:
        load_weights(self.module, self.progress.best_weights)
        self.module.eval()
        metrics = self.validator.recall(self.module.encoder) if self.host.rank == 0 else None
        temperatures = self.module.objective.temperature_values()
        return TrainingResult(self.module.encoder, temperatures, self.progress, self.host.broadcast(metrics))
