"""Connecting to Ray, and turning the `resources` section into requests that the cluster can meet."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, Literal

import ray
import ray.data

from armor_ray.config import ResourcesConfig
from armor_ray.errors import ArmorError
from armor_ray.workspace import Workspace

# Nobody is told that this ran; and Ray's core logs a known, harmless line for every actor pool (ray#53727) at error level.
DRIVER_ENV = {"RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "RAY_BACKEND_LOG_LEVEL": "fatal"}


def connect(workspace: Workspace) -> None:
    """Joins the cluster that RAY_ADDRESS names (inside a submitted job: its own), or starts a local one.

    Raises:
        ArmorError: the workspace is a path of this machine but the cluster has other machines.
    """
    if not ray.is_initialized():
        for name, value in DRIVER_ENV.items():
            os.environ.setdefault(name, value)
        ray.init(logging_level=logging.ERROR, log_to_driver=os.environ.get("ARMOR_RAY_WORKER_LOGS") == "1")
        # The stages show their own progress, with a time left; Ray Data's is a block of log lines every ten seconds.
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
    hosts = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    if workspace.is_local and len(hosts) > 1 and os.environ.get("ARMOR_RAY_SHARED_FOLDER") != "1":
        raise ArmorError(
            f"a local path, but the cluster has {len(hosts)} machines",
            where=workspace.uri,
            hint="use an object-store URI, or set ARMOR_RAY_SHARED_FOLDER=1 when the folder is shared by all of them",
        )


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """How many data actors to run and what each reserves."""

    count: int
    cpus: float
    gpus: float

    @property
    def options(self) -> dict[str, Any]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}


def plan_actors(resources: ResourcesConfig, wanted: int | Literal["auto"], work_items: int) -> ActorPlan:
    """Actors for a Ray Data stage: one a GPU where there are GPUs, else one a CPU core.

    Actors reserve less than a whole CPU: Ray Data's read tasks need some, and actors that take all CPUs deadlock it silently.

    Raises:
        ArmorError: the cluster (autoscaled nodes included) can never meet the request.
    """
    total_cpus, total_gpus = cluster_totals(resources)
    gpus = (1.0 if total_gpus else 0.0) if resources.gpus_per_actor == "auto" else float(resources.gpus_per_actor)
    capacity = int(total_gpus / gpus) if gpus else int(total_cpus)
    count = max(1, min(capacity if wanted == "auto" else wanted, work_items))
    _require(count * gpus, total_gpus, "GPUs", "resources.gpus_per_actor")
    spare = total_cpus - count * resources.cpus_per_actor
    if spare < 0.5:
        raise ArmorError(
            f"{count} actors of {resources.cpus_per_actor} CPUs leave no CPU for reading data ({total_cpus:g} in the cluster)",
            where="resources.cpus_per_actor",
            hint="lower it or the number of actors",
        )
    return ActorPlan(count, resources.cpus_per_actor, gpus)


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """What one trial's trainer reserves and how many trials run at once."""

    trial_cpus: float
    worker_resources: dict[str, float]
    use_gpu: bool
    concurrent: int


def plan_trials(resources: ResourcesConfig, workers: int, trials: int) -> TrialPlan:
    """Bounds concurrent trials by what the cluster holds, so that trials never wait for one another's trainers for ever."""
    total_cpus, total_gpus = cluster_totals(resources)
    use_gpu = total_gpus > 0
    trial_cpus = 0.1
    worker = {"CPU": resources.cpus_per_trainer, **({"GPU": 1.0} if use_gpu else {})}
    per_trial = trial_cpus + workers * worker["CPU"]
    fits = int((total_cpus + 1e-6) / per_trial)
    if use_gpu:
        fits = min(fits, int(total_gpus / workers))
    if fits < 1:
        what = f"{workers} trainers of {worker} and a trial of {trial_cpus} CPUs"
        raise ArmorError(f"the cluster ({total_cpus:g} CPUs, {total_gpus:g} GPUs) never fits {what}", where="training.workers", hint="lower it")
    wanted = resources.max_concurrent_trials
    return TrialPlan(trial_cpus, worker, use_gpu, max(1, min(trials, fits if wanted == "auto" else min(wanted, fits))))


def cluster_totals(resources: ResourcesConfig) -> tuple[float, float]:
    """CPUs and GPUs to plan for: what the config names (an autoscaled cluster's maximum), else what the cluster has now."""
    present = ray.cluster_resources()
    cpus = present.get("CPU", 0.0) if resources.cluster_cpus == "auto" else float(resources.cluster_cpus)
    gpus = present.get("GPU", 0.0) if resources.cluster_gpus == "auto" else float(resources.cluster_gpus)
    return cpus, gpus


def _require(wanted: float, total: float, what: str, where: str) -> None:
    if wanted > total:
        raise ArmorError(f"{wanted:g} {what} asked for, {total:g} in the cluster", where=where, hint="lower it or add nodes")
