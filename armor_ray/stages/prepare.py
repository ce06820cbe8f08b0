"""Stage `prepare`: documents and question-answer pairs become passages and split examples."""

from __future__ import annotations

import pyarrow.parquet as pq

from armor_ray.corpus.prepare import prepare
from armor_ray.corpus.sources import source_files
from armor_ray.stages.context import Context, Plan
from armor_ray.workspace import Draft, fingerprint_files

STAGE = "prepare"
SPLITS = ("train", "validation", "test")
_ROW_GROUP = 8192


def plans(context: Context) -> list[Plan]:
    """Passages depend on the files and how they are cut; examples also on the split."""
    config = context.config.data.model_dump(exclude={"name", "password", "path"})
    inputs = {"data files": fingerprint_files(source_files(context.config.data))}
    return [Plan(name, STAGE, {"data": config, "seed": context.config.seed}, inputs) for name in ("passages", "examples")]


def run(context: Context, plan: Plan) -> None:
    """Writes both artifacts; they come out of one pass and carry one fingerprint."""
    prepared = prepare(context.config.data, context.config.seed)

    def write_passages(draft: Draft) -> None:
        # Small row groups let an embedding actor read only the rows of its own shard.
        pq.write_table(prepared.passages, draft.path / "passages.parquet", row_group_size=_ROW_GROUP)
        draft.rows["passages"] = len(prepared.passages)
        draft.details |= prepared.notes

    def write_examples(draft: Draft) -> None:
        for split in SPLITS:
            pq.write_table(prepared.examples[split], draft.path / f"{split}.parquet")
            draft.rows[split] = len(prepared.examples[split])
        draft.details |= prepared.notes

    context.publish(plan, write_passages if plan.name == "passages" else write_examples)
