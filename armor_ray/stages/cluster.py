"""Connecting to Ray, and turning the `resources` section into requests that the cluster can meet."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import ray
import ray.data
from ray.exceptions import RayError

from armor_ray.config import ResourcesConfig
from armor_ray.errors import ArmorError
from armor_ray.workspace import Workspace

# Nobody is told that this ran; and Ray's core logs a known, harmless line for every actor pool (ray#53727) at error level.
DRIVER_ENV = {"RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "RAY_BACKEND_LOG_LEVEL": "fatal"}

_GCS_PORT = "RAY_GCS_SERVER_PORT"
_READER_CPUS = 0.5
_FAULT = re.compile(rf"{re.escape(ArmorError.__module__)}\.{ArmorError.__name__}: (.+)")


def connect(workspace: Workspace) -> None:
    """Joins the cluster that RAY_ADDRESS names (inside a submitted job: its own), or starts a local one.

    Raises:
        ArmorError: no cluster answers at RAY_ADDRESS, or the workspace is a path of this machine but the cluster has other machines.
    """
    if not ray.is_initialized():
        _start()
    hosts = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    if workspace.is_local and len(hosts) > 1 and os.environ.get("ARMOR_RAY_SHARED_FOLDER") != "1":
        raise ArmorError(
            f"a local path, but the cluster has {len(hosts)} machines",
            where=workspace.uri,
            hint="use an object-store URI, or set ARMOR_RAY_SHARED_FOLDER=1 when the folder is shared by all of them",
        )


def _start() -> None:
    for name, value in DRIVER_ENV.items():
        os.environ.setdefault(name, value)
    address = os.environ.get("RAY_ADDRESS")
    try:
        if address:
            _knock(address)
        _join(_address_for_actors(address))
    except (OSError, ValueError) as error:
        if not address:
            raise
        hint = "start that cluster, or unset RAY_ADDRESS for a local one"
        raise ArmorError(f"no Ray cluster at {address}", where="RAY_ADDRESS", hint=hint) from error
    # The stages show their own progress, with a time left; Ray Data's is a block of log lines every ten seconds.
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)


def _join(told: str | None) -> None:
    """Ray with every actor told its cluster's address, where that is known.

    Ray Train's cleaner of placement groups asks for actor states by RAY_ADDRESS. Where a machine runs several Rays and it is not set, the
    cleaner dies, a trial that was stopped early keeps its CPUs, and the sweep waits for ever.
    """
    if told is None:
        _init(None, {})
        return
    port = told.rpartition(":")[2]
    with _environment(_GCS_PORT, port):  # read by a Ray that starts here
        _init(None, {"RAY_ADDRESS": told})
    found = ray.get_runtime_context().gcs_address
    if found.rpartition(":")[2] != port:  # without RAY_ADDRESS, Ray joins what `ray start` began on this machine
        ray.shutdown()
        _init(found, {"RAY_ADDRESS": found})


def _init(address: str | None, variables: dict[str, str]) -> None:
    log_workers = os.environ.get("ARMOR_RAY_WORKER_LOGS") == "1"
    ray.init(address, logging_level=logging.ERROR, log_to_driver=log_workers, runtime_env={"env_vars": variables})


def _address_for_actors(address: str | None) -> str | None:
    """The cluster that RAY_ADDRESS names, or the one that shall start here; None for a proxy (`ray://`): its cluster's own is unknown."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        return None if "/" in host else address
    return _own_address()


