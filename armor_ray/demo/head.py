"""A private Ray head on this machine: started for one job, and stopped with everything that it started.

Every process of the head inherits a marker in its environment. The marker is on disk before the first process starts, so a head
whose owner was killed is found again and ended by the next start, whatever became of its process ids. Heads of others are never
touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from armor_ray.errors import ArmorError

MARKER = "ARMOR_RAY_HEAD"
FIRST_DASHBOARD_PORT = 8265
START_SECONDS = 180
STOP_SECONDS = 20

QUIET_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Several single-threaded processes share the cores: spinning OpenMP threads make one training step take minutes.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    # Without it a process that renames itself (ray::...) overwrites the environment that the marker is read from.
    "SPT_NOENV": "1",
}


@dataclass(frozen=True, slots=True)
class Head:
    """A running head.

    Attributes:
        address: of the dashboard and the job server, `http://127.0.0.1:port`.
        environment: whole environment for Ray's command line: token, marker, and this Python first on PATH.
    """

    address: str
    environment: dict[str, str]

    def get(self, path: str) -> Any:
        """JSON behind a path of the job server."""
        token = Path(self.environment["RAY_AUTH_TOKEN_PATH"]).read_text(encoding="utf-8")
        request = urllib.request.Request(f"{self.address}{path}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)


@contextlib.contextmanager
def local_head(state: Path, job_folder: Path, extra_environment: Mapping[str, str] | None = None) -> Iterator[Head]:
    """Starts a head on loopback, yields it when it takes jobs, and ends all its processes on the way out.

    Args:
        state: folder for the lock, the token, the log and the record of the running head; one head at a time.
        job_folder: where jobs run.
        extra_environment: variables for the head, hence for its jobs and workers.

    Raises:
        ArmorError: another process runs a head from this folder, or the head does not come up (its log is named).
    """
    state.mkdir(parents=True, exist_ok=True)
    with _exclusive(state / "lock"):
        _end_recorded(state)
        # Unix sockets allow 107 characters, too few for a workspace's path; and Ray's default folder is shared with other heads.
        temporary = Path(tempfile.mkdtemp(prefix="armor-ray-"))
        record = {MARKER: secrets.token_hex(16), "temporary": str(temporary)}
        draft = state / "head.json.draft"
        draft.write_text(json.dumps(record), encoding="utf-8")
        draft.rename(state / "head.json")
        try:
            yield _start(state.absolute(), record, job_folder, extra_environment or {})
        finally:
            _end_recorded(state)


def end_leftover(state: Path) -> None:
    """Ends the head of an owner that was killed, if there is one.

    Raises:
        ArmorError: its owner is alive.
    """
    if (state / "head.json").exists():
        with _exclusive(state / "lock"):
            _end_recorded(state)


def _end_recorded(state: Path) -> None:
    path = state / "head.json"
    if not path.exists():
        return
    record = json.loads(path.read_text(encoding="utf-8"))
    _end_processes(record[MARKER])
    shutil.rmtree(record["temporary"], ignore_errors=True)
    path.unlink()


def processes_of(marker: str) -> list[psutil.Process]:
    """Live processes whose environment holds the marker, those of other users left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _end_processes(marker: str) -> None:
    # Killed, not asked to end: Ray would first drain for 30 s, and what jobs publish survives SIGKILL by design.
    deadline = time.monotonic() + STOP_SECONDS
    # Again and again: a process may start another one while the first are being ended.
    while (alive := processes_of(marker)) and time.monotonic() < deadline:
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=1)
    if alive:
        pids = ", ".join(str(process.pid) for process in alive)
        raise ArmorError(f"processes of the local Ray head do not end: {pids}", where="ray", hint="kill them by hand")


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Holds a lock that the operating system releases even when its holder is killed."""
    with path.open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            owner = handle.read().strip()
            raise ArmorError(f"process {owner} runs a Ray head here", where=str(path.parent), hint="wait for it or stop it") from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _start(state: Path, record: Mapping[str, str], job_folder: Path, extra_environment: Mapping[str, str]) -> Head:
    dashboard, agent, client = _free_ports()
    environment = _environment(state, record[MARKER], extra_environment)
    head = Head(f"http://127.0.0.1:{dashboard}", environment)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", "--log-color=false"]
    command += ["--node-ip-address=127.0.0.1", "--port=0", "--include-dashboard=true", "--dashboard-host=127.0.0.1"]
    command += [f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    command += [f"--temp-dir={record['temporary']}"]
    log = state / "head.log"
    with log.open("w", encoding="utf-8") as sink:
        # A session of its own: Ctrl-C reaches only us, and we decide in which order things end.
        process = subprocess.Popen(command, cwd=job_folder, env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    _wait_until_ready(head, agent, process, log)
    return head


def _environment(state: Path, marker: str, extra: Mapping[str, str]) -> dict[str, str]:
    token = state / "token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="utf-8")
    # Another cluster of the user's must not leak into this one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_ADDRESS", "RAY_API_", "RAY_AUTH_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    return {**inherited, **QUIET_RAY, **extra, **access, "PATH": path, "PYTHONUNBUFFERED": "1", MARKER: marker}


def _free_ports() -> tuple[int, int, int]:
    """Ports for the dashboard (8265 or the next free one), the node's agent and the client server."""
    with contextlib.ExitStack() as held:

        def bind(port: int) -> int:
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return probe.getsockname()[1]

        for port in range(FIRST_DASHBOARD_PORT, FIRST_DASHBOARD_PORT + 100):
            with contextlib.suppress(OSError):
                return bind(port), bind(0), bind(0)
    raise ArmorError(f"no free port from {FIRST_DASHBOARD_PORT} on for Ray's dashboard", where="ray")


def _wait_until_ready(head: Head, agent_port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for the job server and for the agent that starts the jobs."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            head.get("/api/version")
            with socket.create_connection(("127.0.0.1", agent_port), timeout=5):
                return
        time.sleep(0.3)
    why = f"is not ready after {START_SECONDS} s" if process.poll() is None else f"ended with status {process.returncode}"
    raise ArmorError(f"the local Ray head {why}", where=str(log), hint="read that log; a full disk or too little memory are common causes")
