"""Trials under Ray: lost workers, faults, refreshed candidates, forced and changed runs. Training itself is tested without Ray."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from pipeline_cases import Tiny, logged_steps, manifest

from armor_ray.config import Config, validate_config
from armor_ray.stages.trials import TrialSpec, _discard_damaged_run, _is_restorable
from armor_ray.workspace import Workspace

NO_SWEEP = {"parameters": {}}


def one_recipe(*recipes: str) -> dict[str, object]:
    return {"recipes": list(recipes), "generation_questions": 0}


# -- names and records, without Ray ------------------------------------------------------------------------------------------------


def run_name(inputs: dict[str, str] | None = None, name: str = "sweep/000", **sections: dict[str, object]) -> str:
    return TrialSpec(name, Config(**validate_config(sections).model_dump(exclude_unset=True)), inputs or {"utilities": "a"}).run_name


def test_a_run_is_named_after_what_decides_its_numbers_only():
    assert run_name() == run_name(training={"workers": 2, "max_failures": 9}, evaluation={"bootstrap": 100}, resources={"score_actors": 3})
    others = [
        run_name(inputs={"utilities": "b"}),
        run_name(name="sweep/001"),
        run_name(training={"learning_rate": 1e-3}),
        run_name(objective={"lambda_q": 2.0}),
        run_name(candidates={"refresh": "epoch"}),
        run_name(seed=5),
    ]
    assert len({run_name(), *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("files", "restorable"),
    [
        ({}, False),
        ({"tuner.pkl": b"x"}, False),
        ({"tuner.pkl": b"x", "experiment_state-1.json": b'{"a": 1}'}, True),
        ({"tuner.pkl": b"x", "experiment_state-1.json": b'{"a": 1}', "experiment_state-2.json": b'{"a": '}, False),
        ({"tuner.pkl": b"x", "experiment_state-1.json": b""}, False),
    ],
    ids=["nothing", "killed before the first record", "whole", "newest cut short", "empty"],
)
def test_only_a_whole_tune_record_is_restored(tmp_path, files, restorable):
    workspace = Workspace(str(tmp_path))
    for name, data in files.items():
        workspace.write_bytes(f"run/{name}", data)
    assert _is_restorable(workspace, "run") is restorable


@pytest.mark.parametrize(("record", "kept"), [(b'{"version": 0}', True), (b'{"versi', False), (b"", False)])
def test_a_damaged_train_record_goes_with_its_run(tmp_path, record, kept):
    workspace = Workspace(str(tmp_path))
    workspace.write_bytes("run/checkpoint_manager_snapshot.json", record)
    workspace.write_bytes("run/checkpoint_1/state.pt", b"weights")
    _discard_damaged_run(workspace, "run")
    assert (tmp_path / "run" / "checkpoint_1" / "state.pt").exists() is kept


# -- lost workers ------------------------------------------------------------------------------------------------------------------


def kill_a_worker_after_a_checkpoint(workspace: Path, killed: list[int]) -> None:
    """Waits for the first checkpoint, then sends SIGKILL to one of this Ray's training workers."""
    deadline = time.monotonic() + 120
    while not list(workspace.glob(".work/train/*/checkpoint_manager_snapshot.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [child for child in psutil.Process().children(recursive=True) if "RayTrainWorker" in " ".join(child.cmdline())]
    for worker in workers[-1:]:
        os.kill(worker.pid, signal.SIGKILL)
        killed.append(worker.pid)


def test_a_killed_worker_of_two_is_replaced_and_the_numbers_stay_the_same(tiny: Tiny, scored: Path):
    sections = {
        "training": {"workers": 2, "epochs": 10, "interpolate": []},
        "sweep": NO_SWEEP,
        "evaluation": one_recipe("armor"),
    }
    weights, histories, killed = [], [], list[int]()
    for name in ("undisturbed", "disturbed"):
        workspace = tiny.copy(scored, name)
        if name == "disturbed":
            killer = threading.Thread(target=kill_a_worker_after_a_checkpoint, args=(workspace, killed))
            killer.start()
        tiny.run(name, until="train", **sections)
        folder = workspace / "retrievers" / "armor-seed0"
        weights.append((folder / "model.safetensors").read_bytes())
        histories.append(pq.read_table(folder / "history.parquet").to_pylist())
    killer.join()
    assert len(killed) == 1
    assert weights[0] == weights[1]
    assert histories[0] == histories[1]
    before, after = logged_steps(workspace, "retrievers/armor-seed0")
    assert before[0] == 1
    assert after[0] > 1, "it began anew instead of at its checkpoint"
    assert after[-1] == logged_steps(tiny.workspace("undisturbed"), "retrievers/armor-seed0")[0][-1]


# -- faults ------------------------------------------------------------------------------------------------------------------------


def test_a_nan_is_one_line_and_costs_no_other_trial_its_work(tiny: Tiny, scored: Path, local_ray: str):
    workspace = tiny.copy(scored, "nan")
    sections = {"training": {"epochs": 1}, "sweep": NO_SWEEP, "evaluation": one_recipe("armor", "rag")}
    driver = tiny.start("nan", {"RAY_ADDRESS": local_ray}, "--until", "train", objective={"lambda_q": 1e39}, **sections)
    assert driver.end() == 2, driver.output
    [line] = [line for line in driver.output.splitlines() if line.startswith("armor-ray: ")]
    assert line.startswith("armor-ray: training step 1: loss or gradient is not finite")
    assert line.endswith("lower training.learning_rate or raise objective.tau_min")
    assert "Traceback" not in driver.output
    assert len(list((workspace / "logs" / "retrievers" / "armor-seed0").glob("events.*"))) == 1, "a fault was tried again"
    assert not (workspace / "retrievers" / "armor-seed0").exists()
    before = manifest(workspace, "retrievers/rag-seed0")

    lines: list[str] = []
    tiny.run("nan", until="train", say=lines.append, **sections)
    assert any(line.startswith("train: 1 runs of") for line in lines)
    assert manifest(workspace, "retrievers/rag-seed0") == before
    assert manifest(workspace, "retrievers/armor-seed0")["rows"]["steps"] > 0


# -- candidates.refresh ------------------------------------------------------------------------------------------------------------


def cached_keys(workspace: Path) -> list[bytes]:
    return [key for path in sorted((workspace / "cache").rglob("*.parquet")) for key in pq.read_table(path)["key"].to_pylist()]


def test_refresh_scores_every_unseen_pair_once_and_a_rerun_none(tiny: Tiny, scored: Path):
    workspace = tiny.copy(scored, "refresh")
    sections = {
        "training": {"epochs": 2, "interpolate": []},
        "sweep": NO_SWEEP,
        "evaluation": one_recipe("armor", "rag"),
        # Both recipes train at the same time, beside the actor that scores for them.
        "resources": {"cpus_per_actor": 0.2, "cpus_per_trainer": 0.75},
    }
    counts, losses = [len(cached_keys(workspace))], []
    for refresh, force in (("epoch", None), ("step", None), ("step", "train")):
        tiny.run("refresh", until="train", force=force, candidates={"pool_size": 4, "top_k": 4, "refresh": refresh}, **sections)
        keys = cached_keys(workspace)
        assert max(Counter(keys).values()) == 1
        counts.append(len(keys))
        losses.append(pq.read_table(workspace / "retrievers" / "armor-seed0" / "history.parquet")["loss"].to_pylist())
    assert counts[0] < counts[1] < counts[2] == counts[3]
    assert losses[1] == losses[2]
    assert losses[0] != losses[1]


def test_force_forgets_what_a_killed_run_left(tiny: Tiny, scored: Path, monkeypatch: pytest.MonkeyPatch):
    leftovers = tiny.copy(scored, "forced") / ".work" / "train" / "armor-seed0-0123456789abcdef"
    leftovers.mkdir(parents=True)
    seen: list[tuple[int, bool]] = []
    monkeypatch.setattr("armor_ray.stages.train.run_all", lambda context, todo: seen.append((len(todo), leftovers.exists())))
    tiny.run("forced", until="train", force="train", sweep=NO_SWEEP, evaluation=one_recipe("armor", "rag"))
    assert seen == [(2, False)]
