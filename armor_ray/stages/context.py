"""What every stage gets: config, workspace, and the plan of each artifact (its fingerprint, inputs and config)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from armor_ray.config import Config, parse_yaml, validate_config
from armor_ray.errors import ArmorError
from armor_ray.workspace import CONFIG, Draft, Manifest, Workspace, fingerprint


@dataclass(frozen=True, slots=True)
class Plan:
    """What an artifact should be made of, known before anything runs."""

    name: str
    stage: str
    config: dict[str, Any]
    inputs: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.stage, self.config, self.inputs)

    def difference(self, manifest: Manifest | None) -> str | None:
        """Why the published artifact will not do, in words; None when it will."""
        if manifest is None:
            return "missing"
        if manifest.fingerprint == self.fingerprint:
            return None
        changed = [f"config {path}" for path in _changed_keys(manifest.config, self.config)]
        names = sorted(self.inputs.keys() | manifest.inputs.keys())
        changed += [name for name in names if manifest.inputs.get(name) != self.inputs.get(name)]
        return f"stale: {_few(changed)} changed" if changed else "stale: made by another version of armor_ray"


@dataclass(slots=True)
class Context:
    """One run's surroundings, handed from stage to stage; `forced` is the stage that runs whatever is there."""

    config: Config
    workspace: Workspace
    say: Callable[[str], None] = print
    forced: str | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    _known: dict[str, Any] = field(default_factory=dict)

    @property
    def cache(self) -> Workspace:
        """Where the utility cache lies."""
        return self.workspace if self.config.cache is None else Workspace(self.config.cache)

    def once(self, name: str, find: Callable[[], Any]) -> Any:
        """Finds something slow, such as the fingerprint of a model's files, at its first use only."""
        if name not in self._known:
            self._known[name] = find()
        return self._known[name]

    def inputs(self, *names: str) -> dict[str, str]:
        """Planned fingerprints of the artifacts a stage reads."""
        return {name: self.fingerprints[name] for name in names}

    def publish(self, plan: Plan, write: Callable[[Draft], None]) -> Manifest:
        """Publishes an artifact under its plan."""
        return self.workspace.publish(
            plan.name, stage=plan.stage, fingerprint=plan.fingerprint, inputs=plan.inputs, config=plan.config, write=write
        )

    def local(self, name: str) -> Path:
        """See `Workspace.local`."""
        return self.workspace.local(name)


def config_of(workspace: str) -> Config:
    """The config that a workspace was made with.

    Raises:
        ArmorError: not a workspace.
    """
    raw = Workspace(workspace).read_bytes(CONFIG)
    if raw is None:
        raise ArmorError(f"not a workspace: no {CONFIG}", where=workspace, hint="start one with `armor-ray run --config C`")
    where = f"{workspace}/{CONFIG}"
    return validate_config({**parse_yaml(raw.decode("utf-8", "replace"), where), "workspace": workspace}, where)


def work_folder(stage: str) -> str:
    """Where a stage keeps what a rerun resumes from; gone when it is done or forced."""
    return f".work/{stage}"


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"])


def _changed_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    changed: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed += _changed_keys(before, after, f"{prefix}{key}.")
        elif before != after:
            changed.append(prefix + key)
    return changed
