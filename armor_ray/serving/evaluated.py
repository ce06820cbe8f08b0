"""What the workspace's evaluation says about the encoder that is served: its report, and the test questions that changed most."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, Field

from armor_ray.evaluation.examples import largest_changes
from armor_ray.evaluation.labels import BASE, method_label, method_of
from armor_ray.workspace import Manifest, Workspace, read_parquet

_ARTIFACT = "reports"
_METRIC = "MRR@10"
_DEPTH = 10  # the metric's
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)


class ExampleQuestion(BaseModel):
    """A test question whose best gold passage moved."""

    question: str
    answers: list[str]
    gold: list[int] = Field(description="Passage ids.")
    before: int | None = Field(description="Rank of the best gold passage with the base encoder; null beyond `depth`.")
    after: int | None = Field(description="The same with the served encoder.")


class Examples(BaseModel):
    """Test questions that the adaptation of the served encoder helped and hurt most."""

    absent: str | None = Field(None, description="Why there are none.")
    method: str = Field("", description="The served encoder's row in the report.")
    depth: int = _DEPTH
    helped: list[ExampleQuestion] = []
    hurt: list[ExampleQuestion] = []


def read_report(workspace: Workspace) -> str | None:
    """The report as a self-contained HTML page; None where nothing was evaluated.

    Raises:
        ArmorError: a damaged artifact.
    """
    if workspace.manifest(_ARTIFACT) is None:
        return None
    return (workspace.local(_ARTIFACT) / "report.html").read_text(encoding="utf-8")


def style_of(report: str) -> str | None:
    """What stands in the report's style element, for a content policy that allows it by its hash."""
    found = _STYLE.search(report)
    return found.group(1) if found else None


def read_examples(workspace: Workspace, version: str, limit: int = 5) -> Examples:
    """Examples for the encoder `name@fingerprint`; what is compared is the evaluation's test split.

    Raises:
        ArmorError: a damaged artifact.
    """
    name, _, fingerprint = version.rpartition("@")
    manifest = workspace.manifest(_ARTIFACT)
    if manifest is None:
        return Examples(absent="this workspace has no evaluation report.")
    row = method_of(name)
    # An interpolated encoder is published with its plain one, under one fingerprint, and the report names the plain one.
    if row is None or manifest.inputs.get(f"retrievers/{name.removesuffix('-interpolated')}") != fingerprint:
        return Examples(absent=f"the evaluation report is not about the served encoder {version}.")
    method, seed = row
    results = read_parquet(workspace.local(_ARTIFACT) / "results.parquet", "evaluate", ["method", "seed", "example_id", _METRIC])
    before, after = _ranks(results, BASE, 0), _ranks(results, method, _place(manifest, seed))
    return _choose(workspace, method, before, after, limit)


def _choose(workspace: Workspace, method: str, before: dict[str, int], after: dict[str, int], limit: int) -> Examples:
    split = read_parquet(workspace.local("examples") / "test.parquet", "prepare", ["example_id", "question", "answers", "positive_ids"])
    rows = [row for row in split.to_pylist() if row["example_id"] in before and row["example_id"] in after]
    ranks_before, ranks_after = (np.array([found[row["example_id"]] for row in rows], np.int64) for found in (before, after))

    def example(i: int) -> ExampleQuestion:
        row = rows[i]
        was, now = int(ranks_before[i]) or None, int(ranks_after[i]) or None
        return ExampleQuestion(question=row["question"], answers=row["answers"], gold=row["positive_ids"], before=was, after=now)

    helped, hurt = largest_changes(ranks_before, ranks_after, limit)
    return Examples(method=method_label(method), helped=[example(i) for i in helped], hurt=[example(i) for i in hurt])


def _place(manifest: Manifest, seed: int) -> int:
    """Results count seeds by their place in the configuration."""
    return list(manifest.config["evaluation"]["seeds"]).index(seed)


def _ranks(results: pa.Table, method: str, place: int) -> dict[str, int]:
    """Example id → rank of the best gold passage, 0 beyond the metric's depth."""
    return {
        row["example_id"]: round(1 / row[_METRIC]) if row[_METRIC] > 0 else 0
        for row in results.to_pylist()
        if row["method"] == method and row["seed"] == place
    }
