"""What our middleware makes of the ways in which Serve's proxy answers, or does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from armor_ray.serving.proxy import middlewares


async def _no_answer(scope: Scope, receive: Receive, send: Send) -> None:
    """What Serve's proxy does when the replica of a request dies."""


def run(app: ASGIApp, scenario: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    for middleware in middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            await asyncio.wait_for(scenario(client), 60)

    asyncio.run(main())


def test_a_request_that_is_lost_with_its_replica_is_answered_503() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.get("/")
        assert (answer.status_code, answer.headers["retry-after"], answer.json()["error"]["type"]) == (503, "1", "overloaded")

    run(_no_answer, scenario)


@pytest.mark.parametrize("status", [200, 404, 500])
def test_every_answer_passes_as_it_is(status: int) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.get("/")
        assert (answer.status_code, answer.text) == (status, "as it is")

    run(PlainTextResponse("as it is", status), scenario)


def test_what_replicas_refuse_is_refused_before_them_and_taken_again_when_they_answer() -> None:
    capacity, running, most_tried, end = 100, 0, 0, asyncio.Event()

    async def replicas(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most_tried
        most_tried = max(most_tried, running + 1)
        full = running >= capacity
        running += 1
        try:
            if scope["path"] == "/held" and not full:
                await end.wait()
            await PlainTextResponse("", 503 if full else 200)(scope, receive, send)
        finally:
            running -= 1

    async def scenario(client: httpx.AsyncClient) -> None:
        nonlocal most_tried
        held = [asyncio.create_task(client.post("/held")) for _ in range(150)]
        await asyncio.sleep(0.05)
        assert sum(request.done() for request in held) == 50  # refused by the replicas, the first time
        most_tried = 0
        refused = await client.post("/")
        assert (refused.status_code, refused.headers["retry-after"], refused.json()["error"]["type"]) == (503, "1", "overloaded")
        assert most_tried == 0  # no replica was asked
        await client.get("/health")
        assert most_tried > 0  # what is no POST passes
        end.set()
        assert Counter(answer.status_code for answer in await asyncio.gather(*held)) == {200: 100, 503: 50}
        assert {(await client.post("/")).status_code for _ in range(20)} == {200}

    run(replicas, scenario)
