"""Changes while requests are served: encoders swapped under load, A/B and shadow traffic; a tiny encoder behind ASGI, no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving_workspace import QUESTIONS, Served, adapted, build_workspace

from armor_ray.errors import ArmorError
from armor_ray.serving import metrics
from armor_ray.serving.api import build_api
from armor_ray.serving.arguments import ServingArguments, TrafficArguments
from armor_ray.serving.live import Live
from armor_ray.serving.retriever import Retriever
from armor_ray.serving.service import Service
from armor_ray.serving.traffic import Traffic
from armor_ray.workspace import Workspace


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Served:
    return build_workspace(tmp_path_factory.mktemp("live") / "workspace", tiny_bert)


Scenario = Callable[[httpx.AsyncClient, Live, Service], Awaitable[None]]


def run(served: Served, scenario: Scenario, **options: object) -> None:
    workspace = Workspace(str(served.folder))
    arguments = ServingArguments.model_validate({"workspace": workspace.uri, "compare": True, **options})

    async def main() -> None:
        service = Service(Retriever.open(workspace, arguments), arguments)
        transport = httpx.ASGITransport(build_api(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            await scenario(client, Live(service, workspace, arguments.retriever), service)

    asyncio.run(main())


def counted(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_encoders_are_swapped_under_load_and_no_request_fails_or_gets_a_mixed_answer(served: Served, tiny_bert: Path) -> None:
    encoders = {"tiny": adapted(tiny_bert, 0), "other": adapted(tiny_bert, 1)}
    vectors = {name: encoder.encode(QUESTIONS, "query") for name, encoder in encoders.items()}
    seen = set()

    async def scenario(client: httpx.AsyncClient, live: Live, service: Service) -> None:
        done = False

        async def ask(i: int) -> None:
            while not done:
                body = {"model": "promoted", "input": QUESTIONS[i : i + 3], "encoding_format": "float"}
                embedded = (await client.post("/v1/embeddings", json=body)).raise_for_status().json()
                found = np.array([row["embedding"] for row in embedded["data"]])
                assert any(np.allclose(found, known[i : i + 3], atol=1e-5) for known in vectors.values())
                answer = (await client.post("/v1/retrieve", json={"query": QUESTIONS[i], "k": 5})).raise_for_status().json()
                name = answer["encoder"].split("@")[0]
                rows = [passage["passage_id"] for passage in answer["results"][0]["passages"]]
                assert rows == np.argsort(-(served.passage_vectors @ vectors[name][i]), kind="stable")[:5].tolist()
                seen.add(name)

        clients = [asyncio.create_task(ask(i)) for i in range(6)]
        for swap in range(10):
            await live.apply({"retriever": ("other", "tiny")[swap % 2]})
            await asyncio.sleep(0.03)
        done = True
        await asyncio.gather(*clients)

    run(served, scenario)
    assert seen == {"tiny", "other"}


def test_a_change_that_cannot_be_made_is_told_and_changes_nothing_but_refuses_at_start(served: Served) -> None:
    async def scenario(client: httpx.AsyncClient, live: Live, service: Service) -> None:
        with pytest.raises(ArmorError, match="no artifact 'retrievers/none'"):
            await live.apply({"retriever": "none"})
        await live.apply({"retriever": "other"})
        for wrong, reason in (
            ({"retriever": "none"}, "no artifact 'retrievers/none'"),
            ({"retreiver": "tiny"}, "user_config.retreiver"),
            ({"traffic": {"mode": "ab", "base_share": 2}}, "user_config.traffic.base_share"),
        ):
            await live.apply(wrong)
            info = (await client.get("/info")).json()
            assert reason in info["live_error"]
            assert (info["encoder"].split("@")[0], info["traffic"]["mode"]) == ("other", "off")
        await live.apply({"traffic": {"mode": "shadow", "base_share": 1}})
        info = (await client.get("/info")).json()
        assert (info["live_error"], info["encoder"].split("@")[0], info["model"]) == (None, "other", "promoted")

    run(served, scenario)

    async def without_base(client: httpx.AsyncClient, live: Live, service: Service) -> None:
        with pytest.raises(ArmorError, match="no base encoder here"):
            await live.apply({"traffic": {"mode": "ab", "base_share": 0.5}})

    run(served, without_base, compare=False)


def test_an_ab_test_splits_by_request_id_and_shows_who_answered(served: Served) -> None:
    async def scenario(client: httpx.AsyncClient, live: Live, service: Service) -> None:
        async def arm(request_id: str, **body: object) -> str:
            answer = await client.post("/v1/retrieve", json={"query": QUESTIONS[0], "k": 3, **body}, headers={"x-request-id": request_id})
            content = answer.raise_for_status().json()
            assert content["encoder"].startswith("base@") == (content["arm"] == "base")
            rows = [passage["passage_id"] for passage in content["results"][0]["passages"]]
            assert rows == served.top(QUESTIONS[0], 3, base=content["arm"] == "base")[0]
            return content["arm"]

        version = service.retriever.encoders["base"].version
        before = counted("armor_ray_answers_total", arm="base", encoder=version)
        await live.apply({"traffic": {"mode": "ab", "base_share": 0.4}})
        first = [await arm(f"id{i}") for i in range(20)]
        assert set(first) == {"adapted", "base"}
        assert [await arm(f"id{i}") for i in range(20)] == first
        assert {await arm(f"id{i}", encoder="adapted") for i in range(20)} == {"adapted"}  # who names one gets it
        assert counted("armor_ray_answers_total", arm="base", encoder=version) - before == 2 * first.count("base")

    run(served, scenario)


def test_a_shadow_is_compared_unseen(served: Served) -> None:
    async def scenario(client: httpx.AsyncClient, live: Live, service: Service) -> None:
        await live.apply({"traffic": {"mode": "shadow", "base_share": 1}})
        compared = counted("armor_ray_shadowed_total", outcome="compared")
        total, count = (counted(f"armor_ray_shadow_overlap_{part}") for part in ("sum", "count"))
        answer = (await client.post("/v1/retrieve", json={"query": QUESTIONS[4], "k": 5})).raise_for_status().json()
        assert answer["arm"] == "adapted"
        while counted("armor_ray_shadowed_total", outcome="compared") == compared:
            await asyncio.sleep(0.005)
        both = set(served.top(QUESTIONS[4], 5)[0]) & set(served.top(QUESTIONS[4], 5, base=True)[0])
        assert counted("armor_ray_shadow_overlap_count") == count + 1
        assert counted("armor_ray_shadow_overlap_sum") - total == pytest.approx(len(both) / 5)

    run(served, scenario)


def test_shares_come_out_as_asked_with_and_without_ids() -> None:
    traffic = Traffic(TrafficArguments(mode="ab", base_share=0.3))
    for ids in ([f"request-{i}" for i in range(4000)], [None] * 4000):
        share = np.mean([traffic.assign(request_id)[0] == "base" for request_id in ids])
        assert share == pytest.approx(0.3, abs=0.04)
    assert Traffic(TrafficArguments(mode="shadow", base_share=1)).assign("a") == ("adapted", "base")
    assert Traffic(TrafficArguments(base_share=1)).assign("a") == ("adapted", None)
