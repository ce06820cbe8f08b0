"""The stages in order: says what is missing or stale, and runs only that."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.stages.context import Context, Plan, work_folder
from armor_ray.stages.limits import check_sizes
from armor_ray.stages.plans import PLANS
from armor_ray.workspace import CONFIG, Manifest, Workspace

STAGE_NAMES = tuple(PLANS)


@dataclass(frozen=True, slots=True)
class ArtifactStatus:
    """One planned artifact beside what is published."""

    plan: Plan
    manifest: Manifest | None
    problem: str | None


def run(config: Config, *, until: str | None = None, force: str | None = None, say: Callable[[str], None] = print) -> Workspace:
    """Runs every stage up to `until` whose artifacts are missing or stale, under the workspace's lock.

    Everything that planning can find wrong (data, models, config) is found before the first stage runs. A forced stage runs again
    from its beginning; its old artifacts stay until the new ones are published.

    Raises:
        ArmorError: an unknown stage name, a second run on the workspace, or any bad input.
    """
    stages = _stages(until, force)
    workspace = Workspace(config.workspace)
    with workspace.lock():
        context = Context(config, workspace, say, force)
        plans = {stage: _plan(context, stage) for stage in stages}
        workspace.write_bytes(CONFIG, resolved_config(config).encode())
        for stage in stages:
            _run_stage(context, stage, plans[stage], forced=stage == force)
            if stage == "prepare":
                _check_sizes(config, workspace)
    return workspace


def _check_sizes(config: Config, workspace: Workspace) -> None:
    check_sizes(config, workspace.require("passages").rows["passages"], workspace.require("examples").rows["train"])


def resolved_config(config: Config) -> str:
    """What was set, as YAML that holds from any folder: paths are absolute, the password is left out."""
    raw = config.model_dump(exclude_unset=True, mode="json")
    places = [(raw.get(section, {}), key) for section, key in (("data", "path"), ("encoder", "model"), ("generator", "model"))]
    curation = raw.get("curation") or {}
    places += [(curation, "domain"), (curation.get("questions", {}).get("generator") or {}, "model")]
    places += [((raw.get("candidates", {}).get("picks") or {}), "model")]
    places += [(item, "model") for items in raw.get("baselines", {}).values() for item in items]
    for values, key in places:
        value = values.get(key)
        if value is not None and Path(value).expanduser().exists():
            values[key] = str(Path(value).expanduser().absolute())
    if raw.get("cache") is not None:
        raw["cache"] = _absolute(raw["cache"])
    if "transfer_to" in raw.get("evaluation", {}):
        raw["evaluation"]["transfer_to"] = [_absolute(other) for other in raw["evaluation"]["transfer_to"]]
    return yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)


def _absolute(workspace: str) -> str:
    return workspace if "://" in workspace else str(Path(workspace).expanduser().absolute())


def _stages(until: str | None, force: str | None) -> list[str]:
    for name, where in ((until, "--until"), (force, "--force")):
        if name is not None and name not in STAGE_NAMES:
            raise ArmorError(f"no stage '{name}'", where=where, hint=f"stages: {', '.join(STAGE_NAMES)}")
    stages = list(STAGE_NAMES[: STAGE_NAMES.index(until) + 1] if until else STAGE_NAMES)
    if force is not None and force not in stages:
        raise ArmorError(f"'{force}' comes after '{until}', where the run stops", where="--force", hint="leave out --until")
    return stages


def _plan(context: Context, stage: str) -> list[Plan]:
    plans = PLANS[stage](context)
    context.fingerprints.update({plan.name: plan.fingerprint for plan in plans})
    return plans


def _run_stage(context: Context, stage: str, plans: list[Plan], forced: bool) -> None:
    if not plans:
        return  # a stage that this config has no use for
    todo = []
    for status in _statuses(context, plans):
        if status.problem or forced:
            todo.append(status.plan)
            context.say(f"{stage}: {status.plan.name} is {status.problem or 'forced'}")
    if not todo:
        context.say(f"{stage}: up to date")
        return
    if forced:
        context.workspace.delete(work_folder(stage))
    started = time.monotonic()
    _run(stage, context, todo)
    context.workspace.delete(work_folder(stage))
    context.say(f"{stage}: done in {time.monotonic() - started:.1f} s")


def _run(stage: str, context: Context, todo: list[Plan]) -> None:
    # Imported here: only a stage with something to do brings in Ray, torch and models.
    importlib.import_module(f"armor_ray.stages.{stage}").run_all(context, todo)


def _statuses(context: Context, plans: list[Plan]) -> list[ArtifactStatus]:
    manifests = [(plan, context.workspace.manifest(plan.name)) for plan in plans]
    return [ArtifactStatus(plan, manifest, plan.difference(manifest)) for plan, manifest in manifests]


def status(config: Config, until: str | None = None) -> list[ArtifactStatus]:
    """Every planned artifact, up to the stage `until`, with what is missing or stale about it; reads only."""
    context = Context(config, Workspace(config.workspace))
    return [artifact for stage in _stages(until, None) for artifact in _statuses(context, _plan(context, stage))]


def is_complete(config: Config, until: str | None = None) -> bool:
    """Whether a run up to the stage `until` would have nothing to do."""
    return all(artifact.problem is None for artifact in status(config, until))
