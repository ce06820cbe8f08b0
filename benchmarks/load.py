"""Load on an HTTP server of this machine: closed loops of clients, or arrivals at a fixed rate whatever becomes of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np

K = 5
TIMEOUT_SECONDS = 60.0


@dataclass(slots=True)
class Load:
    """What one server answered in one stretch of load.

    Attributes:
        statuses: answers by HTTP status; 0 for a request without one (refused, reset, timed out).
        seconds: of each request answered 200.
        refusals: seconds of each request answered 503.
        wall: length of the stretch, to the last answer.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    wall: float = 0.0

    @property
    def rate(self) -> float:
        """Requests answered 200 a second."""
        return len(self.seconds) / self.wall

    def percentile(self, q: float) -> float:
        """Milliseconds, of requests answered 200; NaN where there were none."""
        return float(np.percentile(self.seconds, q)) * 1000 if self.seconds else float("nan")

    @property
    def failed(self) -> int:
        """Requests answered neither 200 nor 503."""
        return sum(count for status, count in self.statuses.items() if status not in (200, 503))


def closed_loop(url: str, questions: Sequence[str], clients: int, seconds: float) -> Load:
    """Every client asks its next question when it has the answer to its last one; the last ones are waited for."""
    return asyncio.run(_closed_loop(url, questions, clients, seconds))


def open_loop(url: str, questions: Sequence[str], rate: float, seconds: float) -> Load:
    """`rate` requests a second arrive at even distances, however many are still unanswered; the last ones are waited for."""
    return asyncio.run(_open_loop(url, questions, rate, seconds))


def top_passages(url: str, questions: Sequence[str]) -> list[list[int]]:
    """Passage ids of every question's K best."""
    return asyncio.run(_top_passages(url, questions))


async def _closed_loop(url: str, questions: Sequence[str], clients: int, seconds: float) -> Load:
    load, endless = Load(), itertools.cycle(questions)
    async with open_session() as session:
        started = time.perf_counter()

        async def client() -> None:
            while time.perf_counter() - started < seconds:
                await _ask(session, url, next(endless), load)

        await asyncio.gather(*(client() for _ in range(clients)))
        load.wall = time.perf_counter() - started
    return load


async def _open_loop(url: str, questions: Sequence[str], rate: float, seconds: float) -> Load:
    load = Load()
    async with open_session() as session:
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for due, question in _schedule(questions, rate, seconds):
                await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
                group.create_task(_ask(session, url, question, load))
        load.wall = time.perf_counter() - started
    return load


def _schedule(questions: Sequence[str], rate: float, seconds: float) -> Iterator[tuple[float, str]]:
    for i, question in zip(range(int(rate * seconds)), itertools.cycle(questions), strict=False):
        yield i / rate, question


async def _ask(session: aiohttp.ClientSession, url: str, question: str, load: Load) -> None:
    started = time.perf_counter()
    try:
        async with session.post(url, json={"query": question, "k": K}) as answer:
            await answer.read()
            status = answer.status
    except (aiohttp.ClientError, TimeoutError):
        status = 0
    load.statuses[status] += 1
    if status in (200, 503):
        (load.seconds if status == 200 else load.refusals).append(time.perf_counter() - started)


async def _top_passages(url: str, questions: Sequence[str]) -> list[list[int]]:
    found = []
    async with open_session() as session:
        for question in questions:
            async with session.post(url, json={"query": question, "k": K}, raise_for_status=True) as answer:
                [result] = (await answer.json())["results"]
                found.append([passage["passage_id"] for passage in result["passages"]])
    return found


def open_session() -> aiohttp.ClientSession:
    """Any number of connections; a request without an answer is given up after TIMEOUT_SECONDS."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
