"""Trials under Ray: lost workers, faults, refreshed candidates, forced and changed runs. Training itself is tested without Ray."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from pipeline_cases import Tiny, logged_steps

from armor_ray.config import Config, load_config, validate_config, with_overrides
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.pipeline import status
from armor_ray.stages.context import Context, work_folder
from armor_ray.stages.methods import recipe_config
from armor_ray.stages.plans import PLANS, TABLE
from armor_ray.stages.table import load_table
from armor_ray.stages.train_runs import discard_damaged_run
from armor_ray.stages.trials import TrialSpec, _is_restorable, run_trials
from armor_ray.training.host import LocalHost
from armor_ray.training.loop import Trainer
from armor_ray.workspace import Workspace

NO_SWEEP: dict[str, Any] = {"parameters": {}}


def one_recipe(*recipes: str) -> dict[str, Any]:
    return {"recipes": list(recipes), "generation_questions": 0}


# -- names and records, without Ray ------------------------------------------------------------------------------------------------


def run_name(inputs: dict[str, str] | None = None, name: str = "sweep/000", **sections: Any) -> str:
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
    discard_damaged_run(workspace, "run")
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
        "training": {"workers": 2, "epochs": 10, "interpolate": [], "dropout": False},
        "sweep": NO_SWEEP,
        "evaluation": one_recipe("armor"),
    }
    workspace, killed = tiny.copy(scored, "disturbed"), list[int]()
    killer = threading.Thread(target=kill_a_worker_after_a_checkpoint, args=(workspace, killed))
    killer.start()
    tiny.run("disturbed", until="train", **sections)
    killer.join()
    assert len(killed) == 1
    before, after = logged_steps(workspace, "retrievers/armor-seed0")
    assert before[0] == 1
    assert after[0] > 1, "it began anew instead of at its checkpoint"

    history = pq.read_table(workspace / "retrievers" / "armor-seed0" / "history.parquet").to_pylist()
    undisturbed = in_one_process(load_config(tiny.config("disturbed", **sections)), workspace)
    assert [row["step"] for row in history] == [row["step"] for row in undisturbed]
    for name in ("loss", "rag", "infonce", "drift", "tau_rag", "validation_R@3"):
        expected = [row[name] for row in undisturbed if name in row]
        assert [row[name] for row in history if row[name] is not None] == pytest.approx(expected, rel=1e-3, abs=1e-5), name


def in_one_process(config: Config, workspace: Path) -> list[dict[str, float]]:
    """The history of the same training without Ray, with whole batches instead of two halves."""
    recipe = recipe_config(config, "armor", seed=0)
    table = load_table(Workspace(str(workspace)), config)
    return Trainer(recipe, table, BiEncoder.load(config.encoder), LocalHost(workspace / "one")).run().progress.history


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
    states = {artifact.plan.name: artifact.problem for artifact in status(load_config(tiny.config("nan", **sections)))}
    assert states["retrievers/rag-seed0"] is None
    assert states["retrievers/armor-seed0"] == "missing"


# -- candidates.refresh ------------------------------------------------------------------------------------------------------------


def cached_keys(workspace: Path) -> list[bytes]:
    return [key for path in sorted((workspace / "cache").rglob("*.parquet")) for key in pq.read_table(path)["key"].to_pylist()]


def test_refresh_scores_every_unseen_pair_once_and_a_rerun_none(tiny: Tiny, scored: Path):
    workspace = tiny.copy(scored, "refresh")
    config = load_config(
        tiny.config(
            "refresh",
            training={"epochs": 2, "interpolate": []},
            # Two trials at the same time, beside the actor that scores for both.
            resources={"cpus_per_actor": 0.2, "cpus_per_trainer": 0.75},
        )
    )
    context = Context(config, Workspace(str(workspace)))
    for plans in PLANS.values():
        context.fingerprints.update({plan.name: plan.fingerprint for plan in plans(context)})
    table, inputs = load_table(context.workspace, config), context.inputs(*TABLE)
    specs = [TrialSpec(refresh, with_overrides(config, {"candidates.refresh": refresh}), inputs) for refresh in ("epoch", "step")]
    counts, results = [len(cached_keys(workspace))], []
    for _ in range(2):
        results.append(run_trials(context, specs, table, "sweep"))
        context.workspace.delete(work_folder("sweep"))
        keys = cached_keys(workspace)
        assert max(Counter(keys).values()) == 1
        counts.append(len(keys))
    assert counts[0] < counts[1] == counts[2]
    assert results[0] == results[1]
    answers = pq.read_table(workspace / "examples" / "train.parquet")["answers"].to_pylist()
    assert counts[2] <= sum(map(len, answers)) * len(table.passages_CD)


def test_force_forgets_what_a_killed_run_left(tiny: Tiny, scored: Path, monkeypatch: pytest.MonkeyPatch):
    leftovers = tiny.copy(scored, "forced") / ".work" / "train" / "armor-seed0-0123456789abcdef"
    leftovers.mkdir(parents=True)
    seen: list[tuple[int, bool]] = []
    monkeypatch.setattr("armor_ray.stages.train.run_all", lambda context, todo: seen.append((len(todo), leftovers.exists())))
    tiny.run("forced", until="train", force="train", sweep=NO_SWEEP, evaluation=one_recipe("armor", "rag"))
    assert seen == [(4, False)]  # two retrievers, each with its interpolation
