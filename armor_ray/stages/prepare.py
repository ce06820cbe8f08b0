"""Stage `prepare`: documents and question-answer pairs become passages and split examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.config import DataConfig
from armor_ray.corpus.chunking import cut_passages
from armor_ray.corpus.prepare import Examples, choose_chunker, make_examples
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.schemas import PASSAGES
from armor_ray.corpus.sources import read_corpus
from armor_ray.corpus.streams import DocumentStream
from armor_ray.stages.context import Context, Plan, work_folder
from armor_ray.stages.curated import data_of
from armor_ray.stages.limits import check_sizes
from armor_ray.stages.tokenizing import offsets_of
from armor_ray.workspace import Draft, Workspace, read_parquet

STAGE = "prepare"
SPLITS = ("train", "validation", "test")
_ROW_GROUP = 8192  # small ones let an embedding actor read only the rows of its own shard


def run_all(context: Context, todo: list[Plan]) -> None:
    """Writes both artifacts out of one cutting of the data.

    Raises:
        ArmorError: bad data, or too little of it for what the config asks.
    """
    data = data_of(context)
    corpus = read_corpus(data)
    shards = _cut(context, corpus, data)
    examples = make_examples(corpus, shards, data, context.config.seed)
    check_sizes(context.config, examples.notes["passages"], len(examples.tables["train"]))
    for plan in todo:
        context.publish(plan, _write_passages(shards, examples) if plan.name == "passages" else _write_examples(examples))


def _cut(context: Context, corpus: Corpus, data: DataConfig) -> Iterable[pa.Table]:
    """Passages with the schema PASSAGES, table by table. What a source holds in memory is cut right here: Ray takes longer to start."""
    if not isinstance(corpus.documents, DocumentStream):
        return [cut_passages(corpus.documents, choose_chunker(data, corpus.whole_documents, offsets_of(data, context.config.encoder)))]
    from armor_ray.stages.cutting import cut_stream

    return cut_stream(context, corpus.documents, data, corpus.whole_documents, f"{work_folder(STAGE)}/shards")


def _write_passages(shards: Iterable[pa.Table], examples: Examples) -> Callable[[Draft], None]:
    def write(draft: Draft) -> None:
        with pq.ParquetWriter(draft.path / "passages.parquet", PASSAGES) as file:
            for group in _row_groups(shards):
                file.write_table(group, row_group_size=_ROW_GROUP)
        draft.rows["passages"] = examples.notes["passages"]
        draft.details |= examples.notes

    return write


def _row_groups(shards: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of `_ROW_GROUP`, the last one shorter."""
    rest = PASSAGES.empty_table()
    for shard in shards:
        rest = pa.concat_tables([rest, shard])
        while len(rest) >= _ROW_GROUP:
            yield rest.slice(0, _ROW_GROUP)
            rest = rest.slice(_ROW_GROUP)
    if len(rest):
        yield rest


def _write_examples(examples: Examples) -> Callable[[Draft], None]:
    def write(draft: Draft) -> None:
        for split in SPLITS:
            pq.write_table(examples.tables[split], draft.path / f"{split}.parquet")
            draft.rows[split] = len(examples.tables[split])
        if examples.leaks is not None:
            lines = (json.dumps(asdict(leak), ensure_ascii=False) + "\n" for leak in examples.leaks)
            (draft.path / "duplicates.jsonl").write_text("".join(lines), encoding="utf-8")
        draft.details |= examples.notes

    return write


def load_passages(workspace: Workspace, *columns: str) -> pa.Table:
    """The passages in row order, memory-mapped; only the named columns, or all."""
    return read_parquet(workspace.local("passages") / "passages.parquet", STAGE, list(columns) or None)


def load_examples(workspace: Workspace, split: str) -> pa.Table:
    """The questions of one split."""
    return read_parquet(workspace.local("examples") / f"{split}.parquet", STAGE)
