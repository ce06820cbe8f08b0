"""Training runs as Ray Tune trials, each a Ray Train (DDP) job: what `train` and `sweep` share.

Tune bounds how many run at once and restores after the driver was killed; Train restarts a lost worker from its checkpoint. All
trials read the same training table from Ray's object store. A trial that trains a retriever to keep publishes it itself, so a
finished one is never trained again.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.train
import ray.tune
import torch
import yaml
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from ray.tune.integration.ray_train import TuneReportCallback
from torch import nn

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.serving.golden import write_golden
from armor_ray.stages.cluster import TrialPlan, plan_trials
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.score import RayPairScorer, ScoreActor, load_questions
from armor_ray.training.history import HistoryWriter
from armor_ray.training.interpolation import Interpolation, best_interpolation
from armor_ray.training.loop import Trainer, TrainingResult
from armor_ray.training.lora import merged
from armor_ray.training.table import TrainingTable
from armor_ray.workspace import Draft, Workspace, fingerprint

INTERPOLATED = "-interpolated"
_EXPERIMENTS = ".work/ray"


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One training run: a fully resolved config, and the artifact to publish (None: only its metrics count, as in a sweep)."""

    name: str
    config: Config
    plan: Plan | None = None


class RayHost:
    """The training loop's host inside a Ray Train worker."""

    def __init__(self) -> None:
        context = ray.train.get_context()
        self.rank = context.get_world_rank()
        self.world_size = context.get_world_size()
        self.device = ray.train.torch.get_device()

    def wrap(self, module: nn.Module) -> nn.Module:
        return prepare_model(module)

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


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What a Ray Train worker needs; pickled, so the table travels as a reference into the object store."""

    spec: TrialSpec
    workspace_uri: str
    table: list[Any]
    score_actors: list[Any]
    log_folder: str | None


def train_worker(arguments: dict[str, Any]) -> None:
    """The Ray Train loop function: trains, then rank 0 publishes the retriever."""
    job: TrainJob = arguments["job"]
    config, workspace = job.spec.config, Workspace(job.workspace_uri)
    table: TrainingTable = ray.get(job.table[0])
    host = RayHost()
    score = None
    if job.score_actors:
        questions = load_questions(workspace.local("examples"), "train")
        score = RayPairScorer(job.score_actors, job.workspace_uri, config.generator, questions, config.objective.length_normalised)
    with HistoryWriter(job.log_folder if host.rank == 0 else None) as sink:
        trainer = Trainer(config, table, BiEncoder.load(config.encoder), host, score, sink)
        result = trainer.run()
    mixed = None
    if host.rank == 0:
        mixed = _interpolated(config, trainer, result)
        if job.spec.plan is not None:
            publish_retriever(workspace, job.spec.plan, config, result, table.validation.questions, mixed)
    ray.train.report({**result.validation, "step": float(result.progress.step)})


def _interpolated(config: Config, trainer: Trainer, result: TrainingResult) -> Interpolation | None:
    if not config.training.interpolate:
        return None
    base = BiEncoder.load(config.encoder).to(trainer.host.device)
    return best_interpolation(base, merged(result.encoder), config.training.interpolate, trainer.validator, config.training.metric)


def _point(mixed: Interpolation) -> dict[str, float]:
    return next(point for point in mixed.curve if point["alpha"] == mixed.alpha)


def publish_retriever(
    workspace: Workspace, plan: Plan, config: Config, result: TrainingResult, questions: list[str], mixed: Interpolation | None
) -> None:
    """Publishes the adapted encoder and, before it, the interpolated one; the first's presence means that both are there."""
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
    def write(draft: Draft) -> None:
        encoder.cpu().save(draft.path)
        write_golden(encoder, questions[:16], draft.path)
        history = result.progress.history
        keys = sorted({key for row in history for key in row})
        pq.write_table(pa.table({key: [row.get(key) for row in history] for key in keys}), draft.path / "history.parquet")
        (draft.path / "temperatures.json").write_text(json.dumps(result.temperatures, indent=2), encoding="utf-8")
        (draft.path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(exclude_unset=True)), encoding="utf-8")
        validation = _point(mixed) if mixed is not None and name.endswith(INTERPOLATED) else result.validation
        draft.details |= {"validation": validation, "best_step": result.progress.best_step, "temperatures": result.temperatures}
        draft.details |= {"interpolation": mixed.curve, "alpha": mixed.alpha} if mixed is not None else {}
        draft.rows["steps"] = result.progress.step

    workspace.publish(name, stage=plan.stage, fingerprint=plan.fingerprint, inputs=plan.inputs, config=plan.config, write=write)


