"""Search over shards of the index that live elsewhere: ask all of them, merge what comes in time, say so when some is missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import faiss
import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.serving import metrics
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.batching import Batcher
from armor_ray.serving.encoders import Arm, QueryEncoder
from armor_ray.serving.indexes import Indexes, IndexKey
from armor_ray.serving.passages import Extent, PassageStore, Wanted
from armor_ray.serving.reranking import PassageReranker
from armor_ray.serving.retriever import Answer, Job, encode_jobs, first_stage, groups, open_encoders, rerank, timed_search
from armor_ray.serving.schemas import Passage
from armor_ray.workspace import Workspace, open_parquet

_logger = logging.getLogger("ray.serve")


class NoShardError(Exception):
    """No shard answered in time."""


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """The queries of one request on their way to a shard.

    Attributes:
        index: the one to search.
        corpus: fingerprint of the passages it must be over.
        vectors: fp32 [n, D].
    """

    index: IndexKey
    corpus: str
    texts: tuple[str, ...]
    vectors: np.ndarray
    wanted: Wanted


class Shard(Protocol):
    """A shard as the retriever sees it; calls fail when it is lost."""

    async def search(self, request: ShardRequest) -> list[list[Passage]]:
        """The best passages of the shard for every query, best first."""

    async def extent(self, passage_id: int) -> Extent | None:
        """Where a passage stands in its document; None when another shard holds it."""


class ShardServer:
    """The shard's own side: some rows of the corpus and the indexes over them."""

    def __init__(self, store: PassageStore, max_batch_size: int) -> None:
        self._store = store
        self._batcher: Batcher[ShardRequest, list[list[Passage]]] = Batcher(self._run, lambda request: len(request.texts), max_batch_size)

    @classmethod
    def open(cls, workspace: Workspace, arguments: ServingArguments, shard: int) -> ShardServer:
        """Reads the shard's passages; an index is mapped when a request first asks for it.

        Raises:
            ArmorError: the passages are missing or damaged.
        """
        faiss.omp_set_num_threads(arguments.threads)
        store = PassageStore.open(workspace, arguments.fusion is not None, shard, arguments.num_shards)
        return cls(store, arguments.max_batch_size)

    async def search(self, request: ShardRequest) -> list[list[Passage]]:
        """See `Shard.search`.

        Raises:
            ArmorError: the shard holds other passages or vectors than the request is about, as after a restart behind a new run.
        """
        if request.corpus != self._store.corpus:
            raise ArmorError("the shard holds other passages than the request is about", where="shard", hint="restart the server")
        return await self._batcher.submit(request)

    async def extent(self, passage_id: int) -> Extent | None:
        """See `Shard.extent`."""
        return self._store.extent(passage_id) if passage_id in self._store.rows else None

    def running_seconds(self) -> float:
        """See `Batcher.running_seconds`."""
        return self._batcher.running_seconds()

    def _run(self, requests: Sequence[ShardRequest]) -> list[list[list[Passage]]]:
        found: dict[int, list[list[Passage]]] = {}
        for (index, wanted), places in groups([(request.index, request.wanted) for request in requests]):
            texts = [text for place in places for text in requests[place].texts]
            vectors = np.concatenate([requests[place].vectors for place in places])
            passages = iter(timed_search(self._store, index, texts, vectors, wanted))
            found |= {place: [next(passages) for _ in requests[place].texts] for place in places}
        return [found[place] for place in range(len(requests))]


