"""POST /v1/feedback: a passage that answered a question becomes a training example."""

from __future__ import annotations

import asyncio
import logging

from fastapi.routing import APIRouter
from starlette.exceptions import HTTPException

from armor_ray.serving.feedback import FeedbackLog, example
from armor_ray.serving.http_errors import RETRY_AFTER
from armor_ray.serving.schemas import FeedbackRequest, FeedbackResponse
from armor_ray.serving.service import Served

_logger = logging.getLogger("ray.serve")


def build_router(log: FeedbackLog) -> APIRouter:
    """The route, appending to `log`."""
    router = APIRouter()

    @router.post("/v1/feedback", status_code=201)
    async def feedback(body: FeedbackRequest, service: Served) -> FeedbackResponse:
        """Keeps a question with the passage that answered it; on disk when this returns."""
        service.check_texts([text for text in (body.question, body.answer, body.encoder) if text is not None], "feedback")
        record = example(body.question, await service.extent(body.passage_id), body.answer, body.encoder)
        try:
            await asyncio.to_thread(log.append, record)
        except OSError as error:
            _logger.error("feedback is lost: %s", error.strerror)
            raise HTTPException(503, "feedback cannot be written now", RETRY_AFTER) from None
        return FeedbackResponse(id=record["id"])

    return router