def run_trials(context: Context, specs: list[TrialSpec], table: TrainingTable, label: str, scheduler: Any = None) -> list[dict[str, Any]]:
    """Runs all specs, `max_concurrent_trials` at a time, and returns one row a spec: its `number`, last `step` and recall `metrics`.

    A rerun with the same specs after a killed driver restores the finished trials and restarts the others.

    Raises:
        ArmorError: a trial failed for good; its own message is passed on.
    """
    config = context.config
    plan = plan_trials(config.resources, config.training.workers, len(specs))
    reference = ray.put(table)
    actors = _score_actors(context, specs)
    key = fingerprint(label, {"trials": [spec.config.model_dump(mode="json") for spec in specs]}, context.inputs("utilities", "embeddings"))
    name = f"{label}-{key}"
    trainable = ray.tune.with_resources(
        ray.tune.with_parameters(
            _trial, specs=specs, uri=context.workspace.uri, table=[reference], actors=actors, resources=plan, experiment=name
        ),
        {"CPU": plan.trial_cpus},
    )
    try:
        results = _tuner(trainable, context.workspace, name, len(specs), plan, scheduler, config).fit()
    finally:
        for actor in actors:
            ray.kill(actor)
    _raise_first_error(results)
    rows = [_row(results[i]) for i in range(len(results))]
    # What a finished experiment left would be restored, not run, by `--force`.
    context.workspace.delete(f"{_EXPERIMENTS}/{name}")
    for number in range(len(specs)):
        context.workspace.delete(f"{_EXPERIMENTS}/{_run_name(name, number)}")
    return sorted(rows, key=lambda row: row["number"])


def _tuner(
    trainable: Any, workspace: Workspace, name: str, num_specs: int, plan: TrialPlan, scheduler: Any, config: Config
) -> ray.tune.Tuner:
    storage = _storage(workspace)
    if ray.tune.Tuner.can_restore(f"{storage}/{name}"):
        return ray.tune.Tuner.restore(f"{storage}/{name}", trainable=trainable, resume_errored=True)
    return ray.tune.Tuner(
        trainable,
        param_space={"number": ray.tune.grid_search(list(range(num_specs)))},
        tune_config=ray.tune.TuneConfig(
            metric=config.training.metric, mode="max", scheduler=scheduler, max_concurrent_trials=plan.concurrent, reuse_actors=False
        ),
        run_config=ray.tune.RunConfig(name=name, storage_path=storage, verbose=0),
    )


def _trial(
    parameters: dict[str, Any], specs: list[TrialSpec], uri: str, table: list[Any], actors: list[Any], resources: TrialPlan, experiment: str
) -> None:
    """A Tune trial: starts the Ray Train job of one spec and passes its reports on."""
    logging.getLogger("ray.train").setLevel(logging.WARNING)
    spec = specs[parameters["number"]]
    workspace = Workspace(uri)
    training = spec.config.training
    log_folder = workspace.path(f"logs/{spec.name}") if workspace.is_local else None
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"job": TrainJob(spec, uri, table, actors, log_folder)},
        torch_config=TorchConfig(backend="nccl" if resources.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=training.workers, use_gpu=resources.use_gpu, resources_per_worker=resources.worker_resources
        ),
        run_config=RunConfig(
            name=_run_name(experiment, parameters["number"]),
            storage_path=_storage(workspace),
            failure_config=FailureConfig(max_failures=training.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            callbacks=[cast(Any, TuneReportCallback())],
        ),
    )
    trainer.fit()


def _storage(workspace: Workspace) -> str:
    return workspace.path(_EXPERIMENTS) if workspace.is_local else f"{workspace.uri}/{_EXPERIMENTS}"


def _run_name(experiment: str, number: int) -> str:
    """Fixed names: a restarted trial finds its own Ray Train run and goes on from its checkpoint."""
    return f"{experiment}-{number:03d}"


def _score_actors(context: Context, specs: list[TrialSpec]) -> list[Any]:
    if all(spec.config.candidates.refresh == "never" for spec in specs):
        return []
    config = context.config
    remote = ray.remote(num_cpus=config.resources.cpus_per_actor)(ScoreActor)
    return [remote.remote(config.generator, context.workspace.uri, "train")]


def _row(result: ray.tune.Result) -> dict[str, Any]:
    config, metrics = result.config or {}, result.metrics or {}
    recalls = {key: float(value) for key, value in metrics.items() if key.startswith("R@")}
    return {"number": config["number"], "step": metrics["step"], "metrics": recalls}


def _raise_first_error(results: Any) -> None:
    for error in results.errors:
        text = str(error)
        _, found, message = text.rpartition(f"{ArmorError.__name__}: ")
        if found:
            raise ArmorError(message.strip().splitlines()[0], where="training")
        raise RuntimeError(f"a training trial failed:\n{text}")
