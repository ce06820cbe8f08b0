"""An index in shards answers as one index does, and goes on without a shard that is lost; a tiny encoder behind ASGI, no Ray."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import faiss
import httpx
import numpy as np
import pytest
from serving_workspace import NUM_PASSAGES, QUESTIONS, Served, build_workspace, passage_table

from armor_ray.errors import ArmorError
from armor_ray.serving.api import build_api
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.feedback import FeedbackLog
from armor_ray.serving.passages import Extent, Wanted
from armor_ray.serving.retriever import Job, Retriever
from armor_ray.serving.schemas import Passage
from armor_ray.serving.service import Service
from armor_ray.serving.sharded import ShardedRetriever, ShardRequest, ShardServer, merge
from armor_ray.workspace import Workspace

PAPERS = (("doc_type", frozenset(["paper"])),)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Served:
    return build_workspace(tmp_path_factory.mktemp("shards") / "workspace", tiny_bert)


class Losable:
    """A shard that can be lost, or be slow."""

    def __init__(self, server: ShardServer) -> None:
        self._server = server
        self.lost = False
        self.delay = 0.0

    async def search(self, request: ShardRequest) -> list[list[Passage]]:
        await self._meet_faults()
        return await self._server.search(request)

    async def extent(self, passage_id: int) -> Extent | None:
        await self._meet_faults()
        return await self._server.extent(passage_id)

    async def _meet_faults(self) -> None:
        await asyncio.sleep(self.delay)
        if self.lost:
            raise ConnectionError("died")


def arguments_of(served: Served, num_shards: int, **options: Any) -> ServingArguments:
    sharding = {"topology": "sharded" if num_shards > 1 else "split", "num_shards": num_shards, "shard_timeout_seconds": 30}
    return ServingArguments.model_validate({"workspace": str(served.folder), **sharding, **options})


def open_sharded(arguments: ServingArguments) -> tuple[ShardedRetriever, list[Losable]]:
    workspace = Workspace(arguments.workspace)
    shards = [Losable(ShardServer.open(workspace, arguments, shard)) for shard in range(arguments.num_shards)]
    return ShardedRetriever.open(workspace, arguments, shards), shards


@pytest.mark.parametrize("num_shards", [1, 2, 7])
def test_shards_together_give_the_top_k_of_one_index(served: Served, num_shards: int) -> None:
    whole = Retriever.open(Workspace(str(served.folder)), ServingArguments(workspace=str(served.folder), compare=True))
    jobs = [Job(tuple(QUESTIONS[:4]), "adapted", Wanted(k)) for k in (1, 5, NUM_PASSAGES)]
    jobs += [Job((QUESTIONS[5],), "base", Wanted(6)), Job((QUESTIONS[6],), "adapted", Wanted(20, PAPERS)), Job((QUESTIONS[7],))]

    async def scenario() -> None:
        sharded, _ = open_sharded(arguments_of(served, num_shards, compare=True))
        encoded = sharded.answer(jobs)
        answers = await asyncio.gather(*(sharded.finish(job, answer) for job, answer in zip(jobs, encoded, strict=True)))
        for ours, expected in zip(answers, whole.answer(jobs), strict=True):
            assert not ours.partial
            assert [[p.passage_id for p in found] for found in ours.passages] == [
                [p.passage_id for p in found] for found in expected.passages
            ]
            for found, wanted in zip(ours.passages, expected.passages, strict=True):
                np.testing.assert_allclose([p.score for p in found], [p.score for p in wanted], atol=1e-6)
                assert [p.rank for p in found] == list(range(1, len(found) + 1))

    asyncio.run(scenario())


def test_equal_scores_of_different_shards_are_ordered_as_in_one_index() -> None:
    def passage(passage_id: int, score: float) -> Passage:
        return Passage(passage_id=passage_id, doc_id="d", title="t", text="x", score=score, rank=1)

    lists = [[passage(3, 0.9), passage(1, 0.5)], [passage(7, 0.9), passage(9, 0.5)], [], [passage(2, 0.5)]]
    assert [(p.passage_id, p.rank) for p in merge(lists, 4)] == [(3, 1), (7, 2), (1, 3), (2, 4)]


Scenario = Callable[[httpx.AsyncClient, list[Losable]], Awaitable[None]]


def run(served: Served, scenario: Scenario, log: FeedbackLog | None = None) -> None:
    arguments = arguments_of(served, 2, shard_timeout_seconds=1)

    async def main() -> None:
        retriever, shards = open_sharded(arguments)
        transport = httpx.ASGITransport(build_api(Service(retriever, arguments), feedback_log=log))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            await scenario(client, shards)

    asyncio.run(main())


def test_an_answer_without_a_shard_says_so_and_is_whole_again_afterwards(served: Served) -> None:
    all_rows = served.top(QUESTIONS[0], NUM_PASSAGES)[0]

    async def scenario(client: httpx.AsyncClient, shards: list[Losable]) -> None:
        async def ask() -> tuple[int, dict[str, Any]]:
            answer = await client.post("/v1/retrieve", json={"query": QUESTIONS[0], "k": 8})
            return answer.status_code, answer.json()

        def rows(content: dict[str, Any]) -> list[int]:
            return [passage["passage_id"] for passage in content["results"][0]["passages"]]

        status, content = await ask()
        assert (status, content["partial"], rows(content)) == (200, False, all_rows[:8])
        shards[0].delay = 60.0
        started = time.monotonic()
        for _ in range(10):
            status, content = await ask()
            assert (status, content["partial"], rows(content)) == (200, True, [row for row in all_rows if row >= 15][:8])
        assert time.monotonic() - started < 5  # only the first waited a second in vain
        shards[1].lost = True
        status, content = await ask()
        assert (status, content["error"]["message"]) == (503, "no part of the index answers")
        shards[0].delay, shards[1].lost = 0.0, False
        while content.get("partial", True):
            status, content = await ask()
        assert (status, rows(content)) == (200, all_rows[:8])

    run(served, scenario)


def test_feedback_finds_the_passage_in_its_shard(served: Served, tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient, shards: list[Losable]) -> None:
        for row in (0, 29):
            (await client.post("/v1/feedback", json={"question": "q", "passage_id": row})).raise_for_status()
        shards[1].lost = True
        assert (await client.post("/v1/feedback", json={"question": "q", "passage_id": 29})).status_code == 503
        assert (await client.post("/v1/feedback", json={"question": "q", "passage_id": 30})).status_code == 422

    run(served, scenario, FeedbackLog(tmp_path / "qa.jsonl"))
    texts = passage_table().column("text").to_pylist()
    answers = [json.loads(line)["answers"] for line in (tmp_path / "qa.jsonl").read_text().splitlines()]
    assert answers == [[texts[0]], [texts[29]]]


def test_a_shard_refuses_what_it_does_not_hold(served: Served) -> None:
    arguments = arguments_of(served, 2)
    workspace = Workspace(str(served.folder))
    shard = ShardServer.open(workspace, arguments, 0)
    index = ShardedRetriever.open(workspace, arguments, []).encoders["adapted"].index
    vectors = np.ones((1, 32), np.float32)

    def search(corpus: str = "print-passages", **changed: str) -> list[list[Passage]]:
        key = type(index)(changed.get("artifact", index.artifact), changed.get("identity", index.identity))
        return asyncio.run(shard.search(ShardRequest(key, corpus, ("w1",), vectors, Wanted(3))))

    assert len(search()[0]) == 3
    with pytest.raises(ArmorError, match="other passages"):
        search(corpus="print-of-a-later-run")
    with pytest.raises(ArmorError, match="the index holds vectors of encoder"):
        search(identity="another")
    with pytest.raises(ArmorError, match="30 passages do not fill 31 shards"):
        ShardServer.open(workspace, arguments_of(served, 31), 0)


def test_only_a_flat_index_is_sharded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    graph: Any = faiss.IndexHNSWFlat(32, 4, faiss.METRIC_INNER_PRODUCT)
    graph.add(served.passage_vectors)
    monkeypatch.setattr("armor_ray.serving.indexes.open_index", lambda *_: graph)
    open_sharded(arguments_of(served, 1))
    with pytest.raises(ArmorError, match=r"only a flat index can be sharded; set index\.kind"):
        open_sharded(arguments_of(served, 2))
