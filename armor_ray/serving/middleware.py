"""What surrounds every request: who asks, a bound on the body, and counts and times by route."""

from __future__ import annotations

import asyncio
import math
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from armor_ray.serving import metrics
from armor_ray.serving.http_errors import error_response
from armor_ray.serving.tokens import RateLimit, Tokens

# Probes and browsers send no token; none of these places tells anything about the passages.
_OPEN_PATHS = {"/", "/health", "/ready"}
_ASSETS = "/assets/"  # what the page is made of


class BodyLimit:
    """Answers 413 before a larger body is read, whether or not its length was announced, and 408 where it is sent too slowly: a client that
    dribbles holds a place that others need.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            return await error_response(413, self._message)(scope, receive, send)
        received = 0
        deadline: float | None = asyncio.get_running_loop().time() + self._max_seconds

        async def limited() -> Message:
            nonlocal received, deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive within {self._max_seconds:g} s") from None
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, self._message)
            if not message.get("more_body", False):
                deadline = None  # from here on the app waits for the client to leave, which may take as long as it likes
            return message

        return await self._app(scope, limited, send)

    @property
    def _message(self) -> str:
        return f"the body exceeds {self._max_bytes} bytes"


class Authenticate:
    """Answers 401 without an accepted bearer token, and 429 to one that is used too often."""

    def __init__(self, app: ASGIApp, tokens: Tokens, limit: RateLimit | None) -> None:
        self._app = app
        self._tokens = tokens
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(_path(scope)):
            return await self._app(scope, receive, send)
        caller = self._tokens.identify(_bearer(scope))
        if caller is None:
            return await error_response(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        wait = self._limit.wait(caller) if self._limit else 0.0
        if wait:
            message = "more requests than this token may make in a minute"
            return await error_response(429, message, {"Retry-After": str(math.ceil(wait))})(scope, receive, send)
        return await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith(_ASSETS)


def _path(scope: Scope) -> str:
    # Serve mounts an application below its route prefix, which `path` still holds.
    return scope["path"].removeprefix(scope.get("root_path", "")) or "/"


def _bearer(scope: Scope) -> str:
    value = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    kind, _, token = value.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


class Observe:
    """Counts requests by route and status and times them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.perf_counter()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            status = 499  # the client has gone
            raise
        finally:
            # Only known routes become labels: anybody can make up paths.
            route = getattr(scope.get("route"), "path", "unknown")
            metrics.REQUESTS.labels(route, str(status)).inc()
            metrics.REQUEST_SECONDS.labels(route).observe(time.perf_counter() - started)
