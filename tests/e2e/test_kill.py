"""SIGKILL of the driver in every stage: the next run goes on, and the last ends with the numbers of an undisturbed one."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pipeline_cases import Finished, Tiny, logged_steps, manifest, summary
from pipeline_drivers import Driver

NAME = "killed"
# Most seconds from a stage's first line to the kill: about as long as it takes here.
DELAYS = {"prepare": 0.02, "embed": 4.0, "index": 0.01, "candidates": 0.02, "score": 4.0, "answer": 8.0, "evaluate": 1.0, "promote": 0.01}
TRAINED = ["armor-seed0", "replug-seed0", "armor-swept-seed0"]


@pytest.fixture
def own_ray() -> Iterator[dict[str, str]]:
    """Makes a driver start a Ray of its own. Its folder is short: Ray puts sockets there, whose paths must be."""
    folder = tempfile.mkdtemp(prefix="armor-", dir="/tmp")
    yield {"RAY_ADDRESS": "", "RAY_TMPDIR": folder}
    for process in head_processes(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def head_processes(folder: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(folder in argument for argument in process.cmdline()):
                found.append(process)
    return found


def kill_in(tiny: Tiny, stage: str, environment: dict[str, str], chance: random.Random) -> None:
    driver = tiny.start(NAME, environment)
    driver.wait_for(lambda: f"\n{stage}: " in f"\n{driver.output}")
    delay = chance.uniform(0, DELAYS[stage])
    time.sleep(delay)
    driver.kill()
    print(f"killed {delay:.3f} s into {stage}")


def trials_done(driver: Driver, stage: str) -> int:
    return max((int(done) for done in re.findall(rf"^{stage}: .* (\d+)/\d+ \[", driver.output, re.MULTILINE)), default=0)


def kill_when_a_trial_is_done(tiny: Tiny, stage: str, environment: dict[str, str]) -> None:
    driver = tiny.start(NAME, environment)
    driver.wait_for(lambda: trials_done(driver, stage) >= 1)
    time.sleep(2.5)  # Tune keeps its record every two
    driver.kill()
    print(f"killed after {trials_done(driver, stage)} trials of {stage}")


def kill_when_one_is_published_and_another_on_its_way(tiny: Tiny, environment: dict[str, str]) -> None:
    driver, workspace = tiny.start(NAME, environment), tiny.workspace(NAME)
    driver.wait_for(lambda: published(workspace) and list(workspace.glob(".work/train/*armor-swept*/checkpoint_manager_snapshot.json")))
    driver.kill()


def published(workspace: Path) -> dict[str, Any]:
    return {name: manifest(workspace, f"retrievers/{name}") for name in TRAINED if (workspace / "retrievers" / name).exists()}


def test_killed_in_every_stage_it_ends_with_the_numbers_of_an_undisturbed_run(
    tiny: Tiny, finished: Finished, local_ray: str, own_ray: dict[str, str]
):
    seed = time.time_ns()
    print(f"seed {seed}")
    chance, shared, workspace = random.Random(seed), {"RAY_ADDRESS": local_ray}, tiny.workspace(NAME)
    for stage in ("prepare", "embed", "index", "candidates", "score"):
        kill_in(tiny, stage, shared, chance)
    kill_when_a_trial_is_done(tiny, "sweep", own_ray)
    wait_until_gone(own_ray["RAY_TMPDIR"])
    kill_when_one_is_published_and_another_on_its_way(tiny, shared)
    check_finished_trials_were_kept(workspace)
    before = published(workspace)
    for stage in ("answer", "evaluate", "promote"):
        kill_in(tiny, stage, shared, chance)
    driver = tiny.start(NAME, shared)
    assert driver.end() == 0, driver.output

    assert summary(workspace) == summary(finished.workspace)
    check_same_files(workspace, finished.workspace)
    assert {name: published(workspace)[name] for name in before} == before
    check_training_resumed(workspace)
    assert not list(workspace.glob(".work/*"))
    assert not [path for path in workspace.rglob(".*") if path.name.startswith((".draft-", ".part-", ".old-"))]


def wait_until_gone(folder: str) -> None:
    """A killed driver takes the Ray that it started with it."""
    deadline = time.monotonic() + 60
    while head_processes(folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not head_processes(folder)


def check_finished_trials_were_kept(workspace: Path) -> None:
    """No step of the sweep was taken twice, but for those since a trial's last checkpoint."""
    trials = [[steps for steps in logged_steps(workspace, f"sweep/{i:03d}") if steps] for i in range(3)]
    assert sum(len(processes) == 1 for processes in trials) >= 2, trials
    for processes in trials:
        assert all(steps[0] > 1 for steps in processes[1:]), trials


def check_training_resumed(workspace: Path) -> None:
    """What the kill interrupted went on from its checkpoint, and nothing else was trained twice."""
    trials = {name: [steps for steps in logged_steps(workspace, f"retrievers/{name}") if steps] for name in TRAINED}
    assert all(processes[0][0] == 1 and processes[-1][-1] == 36 for processes in trials.values()), trials
    assert all(steps[0] > 1 for processes in trials.values() for steps in processes[1:]), trials
    assert len(trials["armor-swept-seed0"]) == 2, trials


def check_same_files(workspace: Path, reference: Path) -> None:
    patterns = ("retrievers/*/model.safetensors", "promoted/model.safetensors", "sweep/best.json", "index/*.faiss", "reports/runs/*")
    for path in (path for pattern in patterns for path in reference.glob(pattern)):
        assert (workspace / path.relative_to(reference)).read_bytes() == path.read_bytes(), path
