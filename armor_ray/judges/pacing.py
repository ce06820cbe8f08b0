"""How fast an endpoint may be asked: requests at once, requests and tokens a minute, and pauses that it asks for itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from aiolimiter import AsyncLimiter

_MINUTE_SECONDS = 60.0


class Pacer:
    """Lets attempts through, each at its turn. Belongs to one event loop.

    Args:
        concurrency: attempts under way at once.
        requests_per_minute, tokens_per_minute: None for no limit. A bucket that starts full lets a minute's worth through at once.
    """

    def __init__(self, concurrency: int, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._requests = AsyncLimiter(requests_per_minute, _MINUTE_SECONDS) if requests_per_minute else None
        self._tokens = AsyncLimiter(tokens_per_minute, _MINUTE_SECONDS) if tokens_per_minute else None
        self._paused_until = 0.0

    @contextlib.asynccontextmanager
    async def turn(self, tokens: int) -> AsyncIterator[None]:
        """Waits for a slot, for the rates and for the end of a pause; holds the slot meanwhile."""
        async with self._slots:
            if self._requests is not None:
                # A limit below one a minute would otherwise never let a request through.
                await self._requests.acquire(min(1.0, self._requests.max_rate))
            if self._tokens is not None:
                # One request larger than a minute's allowance takes the whole of it.
                await self._tokens.acquire(min(tokens, self._tokens.max_rate))
            while (left := self._paused_until - time.monotonic()) > 0:
                await asyncio.sleep(left)
            yield

    def pause(self, seconds: float) -> None:
        """No attempt starts before `seconds` have passed: a rate limit met by one request holds for all."""
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)
