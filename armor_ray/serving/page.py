"""The page at `/`: static files with a strict content policy, the evaluation report in a sandbox, example questions from it.

The files are read once, from the package; no path of a request ever reaches the file system. The page itself holds nothing of the
workspace: its scripts ask `/v1/…` like any other client, with a token where the server wants one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any

from fastapi.routing import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from armor_ray.errors import ArmorError
from armor_ray.serving.evaluated import Examples, read_examples, read_report, style_of
from armor_ray.workspace import Workspace

_ASSETS = {
    "api.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "results.js": "text/javascript",
}
# The report has a style element and embedded pictures, and nothing else that a browser would load or run.
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; sandbox"
_HTML: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}


def build_router(workspace: Workspace, served: Callable[[], str]) -> APIRouter:
    """The page with its assets, and what it asks for beyond the API.

    Args:
        served: the version `name@fingerprint` of the encoder that is served now.
    """
    router = APIRouter()
    page = _read("page.html")

    @router.get("/", include_in_schema=False)
    def show_page() -> Response:
        headers = {**_HEADERS, "Content-Security-Policy": _page_policy(workspace)}
        return Response(page, media_type="text/html", headers=headers)

    for name, media_type in _ASSETS.items():
        router.add_api_route(f"/assets/{name}", _asset(_read(name), media_type), include_in_schema=False)

    @router.get("/v1/examples")
    def examples() -> Examples:
        """Test questions that the adaptation helped and hurt most."""
        return read_examples(workspace, served())

    @router.get("/v1/report", response_class=Response, responses=_HTML)
    def report() -> Response:
        """The evaluation report, a self-contained page."""
        found = read_report(workspace)
        if found is None:
            raise HTTPException(404, "this workspace has no evaluation report")
        return HTMLResponse(found, headers={**_HEADERS, "Content-Security-Policy": _REPORT_POLICY})

    return router


def _read(name: str) -> bytes:
    return (resources.files("armor_ray.serving") / "assets" / name).read_bytes()


def _asset(content: bytes, media_type: str) -> Callable[[], Response]:
    def show() -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    return show


def _page_policy(workspace: Workspace) -> str:
    """Own files only; a frame made by the page inherits this, so the report's own style is allowed by its hash."""
    try:
        report = read_report(workspace)
    except ArmorError:  # a damaged one; who asks for it is told by /v1/report
        report = None
    style = style_of(report) if report else None
    allowed = "" if style is None else f" 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'{allowed}; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
