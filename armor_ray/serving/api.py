"""The ASGI app of one replica, put together. Plain FastAPI, no Ray."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from armor_ray.serving import page
from armor_ray.serving.feedback import FeedbackLog
from armor_ray.serving.generation import Generator
from armor_ray.serving.http_errors import add_handlers
from armor_ray.serving.middleware import Authenticate, BodyLimit, Observe
from armor_ray.serving.routes import answer, embeddings, feedback, retrieve, state
from armor_ray.serving.schemas import ErrorBody
from armor_ray.serving.service import Service
from armor_ray.serving.tokens import RateLimit, Tokens
from armor_ray.workspace import Workspace

_ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": ErrorBody} for code in (400, 401, 404, 408, 413, 422, 429, 503)}


def build_api(service: Service, generator: Generator | None = None, feedback_log: FeedbackLog | None = None) -> FastAPI:
    """The ASGI app of one replica.

    Args:
        generator: serves /v1/answer.
        feedback_log: serves /v1/feedback.
    """
    # The interactive pages fetch their scripts from other sites; /openapi.json stays.
    api = FastAPI(title="armor_ray", docs_url=None, redoc_url=None)
    api.state.service = service
    workspace = Workspace(service.arguments.workspace)
    routers = [retrieve.router, embeddings.router, state.router]
    routers += [page.build_router(workspace, lambda: service.retriever.encoders["adapted"].version)]
    routers += [answer.build_router(generator)] if generator else []
    routers += [feedback.build_router(feedback_log)] if feedback_log else []
    for router in routers:
        api.include_router(router, responses=_ERRORS)
    add_handlers(api)
    api.add_middleware(BodyLimit, max_bytes=service.arguments.max_body_bytes, max_seconds=service.arguments.body_timeout_seconds)
    auth = service.arguments.auth
    if auth.has_tokens:
        limit = RateLimit(auth.requests_per_minute) if auth.requests_per_minute else None
        api.add_middleware(Authenticate, tokens=Tokens(auth), limit=limit)
    api.add_middleware(Observe)
    return api
