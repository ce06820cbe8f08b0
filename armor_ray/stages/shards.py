"""Work in progress that outlives a kill: small Parquet files below a folder of the workspace, one an append, each written atomically."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.errors import ArmorError
from armor_ray.workspace import Workspace, parquet_bytes


class Shards:
    """All shards of one folder, which several processes may append to at once.

    Args:
        folder: relative to the workspace.
        schema: of every shard.
    """

    def __init__(self, workspace: Workspace, folder: str, schema: pa.Schema) -> None:
        self._workspace = workspace
        self._folder = folder
        self._schema = schema

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row, shard by shard, with values in the schema's order.

        Raises:
            ArmorError: a shard is corrupt; deleting it costs only its own rows.
        """
        for name in self._workspace.files(self._folder):
            if not name.endswith(".parquet"):
                continue
            data = self._workspace.read_bytes(name)
            try:
                table = pq.read_table(pa.BufferReader(data))
                columns = [table.column(field.name).to_pylist() for field in self._schema]
            except (pa.ArrowException, KeyError, OSError):
                where, hint = self._workspace.location(name), "delete it; only its rows are computed again"
                raise ArmorError("not a readable shard", where=where, hint=hint) from None
            yield from zip(*columns, strict=True)

    def append(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Writes one shard."""
        columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        table = pa.table([pa.array(c, type=f.type) for c, f in zip(columns, self._schema, strict=True)], schema=self._schema)
        self._workspace.write_bytes(f"{self._folder}/part-{uuid.uuid4().hex}.parquet", parquet_bytes(table))
