"""/v1/answer against an endpoint that fails as told, and /v1/feedback against killed and competing writers; no model, no Ray."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from pathlib import Path

import httpx
import pytest
from chat_server import CUT_STREAM, ChatServer
from test_serving_schemas import ARGUMENTS, FakeRetriever

from armor_ray.corpus.sources.jsonl import read_folder
from armor_ray.errors import ArmorError
from armor_ray.serving.api import build_api
from armor_ray.serving.arguments import GeneratorArguments
from armor_ray.serving.feedback import FeedbackLog, example
from armor_ray.serving.generation import Generator
from armor_ray.serving.passages import Extent
from armor_ray.serving.service import Service


def post(path: str, body: dict, generator: Generator | None = None, log: FeedbackLog | None = None) -> httpx.Response:
    async def once() -> httpx.Response:
        app = build_api(Service(FakeRetriever(), ARGUMENTS), generator, log)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post(path, json=body)

    return asyncio.run(once())


# -- answer ----------------------------------------------------------------------------------------------------------------------


def ask(server: ChatServer, fault: str | None = None, **body: object) -> httpx.Response:
    question = "why?"
    prompt = "Passages:\n\n[0] t\nx\n\n[1] t\nx\n\nQuestion: why?"
    server.plan(prompt, [fault] if fault else [])
    patience = 0.5 if fault in ("silence", "drip") else 20
    arguments = GeneratorArguments(base_url=server.url, model="tiny", api_key_env="ANSWER_KEY", timeout_seconds=patience)
    return post("/v1/answer", {"question": question, "k": 2, **body}, Generator(arguments))


def test_an_answer_cites_only_passages_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWER_KEY", "secret-key")
    with ChatServer(lambda body: "Because [1] and [0], see [1] and [7] [99999999999999999999].") as server:
        answer = ask(server).raise_for_status().json()
        assert answer["citations"] == [1, 0]
        assert (answer["encoder"], answer["model"], len(answer["passages"])) == ("armor@1234", "tiny", 2)
        events = [event.split("\n") for event in ask(server, stream=True).raise_for_status().text.strip().split("\n\n")]
        names = [name.removeprefix("event: ") for name, _ in events]
        data = [json.loads(line.removeprefix("data: ")) for _, line in events]
        assert names == ["passages", *["delta"] * (len(names) - 2), "done"]
        assert "".join(piece["text"] for piece in data[1:-1]) == answer["answer"]
        assert data[-1] == {"citations": [1, 0]}
        assert ask(server, "429", stream=True).status_code == 503


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("429", 503, "the generator is busy (HTTP 429)"),
        ("500", 502, "the generator refused (HTTP 500)"),
        ("reset", 502, "the generator cannot be reached"),
        ("silence", 503, "the generator took longer than 0.5 s"),
        ("drip", 503, "the generator took longer than 0.5 s"),
        ("html", 502, "the generator's answer is empty or cannot be read"),
        (CUT_STREAM, 502, "the generator cannot be reached"),
    ],
)
def test_a_failing_generator_is_a_502_or_503_that_repeats_nothing_of_it(fault: str, status: int, reason: str) -> None:
    with ChatServer(lambda body: "one two three", echo=("Authorization",)) as server:
        answer = ask(server, fault)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, reason)
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    with ChatServer(lambda body: "one two three") as server:
        answer = ask(server, CUT_STREAM, stream=True)
    assert answer.status_code == 200
    assert answer.text.strip().split("\n\n")[-1].startswith('event: error\ndata: {"status": 502')


# -- feedback --------------------------------------------------------------------------------------------------------------------


def test_feedback_becomes_examples_that_prepare_reads(tmp_path: Path) -> None:
    text = "Zero. The first passage. The second passage."
    document = {"id": "doc", "title": "T", "text": text}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(document) + "\n")
    log = FeedbackLog(tmp_path / "qa.jsonl")
    log.append(example("Which is first?", Extent("doc", 6, 24, text[6:24]), None, "armor@1"))
    log.append(example("Which is first?", Extent("doc", 25, 44, text[25:44]), "the second", None))
    pairs = read_folder(tmp_path).pairs
    assert [(pair.question, pair.answers, [(s.start, s.end) for s in pair.spans]) for pair in pairs] == [
        ("Which is first?", ("The first passage.",), [(6, 24)]),
        ("Which is first?", ("the second",), [(25, 44)]),
    ]


def _append(path: Path, writer: int) -> None:
    log = FeedbackLog(path)
    for i in range(50):
        log.append({"writer": writer, "i": i, "text": "x" * 9000})


def test_lines_of_competing_replicas_never_mix_and_a_torn_one_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "new" / "qa.jsonl"
    FeedbackLog(path).append({"writer": 9, "i": 0, "text": ""})
    with path.open("ab") as file:
        file.write(b'{"writer": 9, "i": 1, "te')  # killed here, never acknowledged
    writers = [multiprocessing.get_context("fork").Process(target=_append, args=(path, writer)) for writer in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((row["writer"], row["i"]) for row in rows) == [*((w, i) for w in range(3) for i in range(50)), (9, 0)]


def test_feedback_is_refused_when_it_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FeedbackLog(tmp_path / "qa.jsonl")
    assert post("/v1/feedback", {"question": "a", "passage_id": 6}, log=log).status_code == 422
    assert post("/v1/feedback", {"question": " ", "passage_id": 0}, log=log).status_code == 422
    assert post("/v1/feedback", {"question": "a", "passage_id": 0}).status_code == 404  # off unless a file is named
    kept = post("/v1/feedback", {"question": "a", "passage_id": 5}, log=log)
    assert kept.status_code == 201
    assert json.loads((tmp_path / "qa.jsonl").read_text())["id"] == kept.json()["id"]

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused = post("/v1/feedback", {"question": "b", "passage_id": 5}, log=log)
    assert (refused.status_code, refused.json()["error"]["message"]) == (503, "feedback cannot be written now")
    assert len((tmp_path / "qa.jsonl").read_text().splitlines()) == 1
    with pytest.raises(ArmorError, match="feedback cannot be written"):
        FeedbackLog(tmp_path / "qa.jsonl" / "below")
