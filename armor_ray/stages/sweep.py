"""Stage `sweep`: Ray Tune over objective (or training) parameters of the main recipe; the best is chosen on validation only."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ray.tune.schedulers import ASHAScheduler

from armor_ray.config import Config, with_overrides
from armor_ray.errors import ArmorError
from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.table import INPUTS, load_table
from armor_ray.stages.trials import TrialSpec, run_trials
from armor_ray.workspace import Draft, Workspace, read_parquet

STAGE = "sweep"


def is_swept(config: Config) -> bool:
    """Whether there is anything to try."""
    return any(len(values) > 1 for values in config.sweep.parameters.values())


def plans(context: Context) -> list[Plan]:
    if not is_swept(context.config):
        return []
    config = context.config
    settings = {
        "seed": config.seed,
        "sweep": config.sweep.model_dump(),
        "objective": config.objective.model_dump(),
        "training": config.training.model_dump(exclude={"max_failures", "workers"}),
        "candidates": config.candidates.model_dump(exclude={"pool_size"}),
    }
    return [Plan("sweep", STAGE, settings, context.inputs(*INPUTS))]


def grid(config: Config) -> list[dict[str, float]]:
    """The parameter sets to try: the whole product, or a seeded sample of `sweep.trials` of them."""
    names = sorted(config.sweep.parameters)
    points = [dict(zip(names, values, strict=True)) for values in itertools.product(*(config.sweep.parameters[n] for n in names))]
    if config.sweep.trials is None or config.sweep.trials >= len(points):
        return points
    chosen = np.random.default_rng(config.seed).choice(len(points), config.sweep.trials, replace=False)
    return [points[i] for i in sorted(chosen)]


def run(context: Context, plan: Plan) -> None:
    connect(context.workspace)
    config = context.config
    table = load_table(context.workspace, config)
    points = grid(config)
    base = config.model_copy(deep=True)
    specs = [TrialSpec(f"sweep/{i:03d}", _trial_config(base, point)) for i, point in enumerate(points)]
    context.say(f"sweep: {len(points)} trials of recipe {config.objective.recipe} over {', '.join(sorted(config.sweep.parameters))}")
    rows = run_trials(context, specs, table, STAGE, _scheduler(config))
    steps = len(table.train) // config.training.batch_size
    results = [{**points[row["number"]], **row["metrics"], "epochs": max(1, round(row["step"] / steps))} for row in rows]
    best = _best(results, config)

    def write(draft: Draft) -> None:
        pq.write_table(pa.Table.from_pylist(results), draft.path / "results.parquet")
        chosen = {name: best[name] for name in config.sweep.parameters}
        (draft.path / "best.json").write_text(json.dumps(chosen, indent=2), encoding="utf-8")
        draft.rows["trials"] = len(results)
        draft.details |= {"best": chosen, "validation": best[config.training.metric], "metric": config.training.metric}

    context.publish(plan, write)
    context.say(f"sweep: best {json.dumps({name: best[name] for name in config.sweep.parameters})}")


def _trial_config(config: Config, point: dict[str, float]) -> Config:
    # Only the winner is exported, so trials skip the interpolation; the sweep itself is no part of a trial's identity.
    return with_overrides(config, {**point, "training.interpolate": [], "sweep": {}})


def _scheduler(config: Config) -> Any:
    evaluations = config.training.epochs * config.training.evaluations_per_epoch
    grace = config.sweep.grace_epochs * config.training.evaluations_per_epoch
    if config.sweep.scheduler == "none" or evaluations <= grace:
        return None
    # A report is one evaluation; the last one is followed by the final metrics.
    return ASHAScheduler(time_attr="training_iteration", max_t=evaluations + 1, grace_period=grace, reduction_factor=2)


def _best(results: list[dict[str, float]], config: Config) -> dict[str, float]:
    """The best trial by validation metric; among equals by recall at 5 and 16, then the first."""
    metric = config.training.metric
    scored = [row for row in results if metric in row]
    if not scored:
        raise ArmorError("no trial reported a validation metric", where="sweep")
    return max(scored, key=lambda row: (row[metric], row["R@5"], row["R@16"]))


def best_parameters(workspace: Workspace) -> dict[str, float]:
    """Dotted keys and values of the winning trial."""
    return json.loads((workspace.local("sweep") / "best.json").read_text(encoding="utf-8"))


def load_results(workspace: Workspace) -> list[dict[str, float]]:
    """One row a trial: its parameters and its last validation recall."""
    return read_parquet(workspace.local("sweep") / "results.parquet", STAGE).to_pylist()
