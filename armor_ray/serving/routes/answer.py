"""POST /v1/answer: retrieve, and let a generator answer from what was found."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import Response
from fastapi.routing import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from armor_ray.serving.generation import Generator, citations
from armor_ray.serving.schemas import AnswerRequest, AnswerResponse, ErrorBody, Passage
from armor_ray.serving.service import RequestId, Served

_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["passages", "delta", "done", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"itemSchema": _EVENT}}},
    502: {"model": ErrorBody, "description": "The generator failed."},
}


def build_router(generator: Generator) -> APIRouter:
    """The route, with answers by `generator`."""
    router = APIRouter()

    @router.post("/v1/answer", response_model=AnswerResponse, responses=_RESPONSES)
    async def answer(body: AnswerRequest, service: Served, x_request_id: RequestId = None) -> Response | AnswerResponse:
        """An answer that cites the ids of passages; whole, or as server-sent events."""
        found = await service.retrieve([body.question], body, "question", x_request_id)
        passages = found.passages[0]
        if not passages:
            raise HTTPException(422, "filter: leaves no passage to answer from")
        facts: dict[str, Any] = {
            "passages": passages,
            "encoder": found.encoder.version,
            "arm": found.arm,
            "partial": found.partial,
            "model": generator.model,
        }
        pieces = generator.stream(body.question, passages)
        # Waits for the first piece, so that an endpoint that fails at once is answered by a status.
        first = await anext(pieces, "")
        if body.stream:
            return StreamingResponse(_events(first, pieces, facts), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        text = first + "".join([piece async for piece in pieces])
        return AnswerResponse(answer=text, citations=citations(text, passages), **facts)

    return router


async def _events(first: str, pieces: AsyncGenerator[str], facts: dict[str, Any]) -> AsyncIterator[str]:
    passages: list[Passage] = facts["passages"]
    yield _event("passages", {**facts, "passages": [passage.model_dump() for passage in passages]})
    yield _event("delta", {"text": first})
    text = first
    async with aclosing(pieces):
        try:
            async for piece in pieces:
                text += piece
                yield _event("delta", {"text": piece})
        except HTTPException as error:
            yield _event("error", {"status": error.status_code, "message": error.detail})
            return
    yield _event("done", {"citations": citations(text, passages)})


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
