"""Curation over HTTP: whatever the endpoint does and whenever the process dies, the data set is the same and nothing is judged twice."""

from __future__ import annotations

import hashlib
import json
import random
import re
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from chat_server import FORM_FAULTS, REPLY_FAULTS, Body, ChatServer
from pipeline_cases import Tiny
from pipeline_drivers import start

from armor_ray import pipeline
from armor_ray.config import QuestionsConfig, load_config
from armor_ray.curation import judging
from armor_ray.errors import ArmorError
from armor_ray.judges import client
from armor_ray.models.generators.protocol import SampledText
from armor_ray.stages.context import Context
from armor_ray.stages.writing import write_on_actors
from armor_ray.workspace import Workspace

DOCUMENTS, PASSAGES, QUESTIONS = 8, 3, 24
FILES = ("corpus.jsonl", "qa.jsonl", "dropped.jsonl", "verdicts.parquet")
FAULTS = ("429", "429 with a date", "500", "503", "reset", "half a body", "html", "prose", "fence", "cut", "chatter", "nan")


class FaultsByContent(dict[str, deque[str]]):
    """Two faults for every first user message, drawn by its text; none for a second request about some chunks of a cut reply."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: Counter[str] = Counter()

    def __missing__(self, prompt: str) -> deque[str]:
        is_first = prompt.count("<chunk ") in (0, PASSAGES)
        self[prompt] = deque(random.Random(zlib.crc32(prompt.encode())).sample(FAULTS, 2) if is_first else [])
        self.planned.update(self[prompt])
        return self[prompt]

    def met(self) -> Counter[str]:
        """What happened: a second fault does not meet a request whose first reply said enough."""
        return self.planned - Counter(fault for left in self.values() for fault in left)


def score(number: int) -> float:
    """Of question `number`; 0.7 and more for seven of eleven."""
    return number % 11 / 10


def gold(number: int) -> int:
    """The passage that answers it."""
    return number % PASSAGES


def reply(body: Body) -> str:
    """As a perfect judge and writer, but for a scale of its own in one case."""
    text = next(message["content"] for message in body["messages"] if message["role"] == "user")
    if "<passage>" in text:
        document, passage = re.findall(r"document (\d+), passage (\d+)", text)[0]
        return f"Q: What does passage {passage} of document {document} state?\nA: That it is passage {passage}."
    if "<chunk " in text:
        [number] = re.findall(r"question (\d+)\?", text)
        found = re.findall(r'<chunk number="(\d+)">\n.*passage (\d+)', text)
        return json.dumps({"chunks": [{"chunk": int(n), "support": 0.9 if int(p) == gold(int(number)) else 0.0} for n, p in found]})
    if "<example " in text:
        numbers = [int(number) for number in re.findall(r'<example number="(\d+)">', text)]
        marks = {"keep": True, "answerable_without_context": True, "technical": 0.9, "clarity": 0.8}
        return json.dumps({"examples": [{"example": number, **marks} for number in numbers]})
    if "<document>" in text:
        return "0.1" if "document 10," in text else "0.9"
    [number] = re.findall(r"question (\d+)\?", text)
    return json.dumps({"isac": 10 if score(int(number)) == 1.0 else score(int(number))})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-tests")
    monkeypatch.setattr(client, "_MAX_BACKOFF_SECONDS", 0.02)
    with ChatServer(reply) as running:
        yield running


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Documents of three passages each, and questions whose gold passage only the judge knows."""
    folder = tmp_path / "source"
    texts = ["".join(f"document {10 + d}, passage {p}.".ljust(39, "-") + " " for p in range(PASSAGES)) for d in range(DOCUMENTS)]
    rows = {
        "tele-data": [{"id": f"d{d}", "category": "arxiv", "content": text, "metadata": ""} for d, text in enumerate(texts)],
        "tele-eval": [
            {"id": f"d{q % DOCUMENTS}", "Statement": f"What is question {q}?", "Answer": f"Answer {q}."} for q in range(QUESTIONS)
        ],
    }
    folder.mkdir()
    for name, records in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return folder


