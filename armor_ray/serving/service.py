"""What all routes share: the checks of requests against the limits, and the way to the batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Header, Request
from starlette.exceptions import HTTPException

from armor_ray.serving import metrics
from armor_ray.serving.arguments import STALLED_SECONDS, ServingArguments, TrafficArguments
from armor_ray.serving.batching import Batcher, Bound, QueueFullError
from armor_ray.serving.encoders import Arm
from armor_ray.serving.http_errors import RETRY_AFTER
from armor_ray.serving.passages import Extent, Wanted
from armor_ray.serving.retriever import Answer, Job, Retriever
from armor_ray.serving.schemas import Fusion, SearchOptions
from armor_ray.serving.sharded import NoShardError, ShardedRetriever
from armor_ray.serving.traffic import Traffic

_logger = logging.getLogger("ray.serve")


class Service:
    """Checks requests against the limits and hands them to the batcher."""

    def __init__(self, retriever: Retriever | ShardedRetriever, arguments: ServingArguments) -> None:
        self.retriever = retriever
        self.arguments = arguments
        self.traffic = Traffic(TrafficArguments())
        self.live_error: str | None = None
        self._shadows: set[asyncio.Task[None]] = set()
        self._bound = Bound(arguments.max_ongoing_requests)
        self._batcher: Batcher[Job, Answer] = Batcher(retriever.answer, lambda job: len(job.texts), arguments.max_batch_size)

    @property
    def is_stalled(self) -> bool:
        return self.running_seconds() > STALLED_SECONDS

    def running_seconds(self) -> float:
        """See `Batcher.running_seconds`."""
        return self._batcher.running_seconds()

    @property
    def is_full(self) -> bool:
        return self._bound.is_full

    async def submit(self, job: Job) -> Answer:
        """Raises HTTPException 503 when as many requests are held as may be, or no shard of the index answers."""
        try:
            return await self._run(job)
        except QueueFullError:
            raise HTTPException(503, f"{self._bound.most} requests are being served already", RETRY_AFTER) from None
        except NoShardError:
            raise HTTPException(503, "no part of the index answers", RETRY_AFTER) from None

    async def _run(self, job: Job) -> Answer:
        with self._bound:
            return await self.retriever.finish(job, await self._batcher.submit(job))

    async def retrieve(self, texts: Sequence[str], options: SearchOptions, name: str, request_id: str | None = None) -> Answer:
        """The passages for some texts, all read by one encoder.

        Args:
            name: of the field that holds the texts, for errors.
            request_id: equal ones fall on the same side of an A/B test.

        Raises:
            HTTPException: 413, 422 or 503.
        """
        checked = self.check_texts(texts, name)
        arm, shadow = self.traffic.assign(request_id) if options.encoder is None else (self._check_arm(options.encoder), None)
        answer = await self.submit(Job(checked, arm, self._wanted(options, arm)))
        metrics.ANSWERS.labels(answer.arm, answer.encoder.version).inc()
        if shadow is not None:
            task = asyncio.create_task(self._compare(checked, shadow, options, answer))
            self._shadows.add(task)
            task.add_done_callback(self._shadows.discard)
        return answer

    async def _compare(self, texts: tuple[str, ...], arm: Arm, options: SearchOptions, seen: Answer) -> None:
        """Has another encoder answer and counts how far both agree; never in the way of requests when these come thick."""
        if self._bound.held * 2 > self._bound.most:
            metrics.SHADOWED.labels("skipped").inc()
            return
        try:
            unseen = await self._run(Job(texts, arm, self._wanted(options, arm)))
        except Exception as error:  # nobody waits for it: what is wrong must be seen in metrics and log
            metrics.SHADOWED.labels("failed").inc()
            _logger.error("a shadow request failed: %s", type(error).__name__)
            return
        metrics.SHADOWED.labels("compared").inc()
        for ours, others in zip(seen.passages, unseen.passages, strict=True):
            both = {passage.passage_id for passage in ours} & {passage.passage_id for passage in others}
            metrics.SHADOW_OVERLAP.observe(len(both) / max(1, len(ours)))

    async def extent(self, passage_id: int) -> Extent:
        """Where a passage stands in its document.

        Raises:
            HTTPException: 422 for an id that no passage has, 503 when its shard does not answer.
        """
        if passage_id >= self.retriever.num_passages:
            raise HTTPException(422, f"passage_id: {passage_id}, the index holds {self.retriever.num_passages} passages")
        try:
            return await self.retriever.extent(passage_id)
        except NoShardError:
            raise HTTPException(503, "that part of the index does not answer", RETRY_AFTER) from None

    def check_texts(self, texts: Sequence[str], name: str) -> tuple[str, ...]:
        if not texts:
            raise HTTPException(422, f"{name}: empty")
        if len(texts) > self.arguments.max_queries:
            raise HTTPException(413, f"{name}: {len(texts)} texts, the limit is {self.arguments.max_queries}")
        for i, text in enumerate(texts):
            if len(text) > self.arguments.max_query_characters:
                raise HTTPException(413, f"{name}[{i}]: {len(text)} characters, the limit is {self.arguments.max_query_characters}")
            if not text.strip():
                raise HTTPException(422, f"{name}[{i}]: empty text")
            if not _is_unicode(text):
                raise HTTPException(422, f"{name}[{i}]: half of a surrogate pair")
        return tuple(texts)

    def _check_arm(self, arm: Arm) -> Arm:
        if arm not in self.retriever.encoders:
            raise HTTPException(422, f"encoder: '{arm}' is not served here; the server's argument `compare: true` adds it")
        return arm

    def check_model(self, model: str, dimensions: int | None) -> Arm:
        """The encoder of that name."""
        for arm, encoder in self.retriever.encoders.items():
            if model in encoder.names:
                if dimensions not in (None, encoder.dimension):
                    raise HTTPException(422, f"dimensions: the encoder gives {encoder.dimension}")
                return arm
        raise HTTPException(404, f"model: no '{model[:100]}' here, this is '{self.retriever.encoders['adapted'].names[0]}'")

    def _wanted(self, options: SearchOptions, arm: Arm) -> Wanted:
        if options.rerank and self.arguments.reranker is None:
            raise HTTPException(422, "rerank: no reranker is served here; the server's argument `reranker` adds one")
        conditions = () if options.filter is None else options.filter.conditions()
        for name, values in conditions:
            if not all(_is_unicode(value) for value in values):
                raise HTTPException(422, f"filter.{name}: half of a surrogate pair")
        weight = None if options.fusion is None else self._dense_weight(options.fusion, arm)
        return Wanted(self._check_k(options.k), conditions, weight, options.rerank)

    def _check_k(self, k: int) -> int:
        if k > self.arguments.max_k:
            raise HTTPException(422, f"k: {k}, the limit is {self.arguments.max_k}")
        if k > self.retriever.num_passages:
            raise HTTPException(422, f"k: {k}, the index holds {self.retriever.num_passages} passages")
        return k

    def _dense_weight(self, fusion: Fusion, arm: Arm) -> float:
        if self.arguments.fusion is None:
            raise HTTPException(422, "fusion: BM25 is not served here; the server's argument `fusion` adds it")
        for weight in (fusion.weight, self.arguments.fusion.weight, self.retriever.encoders[arm].fusion_weight):
            if weight is not None:
                return weight
        raise HTTPException(422, f"fusion.weight: the report tuned none for '{self.retriever.encoders[arm].names[-1]}', give one")


async def _service(request: Request) -> Service:
    return request.app.state.service


Served = Annotated[Service, Depends(_service)]
RequestId = Annotated[str | None, Header(description="Equal ids fall on the same side of an A/B test.")]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
