"""Asking an endpoint for texts rather than judgements."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from armor_ray.config import JudgeConfig
from armor_ray.judges.accounting import Account
from armor_ray.judges.client import ChatClient
from armor_ray.judges.failures import ChatError, Failure
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.workers import run_workers


@dataclass(frozen=True, slots=True)
class Replies:
    """Replies in the order of the requests, or why there is none.

    Attributes:
        by, endpoint: the model's name and where it was asked.
        account: what this run did and cost.
    """

    replies: list[Reply | Failure]
    by: str
    endpoint: str
    account: Account

    @property
    def failures(self) -> Counter[Failure]:
        """Requests without a reply, by class."""
        return Counter(reply for reply in self.replies if isinstance(reply, Failure))


def ask_all(
    requests: Sequence[ChatRequest], config: JudgeConfig, cache: Path, *, advance: Callable[[int], None] = lambda asked: None
) -> Replies:
    """Asks everything, many requests at once; paid replies come from the cache. A spent budget leaves `Failure.BUDGET`.

    Args:
        advance: called with 1 after each request.

    Raises:
        ArmorError: no endpoint is configured, or no request can succeed; what was paid for stays in the cache.
    """
    replies: list[Reply | Failure] = [Failure.EMPTY] * len(requests)
    numbered = iter(enumerate(requests))

    async def asked() -> Replies:
        async with ChatClient(config, cache) as client:

            async def work() -> None:
                for number, request in numbered:
                    try:
                        replies[number] = await client.chat(request)
                    except ChatError as error:
                        replies[number] = error.failure
                    advance(1)

            await run_workers(work, 2 * client.concurrency)
            return Replies(replies, client.name, client.url, client.account)

    return asyncio.run(asked())