def config(folder: Path, source: Path, url: str, name: str = "w", **judge: Any) -> Path:
    """The Tele-Eval pipeline on the workspace `name`."""
    raw = {
        "workspace": str(folder / name),
        "data": {"format": "tele_eval", "path": str(source), "passage_characters": 40, "test_fraction": 0.25, "validation_fraction": 0.25},
        "curation": {"pipeline": "tele_eval", "domain": "isac"},
        "judge": {"base_url": url, "model": "tiny", "concurrency": 4, **judge},
        "candidates": {"pool_size": 2, "top_k": 2},
        "training": {"batch_size": 1},
        "evaluation": {"ks": [1], "generation_questions": 0},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def documents_config(folder: Path, source: Path, url: str, name: str) -> Path:
    """The documents pipeline, with questions written by the endpoint."""
    path = config(folder, source / "tele-data.jsonl", url, name)
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    raw["data"]["format"] = "tele_data"
    raw["curation"] = {"pipeline": "documents", "domain": "isac", "questions": {"writer": "judge"}}
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def run(path: Path, force: str | None = None, until: str = "curate") -> tuple[Workspace, list[str]]:
    said: list[str] = []
    return pipeline.run(load_config(path), until=until, force=force, say=said.append), said


def digests(workspace: Path) -> dict[str, str]:
    return {name: hashlib.sha256((workspace / "curated" / name).read_bytes()).hexdigest() for name in FILES}


def lines(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (workspace.local("curated") / name).read_text(encoding="utf-8").splitlines()]


def accounts(workspace: Workspace) -> list[dict[str, Any]]:
    return [judgement["account"] for judgement in workspace.require("curated").details["judgements"]]


def test_a_misbehaving_endpoint_changes_nothing_and_a_rerun_costs_nothing(server, source, tmp_path):
    faults = FaultsByContent()
    server.faults = faults
    path = config(tmp_path, source, server.url)
    workspace, said = run(path, until="prepare")

    kept = [number for number in range(QUESTIONS) if score(number) >= 0.65]
    rows = {row["question"]: row for row in lines(workspace, "qa.jsonl")}
    assert sorted(rows) == sorted(f"What is question {number}?" for number in kept)
    for number in kept:
        row = rows[f"What is question {number}?"]
        assert row["evidence"] == [{"start": 40 * gold(number), "end": 40 * gold(number) + 40}]
        assert (row["doc_id"], row["metadata"]["support"]) == (f"d{number % DOCUMENTS}", [0.9])
    dropped = lines(workspace, "dropped.jsonl")
    assert {(item["step"], item["reason"]) for item in dropped} == {("qa_domain", "below_threshold")}
    assert len(dropped) == QUESTIONS - len(kept)

    assert sum(account["paid"] for account in accounts(workspace)) == sum(server.paid.values())
    assert sum(sum(account["retries"].values()) for account in accounts(workspace)) == sum(
        count for fault, count in faults.met().items() if fault not in REPLY_FAULTS and fault not in FORM_FAULTS
    )
    assert all(account["readings"]["unreadable"] > 0 for account in accounts(workspace))
    assert accounts(workspace)[0]["readings"]["clamped"] == sum(score(number) == 1.0 for number in range(QUESTIONS))
    assert len([line for line in said if line.startswith("curate: ") and "replies paid" in line]) == 2
    passages = pq.read_table(workspace.local("passages") / "passages.parquet")["text"].to_pylist()
    for row in pq.read_table(workspace.local("examples") / "train.parquet").to_pylist():
        [number] = re.findall(r"\d+", row["question"])
        assert [f"passage {gold(int(number))}." in passages[i] for i in row["positive_ids"]] == [True]

    asked, before = len(server.bodies), digests(tmp_path / "w")
    workspace, _ = run(path, force="curate")
    assert len(server.bodies) == asked
    assert digests(tmp_path / "w") == before
    assert [account["paid"] for account in accounts(workspace)] == [0, 0]


@pytest.mark.parametrize("build", [config, documents_config])
def test_killed_at_random_moments_it_resumes_to_the_identical_data_set(server, source, tmp_path, build):
    """SIGKILL of the whole process; at most the requests in flight at each kill are asked again."""
    kills, chance = 2, random.Random(20261130)
    path = build(tmp_path, source, server.url, name="killed")
    undisturbed, _ = run(build(tmp_path, source, server.url, name="undisturbed"))
    needed = len(server.bodies)
    server.delay_seconds = 0.03
    for number in range(kills):
        driver = start(["run", "--config", str(path), "--until", "curate"], tmp_path / f"{number}.log", {})
        wanted = len(server.bodies) + chance.randint(1, needed // (kills + 1))
        driver.wait_for(lambda wanted=wanted: len(server.bodies) >= wanted)
        driver.kill()
    assert not (tmp_path / "killed" / "curated").exists()
    workspace, _ = run(path)
    assert digests(tmp_path / "killed") == digests(Path(undisturbed.uri))
    assert sum(account["cached"] for account in accounts(workspace)) > 0
    assert len(server.bodies) - needed <= needed + 4 * kills


def test_documents_that_go_through_in_blocks_give_the_same_data_set(server, source, tmp_path, monkeypatch):
    whole, _ = run(config(tmp_path, source, server.url, "whole"))
    asked = len(server.bodies)
    monkeypatch.setattr(judging, "BLOCK", 3)  # fewer than the passages of one question
    blocks, _ = run(config(tmp_path, source, server.url, "blocks"))
    texts = [name for name in FILES if name.endswith(".jsonl")]
    assert [lines(blocks, name) for name in texts] == [lines(whole, name) for name in texts]
    verdicts = [pq.read_table(workspace.local("curated") / "verdicts.parquet") for workspace in (blocks, whole)]
    assert verdicts[0] == verdicts[1]  # in other row groups
    assert len(server.bodies) == 2 * asked


def test_a_spent_budget_ends_the_run_and_a_larger_one_goes_on(server, source, tmp_path):
    prices = {"prompt_price": 100.0, "completion_price": 1000.0}  # 0.02 a reply as the server bills it
    with pytest.raises(ArmorError, match=r"judge.budget: the budget is spent: \d+ of 24 items of qa_domain are left; raise it and rerun"):
        run(config(tmp_path, source, server.url, budget=0.6, **prices))
    paid = len(server.bodies)
    assert 0 < paid < QUESTIONS
    workspace, _ = run(config(tmp_path, source, server.url, budget=10.0, **prices))
    assert accounts(workspace)[0]["cached"] == paid
    assert len(server.bodies) == QUESTIONS + workspace.require("curated").rows["questions"]


def test_documents_become_a_data_set_with_the_endpoint_as_writer(server, source, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "BLOCK", 3)
    path = documents_config(tmp_path, source, server.url, "w")
    workspace, _ = run(path, until="prepare")
    rows = lines(workspace, "qa.jsonl")
    assert len(rows) == (DOCUMENTS - 1) * PASSAGES  # document 10 is off topic
    assert all(re.findall(r"\d+", row["question"])[0] == str(row["evidence"][0]["start"] // 40) for row in rows)
    details = workspace.require("curated").details
    assert (details["writer"]["engine"], details["writer"]["replies"], details["writer"]["account"]["paid"]) == ("endpoint", 21, 21)
    assert details["stand_ins"] == []
    relevance = details["judgements"][0]
    assert (relevance["items"], relevance["kept"], relevance["account"]["paid"]) == (DOCUMENTS, DOCUMENTS - 1, DOCUMENTS)


def test_a_budget_spent_among_blocks_of_documents_says_what_is_left(server, source, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "BLOCK", 3)
    path = documents_config(tmp_path, source, server.url, "w")
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    raw["judge"] |= {"budget": 0.2, "prompt_price": 100.0, "completion_price": 1000.0, "concurrency": 1}
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(ArmorError, match=r"the budget is spent: \d of 8 items of document_relevance are left") as raised:
        run(path)
    left = int(re.findall(r"(\d) of 8", str(raised.value))[0])
    assert left == DOCUMENTS - len(server.bodies) > 0
    assert server.bodies
    assert not (tmp_path / "w" / "curated").exists()


def test_a_local_model_writes_on_actors_once_and_the_same_again(tiny: Tiny, local_ray: str, tmp_path):
    questions = QuestionsConfig(max_new_tokens=16, batch_size=4, temperature=1.0)
    prompts = [({"role": "user", "content": f"passage {number}"},) for number in range(9)]
    options = {"generator": {"max_length": 512}, "resources": {"score_actors": 1}}

    def context(name: str) -> Context:
        settings = load_config(tiny.config("writing", **options))
        return Context(settings, Workspace(str(tmp_path / name)), print)

    first = write_on_actors(context("a"), prompts, questions)
    assert all(isinstance(text, SampledText) for text in first.replies)
    assert len({text.text for text in first.replies if isinstance(text, SampledText)}) > 1
    [shard, *_] = shards = sorted((tmp_path / "a").glob("cache/questions/*/part-*.parquet"))
    assert len(shards) == 3
    shard.unlink()
    assert write_on_actors(context("a"), prompts, questions).replies == first.replies
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("part-*")}
    assert write_on_actors(context("a"), prompts, questions).replies == first.replies
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("part-*")} == kept
