"""Cuts a stream of documents through Ray Data: one task reads, others cut, and each leaves its passages as a file of the workspace.

Neither a document nor a passage goes through the driver, so its memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import DataContext
from tqdm import tqdm

from armor_ray.config import DataConfig, EncoderConfig
from armor_ray.corpus.chunking import cut_passages
from armor_ray.corpus.prepare import choose_chunker
from armor_ray.corpus.records import Document
from armor_ray.corpus.streams import DocumentStream
from armor_ray.errors import ArmorError
from armor_ray.stages.cluster import connect, user_errors
from armor_ray.stages.context import Context
from armor_ray.stages.tokenizing import offsets_of
from armor_ray.workspace import Workspace, parquet_bytes

_READ_CHARACTERS = 2_000_000  # of a table that the reader hands on
_BLOCK_BYTES = 8 << 20  # of a task's input: Ray Data's own 128 MB would leave most CPUs of a small corpus without work

_DOCUMENTS = pa.schema(
    [
        ("place", pa.int64()),  # in the stream
        ("doc_id", pa.string()),
        ("title", pa.string()),
        ("text", pa.large_string()),
        ("source", pa.string()),
        ("doc_type", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class PassageShards:
    """Passages as files of the workspace, in the order of their documents. Every iteration reads one file after the other and numbers
    the passages through.
    """

    workspace: Workspace
    names: list[str] = field(repr=False)

    def __iter__(self) -> Iterator[pa.Table]:
        first = 0
        for name in self.names:
            data = self.workspace.read_bytes(name)
            assert data is not None, f"{name} was written a moment ago"
            table = pq.read_table(pa.BufferReader(data))
            yield table.set_column(0, "passage_id", pa.array(range(first, first + len(table)), pa.int64()))
            first += len(table)


def cut_stream(context: Context, documents: DocumentStream, data: DataConfig, whole_documents: bool, folder: str) -> PassageShards:
    """Cuts all documents, in tasks of the cluster.

    Args:
        context: of the run; connects to Ray.
        documents: read on this machine, whose files the others need not have.
        data: how they are cut.
        whole_documents: they are finished passages.
        folder: of the workspace, for the shards; what is in it goes first.

    Raises:
        ArmorError: the files changed since they were surveyed, or a fault in a task.
    """
    connect(context.workspace)
    context.workspace.delete(folder)
    cut = partial(
        _cut,
        data=data,
        encoder=context.config.encoder,
        whole_documents=whole_documents,
        workspace_uri=context.workspace.uri,
        folder=folder,
    )
    shards: list[str] = []
    num_read = 0
    with user_errors(), tqdm(total=len(documents), desc="prepare", unit=" documents", mininterval=2) as bar:
        for row in _dataset(documents, cut).iter_rows():
            shards.append(row["shard"])
            num_read += row["documents"]
            bar.update(row["documents"])
    if num_read != len(documents):
        message = f"{len(documents)} documents at the first reading, {num_read} at the second"
        raise ArmorError(message, where="data.path", hint="leave the files alone while a run reads them, and rerun")
    return PassageShards(context.workspace, sorted(shards))


def _dataset(documents: DocumentStream, cut: Callable[[pa.Table], pa.Table]) -> ray.data.Dataset:
    # The reader holds no CPU: a task that waits for others to take its blocks must not keep them from running.
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    settings = DataContext.get_current().copy()
    settings.target_max_block_size = _BLOCK_BYTES
    with DataContext.current(settings):
        read = partial(_read, read=documents.read)
        source = ray.data.from_items([{"source": 0}])
        blocks = source.map_batches(read, batch_format="pyarrow", num_cpus=0, label_selector=here)
        return blocks.map_batches(cut, batch_size=None, batch_format="pyarrow", num_cpus=1)


def _read(_: pa.Table, read: Callable[[], Iterable[Document]]) -> Iterator[pa.Table]:
    rows: list[dict[str, Any]] = []
    characters = 0
    for place, document in enumerate(read()):
        rows.append({"place": place, **{name: getattr(document, name) for name in _DOCUMENTS.names[1:]}})
        characters += len(document.text)
        if characters >= _READ_CHARACTERS:
            yield pa.Table.from_pylist(rows, schema=_DOCUMENTS)
            rows, characters = [], 0
    if rows:
        yield pa.Table.from_pylist(rows, schema=_DOCUMENTS)


def _cut(block: pa.Table, data: DataConfig, encoder: EncoderConfig, whole_documents: bool, workspace_uri: str, folder: str) -> pa.Table:
    documents = [Document(**{name: row[name] for name in _DOCUMENTS.names[1:]}) for row in block.to_pylist()]
    passages = cut_passages(documents, choose_chunker(data, whole_documents, offsets_of(data, encoder)))
    # Blocks come in any order; their names sort as their documents do.
    name = f"{folder}/documents-{block['place'][0].as_py():012d}.parquet"
    Workspace(workspace_uri).write_bytes(name, parquet_bytes(passages))
    return pa.table({"shard": [name], "documents": [len(documents)]})
