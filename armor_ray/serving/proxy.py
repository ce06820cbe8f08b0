"""What surrounds every request in Serve's HTTP proxies, once their environment names it:

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=armor_ray.serving.proxy.middlewares

Without it Serve answers a request whose replica dies with 500, which tells clients not to ask again.
"""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from armor_ray.serving.http_errors import RETRY_AFTER, error_response


def middlewares() -> list[Middleware]:
    """Called by Serve when a proxy starts."""
    return [Middleware(LostReplica)]


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
