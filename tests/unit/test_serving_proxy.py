"""What our middleware makes of the ways in which Serve's proxy answers, or does not."""

from __future__ import annotations

import asyncio
import time
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
            await scenario(client)

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


def test_requests_are_refused_while_the_event_loop_is_behind_and_taken_again_afterwards() -> None:
    async def be_slow() -> None:
        while True:
            time.sleep(0.25)  # as many requests at once do
            await asyncio.sleep(0)

    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.get("/")).status_code == 200
        slow = asyncio.create_task(be_slow())
        await asyncio.sleep(0.5)
        refused = await client.get("/")
        assert (refused.status_code, refused.headers["retry-after"], refused.json()["error"]["type"]) == (503, "1", "overloaded")
        slow.cancel()
        for _ in range(100):
            await asyncio.sleep(0.05)
            if (await client.get("/")).status_code == 200:
                return
        raise AssertionError("refused for ever")

    run(PlainTextResponse("as it is"), scenario)
