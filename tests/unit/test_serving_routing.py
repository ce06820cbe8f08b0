"""How requests find a replica: no stall after many were refused at once, which Serve's own router has."""

import asyncio

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import PendingRequest, RequestRouter

from armor_ray.serving.routing import OwnRequestFirst

_REFUSED = 40
_MOST = 4


class _Replica:
    """Holds `held` requests; is asked for that whenever the router's own count says that it is full."""

    replica_id = ReplicaID("replica", DeploymentID("retriever"))
    node_id, availability_zone, multiplexed_model_ids = "node", None, frozenset[str]()
    max_ongoing_requests = _MOST

    def __init__(self) -> None:
        self.held = _MOST

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return self.held


def _request(name: str, created: float) -> PendingRequest:
    return PendingRequest(args=[], kwargs={}, metadata=RequestMetadata(request_id=name, internal_request_id=name), created_at=created)


async def _sleeps(kind: type[RequestRouter], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """How often routing tasks slept although the replica had room, and who got it in what order."""
    sleeps, order, replica = 0, [], _Replica()
    router = kind(
        deployment_id=DeploymentID("retriever"),
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=False,
        prefer_local_node_routing=False,
        prefer_local_az_routing=False,
        self_node_id="node",
    )
    slept = router._backoff

    async def count(attempt: int) -> None:
        nonlocal sleeps
        sleeps += replica.held < _MOST
        await slept(attempt)

    monkeypatch.setattr(router, "_backoff", count)
    router.initial_backoff_s = router.max_backoff_s = 0.001
    router.update_replicas([replica])

    async def ask(request: PendingRequest, again: bool) -> None:
        await router._choose_replica_for_request(request, is_retry=again)
        order.append(request.metadata.request_id)

    async with asyncio.TaskGroup() as group:
        for i in range(2):  # one for each routing task of one replica
            group.create_task(ask(_request(f"new{i}", 100.0 + i), again=False))
        await asyncio.sleep(0.01)
        for i in range(_REFUSED):
            group.create_task(ask(_request(f"refused{i}", float(i)), again=True))
        await asyncio.sleep(0.01)
        replica.held = 0
    return sleeps, order


def test_many_refused_requests_are_handed_out_without_sleeping(monkeypatch: pytest.MonkeyPatch):
    sleeps, order = asyncio.run(_sleeps(OwnRequestFirst, monkeypatch))
    assert sleeps == 0
    refused = [f"refused{i}" for i in range(_REFUSED)]
    assert sorted(order) == sorted([*refused, "new0", "new1"])
    assert [name for name in order if name.startswith("refused")] == refused, "the oldest first"


def test_serves_own_router_still_sleeps_between_them(monkeypatch: pytest.MonkeyPatch):
    """Fails once a newer Ray no longer does: then OwnRequestFirst can go."""
    sleeps, order = asyncio.run(_sleeps(PowerOfTwoChoicesRequestRouter, monkeypatch))
    assert len(order) == _REFUSED + 2
    assert sleeps >= _REFUSED // 2 - 1
