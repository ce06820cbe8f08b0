"""POST /v1/retrieve: passages for questions."""

from __future__ import annotations

from fastapi.routing import APIRouter

from armor_ray.serving.schemas import QueryResult, RetrieveRequest, RetrieveResponse
from armor_ray.serving.service import RequestId, Served

router = APIRouter()


@router.post("/v1/retrieve")
async def retrieve(body: RetrieveRequest, service: Served, x_request_id: RequestId = None) -> RetrieveResponse:
    """The k best passages for each query."""
    texts = body.texts()
    answer = await service.retrieve(texts, body, "queries", x_request_id)
    results = [
        QueryResult.model_construct(query=text, truncated=cut, passages=passages)
        for text, cut, passages in zip(texts, answer.truncated, answer.passages, strict=True)
    ]
    return RetrieveResponse.model_construct(encoder=answer.encoder.version, arm=answer.arm, partial=answer.partial, results=results)
