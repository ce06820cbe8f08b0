"""Errors as every route answers them: `{"error": {"type", "message"}}`, one clear line, nothing of the inside."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

_TYPES = {
    401: "unauthorized",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    429: "rate_limited",
    500: "internal",
    502: "upstream",
    503: "overloaded",
}
RETRY_AFTER = {"Retry-After": "1"}
_MAX_MESSAGE = 500
_logger = logging.getLogger("ray.serve")


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    kind = _TYPES.get(status, "invalid_request")
    # Messages quote the request, which may be long and need not be valid Unicode.
    quotable = message[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    return JSONResponse({"error": {"type": kind, "message": quotable}}, status, headers)


def add_handlers(api: FastAPI) -> None:
    """Makes all errors of the app answer in this form."""
    api.add_exception_handler(HTTPException, _on_http_error)
    api.add_exception_handler(RequestValidationError, _on_invalid)
    api.add_exception_handler(Exception, _on_bug)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, str(error.detail), dict(error.headers or {}))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_response(422, f"not valid JSON at character {first['loc'][-1]}")
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    message = first["msg"].removeprefix("Value error, ")
    return error_response(422, f"{place}: {message}" if place else message)


async def _on_bug(request: Request, error: Exception) -> Response:
    _logger.error("request failed", exc_info=error)
    return error_response(500, "internal error")
