"""The sweep on Ray's simulated autoscaling cluster: no worker at first, nodes come when trials wait, one is lost, all go when idle.

`ray.cluster_utils.AutoscalingCluster` would first stop every Ray on this machine, and its base configuration is not in Ray's wheel; so
its node provider, whose nodes are raylets on this machine, is set to work here.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from pipeline_cases import Tiny, logged_steps
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FakeMultiNodeProvider

from armor_ray.demo.head import MARKER, QUIET_RAY, processes_of

MAX_NODES = 3
STORE_BYTES = 100_000_000
LAMBDAS = [0.3, 1.0, 3.0, 10.0]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A head without CPUs for trials, and up to three nodes of one CPU, each a raylet on this machine."""

    marker: str
    environment: dict[str, str]

    def raylets(self) -> list[psutil.Process]:
        """Those of the worker nodes, oldest first: the autoscaler starts them, where the head's was there before it."""
        processes = processes_of(self.marker)
        scalers = {process.pid for process in processes if any(part.endswith("monitor.py") for part in process.cmdline())}
        nodes = [process for process in processes if process.name() == "raylet" and process.ppid() in scalers]
        return sorted(nodes, key=lambda process: process.create_time())

    def wait_for_nodes(self, low: int, high: int, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not low <= (count := len(self.raylets())) <= high:
            assert time.monotonic() < deadline, f"{count} nodes after {seconds} s, not {low} to {high}"
            time.sleep(0.2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder, marker, port = tempfile.mkdtemp(prefix="armor-", dir="/tmp"), secrets.token_hex(16), free_port()
    (tmp_path / "token").write_text(secrets.token_hex(32), encoding="utf-8")
    (tmp_path / "cluster.json").write_text(json.dumps(configuration(port)), encoding="utf-8")
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    simulation = {
        "RAY_FAKE_CLUSTER": "1",
        # Version 2 is what `ray up` starts on real clusters.
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        # A dead node is noticed within two seconds, not fifteen.
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "4",
    }
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--num-cpus=0", f"--object-store-memory={STORE_BYTES}"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={free_port()}"]
    # Ray Train asks the dashboard which controllers are alive, and frees what a dead one had reserved.
    command += ["--include-dashboard=true", f"--dashboard-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}"]
    command += [f"--autoscaling-config={tmp_path / 'cluster.json'}", f"--temp-dir={folder}", "--disable-usage-stats"]
    # All nodes share this machine: without the address Ray Train's cleaner sees several Rays, dies, and leaves a dead run's reservations.
    environment = {**os.environ, **QUIET_RAY, **access, **simulation, MARKER: marker, "RAY_ADDRESS": f"127.0.0.1:{port}"}
    try:
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
        yield Cluster(marker, {**access, "RAY_ADDRESS": f"127.0.0.1:{port}"})
    finally:
        for process in processes_of(marker):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def configuration(port: int) -> dict[str, Any]:
    node = {"node_config": {}, "min_workers": 0, "max_workers": MAX_NODES, "resources": {"CPU": 1, "object_store_memory": STORE_BYTES}}
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        **{f"{name}_commands": [] for name in commands},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "file_mounts_sync_continuously": False,
        "upscaling_speed": 1.0,
        "cluster_name": "simulated",
        "max_workers": MAX_NODES,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "external",
            "module": f"{FakeMultiNodeProvider.__module__}.{FakeMultiNodeProvider.__name__}",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "gcs_address": f"127.0.0.1:{port}",
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"node_config": {}, "max_workers": 0, "resources": {"CPU": 0}},
            "trials": node,
        },
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def training_nodes(workspace: Path) -> list[psutil.Process]:
    """The raylets of workers that have logged training steps and still run."""
    nodes = []
    for path in workspace.glob("logs/sweep/*/events.*"):
        pid = int(path.name.split(".")[-2])
        trial = path.parent.relative_to(workspace / "logs").as_posix()
        # A file of before a restart names a process that is gone.
        if psutil.pid_exists(pid) and any(logged_steps(workspace, trial)):
            nodes.append(psutil.Process(pid).parent())
    return [node for node in nodes if node is not None and node.name() == "raylet"]


def test_a_sweep_ends_with_all_trials_though_nodes_come_die_and_go(tiny: Tiny, scored: Path, cluster: Cluster):
    workspace = tiny.copy(scored, "autoscaled")
    assert not cluster.raylets()
    driver = tiny.start(
        "autoscaled",
        cluster.environment,
        *("--until", "sweep"),
        training={"epochs": 8, "interpolate": []},
        # No trial is stopped early: Ray Train's request for one that is lives for 180 seconds, and nodes stay so long.
        sweep={"parameters": {"objective.lambda_q": LAMBDAS}, "scheduler": "none"},
        resources={"cluster_cpus": MAX_NODES},
    )
    driver.wait_for(lambda: list(workspace.glob(".work/sweep/*/checkpoint_manager_snapshot.json")))
    cluster.wait_for_nodes(2, MAX_NODES)
    # Which nodes are at work, and which just came, depends on the machine's speed: only the loss of a busy one shows anything.
    busy: list[psutil.Process] = []
    driver.wait_for(lambda: busy.extend(training_nodes(workspace)) or busy)
    busy[0].kill()
    assert driver.end() == 0, driver.output

    trials = pq.read_table(workspace / "sweep" / "results.parquet").to_pylist()
    assert [trial["objective.lambda_q"] for trial in trials] == LAMBDAS
    assert all(0 <= trial["R@1"] <= trial["R@3"] <= trial["R@5"] <= trial["R@16"] <= 1 for trial in trials)
    assert all(trial["epochs"] == 8 for trial in trials)
    processes = [[steps for steps in logged_steps(workspace, f"sweep/{i:03d}") if steps] for i in range(len(LAMBDAS))]
    assert max(len(steps) for steps in processes) > 1, "the lost node had no trial"
    cluster.wait_for_nodes(0, 0)
