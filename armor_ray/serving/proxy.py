"""What surrounds every request in Serve's HTTP proxies, once their environment names it:

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=armor_ray.serving.proxy.middlewares

Serve by itself answers a request whose replica dies with 500, which tells clients not to ask again; and in a flood all requests wait for
the proxy's CPU time, also those that are refused in the end.
"""

from __future__ import annotations

import math
import time

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from armor_ray.serving.http_errors import RETRY_AFTER, error_response

# The bound on requests in a proxy: two full batches at least; lowered once for refusals that come together; raised slowly, so that few
# are refused in vain while the flood lasts.
_LEAST = 64
_LOWERED_TO, _LOWERED_AFTER_SECONDS = 0.9, 0.1
_RAISED_BY = 0.05


def middlewares() -> list[Middleware]:
    """Called by Serve when a proxy starts."""
    return [Middleware(LostReplica), Middleware(RefuseEarly)]


class LostReplica:
    """Answers 503 with Retry-After where Serve gives no answer: the replica was lost with the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answered = False

        async def watched(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        await self._app(scope, receive, watched)
        if not answered:
            await error_response(503, "the request was lost with its replica, send it again", RETRY_AFTER)(scope, receive, send)


class RefuseEarly:
    """Answers 503 at once to a POST that a replica would refuse anyway: there a refusal costs almost as much as an answer.

    How many requests the replicas take is learnt from their own refusals, as a sender learns what a network takes: each lowers the bound by
    a tenth, answers raise it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0
        self._most = math.inf
        self._lowered = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":  # probes, metrics and the page always pass
            await self._app(scope, receive, send)
            return
        if self._held >= self._most:
            await error_response(503, "as many requests are being served as can be", RETRY_AFTER)(scope, receive, send)
            return

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._learn(message["status"])
            await send(message)

        self._held += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            self._held -= 1

    def _learn(self, status: int) -> None:
        if status != 503:
            self._most += _RAISED_BY
        elif time.monotonic() - self._lowered > _LOWERED_AFTER_SECONDS:
            self._most = max(_LEAST, _LOWERED_TO * min(self._most, self._held))
            self._lowered = time.monotonic()