class ShardedRetriever:
    """Encodes here, searches in the shards; takes the place of `Retriever`."""

    def __init__(
        self,
        encoders: Mapping[Arm, QueryEncoder],
        shards: Sequence[Shard],
        indexes: Indexes,
        timeout_seconds: float,
        reranker: PassageReranker | None = None,
    ) -> None:
        self.encoders = encoders
        self._shards = shards
        self._indexes = indexes
        self._timeout = timeout_seconds
        self._reranker = reranker
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rerank")

    @classmethod
    def open(cls, workspace: Workspace, arguments: ServingArguments, shards: Sequence[Shard]) -> ShardedRetriever:
        """Loads the encoders and checks that the workspace's indexes are theirs.

        Raises:
            ArmorError: see `Retriever.open`.
        """
        encoders = open_encoders(workspace, arguments)
        corpus = workspace.require("passages").fingerprint
        count = open_parquet(workspace.local("passages") / "passages.parquet", "prepare").metadata.num_rows
        reranker = PassageReranker.open(arguments.reranker) if arguments.reranker else None
        retriever = cls(encoders, shards, Indexes(workspace, corpus, count), arguments.shard_timeout_seconds, reranker)
        for encoder in encoders.values():
            retriever.require_index(encoder.index)
        return retriever

    @property
    def num_passages(self) -> int:
        return self._indexes.num_passages

    def require_index(self, key: IndexKey) -> None:
        """Checks the index that the shards will be asked to search; mapping it costs nothing here, where nobody searches.

        Raises:
            ArmorError: see `Indexes.require`; or there are several shards, and the index has no parts.
        """
        if not isinstance(self._indexes.require(key), faiss.IndexFlat) and len(self._shards) > 1:
            hint = "set index.kind: flat and run again, or serve it with topology: split"
            raise ArmorError("only a flat index can be sharded", where=key.artifact, hint=hint)

    def adopt(self, encoder: QueryEncoder) -> None:
        """Serves another adapted encoder from the next batch on."""
        self.encoders = {**self.encoders, "adapted": encoder}

    def answer(self, jobs: Sequence[Job]) -> list[Answer]:
        """Encodes a batch; its passages come by `finish`."""
        return encode_jobs(self.encoders, jobs)

    async def finish(self, job: Job, answer: Answer) -> Answer:
        """The answer with the passages of all shards that answer in time.

        Raises:
            NoShardError: none did.
        """
        if job.wanted is None:
            return answer
        wanted = first_stage(job.wanted, self._reranker, self.num_passages)
        request = ShardRequest(answer.encoder.index, self._indexes.corpus, job.texts, answer.vectors, wanted)
        found = [shard for shard in await asyncio.gather(*map(self._ask, self._shards, [request] * len(self._shards))) if shard is not None]
        if not found:
            raise NoShardError
        passages = [merge([shard[i] for shard in found], wanted.k) for i in range(len(job.texts))]
        if job.wanted.rerank and self._reranker:
            loop = asyncio.get_running_loop()
            passages = await loop.run_in_executor(self._executor, rerank, self._reranker, job.texts, passages, job.wanted)
        partial = len(found) < len(self._shards)
        metrics.PARTIAL.inc(partial)
        return replace(answer, passages=tuple(passages), partial=partial)

    async def _ask(self, shard: Shard, request: ShardRequest) -> list[list[Passage]] | None:
        try:
            return await asyncio.wait_for(shard.search(request), self._timeout)
        except Exception as error:  # whatever befell it, the shard is lost to this request, and the answer says so
            _logger.warning("a shard did not answer: %s", type(error).__name__)
            return None

    async def extent(self, passage_id: int) -> Extent:
        """See `PassageStore.extent`.

        Raises:
            NoShardError: the shard that holds the passage did not answer.
        """
        for shard in self._shards:
            try:
                found = await asyncio.wait_for(shard.extent(passage_id), self._timeout)
            except Exception as error:  # as above
                _logger.warning("a shard did not answer: %s", type(error).__name__)
                continue
            if found is not None:
                return found
        raise NoShardError


def merge(lists: Sequence[list[Passage]], k: int) -> list[Passage]:
    """The k best of all lists, ranked anew; equal scores by passage id, as in one index."""
    best = sorted((passage for passages in lists for passage in passages), key=lambda passage: (-passage.score, passage.passage_id))[:k]
    return [passage.model_copy(update={"rank": rank}) for rank, passage in enumerate(best, start=1)]
