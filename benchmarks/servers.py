"""The two servers of `benchmarks.serve`, each in processes of its own over the same encoder, vectors and passages."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pyarrow.parquet as pq
import yaml

from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.golden import write_golden
from armor_ray.retrieval.dense import build_index
from armor_ray.retrieval.index_file import FILE, save_index
from armor_ray.workspace import Draft, Workspace
from benchmarks.inputs import Inputs

CONFIG = Path(__file__).parents[1] / "serve_configs" / "retriever.yaml"
_SERVE = str(Path(sys.executable).parent / "serve")
ENVIRONMENT = CONFIG.with_name("serving.env")
_READY_SECONDS = 180
_STOP_SECONDS = 30
_OFFLINE = {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def write_workspace(folder: Path, inputs: Inputs) -> Workspace:
    """What a finished run leaves for serving: passages, their index, and a promoted encoder (the base one's weights: speed is the same)."""
    workspace = Workspace(str(folder))
    encoder = inputs.encoder

    def write_passages(draft: Draft) -> None:
        pq.write_table(inputs.passages, draft.path / "passages.parquet")

    def write_embeddings(draft: Draft) -> None:
        np.save(draft.path / "part-00000.npy", inputs.vectors_CD)

    def write_index(draft: Draft) -> None:
        index = build_index(np.asarray(inputs.vectors_CD, np.float32), inputs.config.index)
        save_index(index, draft.path, {"encoder": encoder.identity.fingerprint()})

    for name, write, source in (
        ("passages", write_passages, None),
        ("embeddings", write_embeddings, "passages"),
        ("index", write_index, "embeddings"),
    ):
        inputs_of = {source: f"bench-{source}"} if source else {}
        workspace.publish(name, stage=name, fingerprint=f"bench-{name}", inputs=inputs_of, config={}, write=write)
    publish_encoder(workspace, "promoted", encoder, inputs)
    return workspace


def publish_encoder(workspace: Workspace, name: str, encoder: BiEncoder, inputs: Inputs) -> None:
    """An exported encoder with its golden vectors."""

    def write(draft: Draft) -> None:
        encoder.save(draft.path)
        write_golden(encoder, inputs.splits["test"].texts[:16], draft.path)

    workspace.publish(name, stage=name.split("/")[0], fingerprint=f"bench-{name}", inputs={}, config={}, write=write)


@dataclass(frozen=True, slots=True)
class OurServer:
    """A running `serve run`.

    Attributes:
        folder: holds its log.
        config: what it was started with.
    """

    url: str
    pid: int
    folder: Path
    config: dict[str, Any]

    def replicas(self) -> list[psutil.Process]:
        """Processes of the retriever deployment."""
        return processes_below(self.pid, "ServeReplica:retriever:retriever")

    def deploy(self, user_config: dict[str, Any]) -> None:
        """`serve deploy` of the config with another `user_config`.

        Raises:
            RuntimeError: it was refused.
        """
        application = {**self.config["applications"][0], "deployments": [{"name": "retriever", "user_config": user_config}]}
        path = self.folder / "changed.yaml"
        path.write_text(yaml.safe_dump({**self.config, "applications": [application]}), encoding="utf-8")
        dashboard = re.search(r"http://127\.0\.0\.1:\d+", (self.folder / "log.txt").read_text(errors="replace"))
        assert dashboard is not None, "`serve run` names its dashboard"
        command = [_SERVE, "deploy", str(path), "--address", dashboard[0]]
        run = subprocess.run(command, env={**os.environ, "RAY_AUTH_MODE": "token"}, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"serve deploy failed:\n{run.stderr[-2000:]}")


@contextlib.contextmanager
def serve_ours(workspace: Workspace, arguments: dict[str, object], environment: dict[str, str]) -> Iterator[OurServer]:
    """`serve run` of the shipped config with other arguments, on a Ray of its own."""
    port = _free_port()
    # Short: Ray's socket paths have a length limit.
    ray_folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    folder = Path(ray_folder)
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["http_options"]["port"] = port
    config["applications"][0]["args"] |= {"workspace": workspace.uri, "compare": False, **arguments}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [_SERVE, "run", "config.yaml"]
    own = {"RAY_ADDRESS": "local", "RAY_TMPDIR": ray_folder, **advised_environment(), **environment}
    with _process(command, folder, own, signal.SIGINT) as process:
        yield OurServer(_ready(f"http://127.0.0.1:{port}", process, folder / "log.txt"), process.pid, folder, config)
    shutil.rmtree(ray_folder, ignore_errors=True)


def processes_below(pid: int, text: str) -> list[psutil.Process]:
    """Children, and theirs, whose command line holds the text."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if text in " ".join(process.cmdline()):
                found.append(process)
    return found


def advised_environment() -> dict[str, str]:
    """The variables of `serve_configs/serving.env`."""
    lines = ENVIRONMENT.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@contextlib.contextmanager
def serve_plain(workspace: Workspace, folder: Path) -> Iterator[str]:
    """The plain app over the same files; gives its address."""
    folder.mkdir()
    (folder / "encoder").symlink_to(workspace.local("promoted"))
    (folder / "index.faiss").symlink_to(workspace.local("index") / FILE)
    (folder / "passages.parquet").symlink_to(workspace.local("passages") / "passages.parquet")
    port = _free_port()
    command = [sys.executable, "-m", "benchmarks.plain_app", str(folder), str(port)]
    with _process(command, folder, {"PYTHONPATH": os.pathsep.join(sys.path)}, signal.SIGTERM) as process:
        yield _ready(f"http://127.0.0.1:{port}", process, folder / "log.txt")


@contextlib.contextmanager
def _process(command: list[str], folder: Path, environment: dict[str, str], stop: signal.Signals) -> Iterator[subprocess.Popen]:
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **_OFFLINE, **environment}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ready(url: str, process: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return url
        time.sleep(0.3)
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
