"""Batching, limits and errors of the HTTP side, with a retriever that only counts; no model, no Ray."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import ClassVar

import httpx
import numpy as np
import pytest
from pydantic import ValidationError

from armor_ray.serving import service as service_module
from armor_ray.serving.api import build_api
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.batching import Batcher, Bound, QueueFullError
from armor_ray.serving.passages import Extent
from armor_ray.serving.retriever import Answer, Job
from armor_ray.serving.schemas import Passage
from armor_ray.serving.service import Service

ARGUMENTS = ServingArguments(
    workspace="unused",
    max_batch_size=2,
    max_ongoing_requests=2,
    max_query_characters=20,
    max_queries=3,
    max_k=10,
    max_body_bytes=1024,
    body_timeout_seconds=0.5,
)


class FakeRetriever:
    """Six passages, two dimensions; `gate` holds every batch until it is set."""

    encoders: ClassVar = {"adapted": SimpleNamespace(names=("promoted", "armor"), version="armor@1234", dimension=2, max_length=16)}
    num_passages = 6

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    async def extent(self, passage_id: int) -> Extent:
        return Extent("d", 0, 1, "x")

    async def finish(self, job: Job, answer: Answer) -> Answer:
        return answer

    def answer(self, jobs: list[Job]) -> list[Answer]:
        assert self.gate.wait(10)
        if any("bug" in job.texts for job in jobs):
            raise ZeroDivisionError("secret detail")
        return [self._answer(job) for job in jobs]

    def _answer(self, job: Job) -> Answer:
        passages = [
            Passage(passage_id=i, doc_id="d", title="t", text="x", score=1.0 - i, rank=i + 1)
            for i in range(job.wanted.k if job.wanted else 0)
        ]
        vectors = np.array([[len(text), 0.5] for text in job.texts], np.float32)
        cut = tuple("long" in text for text in job.texts)
        return Answer("adapted", self.encoders["adapted"], vectors, 3 * len(job.texts), cut, tuple(passages for _ in job.texts))


def client_of(retriever: FakeRetriever) -> httpx.AsyncClient:
    app = build_api(Service(retriever, ARGUMENTS))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://test")


def request(method: str, path: str, **options) -> httpx.Response:
    async def once() -> httpx.Response:
        async with client_of(FakeRetriever()) as client:
            return await client.request(method, path, **options)

    return asyncio.run(once())


# -- batching ------------------------------------------------------------------------------------------------------------------


def run_batcher(scenario, max_batch_size: int = 4):
    """Runs `scenario(batcher, gate, batches)`; `batches` collects what ran together, `gate` holds the thread."""
    gate, batches = threading.Event(), []

    def run(items: list[str]) -> list[str]:
        batches.append(items)
        assert gate.wait(10)
        if "bad" in items:
            raise ValueError("bad item")
        return [item.upper() for item in items]

    async def main():
        batcher: Batcher[str, str] = Batcher(run, len, max_batch_size)
        return await asyncio.wait_for(scenario(batcher, gate, batches), 10)

    return asyncio.run(main())


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_lone_item_runs_at_once_and_what_arrives_meanwhile_is_the_next_batch() -> None:
    async def scenario(batcher, gate, batches):
        first = asyncio.create_task(batcher.submit("a"))
        await until(lambda: batches == [["a"]])  # nobody had to come for it to start
        rest = []
        for item in "bcdef":
            rest.append(asyncio.create_task(batcher.submit(item)))
            await asyncio.sleep(0.002)  # one by one, as requests come: a fixed wait would make five batches of them
        gate.set()
        assert await asyncio.gather(first, *rest) == list("ABCDEF")
        assert batches == [["a"], ["b", "c", "d", "e"], ["f"]]

    run_batcher(scenario)


def test_an_item_larger_than_a_batch_goes_alone_and_none_is_split() -> None:
    async def scenario(batcher, gate, batches):
        gate.set()
        await asyncio.gather(*(batcher.submit(item) for item in ("xx", "toolarge", "yyy", "z")))
        assert batches == [["xx"], ["toolarge"], ["yyy", "z"]]

    run_batcher(scenario)


def test_a_cancelled_caller_is_never_computed() -> None:
    async def scenario(batcher, gate, batches):
        running, gone, waiting = (asyncio.create_task(batcher.submit(item)) for item in "abc")
        await until(lambda: batches)
        other = asyncio.create_task(batcher.submit("d"))
        await asyncio.sleep(0)
        other.cancel()
        gate.set()
        await asyncio.gather(running, gone, waiting)
        assert await batcher.submit("e") == "E"
        assert [item for batch in batches for item in batch] == ["a", "b", "c", "e"]

    run_batcher(scenario)


def test_a_failed_batch_fails_its_callers_and_not_the_next() -> None:
    async def scenario(batcher, gate, batches):
        gate.set()
        outcomes = await asyncio.gather(batcher.submit("bad"), batcher.submit("x"), return_exceptions=True)
        assert [str(error) for error in outcomes] == ["bad item"] * 2
        assert await batcher.submit("y") == "Y"
        assert batcher.running_seconds() == 0

    run_batcher(scenario)


def test_no_more_are_let_in_than_there_is_room_for() -> None:
    room = Bound(2)
    with room, room:
        assert room.is_full
        with pytest.raises(QueueFullError), room:
            pass
    assert room.held == 0


# -- arguments -----------------------------------------------------------------------------------------------------------------


def test_arguments_refuse_batches_that_never_fill_and_unknown_names() -> None:
    with pytest.raises(ValidationError, match="below max_batch_size 32"):
        ServingArguments(workspace="w", max_ongoing_requests=31)
    with pytest.raises(ValidationError, match="max_kk"):
        ServingArguments.model_validate({"workspace": "w", "max_kk": 3})


@pytest.mark.parametrize(
    "options",
    [
        {"topology": "sharded"},
        {"topology": "split", "num_shards": 2},
        {"topology": "sharded", "num_shards": 2, "fusion": {}},
        {"index_replicas": 2},
    ],
)
def test_arguments_refuse_topologies_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ServingArguments.model_validate({"workspace": "w", **options})


# -- HTTP ----------------------------------------------------------------------------------------------------------------------

HOSTILE = [
    ("/v1/retrieve", {}, 422, "give either"),
    ("/v1/retrieve", {"query": "a", "queries": ["b"]}, 422, "give either"),
    ("/v1/retrieve", {"query": "a", "qeury": "b"}, 422, "qeury"),
    ("/v1/retrieve", {"query": 5}, 422, "query"),
    ("/v1/retrieve", {"query": ""}, 422, "empty text"),
    ("/v1/retrieve", {"query": " \n\u3000"}, 422, "empty text"),
    ("/v1/retrieve", {"queries": []}, 422, "empty"),
    ("/v1/retrieve", {"queries": ["a", None]}, 422, "queries.1"),
    ("/v1/retrieve", {"queries": ["a"] * 4}, 413, "the limit is 3"),
    ("/v1/retrieve", {"query": "a" * 21}, 413, "21 characters, the limit is 20"),
    ("/v1/retrieve", {"query": "a", "k": 0}, 422, "k:"),
    ("/v1/retrieve", {"query": "a", "k": -(10**30)}, 422, "k:"),
    ("/v1/retrieve", {"query": "a", "k": True}, 422, "k:"),
    ("/v1/retrieve", {"query": "a", "k": "3"}, 422, "k:"),
    ("/v1/retrieve", {"query": "a", "k": 11}, 422, "the limit is 10"),
    ("/v1/retrieve", {"query": "a", "k": 7}, 422, "the index holds 6 passages"),
    ("/v1/retrieve", {"query": "a", "encoder": "tuned"}, 422, "encoder:"),
    ("/v1/retrieve", {"query": "a", "encoder": "base"}, 422, "compare: true"),
    ("/v1/retrieve", {"query": "a", "filter": {"doc_type": []}}, 422, "filter.doc_type"),
    ("/v1/retrieve", {"query": "a", "filter": {"text": "b"}}, 422, "filter.text"),
    ("/v1/retrieve", {"query": "a", "filter": {"doc_id": ["d"] * 1001}}, 413, ""),
    ("/v1/retrieve", {"query": "a", "fusion": {"weight": 1.5}}, 422, "fusion.weight"),
    ("/v1/retrieve", {"query": "a", "fusion": {}}, 422, "argument `fusion`"),
    ("/v1/retrieve", {"query": "a", "rerank": True}, 422, "argument `reranker`"),
    ("/v1/retrieve", ["a"], 422, ""),
    ("/v1/embeddings", {"model": "armor"}, 422, "input"),
    ("/v1/embeddings", {"input": "a"}, 422, "model"),
    ("/v1/embeddings", {"input": [1, 2], "model": "armor"}, 422, "token ids are not supported"),
    ("/v1/embeddings", {"input": [[1, 2]], "model": "armor"}, 422, "token ids are not supported"),
    ("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}, 404, "this is 'promoted'"),
    ("/v1/embeddings", {"input": "a", "model": "armor", "dimensions": 3}, 422, "the encoder gives 2"),
    ("/v1/embeddings", {"input": "a", "model": "armor", "encoding_format": "int8"}, 422, "encoding_format"),
]


@pytest.mark.parametrize(("path", "body", "status", "fragment"), HOSTILE)
def test_a_bad_request_gets_its_status_and_a_reason(path: str, body: object, status: int, fragment: str) -> None:
    answer = request("POST", path, json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"type", "message"}
    assert error["type"] == {413: "too_large", 422: "invalid_request", 404: "not_found"}[status]
    assert fragment in error["message"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{not json", 422),
        (b"", 422),
        (b'{"query": "\\ud800"}', 422),  # half a surrogate pair
        (b'{"query": "a", "\\udfff": 1}', 422),
        (b'{"query": "a", "filter": {"doc_id": "\\ud800"}}', 422),
        (b"\xff\xfe", 422),
        (b"[" * 1000, 400),  # deeper than the parser goes
        (b'{"query": "a", "k": NaN}', 422),
        (b'{"query": "' + b"a" * 2000 + b'"}', 413),
    ],
)
def test_a_malformed_body_is_refused_in_our_format(content: bytes, status: int) -> None:
    answer = request("POST", "/v1/retrieve", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_body_without_announced_length_is_cut_off_at_the_limit() -> None:
    pulled = []

    async def endless():
        for i in range(1000):
            pulled.append(i)
            yield b"a" * 100

    answer = request("POST", "/v1/retrieve", content=endless(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "too_large")
    assert len(pulled) < 20


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def dribbling():
        yield b'{"query":'
        await asyncio.sleep(60)

    answer = request("POST", "/v1/retrieve", content=dribbling(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (408, "timeout")
    assert "within 0.5 s" in answer.json()["error"]["message"]


def test_unknown_paths_and_methods_answer_in_our_format() -> None:
    assert request("GET", "/v1/nothing").json()["error"]["type"] == "not_found"
    wrong = request("GET", "/v1/retrieve")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "method_not_allowed")


def test_a_bug_answers_500_without_its_detail() -> None:
    answer = request("POST", "/v1/retrieve", json={"query": "bug"})
    assert answer.status_code == 500
    assert answer.json() == {"error": {"type": "internal", "message": "internal error"}}


def test_retrieve_reports_rank_encoder_and_truncation() -> None:
    answer = request("POST", "/v1/retrieve", json={"queries": ["short", "too long"], "k": 2}).json()
    assert answer["encoder"] == "armor@1234"
    assert [(result["query"], result["truncated"]) for result in answer["results"]] == [("short", False), ("too long", True)]
    assert answer["results"][0]["passages"][1] == {"passage_id": 1, "doc_id": "d", "title": "t", "text": "x", "score": 0.0, "rank": 2}


def test_embeddings_report_usage_and_truncated_inputs() -> None:
    answer = request("POST", "/v1/embeddings", json={"input": ["ab", "long"], "model": "promoted", "dimensions": 2}).json()
    assert [row["embedding"] for row in answer["data"]] == [[2.0, 0.5], [4.0, 0.5]]
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert answer["truncated"] == [1]


def test_a_full_replica_answers_503_with_retry_after_while_health_and_metrics_answer() -> None:
    async def scenario():
        retriever = FakeRetriever()
        retriever.gate.clear()
        async with client_of(retriever) as client:
            held = [asyncio.create_task(client.post("/v1/retrieve", json={"query": "a"})) for _ in range(2)]
            await asyncio.sleep(0.05)
            refused = await client.post("/v1/retrieve", json={"query": "b"})
            health = await client.get("/health")
            metrics = (await client.get("/metrics")).text
            retriever.gate.set()
            answered = await asyncio.gather(*held)
        return refused, health, metrics, answered

    refused, health, metrics, answered = asyncio.run(scenario())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["type"] == "overloaded"
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert 'armor_ray_requests_total{route="/v1/retrieve",status="503"}' in metrics
    assert [answer.status_code for answer in answered] == [200, 200]


def test_health_is_503_while_a_batch_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "STALLED_SECONDS", 0.01)

    async def scenario():
        retriever = FakeRetriever()
        retriever.gate.clear()
        async with client_of(retriever) as client:
            held = asyncio.create_task(client.post("/v1/retrieve", json={"query": "a"}))
            await asyncio.sleep(0.05)
            during = await client.get("/health")
            retriever.gate.set()
            await held
            return during, await client.get("/health")

    during, after = asyncio.run(scenario())
    assert (during.status_code, during.json()["status"]) == (503, "stalled")
    assert after.status_code == 200


def test_made_up_paths_do_not_become_metric_labels() -> None:
    request("GET", "/secret/path")
    metrics = request("GET", "/metrics").text
    assert "secret" not in metrics
    assert 'route="unknown",status="404"' in metrics
