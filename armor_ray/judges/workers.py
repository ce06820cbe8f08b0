"""Many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def run_workers(work: Callable[[], Awaitable[None]], count: int) -> None:
    """Runs `count` copies of `work`, which share one iterator: the prompts of waiting items are not held in memory."""
    workers = [asyncio.ensure_future(work()) for _ in range(count)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
