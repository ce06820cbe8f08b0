"""What our middleware makes of the ways in which Serve's proxy answers."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from armor_ray.serving.proxy import middlewares


async def _no_answer(scope: Scope, receive: Receive, send: Send) -> None:
    """What Serve's proxy does when the replica of a request dies."""


def _get(app: ASGIApp) -> httpx.Response:
    for middleware in middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)

    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get("/")

    return asyncio.run(once())


def test_a_request_that_is_lost_with_its_replica_is_answered_503() -> None:
    answer = _get(_no_answer)
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["error"]["type"]) == (503, "1", "overloaded")


@pytest.mark.parametrize("status", [200, 404, 500])
def test_every_answer_passes_as_it_is(status: int) -> None:
    answer = _get(PlainTextResponse("as it is", status))
    assert (answer.status_code, answer.text) == (status, "as it is")
