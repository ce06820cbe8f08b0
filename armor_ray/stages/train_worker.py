"""What runs inside a Ray Train worker: the training loop, then publishing. Only workers import this; it brings in torch and models."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray
import ray.train
import ray.train.torch
import torch
import yaml
from ray.train import Checkpoint
from torch import nn

from armor_ray.config import Config
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.golden import write_golden
from armor_ray.stages.context import Plan
from armor_ray.stages.methods import INTERPOLATED, corpus_of
from armor_ray.stages.refresh import RayPairScorer
from armor_ray.stages.trials import TrainJob
from armor_ray.training.history import HistoryWriter, history_table
from armor_ray.training.interpolation import Interpolation, best_interpolation
from armor_ray.training.loop import Trainer, TrainingResult
from armor_ray.training.lora import merged
from armor_ray.training.table import TrainingTable
from armor_ray.workspace import Draft, Workspace


class RayHost:
    """The training loop's host inside a Ray Train worker."""

    def __init__(self) -> None:
        context = ray.train.get_context()
        self.rank = context.get_world_rank()
        self.world_size = context.get_world_size()
        self.device = ray.train.torch.get_device()

    def wrap(self, module: nn.Module) -> nn.Module:
        return ray.train.torch.prepare_model(module)

    def broadcast(self, value: Any) -> Any:
        if self.world_size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def report(self, metrics: dict[str, float], checkpoint: Path) -> None:
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(checkpoint) if self.rank == 0 else None)

    @contextlib.contextmanager
    def resume_from(self) -> Iterator[Path | None]:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            yield None
            return
        with checkpoint.as_directory() as folder:
            yield Path(folder)


def train(job: TrainJob) -> None:
    """Trains one trial's retriever from its newest checkpoint on; then rank 0 publishes it, if it is one to keep.

    Raises:
        ArmorError: see `Trainer` and `Workspace.publish`.
    """
    config, workspace = job.spec.config, Workspace(job.workspace_uri)
    table: TrainingTable = ray.get(job.table[0])
    host = RayHost()
    score = RayPairScorer(job.score_actors, config.objective.length_normalised) if job.score_actors else None
    with HistoryWriter(job.log_folder if host.rank == 0 else None) as sink:
        trainer = Trainer(config, table, BiEncoder.load(config.encoder), host, score, sink)
        result = trainer.run()
    outcome = {**result.validation, "step": result.progress.step}
    if host.rank == 0:
        if job.spec.plan is None:
            workspace.write_bytes(job.outcome, json.dumps(outcome).encode())
        else:
            mixed = _interpolated(config, trainer, result)
            publish_retriever(workspace, job.spec.plan, config, result, table.validation.questions, mixed)
    ray.train.report(outcome)


def _interpolated(config: Config, trainer: Trainer, result: TrainingResult) -> Interpolation | None:
    if not config.training.interpolate:
        return None
    base = BiEncoder.load(config.encoder).to(trainer.host.device)
    return best_interpolation(base, merged(result.encoder), config.training.interpolate, trainer.validator, config.training.metric)


def publish_retriever(
    workspace: Workspace, plan: Plan, config: Config, result: TrainingResult, questions: list[str], mixed: Interpolation | None
) -> None:
    """Publishes the adapted encoder and, where there is one, the interpolated one, under the same plan."""
    if mixed is not None:
        _publish_encoder(workspace, plan, plan.name + INTERPOLATED, config, mixed.encoder, result, questions, mixed)
    _publish_encoder(workspace, plan, plan.name, config, merged(result.encoder), result, questions, mixed)


def _publish_encoder(
    workspace: Workspace,
    plan: Plan,
    name: str,
    config: Config,
    encoder: BiEncoder,
    result: TrainingResult,
    questions: list[str],
    mixed: Interpolation | None,
) -> None:
    if config.objective.towers == "shared":
        encoder = encoder.with_own_passages()

    def write(draft: Draft) -> None:
        draft.details |= {"corpus": corpus_of(name)} if config.objective.towers == "shared" else {}
        encoder.cpu().save(draft.path)
        write_golden(encoder, questions[:16], draft.path)
        pq.write_table(history_table(result.progress.history), draft.path / "history.parquet")
        (draft.path / "temperatures.json").write_text(json.dumps(result.temperatures, indent=2), encoding="utf-8")
        (draft.path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(exclude_unset=True)), encoding="utf-8")
        validation = _point(mixed) if mixed is not None and name.endswith(INTERPOLATED) else result.validation
        draft.details |= {"validation": validation, "best_step": result.progress.best_step, "temperatures": result.temperatures}
        draft.details |= {"interpolation": mixed.curve, "alpha": mixed.alpha} if mixed is not None else {}
        draft.rows["steps"] = result.progress.step

    workspace.publish(name, stage=plan.stage, fingerprint=plan.fingerprint, inputs=plan.inputs, config=plan.config, write=write)


def _point(mixed: Interpolation) -> dict[str, float]:
    return next(point for point in mixed.curve if point["alpha"] == mixed.alpha)
