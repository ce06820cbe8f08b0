"""The cache of answer log-likelihoods: keyed by what was scored, so no (generator, prompt, question, passage, answer) is scored twice.

One folder a generator identity, many small Parquet shards; every scored batch is one shard, written atomically. A killed run loses
at most the batches in flight.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.errors import ArmorError
from armor_ray.models.generators.protocol import ScoreRequest, ScoreResult
from armor_ray.workspace import Workspace, parquet_bytes

_SCHEMA = pa.schema([("key", pa.binary(16)), ("log_likelihood", pa.float32()), ("tokens", pa.int32()), ("error", pa.string())])

Entry = tuple[float | None, int | None, str | None]


def answer_key(question: str, passage: str | None, answer: str) -> bytes:
    """16 bytes that name one scored text triple; a closed-book pass (no passage) has a key of its own."""
    return hashlib.blake2b(json.dumps([question, passage, answer]).encode(), digest_size=16).digest()


class UtilityCache:
    """Read all, append batches. Entries are (log-likelihood in nats, answer tokens, error).

    Args:
        workspace: holds the cache.
        generator_identity: of a generator whose dtype is decided; see `stages.arithmetic`.
    """

    def __init__(self, workspace: Workspace, generator_identity: dict[str, Any]) -> None:
        assert generator_identity["dtype"] != "auto", "what auto means differs between machines"
        name = hashlib.sha256(json.dumps(generator_identity, sort_keys=True).encode()).hexdigest()[:16]
        self._workspace = workspace
        self._folder = f"cache/utilities/{name}"
        self._identity = generator_identity

    def load(self) -> dict[bytes, Entry]:
        """All entries of this generator.

        Raises:
            ArmorError: a shard is corrupt; deleting it costs only its own pairs.
        """
        entries: dict[bytes, Entry] = {}
        for name in self._workspace.files(self._folder):
            if not name.endswith(".parquet"):
                continue
            data = self._workspace.read_bytes(name)
            try:
                table = pq.read_table(pa.BufferReader(data))
                columns = [table.column(field.name).to_pylist() for field in _SCHEMA]
            except (pa.ArrowException, KeyError, OSError):
                where, hint = self._workspace.location(name), "delete it; only its pairs are scored again"
                raise ArmorError("not a readable shard of utilities", where=where, hint=hint) from None
            entries.update((key, (value, tokens, error)) for key, value, tokens, error in zip(*columns, strict=True))
        return entries

    def append(self, requests: Iterable[ScoreRequest], results: Iterable[ScoreResult]) -> dict[bytes, Entry]:
        """Stores one scored batch as a shard of its own; returns its entries."""
        entries: dict[bytes, Entry] = {}
        for request, result in zip(requests, results, strict=True):
            for answer, score in zip(request.answers, result.scores, strict=True):
                key = answer_key(request.question, request.passage, answer)
                entries[key] = (score.log_likelihood, score.tokens, None) if score else (None, None, result.error or "not scored")
        columns = [list(entries), *map(list, zip(*entries.values(), strict=True))] if entries else [[], [], [], []]
        table = pa.table([pa.array(c, type=f.type) for c, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA)
        self._workspace.write_bytes(f"{self._folder}/part-{uuid.uuid4().hex}.parquet", parquet_bytes(table))
        return entries

    def describe(self) -> None:
        """Leaves the generator's identity in plain sight beside the shards."""
        self._workspace.write_bytes(f"{self._folder}/generator.json", json.dumps(self._identity, indent=2).encode())
