"""Ray Train (DDP) runs: what a trial of the retriever and the reward model's training share.

Controller processes import this module; torch and models belong into the modules that only workers import.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import ray
import ray.train
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, UserCallback

from armor_ray.errors import ArmorError
from armor_ray.stages.cluster import TrialPlan
from armor_ray.workspace import Workspace

_STATE = "checkpoint_manager_snapshot.json"


class StopAtFault(UserCallback):
    """Ends a run at an ArmorError, which a restart would only meet again; after any other exception Train restarts the workers."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            if isinstance(error, ArmorError):
                raise error


def torch_run(
    work: Callable[[dict[str, Any]], None],
    job: Any,
    workspace: Workspace,
    run: str,
    *,
    workers: int,
    resources: TrialPlan,
    max_failures: int,
    callbacks: Sequence[UserCallback] = (),
) -> Any:
    """A trainer whose `fit` runs `work({"job": job})` on every DDP rank, restarts lost workers, and resumes a run of the same name.

    Args:
        job: pickled to the workers.
        run: the run's folder in the workspace, named after all that decides its numbers.
        max_failures: restarts after a lost worker; an ArmorError ends the run at once.
        callbacks: further ones of the controller.
    """
    from ray.train.torch import TorchConfig, TorchTrainer

    _quiet_train()
    folder, _, name = run.rpartition("/")
    return TorchTrainer(
        work,
        train_loop_config={"job": job},
        torch_config=TorchConfig(backend="nccl" if resources.use_gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=resources.use_gpu, resources_per_worker=resources.worker_resources),
        run_config=RunConfig(
            name=name,
            storage_path=workspace.address(folder),
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            callbacks=cast(Any, [*callbacks, StopAtFault()]),
        ),
    )


def _quiet_train() -> None:
    """Settings of Ray Train's controller, read when a run starts."""
    # By default it looks at its workers every two seconds only, longer than a small evaluation takes.
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.3"
    # A process that listens for the notice of a node's removal; of no use to a node that is alone.
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "1" if len(ray.nodes()) > 1 else "0"
    logging.getLogger("ray.train").setLevel(logging.WARNING)


def fault_of(error: ray.train.TrainingFailedError) -> ArmorError | None:
    """What `StopAtFault` stopped a run at."""
    fault = getattr(error, "controller_failure", None)
    return fault if isinstance(fault, ArmorError) else None


def has_record(workspace: Workspace, run: str) -> bool:
    """Whether Train has noted a checkpoint of the run, from which it would go on."""
    return workspace.read_bytes(f"{run}/{_STATE}") is not None


def discard_damaged_run(workspace: Workspace, run: str) -> None:
    """Train refuses to start over a record that a kill cut short; without one it starts afresh."""
    if has_record(workspace, run) and not is_json(workspace, f"{run}/{_STATE}"):
        workspace.delete(run)


def is_json(workspace: Workspace, name: str) -> bool:
    """Whether a file that Ray writes is whole."""
    try:
        json.loads(workspace.read_bytes(name) or b"")
    except ValueError:
        return False
    return True
