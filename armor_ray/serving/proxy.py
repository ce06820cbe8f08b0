"""What surrounds every request in Serve's HTTP proxies, once their environment names it:

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=armor_ray.serving.proxy.middlewares

Serve by itself answers a request whose replica dies with 500, which tells clients not to ask again; and a proxy that gets more requests
than it has CPU time for lets all of them wait, those that it will refuse as well.
"""

from __future__ import annotations

import asyncio

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from armor_ray.serving.http_errors import RETRY_AFTER, error_response

# A request takes about ten turns of the proxy's event loop; at this length of a turn it spends two seconds there.
_LONGEST_TURN_SECONDS = 0.2
_LOOK_EVERY_SECONDS = 0.02
# With fewer at once it is not they who keep the proxy from its turn: the machine is busy with other things, and refusing helps nobody.
_FEW_REQUESTS = 64


def middlewares() -> list[Middleware]:
    """Called by Serve when a proxy starts."""
    return [Middleware(LostReplica), Middleware(RefuseWhenBehind)]


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


class RefuseWhenBehind:
    """Answers 503 at once while many requests keep the event loop behind: Serve's own refusals cost it almost as much as answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0
        self._behind = 0.0
        self._looks = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._looks:
            self._looks = True
            self._look_again()
        if scope["type"] == "http" and self._behind > _LONGEST_TURN_SECONDS and self._held >= _FEW_REQUESTS:
            await error_response(503, "more requests than this server can take", RETRY_AFTER)(scope, receive, send)
            return
        self._held += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._held -= 1

    def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_LOOK_EVERY_SECONDS, self._look, loop, loop.time() + _LOOK_EVERY_SECONDS)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._behind = loop.time() - due
        self._look_again()
