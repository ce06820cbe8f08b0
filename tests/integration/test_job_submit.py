"""The local head of the demo: jobs through `ray job submit`, true exit states, and nothing left behind, not even after SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from armor_ray.demo import __main__ as demo
from armor_ray.demo.head import MARKER, Head, local_head, processes_of
from armor_ray.demo.submit import run_job
from armor_ray.errors import ArmorError
from armor_ray.stages.cluster import _address_for_actors

OWNER = """
import sys, time
from pathlib import Path
from armor_ray.demo.head import local_head
with local_head(Path(sys.argv[1]), Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(600)
"""

JOB = """
import os, ray
from armor_ray.stages.cluster import connect
from armor_ray.workspace import Workspace
connect(Workspace("."))
print("cluster says", ray.get(ray.remote(lambda: 6 * 7).remote()), "in", os.getcwd())
told = ray.get(ray.remote(lambda: os.environ.get("RAY_ADDRESS")).remote())
print("actors know their cluster:", told == ray.get_runtime_context().gcs_address)
"""


def kill_owner_of_a_head(state: Path) -> str:
    """Starts a head in another process, kills that process, and returns the marker of what it left."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(state)], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout.readline() == "ready\n"
        finally:
            owner.kill()
    return json.loads((state / "head.json").read_text())[MARKER]


def rays_of_this_process() -> set[psutil.Process]:
    return {process for process in psutil.Process().children(recursive=True) if "ray" in process.name()}


def test_jobs_run_and_heads_leave_nothing(tmp_path, capfd):
    before = rays_of_this_process()  # tests that ran earlier share a Ray of their own
    leftover = kill_owner_of_a_head(tmp_path)
    assert processes_of(leftover), "the head was meant to outlive its owner"
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "fail.py").write_text("raise SystemExit(3)")

    with local_head(tmp_path, tmp_path) as head:
        assert not processes_of(leftover)
        marker = head.environment[MARKER]
        assert run_job(head, ["python", "job.py"]) == "SUCCEEDED"
        said = capfd.readouterr().out
        assert f"cluster says 42 in {tmp_path}" in said
        assert "actors know their cluster: True" in said
        # A run with a local Ray of its own beside it, too: otherwise its sweep may wait for ever.
        own = {**os.environ, "RAY_ADDRESS": "local", "PYTHONPATH": os.pathsep.join(sys.path)}
        beside = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=120)
        assert "actors know their cluster: True" in beside.stdout, beside.stderr
        assert run_job(head, ["python", "fail.py"]) == "FAILED"
        with pytest.raises(ArmorError, match=f"process {os.getpid()} runs a Ray head here"), local_head(tmp_path, tmp_path):
            pass
        assert processes_of(marker), "the refused second start must not end the first head"

    assert not processes_of(marker)
    assert rays_of_this_process() <= before
    assert not (tmp_path / "head.json").exists()


@contextlib.contextmanager
def no_head(*_):
    yield Head("http://127.0.0.1:1", {})


def test_demo_leaves_the_table_to_the_job_and_ends_with_the_summary(tmp_path, monkeypatch):
    """The job's own output, table included, is streamed past the runner; what the demo itself adds must not repeat it."""
    monkeypatch.setattr(demo, "local_head", no_head)
    jobs: list[list[str]] = []
    monkeypatch.setattr(demo, "run_job", lambda _, job: jobs.append(job) or "SUCCEEDED")
    monkeypatch.setattr(demo, "is_complete", lambda *_: False)
    monkeypatch.setattr(demo, "_fetch_models", lambda _: True)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(demo.main, ["--workspace", str(tmp_path)])
    # First what the adapted encoder is tried on, too.
    configs = ["jobs/configs/demo_general.yaml", f"{tmp_path}/.head/config.yaml"]
    assert [job[2:4] for job in jobs] == [["--config", config] for config in configs]
    assert jobs[0][4:] == ["--until", "candidates"]
    assert "Test set" not in result.output
    assert result.output.splitlines()[-1] == f"summary: {tmp_path}/reports/summary.json"


@pytest.mark.parametrize("status", ["FAILED", "STOPPED", "UNKNOWN"])
def test_demo_never_swallows_a_failed_job(tmp_path, monkeypatch, status):
    monkeypatch.setattr(demo, "local_head", no_head)
    monkeypatch.setattr(demo, "run_job", lambda *_: status)
    monkeypatch.setattr(demo, "is_complete", lambda *_: False)
    monkeypatch.setattr(demo, "_fetch_models", lambda _: True)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(demo.main, ["--workspace", str(tmp_path)])
    assert result.exit_code == 2
    assert f"the job ended as {status}" in result.output


def test_actors_are_told_an_address_only_where_it_is_their_clusters():
    assert _address_for_actors("10.0.0.1:6379") == "10.0.0.1:6379"
    assert _address_for_actors("ray://10.0.0.1:10001") is None  # the proxy's, not the control store's
    for own in (None, "", "local", "auto"):
        host, _, port = _address_for_actors(own).rpartition(":")
        assert host
        assert port.isdigit()
