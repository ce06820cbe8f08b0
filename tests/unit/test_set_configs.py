"""Every config of `jobs/configs/` prepares a data set in the published form of its format."""

from __future__ import annotations

from pathlib import Path

import pytest
from set_cases import RECORDS, WRITERS

from armor_ray.config import load_config
from armor_ray.stages.context import Context
from armor_ray.stages.plans import PLANS
from armor_ray.stages.prepare import SPLITS, run_all
from armor_ray.workspace import Workspace

CONFIGS = sorted((Path(__file__).parents[2] / "jobs" / "configs").glob("*.yaml"))
# Eight questions, and nothing that only a full-sized set has.
SMALL = [
    "candidates={pool_size: 2, top_k: 2}",
    "training={batch_size: 1, metric: R@1}",
    "evaluation={ks: [1], generation_questions: 0}",
    "data.test_fraction=0.25",
    "data.validation_fraction=0.2",
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_config_prepares_its_set(path: Path, tmp_path: Path) -> None:
    config = load_config(path, [*SMALL, f"workspace={tmp_path / 'workspace'}"])
    if config.data.format != "demo":
        WRITERS[config.data.format](tmp_path / "data")
        config = load_config(path, [*SMALL, f"workspace={tmp_path / 'workspace'}", f"data.path={tmp_path / 'data'}"])
    config = config.model_copy(update={"curation": None})  # the judges' part has tests of its own
    context = Context(config, Workspace(config.workspace), say=lambda _: None)
    run_all(context, PLANS["prepare"](context))
    examples = context.workspace.require("examples")
    assert all(examples.rows[split] for split in SPLITS)
    if config.data.format != "demo":
        assert sum(examples.rows[split] for split in SPLITS) == RECORDS - examples.details["straddling_questions_dropped"]
        assert examples.details["documents"] == RECORDS
