"""Promotion: one trained retriever becomes the one that is served."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.models.golden import read_golden
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.gate import judge
from armor_ray.stages.plans import main_retrievers, promotion
from armor_ray.workspace import MANIFEST, Draft, Manifest, Workspace

PROMOTED = "promoted"
BEFORE = "promoted-before"


def promote(workspace: Workspace, name: str, gate: dict[str, Any] | None = None) -> Manifest:
    """Publishes `retrievers/<name>` as the artifact `promoted`; a replica that is starting sees the old one or the new one.

    Later runs keep the choice: they promote that retriever again when it was trained anew, and nothing else unless forced.

    Args:
        gate: what the manifest keeps of the gate that let it pass.

    Raises:
        ArmorError: no such retriever, or one without golden vectors.
    """
    source = require_retriever(workspace, name)
    return _publish(workspace, promotion(name, source.fingerprint), source.name, source, {} if gate is None else {"gate": gate})


def promote_gated(workspace: Workspace, config: Config, name: str, force: bool) -> Manifest:
    """`promote`, unless the evaluation shows a significant loss in a domain or does not cover the retriever.

    Args:
        force: promote it all the same; the manifest then keeps that it was forced, and the figures.

    Raises:
        ArmorError: as `promote`, or the gate's reason.
    """
    require_retriever(workspace, name)
    try:
        verdict = judge(workspace, config, name)
    except ArmorError as unknown:
        if not force:
            raise
        return promote(workspace, name, {"forced": True, "unknown": unknown.message})
    if not force:
        verdict.require_no_regression()
    return promote(workspace, name, {"forced": force, **verdict.facts()})


def rollback(workspace: Workspace) -> Manifest:
    """Publishes what was promoted before, as it was then; a second call undoes the first.

    Raises:
        ArmorError: nothing was promoted before.
    """
    before = workspace.manifest(BEFORE)
    if before is None:
        hint = "name one with --retriever; a rollback needs two promotions"
        raise ArmorError("nothing was promoted before what is promoted now", where=workspace.uri, hint=hint)
    plan = promotion(before.details["retriever"], before.details["fingerprint"])
    folder = Path(shutil.copytree(workspace.local(BEFORE), Path(tempfile.mkdtemp()) / BEFORE))
    try:
        return _replace(workspace, plan, folder, before.details)
    finally:
        shutil.rmtree(folder.parent)


def require_retriever(workspace: Workspace, name: str) -> Manifest:
    """The manifest of `retrievers/<name>`.

    Raises:
        ArmorError: no such retriever; names those that there are.
    """
    source = workspace.manifest(f"retrievers/{name}")
    if source is None:
        known = ", ".join(known.removeprefix("retrievers/") for known in workspace.names("retrievers")) or "none"
        raise ArmorError(f"no retriever '{name}'", where=workspace.uri, hint=f"trained retrievers: {known}")
    return source


def _publish(workspace: Workspace, plan: Plan, source_name: str, source: Manifest, facts: dict[str, Any] | None = None) -> Manifest:
    folder = workspace.local(source_name)
    read_golden(folder)
    details = {"retriever": source_name.removeprefix("retrievers/"), "fingerprint": source.fingerprint, **(facts or {})}
    details |= {"corpus": source.details["corpus"]} if "corpus" in source.details else {}
    return _replace(workspace, plan, folder, details)


def _replace(workspace: Workspace, plan: Plan, folder: Path, details: dict[str, Any]) -> Manifest:
    """Publishes `folder` as `promoted` and keeps what was promoted as `promoted-before`."""
    current = workspace.manifest(PROMOTED)
    if current is not None and _identity(current.details) != _identity(details):
        # A damaged encoder is nothing to return to, and must not hinder the promotion that mends it.
        with contextlib.suppress(ArmorError):
            _copy(workspace, Plan(BEFORE, plan.stage, current.config, current.inputs), workspace.local(PROMOTED), current.details)
    return _copy(workspace, plan, folder, details)


def _identity(details: dict[str, Any]) -> tuple[Any, Any]:
    # A plain encoder and its interpolation share a fingerprint.
    return details.get("retriever"), details.get("fingerprint")


def _copy(workspace: Workspace, plan: Plan, folder: Path, details: dict[str, Any]) -> Manifest:
    def write(draft: Draft) -> None:
        shutil.copytree(folder, draft.path, ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True)
        draft.details |= details

    return workspace.publish(plan.name, stage=plan.stage, fingerprint=plan.fingerprint, inputs=plan.inputs, config=plan.config, write=write)


def run_all(context: Context, todo: list[Plan]) -> None:
    """Publishes what was chosen by hand, else the winner on validation; among equals the first, which is the plainest."""
    [plan] = todo
    if (chosen := plan.config.get("retriever")) is not None:
        promote(context.workspace, chosen)
        context.say(f"promote: {chosen} again, as it was promoted by hand; --force promote returns to the best on validation")
        return
    metric = context.config.training.metric
    manifests = {name: context.workspace.require(name) for name in main_retrievers(context.config)}
    best = max(manifests, key=lambda name: manifests[name].details["validation"][metric])
    _publish(context.workspace, plan, best, manifests[best])
    context.say(f"promote: {best} has the best validation {metric}, {manifests[best].details['validation'][metric]:.3f}")


def promote_to(workspace: Workspace, folder: Path) -> None:
    """Copies the promoted encoder to a folder of the user's: plain files for SentenceTransformer, AutoModel or another server.

    Raises:
        ArmorError: nothing is promoted, or the folder exists and is not empty, or it cannot be written.
    """
    source = workspace.local(PROMOTED)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArmorError("exists and is not an empty folder", where=str(folder), hint="name a new folder")
    try:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    except shutil.Error as error:
        raise ArmorError(f"cannot copy the encoder ({error.args[0][0][2]})", where=str(folder)) from None
    except OSError as error:
        raise ArmorError(f"cannot copy the encoder ({os.strerror(error.errno or 0)})", where=str(folder)) from None
