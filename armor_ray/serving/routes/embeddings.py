"""POST /v1/embeddings: query vectors for OpenAI's clients."""

from __future__ import annotations

import base64

import numpy as np
from fastapi.routing import APIRouter

from armor_ray.serving.retriever import Job
from armor_ray.serving.schemas import Embedding, EmbeddingsRequest, EmbeddingsResponse, Usage
from armor_ray.serving.service import Served

router = APIRouter()


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


def _to_base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _to_floats(vector: np.ndarray) -> list[float]:
    return vector.tolist()
