"""The stages in order: says what is missing or stale, and runs only that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.stages import answer, candidates, embed, evaluate, index, prepare, promote, score, sweep, train
from armor_ray.stages.context import Context, Plan
from armor_ray.workspace import Manifest, Workspace


@dataclass(frozen=True, slots=True)
class Stage:
    """A named step: what it should publish, and how to make what is not there."""

    name: str
    plans: Callable[[Context], list[Plan]]
    run_all: Callable[[Context, list[Plan]], None]


def _one_by_one(run: Callable[[Context, Plan], None]) -> Callable[[Context, list[Plan]], None]:
    def run_all(context: Context, todo: list[Plan]) -> None:
        for plan in todo:
            run(context, plan)

    return run_all


STAGES: tuple[Stage, ...] = (
    Stage("prepare", prepare.plans, _one_by_one(prepare.run)),
    Stage("embed", embed.plans, _one_by_one(embed.run)),
    Stage("index", index.plans, _one_by_one(index.run)),
    Stage("candidates", candidates.plans, _one_by_one(candidates.run)),
    Stage("score", score.plans, _one_by_one(score.run)),
    Stage("sweep", sweep.plans, _one_by_one(sweep.run)),
    Stage("train", train.plans, train.run_all),
    Stage("answer", answer.plans, answer.run_all),
    Stage("evaluate", evaluate.plans, _one_by_one(evaluate.run)),
    Stage("promote", promote.plans, _one_by_one(promote.run)),
)
STAGE_NAMES = tuple(stage.name for stage in STAGES)


@dataclass(frozen=True, slots=True)
class ArtifactStatus:
    """One planned artifact beside what is published."""

    plan: Plan
    manifest: Manifest | None
    problem: str | None


def run(config: Config, *, until: str | None = None, force: str | None = None, say: Callable[[str], None] = print) -> Workspace:
    """Runs every stage up to `until` whose artifacts are missing or stale, under the workspace's lock.

    Raises:
        ArmorError: an unknown stage name, a second run on the workspace, or any bad input.
    """
    _check_stage(until, "--until")
    _check_stage(force, "--force")
    workspace = Workspace(config.workspace)
    with workspace.lock():
        context = Context(config, workspace, say)
        for stage in STAGES:
            _run_stage(context, stage, forced=stage.name == force)
            if stage.name == until:
                break
    return workspace


def _run_stage(context: Context, stage: Stage, forced: bool) -> None:
    todo = []
    for status in _statuses(context, stage):
        if status.problem or forced:
            todo.append(status.plan)
            context.say(f"{stage.name}: {status.plan.name} is {status.problem or 'forced'}")
    if not todo:
        context.say(f"{stage.name}: up to date")
        return
    if forced:
        for plan in todo:
            context.workspace.delete(plan.name)
    started = time.monotonic()
    stage.run_all(context, todo)
    context.say(f"{stage.name}: done in {time.monotonic() - started:.1f} s")


def _statuses(context: Context, stage: Stage) -> list[ArtifactStatus]:
    statuses = []
    for plan in stage.plans(context):
        context.fingerprints[plan.name] = plan.fingerprint
        manifest = context.workspace.manifest(plan.name)
        statuses.append(ArtifactStatus(plan, manifest, plan.difference(manifest)))
    return statuses


def status(config: Config) -> list[ArtifactStatus]:
    """Every planned artifact with what is missing or stale about it; reads only."""
    context = Context(config, Workspace(config.workspace))
    return [artifact for stage in STAGES for artifact in _statuses(context, stage)]


def is_complete(config: Config) -> bool:
    """Whether a run would have nothing to do."""
    return all(artifact.problem is None for artifact in status(config))


def _check_stage(name: str | None, where: str) -> None:
    if name is not None and name not in STAGE_NAMES:
        raise ArmorError(f"no stage '{name}'", where=where, hint=f"stages: {', '.join(STAGE_NAMES)}")
