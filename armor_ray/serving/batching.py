"""Dynamic batching without a wait: whatever arrived while one batch ran is the next batch.

`serve.batch` closes a batch after a fixed wait even while the previous one still runs, so a lone request pays that wait, and with
a wait of zero batches never fill. Here a batch is closed at the moment it can run, which needs no wait at all.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from armor_ray.serving import metrics

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(Exception):
    """As many requests are held as may be; try again later."""


@dataclass(slots=True)
class _Job(Generic[Item, Result]):
    item: Item
    future: asyncio.Future[Result]
    arrived: float = field(default_factory=time.monotonic)


class Bound:
    """A room for so many items; use it from one event loop.

    Attributes:
        held: items that are in.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @property
    def is_full(self) -> bool:
        """Whether one more item would be refused."""
        return self.held >= self.most

    def __enter__(self) -> None:
        """Raises QueueFullError when the room is full."""
        if self.is_full:
            raise QueueFullError
        self.held += 1

    def __exit__(self, *error: object) -> None:
        self.held -= 1


class Batcher(Generic[Item, Result]):
    """Runs items in batches on one thread, off the event loop; use it from one event loop.

    Args:
        run: maps a batch of items to their results, in order; called on the batcher's own thread.
        size: how much of a batch an item fills.
        max_batch_size: items are added while their sizes fit; a larger item goes alone.
    """

    def __init__(self, run: Callable[[list[Item]], list[Result]], size: Callable[[Item], int], max_batch_size: int) -> None:
        self._run = run
        self._size = size
        self._max_batch_size = max_batch_size
        self._waiting: deque[_Job[Item, Result]] = deque()
        self._drain_task: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batch")
        self._running_since: float | None = None

    async def submit(self, item: Item) -> Result:
        """The item's result.

        A caller that is cancelled while its item waits takes it out of the queue.
        """
        job: _Job[Item, Result] = _Job(item, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        metrics.QUEUED.set(len(self._waiting))
        if self._drain_task is None or self._drain_task.done():
            self._drain_task = asyncio.create_task(self._drain())
        return await job.future

    def running_seconds(self) -> float:
        """How long the present batch has been running; 0 when none is."""
        return 0.0 if self._running_since is None else time.monotonic() - self._running_since

    async def _drain(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            if batch:
                await self._execute(batch)

    def _next_batch(self) -> list[_Job[Item, Result]]:
        batch: list[_Job[Item, Result]] = []
        filled = 0
        while self._waiting:
            if self._waiting[0].future.done():  # its caller has gone
                self._waiting.popleft()
                continue
            size = self._size(self._waiting[0].item)
            if batch and filled + size > self._max_batch_size:
                break
            batch.append(self._waiting.popleft())
            filled += size
        metrics.QUEUED.set(len(self._waiting))
        return batch

    async def _execute(self, batch: list[_Job[Item, Result]]) -> None:
        self._running_since = time.monotonic()
        for job in batch:
            metrics.QUEUE_SECONDS.observe(self._running_since - job.arrived)
        items = [job.item for job in batch]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._executor, self._run, items)
            assert len(results) == len(batch)
        except Exception as error:  # whatever it is, every caller of the batch gets it
            for job in batch:
                if not job.future.done():
                    job.future.set_exception(error)
        else:
            for job, result in zip(batch, results, strict=True):
                if not job.future.done():
                    job.future.set_result(result)
        finally:
            self._running_since = None
