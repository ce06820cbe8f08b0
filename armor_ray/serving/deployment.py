"""Ray Serve: one deployment whose replicas hold encoder and index, or one for the encoder and others for parts of the index."""

# No `from __future__ import annotations` here: Serve reads the annotation of `app` to validate its arguments, and needs the class.

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import BackpressureConfig
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle

from armor_ray.serving.arguments import STALLED_SECONDS, ServingArguments
from armor_ray.serving.routing import OwnRequestFirst
from armor_ray.workspace import Workspace

if TYPE_CHECKING:
    from armor_ray.serving.passages import Extent
    from armor_ray.serving.schemas import Passage
    from armor_ray.serving.sharded import ShardRequest

# Requests that Serve lets into a replica beyond those it works on, so that refusals, /health and /metrics are answered at once.
_HEADROOM = 64


class IndexReplica:
    """A part of the index, or all of it, in one process; searched by `RetrieverReplica` over a handle."""

    def __init__(self, arguments: ServingArguments, shard: int) -> None:
        # Only a replica needs FAISS; the builder stays light.
        from armor_ray.serving.sharded import ShardServer

        self._server = ShardServer.open(Workspace(arguments.workspace), arguments, shard)

    async def search(self, request: "ShardRequest") -> "list[list[Passage]]":
        return await self._server.search(request)

    async def extent(self, passage_id: int) -> "Extent | None":
        return await self._server.extent(passage_id)

    def check_health(self) -> None:
        """Called by Serve, which replaces a replica that raises."""
        _require_progress(self._server.running_seconds())


class HandleShard:
    """An index deployment as a `Shard`."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def search(self, request: "ShardRequest") -> "list[list[Passage]]":
        return await self._handle.search.remote(request)

    async def extent(self, passage_id: int) -> "Extent | None":
        return await self._handle.extent.remote(passage_id)


@serve.ingress()
class RetrieverReplica:
    """Encoder and HTTP routes in one process, with the index in it or behind handles."""

    def __init__(self, arguments: ServingArguments, *indexes: DeploymentHandle) -> None:
        # Only a replica needs torch; the builder stays light.
        from armor_ray.serving.api import build_api
        from armor_ray.serving.feedback import FeedbackLog
        from armor_ray.serving.generation import Generator
        from armor_ray.serving.live import Live
        from armor_ray.serving.retriever import Retriever
        from armor_ray.serving.service import Service
        from armor_ray.serving.sharded import ShardedRetriever
        from armor_ray.serving.tokens import require_tokens

        require_tokens(_proxy_host(), arguments.auth)
        workspace = Workspace(arguments.workspace)
        shards = [HandleShard(handle) for handle in indexes]
        retriever = ShardedRetriever.open(workspace, arguments, shards) if shards else Retriever.open(workspace, arguments)
        self._service = Service(retriever, arguments)
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
        _require_progress(self._service.running_seconds())


def app(arguments: ServingArguments) -> Application:
    """Builds the application from the `args` of a serve config.

    Artifacts are checked by each replica, not here: Serve reports what a replica refuses once, but runs a failing builder four times.
    """
    resolved = _resolved(arguments)
    options: dict[str, Any] = {
        "max_ongoing_requests": arguments.max_ongoing_requests + _HEADROOM,
        "ray_actor_options": {"num_cpus": arguments.threads},
        # What a replica refuses at start it refuses again.
        "max_constructor_retry_count": 1,
        "health_check_period_s": 2,
        "request_router_config": {"request_router_class": OwnRequestFirst},
    }
    indexes = []
    if arguments.topology != "single":
        names = [f"index-{shard}" for shard in range(arguments.num_shards)] if arguments.topology == "sharded" else ["index"]
        index: Any = serve.deployment(IndexReplica, num_replicas=arguments.index_replicas, **options)
        indexes = [index.options(name=name).bind(resolved, shard) for shard, name in enumerate(names)]
    deployment: Any = serve.deployment(
        RetrieverReplica,
        name="retriever",
        num_replicas=arguments.num_replicas,
        max_queued_requests=arguments.max_queued_requests,
        backpressure_config=BackpressureConfig(status_code=503, retry_after_s=1.0),
        **options,
    )
    return deployment.bind(resolved, *indexes)


def _resolved(arguments: ServingArguments) -> ServingArguments:
    """With paths that hold wherever replicas run: relative ones are taken from the folder that the command runs in."""
    paths: dict[str, Any] = {"workspace": Workspace(arguments.workspace).uri}
    if arguments.feedback_file is not None:
        paths["feedback_file"] = _absolute(arguments.feedback_file)
    if arguments.auth.tokens_file is not None:
        paths["auth"] = arguments.auth.model_copy(update={"tokens_file": _absolute(arguments.auth.tokens_file)})
    return arguments.model_copy(update=paths)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _require_progress(running_seconds: float) -> None:
    if running_seconds > STALLED_SECONDS:
        raise RuntimeError("a batch hangs")


def _proxy_host() -> str | None:
    """The address that Serve's HTTP proxies listen on; Serve tells it by no public call."""
    client = _get_global_client()
    assert client is not None, "a replica has a controller"
    return client.http_config.host
