"""What may change while requests are served: the adapted encoder, and which share of the requests the base encoder gets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from armor_ray.errors import ArmorError
from armor_ray.serving import metrics
from armor_ray.serving.arguments import LiveArguments
from armor_ray.serving.encoders import QueryEncoder, open_adapted
from armor_ray.serving.service import Service
from armor_ray.serving.traffic import Traffic
from armor_ray.workspace import Workspace

_logger = logging.getLogger("ray.serve")


class Live:
    """Applies `user_config` to a service that may be answering at the moment.

    Args:
        retriever: what the service was started with.
    """

    def __init__(self, service: Service, workspace: Workspace, retriever: str) -> None:
        self._service = service
        self._workspace = workspace
        self._applied = LiveArguments(retriever=retriever)
        self._is_first = True

    async def apply(self, raw: Mapping[str, Any]) -> None:
        """Loads what is new beside what serves, then exchanges it between two batches.

        A change that fails leaves everything as it was, and /info tells why: a replica that raised would be stopped. At start it raises,
        since a replica that cannot serve what it was told to must not start.

        Raises:
            ArmorError: the first change is not one that can be made.
        """
        try:
            await self._apply(_parse(raw, self._applied.retriever))
            self._service.live_error = None
        except ArmorError as error:
            if self._is_first:
                raise
            metrics.FAILED_CHANGES.inc()
            self._service.live_error = str(error)
            _logger.error("user_config is not applied: %s", error)
        self._is_first = False

    async def _apply(self, wanted: LiveArguments) -> None:
        if wanted.traffic.mode != "off" and "base" not in self._service.retriever.encoders:
            raise ArmorError("there is no base encoder here", where="user_config.traffic", hint="set the argument compare: true")
        if (wanted.retriever, wanted.revision) != (self._applied.retriever, self._applied.revision):
            encoder = await asyncio.to_thread(self._load, wanted.retriever or "")
            self._service.retriever.adopt(encoder)
            _logger.info("%s answers now", encoder.version)
        self._service.traffic = Traffic(wanted.traffic)
        self._applied = wanted

    def _load(self, retriever: str) -> QueryEncoder:
        serving = self._service.retriever.encoders["adapted"]
        encoder = open_adapted(self._workspace, retriever, serving.dtype)
        self._service.retriever.require_index(encoder.index)
        # The name that clients of /v1/embeddings ask for stays.
        return replace(encoder, names=tuple(dict.fromkeys([serving.names[0], encoder.names[-1]])))


def _parse(raw: Mapping[str, Any], retriever: str | None) -> LiveArguments:
    try:
        wanted = LiveArguments.model_validate(dict(raw))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in ("user_config", *first["loc"]))
        raise ArmorError(first["msg"].removeprefix("Value error, "), where=key) from None
    return wanted if wanted.retriever is not None else wanted.model_copy(update={"retriever": retriever})
