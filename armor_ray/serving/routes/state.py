"""How the replica is: /health, /ready, /info, /metrics."""

from __future__ import annotations

from fastapi import Response
from fastapi.routing import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from armor_ray.serving import metrics
from armor_ray.serving.schemas import Health, Info
from armor_ray.serving.service import Served

_LIMITS = ("max_query_characters", "max_queries", "max_k", "max_body_bytes")

router = APIRouter()


@router.get("/health")
async def health(service: Served, response: Response) -> Health:
    """200 while batches end, 503 when one hangs."""
    if service.is_stalled:
        response.status_code = 503
        return Health(status="stalled")
    return Health(status="ok")


@router.get("/ready")
async def ready(service: Served, response: Response) -> Health:
    """200 while a request would be taken on, 503 when the queue is full or a batch hangs."""
    if service.is_stalled:
        response.status_code = 503
        return Health(status="stalled")
    if service.is_full:
        response.status_code = 503
        return Health(status="full")
    return Health(status="ok")


@router.get("/info")
async def info(service: Served) -> Info:
    """What is being served, and within which limits."""
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
        traffic=service.traffic.arguments.model_dump(),
        live_error=service.live_error,
    )


@router.get("/metrics", response_class=Response)
async def show_metrics() -> Response:
    """Prometheus metrics of the replica that answers."""
    return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)