def _own_address() -> str:
    """Where a Ray that is yet to start here shall listen."""
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """The variable, set for the duration."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _knock(address: str) -> None:
    """Raises OSError where nothing listens; Ray itself tries for two minutes and then exits the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Lets an ArmorError of a task or an actor through as what it is; Ray wraps it, and keeps an actor's start-up error as text only.

    Ray Data also prints the wrapped traceback, so its log is off meanwhile; an error that is not the user's is raised whole.
    """
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except RayError as error:
        found = _FAULT.findall(str(error))
        if not found:
            raise
        raise ArmorError(found[-1].strip()) from error
    finally:
        logger.setLevel(level)


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

    Actors leave some CPU free: Ray Data's read tasks need it, and actors that take all CPUs deadlock it silently.

    Raises:
        ArmorError: the cluster (autoscaled nodes included) can never meet the request.
    """
    total_cpus, total_gpus = cluster_totals(resources)
    cpus = resources.cpus_per_actor
    gpus = (1.0 if total_gpus else 0.0) if resources.gpus_per_actor == "auto" else float(resources.gpus_per_actor)
    _check_node(resources, cpus, gpus)
    fitting = int((total_cpus - _READER_CPUS + 1e-6) / cpus)
    capacity = min(fitting, int(total_gpus / gpus + 1e-6) if gpus else int(total_cpus))
    count = max(1, min(capacity if wanted == "auto" else wanted, work_items))
    if count * gpus > total_gpus:
        where = "resources.gpus_per_actor"
        raise ArmorError(f"{count * gpus:g} GPUs asked for, {total_gpus:g} in the cluster", where=where, hint="lower it or add nodes")
    if count > fitting:
        raise ArmorError(
            f"{count} actors of {cpus:g} CPUs leave no CPU for reading data ({total_cpus:g} in the cluster)",
            where="resources.cpus_per_actor",
            hint="lower it or the number of actors",
        )
    return ActorPlan(count, cpus, gpus)


def _check_node(resources: ResourcesConfig, cpus: float, gpus: float) -> None:
    """An actor lives on one node; an autoscaled cluster's nodes are not known before they are there."""
    if resources.cluster_cpus != "auto":
        return
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        where = "resources.gpus_per_actor" if gpus else "resources.cpus_per_actor"
        raise ArmorError(f"no node has {cpus:g} CPUs and {gpus:g} GPUs for one actor", where=where, hint="lower it or add larger nodes")


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """What one trial's trainer reserves and how many trials run at once."""

    worker_resources: dict[str, float]
    use_gpu: bool
    concurrent: int


def plan_refresh_actors(resources: ResourcesConfig) -> ActorPlan:
    """Actors that score new pairs while trials train: `score_actors` of them, one where that is `auto`.

    Raises:
        ArmorError: the cluster can never meet the request.
    """
    return plan_actors(resources, 1 if resources.score_actors == "auto" else resources.score_actors, sys.maxsize)


def plan_trials(resources: ResourcesConfig, workers: int, trials: int, beside: ActorPlan | None = None) -> TrialPlan:
    """Bounds concurrent trials by what the cluster holds `beside` other actors, so that none waits for another's trainers for ever.

    Raises:
        ArmorError: not even one trial fits.
    """
    total_cpus, total_gpus = cluster_totals(resources)
    use_gpu = total_gpus > 0
    if beside is not None:
        total_cpus, total_gpus = total_cpus - beside.count * beside.cpus, total_gpus - beside.count * beside.gpus
    worker = {"CPU": resources.cpus_per_trainer, **({"GPU": 1.0} if use_gpu else {})}
    fits = int((total_cpus + 1e-6) / (workers * worker["CPU"]))
    if use_gpu:
        fits = min(fits, int(total_gpus / workers))
    if fits < 1:
        free = f"{total_cpus:g} CPUs and {total_gpus:g} GPUs{' beside the score actors' if beside else ''}"
        what = f"{workers} trainers of {worker}"
        raise ArmorError(f"the cluster ({free}) never fits {what}", where="training.workers", hint="lower it or resources.cpus_per_trainer")
    wanted = resources.max_concurrent_trials
    return TrialPlan(worker, use_gpu, max(1, min(trials, fits if wanted == "auto" else min(wanted, fits))))


def cluster_totals(resources: ResourcesConfig) -> tuple[float, float]:
    """CPUs and GPUs to plan for: what the config names (an autoscaled cluster's maximum), else what the cluster has now."""
    present = ray.cluster_resources()
    cpus = present.get("CPU", 0.0) if resources.cluster_cpus == "auto" else float(resources.cluster_cpus)
    gpus = present.get("GPU", 0.0) if resources.cluster_gpus == "auto" else float(resources.cluster_gpus)
    return cpus, gpus
