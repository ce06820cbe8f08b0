"""Stage `prepare`: documents and question-answer pairs become passages and split examples."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.corpus.chunking import TokenOffsets
from armor_ray.corpus.prepare import Prepared, prepare
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.curated import data_of
from armor_ray.stages.limits import check_sizes
from armor_ray.workspace import Draft, Workspace, read_parquet

STAGE = "prepare"
SPLITS = ("train", "validation", "test")
_ROW_GROUP = 8192


def run_all(context: Context, todo: list[Plan]) -> None:
    """Writes both artifacts out of one pass over the data.

    Raises:
        ArmorError: bad data, or too little of it for what the config asks.
    """
    prepared = prepare(data_of(context), context.config.seed, _offsets(context))
    check_sizes(context.config, len(prepared.passages), len(prepared.examples["train"]))
    for plan in todo:
        context.publish(plan, _writer(prepared, plan.name))


def _offsets(context: Context) -> TokenOffsets | None:
    if context.config.data.chunking.mode != "tokens":
        return None
    from armor_ray.models.tokens import token_offsets  # torch and transformers, which no other mode needs

    return token_offsets(context.config.encoder)


def _writer(prepared: Prepared, name: str) -> Callable[[Draft], None]:
    def write_passages(draft: Draft) -> None:
        # Small row groups let an embedding actor read only the rows of its own shard.
        pq.write_table(prepared.passages, draft.path / "passages.parquet", row_group_size=_ROW_GROUP)
        draft.rows["passages"] = len(prepared.passages)
        draft.details |= prepared.notes

    def write_examples(draft: Draft) -> None:
        for split in SPLITS:
            pq.write_table(prepared.examples[split], draft.path / f"{split}.parquet")
            draft.rows[split] = len(prepared.examples[split])
        if prepared.leaks is not None:
            lines = (json.dumps(asdict(leak), ensure_ascii=False) + "\n" for leak in prepared.leaks)
            (draft.path / "duplicates.jsonl").write_text("".join(lines), encoding="utf-8")
        draft.details |= prepared.notes

    return write_passages if name == "passages" else write_examples


def load_passages(workspace: Workspace, *columns: str) -> pa.Table:
    """The passages in row order, memory-mapped; only the named columns, or all."""
    return read_parquet(workspace.local("passages") / "passages.parquet", STAGE, list(columns) or None)


def load_examples(workspace: Workspace, split: str) -> pa.Table:
    """The questions of one split."""
    return read_parquet(workspace.local("examples") / f"{split}.parquet", STAGE)
