"""The HTTP side of one replica: routes, limits and errors. Plain FastAPI, no Ray."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from typing import Annotated

import numpy as np
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from armor_ray.serving import metrics
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.batching import Batcher, QueueFullError
from armor_ray.serving.encoders import Arm
from armor_ray.serving.passages import Wanted
from armor_ray.serving.retriever import Answer, Job, Retriever
from armor_ray.serving.schemas import (
    Embedding,
    EmbeddingsRequest,
    EmbeddingsResponse,
    ErrorBody,
    Health,
    Info,
    QueryResult,
    RetrieveRequest,
    RetrieveResponse,
    Usage,
)

# A batch takes milliseconds to seconds; one that runs this long never ends.
STALLED_SECONDS = 60.0
RETRY_AFTER_SECONDS = 1
_ERROR_TYPES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 500: "internal", 503: "overloaded"}
_MAX_MESSAGE = 500
_LIMITS = ("max_query_characters", "max_queries", "max_k", "max_body_bytes")
_logger = logging.getLogger("ray.serve")


class Service:
    """Checks requests against the limits and hands them to the batcher."""

    def __init__(self, retriever: Retriever, arguments: ServingArguments) -> None:
        self.retriever = retriever
        self.arguments = arguments
        self._batcher: Batcher[Job, Answer] = Batcher(
            retriever.answer, lambda job: len(job.texts), arguments.max_batch_size, arguments.max_ongoing_requests
        )

    @property
    def is_stalled(self) -> bool:
        return self._batcher.running_seconds() > STALLED_SECONDS

    async def submit(self, job: Job) -> Answer:
        try:
            return await self._batcher.submit(job)
        except QueueFullError:
            message = f"{self.arguments.max_ongoing_requests} requests are being served already"
            raise HTTPException(503, message, {"Retry-After": str(RETRY_AFTER_SECONDS)}) from None

    def check_texts(self, texts: list[str], name: str) -> tuple[str, ...]:
        if not texts:
            raise HTTPException(422, f"{name}: empty")
        if len(texts) > self.arguments.max_queries:
            raise HTTPException(413, f"{name}: {len(texts)} texts, the limit is {self.arguments.max_queries}")
        for i, text in enumerate(texts):
            if len(text) > self.arguments.max_query_characters:
                raise HTTPException(413, f"{name}[{i}]: {len(text)} characters, the limit is {self.arguments.max_query_characters}")
            if not text.strip():
                raise HTTPException(422, f"{name}[{i}]: empty text")
            if not _is_unicode(text):
                raise HTTPException(422, f"{name}[{i}]: half of a surrogate pair")
        return tuple(texts)

    def check_k(self, k: int) -> int:
        if k > self.arguments.max_k:
            raise HTTPException(422, f"k: {k}, the limit is {self.arguments.max_k}")
        if k > self.retriever.num_passages:
            raise HTTPException(422, f"k: {k}, the index holds {self.retriever.num_passages} passages")
        return k

    def check_arm(self, arm: Arm) -> Arm:
        if arm not in self.retriever.encoders:
            raise HTTPException(422, f"encoder: '{arm}' is not served here; the server's argument `compare: true` adds it")
        return arm

    def check_model(self, model: str, dimensions: int | None) -> Arm:
        """The encoder of that name."""
        for arm, encoder in self.retriever.encoders.items():
            if model in encoder.names:
                if dimensions not in (None, encoder.dimension):
                    raise HTTPException(422, f"dimensions: the encoder gives {encoder.dimension}")
                return arm
        raise HTTPException(404, f"model: no '{model[:100]}' here, this is '{self.retriever.encoders['adapted'].names[0]}'")


async def _service(request: Request) -> Service:
    return request.app.state.service


Served = Annotated[Service, Depends(_service)]
router = APIRouter(responses={code: {"model": ErrorBody} for code in (404, 413, 422, 503)})


@router.post("/v1/retrieve")
async def retrieve(body: RetrieveRequest, service: Served) -> RetrieveResponse:
    """The k best passages for each query."""
    texts = service.check_texts(body.texts(), "queries")
    wanted = Wanted(service.check_k(body.k))
    answer = await service.submit(Job(texts, service.check_arm(body.encoder), wanted))
    results = [
        QueryResult.model_construct(query=text, truncated=cut, passages=passages)
        for text, cut, passages in zip(texts, answer.truncated, answer.passages, strict=True)
    ]
    return RetrieveResponse.model_construct(encoder=answer.version, results=results)


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingsRequest, service: Served) -> EmbeddingsResponse:
    """Query vectors, compatible with OpenAI's clients."""
    arm = service.check_model(body.model, body.dimensions)
    answer = await service.submit(Job(service.check_texts(body.texts(), "input"), arm))
    encode = _to_base64 if body.encoding_format == "base64" else _to_floats
    return EmbeddingsResponse(
        model=body.model,
        data=[Embedding.model_construct(index=i, embedding=encode(vector)) for i, vector in enumerate(answer.vectors)],
        usage=Usage(prompt_tokens=answer.tokens, total_tokens=answer.tokens),
        truncated=[i for i, cut in enumerate(answer.truncated) if cut],
    )


@router.get("/health")
async def health(service: Served, response: Response) -> Health:
    """200 while batches end, 503 when one hangs."""
    if service.is_stalled:
        response.status_code = 503
        return Health(status="stalled")
    return Health(status="ok")


@router.get("/info")
async def info(service: Served) -> Info:
    encoders = service.retriever.encoders
    adapted = encoders["adapted"]
    return Info(
        model=adapted.names[0],
        encoder=adapted.version,
        encoders={arm: encoder.version for arm, encoder in encoders.items()},
        dimension=adapted.dimension,
        max_length=adapted.max_length,
        passages=service.retriever.num_passages,
        limits={name: getattr(service.arguments, name) for name in _LIMITS},
    )


@router.get("/metrics")
async def show_metrics() -> Response:
    return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)


def build_api(service: Service) -> FastAPI:
    """The ASGI app of one replica."""
    # The interactive pages fetch their scripts from other sites; /openapi.json stays.
    api = FastAPI(title="armor_ray", docs_url=None, redoc_url=None)
    api.state.service = service
    api.include_router(router)
    api.add_exception_handler(HTTPException, _on_http_error)
    api.add_exception_handler(RequestValidationError, _on_invalid)
    api.add_exception_handler(Exception, _on_bug)
    api.add_middleware(BodyLimit, max_bytes=service.arguments.max_body_bytes)
    api.add_middleware(Observe)
    return api


class BodyLimit:
    """Answers 413 before a larger body is read, whether or not its length was announced."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            return await _error(413, self._message)(scope, receive, send)
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, self._message)
            return message

        return await self._app(scope, limited, send)

    @property
    def _message(self) -> str:
        return f"the body exceeds {self._max_bytes} bytes"


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


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _to_base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _to_floats(vector: np.ndarray) -> list[float]:
    return vector.tolist()


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    kind = _ERROR_TYPES.get(status, "invalid_request")
    # Messages quote the request, which may be long and need not be valid Unicode.
    quotable = message[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    return JSONResponse({"error": {"type": kind, "message": quotable}}, status, headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, str(error.detail), dict(error.headers or {}))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _error(422, f"not valid JSON at character {first['loc'][-1]}")
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    message = first["msg"].removeprefix("Value error, ")
    return _error(422, f"{place}: {message}" if place else message)


async def _on_bug(request: Request, error: Exception) -> Response:
    _logger.error("request failed", exc_info=error)
    return _error(500, "internal error")
