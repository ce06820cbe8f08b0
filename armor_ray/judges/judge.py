"""Judging many things: what a judge is, and how one runs over an endpoint or, without one, by its stand-in."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from armor_ray.config import JudgeConfig
from armor_ray.judges.accounting import Account
from armor_ray.judges.cache import Ledger
from armor_ray.judges.client import ChatClient
from armor_ray.judges.endpoint import has_endpoint
from armor_ray.judges.failures import ChatError, Failure
from armor_ray.judges.parsing import Reading, UnreadableReply
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.summary import Summary
from armor_ray.judges.templates import render
from armor_ray.judges.verdicts import Verdict
from armor_ray.judges.workers import run_workers

_log = logging.getLogger(__name__)

Item = TypeVar("Item")

# A reply that cannot be read is asked for again, with a reminder of the format, this many times.
_ASKS_AGAIN = 2


class Judge(ABC, Generic[Item]):
    """Knows what to ask about things, how to read the reply, and what to keep.

    Attributes:
        name: of the judge and of its prompt files.
        stand_in: what judges without an endpoint (`KEYWORDS` or `LEXICAL`).
        scores_on_failure: scores of a thing that could not be judged.
    """

    name: ClassVar[str]
    stand_in: ClassVar[str]
    scores_on_failure: ClassVar[dict[str, float]] = {}

    def batches(self, items: Sequence[Item]) -> Iterator[Sequence[int]]:
        """Positions of the items that go into one request together."""
        return iter([[position] for position in range(len(items))])

    @abstractmethod
    def request(self, batch: Sequence[Item]) -> ChatRequest:
        """What to ask about one batch."""

    @abstractmethod
    def read(self, reply: Reply, batch: Sequence[Item]) -> list[Reading | None]:
        """What the reply says about each item of the batch; None where it says nothing readable.

        Raises:
            UnreadableReply: it says nothing readable at all.
        """

    @abstractmethod
    def stand_in_scores(self, item: Item) -> dict[str, float]:
        """Scores without an endpoint, by keywords or words in common."""

    @abstractmethod
    def keep(self, items: Sequence[Item], scores: Sequence[dict[str, float]]) -> list[bool]:
        """Which items pass; items that could not be judged have `scores_on_failure`."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All verdicts of one run, in the order of the items.

    Attributes:
        judge: name of the judge.
        by: who judged: the model's name, or the stand-in's.
        endpoint, account, ledger: where, what this run did, and what the cache cost so far; None where no model judged.
    """

    judge: str
    by: str
    verdicts: list[Verdict]
    endpoint: str | None = None
    account: Account | None = None
    ledger: Ledger | None = None

    @property
    def failures(self) -> Counter[Failure]:
        """Items without a judgement, by class."""
        return Counter(verdict.failure for verdict in self.verdicts if verdict.failure is not None)

    @property
    def summary(self) -> Summary:
        """The verdicts in numbers."""
        kept = sum(verdict.keep for verdict in self.verdicts)
        return Summary(self.judge, self.by, len(self.verdicts), kept, self.failures, self.endpoint, self.account, self.ledger)


def run_judge(
    judge: Judge[Item], items: Sequence[Item], config: JudgeConfig, cache: Path, *, advance: Callable[[int], None] = lambda judged: None
) -> Judgement:
    """Judges over the configured endpoint, or by the stand-in where neither URL nor key is there; the result names which.

    Args:
        advance: called with the number of items of each finished batch; a stand-in makes none.

    Raises:
        ArmorError: no request can succeed; what was paid for stays in the cache.
    """
    if not has_endpoint(config):
        warn_of_stand_in(judge)
        return judge_without_endpoint(judge, items)

    async def judged() -> Judgement:
        async with ChatClient(config, cache) as client:
            return await judge_items(judge, items, client, advance=advance)

    return asyncio.run(judged())


def warn_of_stand_in(judge: Judge[Any]) -> None:
    """Says in the log that no model judges."""
    _log.warning("%s: no endpoint (judge.model with a key or judge.base_url), judged by %s", judge.name, judge.stand_in)


def judge_without_endpoint(judge: Judge[Item], items: Sequence[Item]) -> Judgement:
    """Judges by keywords or words in common; every verdict says so."""
    scores = [judge.stand_in_scores(item) for item in items]
    kept = judge.keep(items, scores)
    verdicts = [Verdict(judge.stand_in, keep, given) for keep, given in zip(kept, scores, strict=True)]
    return Judgement(judge.name, judge.stand_in, verdicts)


async def judge_items(
    judge: Judge[Item], items: Sequence[Item], client: ChatClient, *, advance: Callable[[int], None] = lambda judged: None
) -> Judgement:
    """Judges over an endpoint, many requests at once.

    When the budget is spent, replies that the cache holds are still used; all other items carry `Failure.BUDGET`.

    Args:
        advance: called with the number of items of each finished batch.

    Raises:
        ArmorError: see `ChatClient.chat`; requests under way are finished and kept when the client closes.
    """
    results: list[Reading | Failure] = [Failure.UNREADABLE] * len(items)
    batches = judge.batches(items)

    async def work() -> None:
        for positions in batches:
            found = await _judge_batch(judge, [items[position] for position in positions], client)
            for position, result in zip(positions, found, strict=True):
                results[position] = result
            advance(len(positions))

    await run_workers(work, 2 * client.concurrency)
    return _judgement(judge, items, results, client)


def _judgement(judge: Judge[Item], items: Sequence[Item], results: Sequence[Reading | Failure], client: ChatClient) -> Judgement:
    scores = [dict(result.scores) if isinstance(result, Reading) else dict(judge.scores_on_failure) for result in results]
    kept = judge.keep(items, scores)
    verdicts = [
        Verdict(client.name, keep and isinstance(result, Reading), given, result if isinstance(result, Failure) else None)
        for result, keep, given in zip(results, kept, scores, strict=True)
    ]
    return Judgement(judge.name, client.name, verdicts, client.url, client.account, client.ledger())


async def _judge_batch(judge: Judge[Item], batch: Sequence[Item], client: ChatClient) -> list[Reading | Failure]:
    """Asks about a batch; about what the reply leaves unread, it asks again."""
    results: list[Reading | Failure] = [Failure.UNREADABLE] * len(batch)
    left = list(range(len(batch)))
    request = judge.request(batch)
    for _ in range(1 + _ASKS_AGAIN):
        asked = [batch[position] for position in left]
        try:
            reply = await client.chat(request)
        except ChatError as error:
            for position in left:
                results[position] = error.failure
            break
        readings = _read(judge, reply, asked, client.account)
        for position, reading in zip(left, readings, strict=True):
            results[position] = reading if reading is not None else _why_unread(reply)
        unread = [position for position, reading in zip(left, readings, strict=True) if reading is None]
        if not unread or reply.finish_reason == "content_filter":
            break
        request = _next_request(judge, request, reply, [batch[position] for position in unread], whole=len(unread) == len(left))
        left = unread
    return results


def _read(judge: Judge[Item], reply: Reply, batch: Sequence[Item], account: Account) -> list[Reading | None]:
    try:
        readings = judge.read(reply, batch)
    except UnreadableReply:
        readings = [None] * len(batch)
    for reading in readings:
        account.readings.update(["unreadable"] if reading is None else reading.notes or ["as asked"])
    return readings


def _why_unread(reply: Reply) -> Failure:
    if reply.finish_reason == "content_filter":
        return Failure.FILTERED
    return Failure.UNREADABLE if reply.text.strip() else Failure.EMPTY


def _next_request(judge: Judge[Item], request: ChatRequest, reply: Reply, unread: Sequence[Item], *, whole: bool) -> ChatRequest:
    # Equal requests have one reply, in the cache as with a deterministic model: asking about the same items needs other words.
    return request.followed_by(reply.text, render("reminder")) if whole else judge.request(unread)
