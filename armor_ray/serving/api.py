"""The ASGI app of one replica, put together. Plain FastAPI, no Ray."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from armor_ray.serving.http_errors import add_handlers
from armor_ray.serving.middleware import BodyLimit, Observe
from armor_ray.serving.routes import embeddings, retrieve, state
from armor_ray.serving.schemas import ErrorBody
from armor_ray.serving.service import Service

_ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": ErrorBody} for code in (404, 413, 422, 503)}


def build_api(service: Service) -> FastAPI:
    """The ASGI app of one replica."""
    # The interactive pages fetch their scripts from other sites; /openapi.json stays.
    api = FastAPI(title="armor_ray", docs_url=None, redoc_url=None)
    api.state.service = service
    for routes in (retrieve, embeddings, state):
        api.include_router(routes.router, responses=_ERRORS)
    add_handlers(api)
    api.add_middleware(BodyLimit, max_bytes=service.arguments.max_body_bytes)
    api.add_middleware(Observe)
    return api
