"""Faults under load: replicas killed again and again, encoders swapped; every answer is checked against its own encoder's exact ranking."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from benchmarks.load import K, open_session
from benchmarks.report import Outcome, Row
from benchmarks.servers import OurServer

CLIENTS = 8
KILLS, SECONDS_BETWEEN_KILLS = 12, 5.0
SWAPS = 10
# Scores that differ by less are equal in fp32: the batch that a question was encoded in moves them by 1e-6.
_TIE = 1e-5
_PAUSE_AFTER_REFUSAL = 0.1
_POLL_SECONDS, _SWAP_SECONDS = 0.1, 120.0


@dataclass(slots=True)
class Checked:
    """What became of the requests of one stretch of faults.

    Attributes:
        statuses: answers by HTTP status; 0 for a request without one.
        wrong: answers 200 with other passages than the encoder finds that they name.
        encoders: answers 200 by encoder.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    encoders: Counter[str] = field(default_factory=Counter)

    @property
    def share_well_answered(self) -> float:
        """Of all requests: right, or refused with 503."""
        total = sum(self.statuses.values())
        return (self.statuses[200] + self.statuses[503] - self.wrong) / total if total else 0.0


def measure(server: OurServer, questions: Sequence[str], scores: Mapping[str, np.ndarray]) -> Outcome:
    """Kills a replica every five seconds for a minute, then swaps the encoder ten times, both under load.

    Args:
        server: serves two retrievers in fp32, on two replicas.
        scores: exact scores [questions, passages] of each retriever, by its name.
    """
    killed = asyncio.run(_under_load(server.url, questions, scores, lambda: _kill(server)))
    swapped = asyncio.run(_under_load(server.url, questions, scores, lambda: _swap(server, list(scores))))
    name = f"a replica killed every {SECONDS_BETWEEN_KILLS:g} s, {KILLS} times: right, or 503"
    rows = [_row(name, killed), _row(f"{SWAPS} encoder swaps: right, or 503", swapped)]
    notes = [
        f"{what}: statuses {dict(checked.statuses)}, {checked.wrong} wrong answers, by encoder {dict(checked.encoders)}"
        for what, checked in (("kills", killed), ("swaps", swapped))
    ]
    return Outcome(rows, notes)


def _row(name: str, checked: Checked) -> Row:
    share = checked.share_well_answered
    return Row(name, share, 1.0, "share of requests", share, 1.0)


async def _under_load(
    url: str, questions: Sequence[str], scores: Mapping[str, np.ndarray], faults: Callable[[], Awaitable[None]]
) -> Checked:
    checked, done = Checked(), asyncio.Event()
    places = itertools.cycle(range(len(questions)))
    async with open_session() as http:

        async def client() -> None:
            while not done.is_set():
                place = next(places)
                status = await _ask(http, url, questions[place], place, scores, checked)
                if status != 200:
                    await asyncio.sleep(_PAUSE_AFTER_REFUSAL)

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client())
            try:
                await faults()
            finally:
                done.set()
    return checked


async def _ask(http: aiohttp.ClientSession, url: str, question: str, place: int, scores: Mapping[str, np.ndarray], checked: Checked) -> int:
    try:
        async with http.post(f"{url}/v1/retrieve", json={"query": question, "k": K}) as answer:
            status, content = answer.status, await answer.json() if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError):
        status, content = 0, None
    checked.statuses[status] += 1
    if content is not None:
        encoder = content["encoder"].partition("@")[0]
        checked.encoders[encoder] += 1
        checked.wrong += not is_right(content, scores[encoder][place])
    return status


def is_right(content: dict[str, Any], scores_C: np.ndarray) -> bool:
    """Whether an answer to one query holds its K best passages, best first.

    Args:
        scores_C: exact scores of all passages.
    """
    [result] = content["results"]
    rows = [passage["passage_id"] for passage in result["passages"]]
    best = -np.sort(-scores_C)[:K]
    return len(set(rows)) == len(best) and bool(np.all(np.abs(scores_C[rows] - best) <= _TIE))


async def _kill(server: OurServer) -> None:
    for place in range(KILLS):
        await asyncio.sleep(SECONDS_BETWEEN_KILLS)
        replicas = await asyncio.to_thread(server.replicas)
        if replicas:  # else the last one killed has not come back yet
            replicas[place % len(replicas)].kill()


async def _swap(server: OurServer, names: Sequence[str]) -> None:
    for name in itertools.islice(itertools.cycle(reversed(names)), SWAPS):
        await asyncio.to_thread(server.deploy, {"retriever": name})
        await asyncio.wait_for(_until_all_answer_by(server, name), _SWAP_SECONDS)


async def _until_all_answer_by(server: OurServer, name: str) -> None:
    """Until ten requests in a row, spread over the replicas, are answered by the retriever."""
    in_a_row = 0
    async with open_session() as http:
        while in_a_row < 10:
            async with http.get(f"{server.url}/info") as answer:
                info = await answer.json() if answer.status == 200 else {"encoder": ""}
            in_a_row = in_a_row + 1 if info["encoder"].startswith(f"{name}@") else 0
            await asyncio.sleep(_POLL_SECONDS)
