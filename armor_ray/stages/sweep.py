"""Stage `sweep`: Ray Tune over objective (or training) parameters of the main recipe; the best is chosen on validation only."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ray.tune.schedulers import ASHAScheduler

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.methods import trial_config
from armor_ray.stages.plans import table_inputs
from armor_ray.stages.table import load_table
from armor_ray.stages.trials import TrialResult, TrialSpec, run_trials
from armor_ray.workspace import Draft, Workspace, read_json, read_parquet

STAGE = "sweep"


def grid(config: Config) -> list[dict[str, float]]:
    """The parameter sets to try: the whole product, or a seeded sample of `sweep.trials` of them."""
    names = sorted(config.sweep.parameters)
    points = [dict(zip(names, values, strict=True)) for values in itertools.product(*(config.sweep.parameters[n] for n in names))]
    if config.sweep.trials is None or config.sweep.trials >= len(points):
        return points
    chosen = np.random.default_rng(config.seed).choice(len(points), config.sweep.trials, replace=False)
    return [points[i] for i in sorted(chosen)]


def run_all(context: Context, todo: list[Plan]) -> None:
    """Tries every point and publishes the table with the best one's parameters."""
    [plan] = todo
    connect(context.workspace)
    config = context.config
    table = load_table(context.workspace, config)
    points = grid(config)
    specs = [
        TrialSpec(f"sweep/{i:03d}", trial_config(config, point), context.inputs(*table_inputs(config.objective.recipe)))
        for i, point in enumerate(points)
    ]
    context.say(f"sweep: {len(points)} trials of recipe {config.objective.recipe} over {', '.join(sorted(config.sweep.parameters))}")
    trials = run_trials(context, specs, table, STAGE, _scheduler([spec.config for spec in specs], len(table.train)))
    results = [_row(points[trial.number], trial, specs[trial.number].config, len(table.train)) for trial in trials]
    best = _best(results, config)

    def write(draft: Draft) -> None:
        pq.write_table(pa.Table.from_pylist(results), draft.path / "results.parquet")
        chosen = {name: best[name] for name in config.sweep.parameters}
        (draft.path / "best.json").write_text(json.dumps(chosen, indent=2), encoding="utf-8")
        draft.rows["trials"] = len(results)
        draft.details |= {"best": chosen, "validation": best[config.training.metric], "metric": config.training.metric}

    context.publish(plan, write)
    context.say(f"sweep: best {json.dumps({name: best[name] for name in config.sweep.parameters})}")


def _scheduler(configs: list[Config], questions: int) -> Any:
    """ASHA over optimizer steps, which a resumed trial goes on counting; None where every trial runs to its end anyway."""
    first = configs[0]
    grace = first.sweep.grace_epochs * max(_steps_per_epoch(config, questions) for config in configs)
    total = max(config.training.epochs * _steps_per_epoch(config, questions) for config in configs)
    if first.sweep.scheduler == "none" or total <= grace:
        return None
    # One step more than there are: the last evaluation must not stop a trial before its final metrics.
    return ASHAScheduler("step", first.training.metric, "max", max_t=total + 1, grace_period=grace, reduction_factor=2)


def _steps_per_epoch(config: Config, questions: int) -> int:
    return questions // config.training.batch_size


def _row(point: dict[str, float], trial: TrialResult, config: Config, questions: int) -> dict[str, float]:
    """A trial's line in the table: its parameters, its recall, and after how many epochs."""
    return {**point, **trial.recall, "epochs": max(1, round(trial.step / _steps_per_epoch(config, questions)))}


def _best(results: list[dict[str, float]], config: Config) -> dict[str, float]:
    """The best trial by validation metric; among equals by recall at 5 and 16, then the first."""
    metric = config.training.metric
    scored = [row for row in results if metric in row]
    if not scored:
        raise ArmorError("no trial reported a validation metric", where="sweep")
    return max(scored, key=lambda row: (row[metric], row["R@5"], row["R@16"]))


def best_parameters(workspace: Workspace) -> dict[str, float]:
    """Dotted keys and values of the winning trial.

    Raises:
        ArmorError: the file is damaged.
    """
    return read_json(workspace.local("sweep") / "best.json", STAGE)


def load_results(workspace: Workspace) -> list[dict[str, float]]:
    """One row a trial: its parameters and its last validation recall."""
    return read_parquet(workspace.local("sweep") / "results.parquet", STAGE).to_pylist()
