"""Promotion: one trained retriever becomes the one that is served."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from armor_ray.errors import ArmorError
from armor_ray.models.golden import read_golden
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.plans import main_retrievers, promotion
from armor_ray.workspace import MANIFEST, Draft, Manifest, Workspace

PROMOTED = "promoted"


def promote(workspace: Workspace, name: str) -> Manifest:
    """Publishes `retrievers/<name>` as the artifact `promoted`; a replica that is starting sees the old one or the new one.

    Later runs keep the choice: they promote that retriever again when it was trained anew, and nothing else unless forced.

    Raises:
        ArmorError: no such retriever, or one without golden vectors.
    """
    source_name = f"retrievers/{name}"
    source = workspace.manifest(source_name)
    if source is None:
        known = ", ".join(known.removeprefix("retrievers/") for known in workspace.names("retrievers")) or "none"
        raise ArmorError(f"no retriever '{name}'", where=workspace.uri, hint=f"trained retrievers: {known}")
    return _publish(workspace, promotion(name, source.fingerprint), source_name, source)


def _publish(workspace: Workspace, plan: Plan, source_name: str, source: Manifest) -> Manifest:
    folder = workspace.local(source_name)
    read_golden(folder)

    def write(draft: Draft) -> None:
        shutil.copytree(folder, draft.path, ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True)
        draft.details |= {"retriever": source_name.removeprefix("retrievers/"), "fingerprint": source.fingerprint}
        draft.details |= {"corpus": source.details["corpus"]} if "corpus" in source.details else {}

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
