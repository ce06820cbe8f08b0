"""Training runs as Ray Tune trials, each a Ray Train (DDP) job: what `train` and `sweep` share.

Tune bounds how many run at once and keeps finished ones when the driver was killed; Train restarts a lost worker from its checkpoint.
A Train run is named after all that decides its numbers, so a restarted trial goes on from its own checkpoint even where Tune's record is
lost or the other trials have changed. All trials read the same training table from Ray's object store. A trial that trains a retriever to
keep publishes it itself, so a finished one is never trained again.

Trial and controller processes import this module; torch and models belong into `train_worker`, which only workers import.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import ray.tune
from ray.tune.integration.ray_train import TuneReportCallback
from tqdm import tqdm

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.stages.cluster import TrialPlan, plan_refresh_actors, plan_trials, user_errors
from armor_ray.stages.context import Context, Plan, work_folder
from armor_ray.stages.methods import training_identity
from armor_ray.stages.train_runs import discard_damaged_run, fault_of, has_record, is_json, torch_run
from armor_ray.training.table import TrainingTable
from armor_ray.workspace import Workspace, fingerprint

_FAULT = "fault"  # a key of reported metrics
_TUNE_STATE = "experiment_state-"
# A trial only waits for its Ray Train run, whose controller stays on its node. On the head, which is never a spot machine, neither is
# lost with a worker node, so Train itself restarts the lost workers, and no dead controller leaves a reservation behind.
_ON_THE_HEAD = {"CPU": 0, "node:__internal_head__": 0.001}
_TUNE_ENV = {
    # Tune's own tables, result files and events: progress has a line of its own, histories go to TensorBoard from the training loop.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Seconds between records of which trials are finished; ten by default, about as long as a small trial takes.
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
    # An interrupt must end the run, not make a half-done experiment look finished.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One training run.

    Attributes:
        name: distinct among the stage's trials.
        config: fully resolved.
        inputs: fingerprints of what the training table was made of.
        plan: the artifact to publish; None where only the metrics count, as in a sweep.
    """

    name: str
    config: Config
    inputs: dict[str, str]
    plan: Plan | None = None

    @property
    def run_name(self) -> str:
        """Names the Ray Train run after all that decides its numbers."""
        return f"{self.name.replace('/', '-')}-{fingerprint('run', training_identity(self.config), self.inputs)}"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """How a trial ended: the index of its spec, optimizer steps taken, and validation recall by "R@k"."""

    number: int
    step: int
    recall: dict[str, float]


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What a Ray Train worker needs; pickled, so the table travels as a reference into the object store.

    Attributes:
        log_folder: for TensorBoard events; None where the workspace is no folder.
        outcome: where in the workspace the final metrics are left when no artifact is published.
    """

    spec: TrialSpec
    workspace_uri: str
    table: list[Any]
    score_actors: list[Any]
    log_folder: str | None
    outcome: str


@dataclass(frozen=True, slots=True)
class _Runs:
    """What all trials of a stage share; their Ray Train runs and outcomes lie below `folder` in the workspace."""

    specs: list[TrialSpec]
    workspace_uri: str
    folder: str
    table: list[Any]
    score_actors: list[Any]
    resources: TrialPlan


def run_trials(context: Context, specs: list[TrialSpec], table: TrainingTable, stage: str, scheduler: Any = None) -> list[TrialResult]:
    """Runs all specs, as many at a time as the cluster holds, and returns their results in the order of the specs.

    After a killed driver, the same call keeps finished trials and resumes the others from their checkpoints.

    Raises:
        ArmorError: a trial met a fault; it is raised when all others are done.
    """
    config, workspace, folder = context.config, context.workspace, work_folder(stage)
    actors = plan_refresh_actors(config.resources) if any(s.config.candidates.refresh != "never" for s in specs) else None
    plan = plan_trials(config.resources, config.training.workers, len(specs), actors)
    score_actors = _start_score_actors(context, actors.count, actors.options) if actors else []
    runs = _Runs(specs, workspace.uri, folder, [ray.put(table)], score_actors, plan)
    name = f"tune-{fingerprint(stage, {'runs': [spec.run_name for spec in specs], 'concurrent': plan.concurrent}, {})}"
    try:
        results = _tuner(workspace, runs, name, scheduler, stage).fit()
    finally:
        for actor in score_actors:
            ray.kill(actor)
    _raise_first_fault(workspace, f"{folder}/{name}", results)
    return sorted((_result(results[i]) for i in range(len(results))), key=lambda result: result.number)


def _start_score_actors(context: Context, count: int, options: dict[str, Any]) -> list[Any]:
    from armor_ray.stages.arithmetic import scoring_generator
    from armor_ray.stages.refresh import RefreshActor

    remote: Any = ray.remote(RefreshActor).options(**options, max_restarts=-1, max_task_retries=-1)
    generator = scoring_generator(context)
    actors = [remote.remote(generator, context.workspace.uri, context.cache.uri, "train") for _ in range(count)]
    with user_errors():
        ray.get([actor.__ray_ready__.remote() for actor in actors])
    return actors


# -- Tune --------------------------------------------------------------------------------------------------------------------------


def _tuner(workspace: Workspace, runs: _Runs, name: str, scheduler: Any, stage: str) -> ray.tune.Tuner:
    os.environ.update(_TUNE_ENV)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    trainable = ray.tune.with_resources(ray.tune.with_parameters(_trial, runs=runs), _ON_THE_HEAD)
    # A finished trial with an artifact is not among the specs any more; so only a sweep has anything to restore.
    if all(spec.plan is None for spec in runs.specs) and _is_restorable(workspace, f"{runs.folder}/{name}"):
        return ray.tune.Tuner.restore(workspace.address(f"{runs.folder}/{name}"), trainable=trainable, resume_errored=True)
    workspace.delete(f"{runs.folder}/{name}")
    return ray.tune.Tuner(
        trainable,
        param_space={"number": ray.tune.grid_search(list(range(len(runs.specs))))},
        tune_config=ray.tune.TuneConfig(
            scheduler=scheduler,
            max_concurrent_trials=runs.resources.concurrent,
            # A process that has imported everything takes the next trial; but one whose trial is stopped early must end with it.
            reuse_actors=scheduler is None,
        ),
        run_config=ray.tune.RunConfig(
            name=name,
            storage_path=workspace.address(runs.folder),
            # Of the trial's own process, as when its node is taken away.
            failure_config=ray.tune.FailureConfig(max_failures=runs.specs[0].config.training.max_failures),
            callbacks=[TrialProgress(stage, [spec.name for spec in runs.specs])],
            verbose=0,
        ),
    )


def _is_restorable(workspace: Workspace, experiment: str) -> bool:
    """Whether Tune left a whole record: it writes none at first, and a kill may cut the newest short."""
    states = [name for name in workspace.files(experiment) if name.rpartition("/")[2].startswith(_TUNE_STATE)]
    return bool(states) and is_json(workspace, max(states))


class TrialProgress(ray.tune.Callback):
    """One line per finished trial, with the time left. Tune pickles it before it starts and after that only uses it."""

    def __init__(self, stage: str, names: list[str]) -> None:
        self._stage = stage
        self._names = names
        self._bar: tqdm | None = None

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if self._bar is None:
            kept = sum(trial.status == trial.TERMINATED for trial in trials)
            self._bar = tqdm(total=len(self._names), initial=kept, desc=self._stage, unit=" runs", mininterval=0)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        assert self._bar is not None
        recall = ", ".join(f"{key} {value:.3f}" for key, value in trial.last_result.items() if key.startswith("R@"))
        outcome = "failed" if _FAULT in trial.last_result else recall
        self._bar.set_postfix_str(f"{self._name(trial)}: {outcome}", refresh=False)
        self._bar.update()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        assert self._bar is not None
        self._bar.write(f"{self._stage}: {self._name(trial)} failed")

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def _name(self, trial: Any) -> str:
        return self._names[trial.config["number"]].removeprefix("retrievers/")


def _result(result: ray.tune.Result) -> TrialResult:
    config, metrics = result.config or {}, result.metrics or {}
    recall = {key: float(value) for key, value in metrics.items() if key.startswith("R@")}
    return TrialResult(config["number"], int(metrics["step"]), recall)


def _raise_first_fault(workspace: Workspace, experiment: str, results: ray.tune.ResultGrid) -> None:
    faults = [fault for i in range(len(results)) if (fault := (results[i].metrics or {}).get(_FAULT))]
    if faults:
        # Tune takes these trials for finished; without its record they run again, from their last checkpoints.
        workspace.delete(experiment)
        if isinstance(faults[0], str):
            raise RuntimeError(f"a training trial failed:\n{faults[0]}")
        message, where, hint = faults[0]
        raise ArmorError(message, where=where, hint=hint)
    if results.errors:
        raise results.errors[0]


# -- Train -------------------------------------------------------------------------------------------------------------------------


def _trial(parameters: dict[str, Any], runs: _Runs) -> None:
    """A Tune trial: runs the Ray Train job of one spec and passes its reports on, or those that an earlier one left."""
    spec = runs.specs[parameters["number"]]
    workspace, run = Workspace(runs.workspace_uri), f"{runs.folder}/{spec.run_name}"
    outcome = workspace.read_bytes(f"{run}.json")
    if outcome is not None:
        ray.tune.report(json.loads(outcome))
        return
    discard_damaged_run(workspace, run)
    if not has_record(workspace, run):
        workspace.delete(f"logs/{spec.name}")
    try:
        _trainer(spec, runs, workspace, run).fit()
    except ray.train.TrainingFailedError as error:
        # Reported, not raised: Train has restarted what a restart can mend, and Tune would do it all again.
        fault = fault_of(error)
        reason = (fault.message, fault.where, fault.hint) if fault is not None else str(error)
        ray.tune.report({_FAULT: reason, spec.config.training.metric: 0.0, "step": 0})
        return
    # Its checkpoint is several times as large as the model; what counts is published, or in the outcome.
    workspace.delete(run)


def _trainer(spec: TrialSpec, runs: _Runs, workspace: Workspace, run: str) -> Any:
    training = spec.config.training
    log_folder = workspace.path(f"logs/{spec.name}") if workspace.is_local else None
    job = TrainJob(spec, runs.workspace_uri, runs.table, runs.score_actors, log_folder, f"{run}.json")
    return torch_run(
        _train,
        job,
        workspace,
        run,
        workers=training.workers,
        resources=runs.resources,
        max_failures=training.max_failures,
        callbacks=[TuneReportCallback()],
    )


def _train(arguments: dict[str, Any]) -> None:
    from armor_ray.stages.train_worker import train

    train(arguments["job"])
