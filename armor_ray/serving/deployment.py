"""Ray Serve: one deployment whose replicas each hold the encoder and the index."""

# No `from __future__ import annotations` here: Serve reads the annotation of `app` to validate its arguments, and needs the class.

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import BackpressureConfig
from ray.serve.context import _get_global_client

from armor_ray.serving.arguments import ServingArguments
from armor_ray.workspace import Workspace

# Requests that Serve lets into a replica beyond those it works on, so that refusals, /health and /metrics are answered at once.
_HEADROOM = 64


@serve.ingress()
class RetrieverReplica:
    """Encoder, index and HTTP routes in one process."""

    def __init__(self, arguments: ServingArguments) -> None:
        # Only a replica needs torch; the builder stays light.
        from armor_ray.serving.api import build_api
        from armor_ray.serving.feedback import FeedbackLog
        from armor_ray.serving.generation import Generator
        from armor_ray.serving.live import Live
        from armor_ray.serving.retriever import Retriever
        from armor_ray.serving.service import Service
        from armor_ray.serving.tokens import require_tokens

        require_tokens(_proxy_host(), arguments.auth)
        workspace = Workspace(arguments.workspace)
        self._service = Service(Retriever.open(workspace, arguments), arguments)
        self._live = Live(self._service, workspace, arguments.retriever)
        generator = Generator(arguments.generator) if arguments.generator else None
        feedback_log = FeedbackLog(Path(arguments.feedback_file)) if arguments.feedback_file else None
        self._api = build_api(self._service, generator, feedback_log)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._api

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve with the deployment's `user_config` (`LiveArguments`), at start and whenever it changes."""
        await self._live.apply(user_config)

    def check_health(self) -> None:
        """Called by Serve, which replaces a replica that raises."""
        if self._service.is_stalled:
            raise RuntimeError("a batch hangs")


def _proxy_host() -> str | None:
    """The address that Serve's HTTP proxies listen on; Serve tells it by no public call."""
    client = _get_global_client()
    assert client is not None, "a replica has a controller"
    return client.http_config.host


def app(arguments: ServingArguments) -> Application:
    """Builds the application from the `args` of a serve config.

    Artifacts are checked by each replica, not here: Serve reports what a replica refuses once, but runs a failing builder four times.
    """
    # Resolved now, against the folder that the command runs in: replicas may run in another one.
    paths: dict[str, Any] = {"workspace": Workspace(arguments.workspace).uri}
    if arguments.feedback_file is not None:
        paths["feedback_file"] = _absolute(arguments.feedback_file)
    if arguments.auth.tokens_file is not None:
        paths["auth"] = arguments.auth.model_copy(update={"tokens_file": _absolute(arguments.auth.tokens_file)})
    resolved = arguments.model_copy(update=paths)
    deployment: Any = serve.deployment(
        RetrieverReplica,
        name="retriever",
        num_replicas=arguments.num_replicas,
        max_ongoing_requests=arguments.max_ongoing_requests + _HEADROOM,
        max_queued_requests=arguments.max_queued_requests,
        backpressure_config=BackpressureConfig(status_code=503, retry_after_s=1.0),
        ray_actor_options={"num_cpus": arguments.threads},
        # What a replica refuses at start it refuses again.
        max_constructor_retry_count=1,
    )
    return deployment.bind(resolved)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())
