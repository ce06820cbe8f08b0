"""What our middleware makes of the ways in which Serve's proxy answers, or does not."""

from __future__ import annotations

import asyncio
import time
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


def test_requests_are_refused_while_many_keep_the_event_loop_behind() -> None:
    async def be_slow() -> None:
        while True:
            time.sleep(0.25)
            await asyncio.sleep(0)

    async def scenario(client: httpx.AsyncClient) -> None:
        slow = asyncio.create_task(be_slow())
        for _ in range(3):
            assert (await client.get("/at-once")).status_code == 200  # one at a time is none too many
            await asyncio.sleep(0.3)
        held = [asyncio.create_task(client.get("/")) for _ in range(100)]
        while not any(request.done() for request in held):
            await asyncio.sleep(0.01)
        refused = await client.get("/at-once")
        assert (refused.status_code, refused.headers["retry-after"], refused.json()["error"]["type"]) == (503, "1", "overloaded")
        slow.cancel()
        end.set()
        assert Counter(answer.status_code for answer in await asyncio.gather(*held)) == {200: 64, 503: 36}
        assert (await client.get("/at-once")).status_code == 200

    end = asyncio.Event()

    async def answer_at_the_end(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await end.wait()
        await PlainTextResponse("as it is")(scope, receive, send)

    run(answer_at_the_end, scenario)
