"""The cache of answer log-likelihoods: keyed by what was scored, so no (generator, prompt, question, passage, answer) is scored twice.

One folder a generator identity, many small Parquet shards; every scored batch is one shard, written atomically. A killed run loses
at most the batches in flight.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from armor_ray.models.generators.protocol import ScoreRequest, ScoreResult
from armor_ray.stages.shards import Shards
from armor_ray.workspace import Workspace

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
        self._shards = Shards(workspace, self._folder, _SCHEMA)

    def load(self) -> dict[bytes, Entry]:
        """All entries of this generator.

        Raises:
            ArmorError: a shard is corrupt; deleting it costs only its own pairs.
        """
        return {key: (value, tokens, error) for key, value, tokens, error in self._shards.rows()}

    def append(self, requests: Iterable[ScoreRequest], results: Iterable[ScoreResult]) -> dict[bytes, Entry]:
        """Stores one scored batch as a shard of its own; returns its entries."""
        entries: dict[bytes, Entry] = {}
        for request, result in zip(requests, results, strict=True):
            for answer, score in zip(request.answers, result.scores, strict=True):
                key = answer_key(request.question, request.passage, answer)
                entries[key] = (score.log_likelihood, score.tokens, None) if score else (None, None, result.error or "not scored")
        self._shards.append([(key, *entry) for key, entry in entries.items()])
        return entries

    def describe(self) -> None:
        """Leaves the generator's identity in plain sight beside the shards."""
        self._workspace.write_bytes(f"{self._folder}/generator.json", json.dumps(self._identity, indent=2).encode())
