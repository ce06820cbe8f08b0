"""The retriever behind real HTTP: `serve run` in a process of its own, driven by httpx and the openai client."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import psutil
import pytest
import yaml
from serving_workspace import NUM_PASSAGES, QUESTIONS, Served, adapted, build_workspace, passage_table, publish_encoder, publish_passages

from armor_ray.errors import ArmorError
from armor_ray.models.golden import FILE as GOLDEN
from armor_ray.models.golden import check_golden
from armor_ray.retrieval.first_stages.vectors import VectorSearch
from armor_ray.retrieval.fusion import ConvexFusion
from armor_ray.retrieval.lexical import Bm25
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.encoders import Arm
from armor_ray.serving.passages import PassageStore, Wanted
from armor_ray.serving.reranking import PassageReranker
from armor_ray.serving.retriever import Job, Retriever
from armor_ray.stages.promote import promote, promote_to
from armor_ray.workspace import Workspace
from benchmarks.servers import advised_environment, processes_below

LONG = " ".join(["w1"] * 30)  # the encoder reads 24 tokens


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Served:
    return build_workspace(tmp_path_factory.mktemp("serving") / "workspace", tiny_bert)


@pytest.fixture
def copy(served: Served, tmp_path: Path) -> Workspace:
    """A workspace to damage."""
    shutil.copytree(served.folder, tmp_path / "copy")
    return Workspace(str(tmp_path / "copy"))


def open_retriever(workspace: Workspace, retriever: str = "promoted", **options: Any) -> Retriever:
    return Retriever.open(workspace, ServingArguments(workspace=workspace.uri, retriever=retriever, **options))


def version_of(retriever: Retriever) -> str:
    return retriever.encoders["adapted"].version


# -- start-up ------------------------------------------------------------------------------------------------------------------


def _remove(name: str) -> Callable[[Workspace, Path], None]:
    return lambda workspace, model: workspace.delete(name)


def _swap_weights(workspace: Workspace, model: Path) -> None:
    publish_encoder(workspace, "promoted", adapted(model, 1), golden_of=adapted(model, 0))


def _drop_golden(workspace: Workspace, model: Path) -> None:
    publish_encoder(workspace, "promoted", adapted(model, 0), golden_of=None)


def _change_prefix(workspace: Workspace, model: Path) -> None:
    folder = Path(workspace.path("promoted"))
    identity = json.loads((folder / "armor_ray.json").read_text())
    identity["query_prefix"] = "yreuq: "  # as long as the one before: the manifest sees nothing
    (folder / "armor_ray.json").write_text(json.dumps(identity, indent=2))


def _damage(name: str, at: int) -> Callable[[Workspace, Path], None]:
    def damage(workspace: Workspace, model: Path) -> None:
        with Path(workspace.path(name)).open("r+b") as handle:
            handle.seek(at)
            handle.write(b"\xff" * 16)

    return damage


def _truncate_index(workspace: Workspace, model: Path) -> None:
    path = Path(workspace.path("index/index.faiss"))
    path.write_bytes(path.read_bytes()[:-100])


def _index_of_another_encoder(workspace: Workspace, model: Path) -> None:
    path = Path(workspace.path("index/index.json"))
    path.write_text(path.read_text()[:-5] + 'zz"\n}')


def _other_passages(workspace: Workspace, model: Path) -> None:
    workspace.delete("embeddings")
    publish_passages(workspace, NUM_PASSAGES - 1, "new")


def _rerun_stopped_after_prepare(workspace: Workspace, model: Path) -> None:
    publish_passages(workspace, NUM_PASSAGES, "new")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove("promoted"), "no artifact 'promoted'"),
        (_remove("index"), "no artifact 'index'"),
        (_remove("passages"), "no artifact 'passages'"),
        (_swap_weights, "does not reproduce 16 of 16 golden vectors"),
        (_drop_golden, "the encoder has no golden vectors"),
        (_damage(f"promoted/{GOLDEN}", 0), "golden vectors are not readable"),
        (_change_prefix, "does not reproduce"),
        (_damage("index/index.faiss", 0), "not a readable FAISS index"),
        (_truncate_index, "bytes instead of"),
        (_index_of_another_encoder, "the index holds vectors of encoder .*zz"),
        (_damage("passages/passages.parquet", 0), "not a readable Parquet file"),
        (_other_passages, "the index holds 30 vectors, the corpus has 29 passages"),
        (_rerun_stopped_after_prepare, "'embeddings' was made of other 'passages'"),
    ],
)
def test_a_replica_refuses_to_start_on(damage: Callable, message: str, copy: Workspace, tiny_bert: Path) -> None:
    open_retriever(copy)  # whole so far
    damage(copy, tiny_bert)
    with pytest.raises(ArmorError, match=message) as error:
        open_retriever(copy)
    assert "\n" not in str(error.value)
    assert error.value.hint


def test_golden_tolerance_covers_arithmetic_and_not_another_encoder(served: Served, tmp_path: Path, tiny_bert: Path) -> None:
    served.encoder.save(tmp_path)
    content = json.loads((served.folder / "promoted" / GOLDEN).read_text())
    noise = np.random.default_rng(0).uniform(-5e-4, 5e-4, np.shape(content["vectors"]))
    content["vectors"] = (np.array(content["vectors"]) + noise).tolist()
    (tmp_path / GOLDEN).write_text(json.dumps(content))
    check_golden(served.encoder, tmp_path)
    content["vectors"][3][0] += 0.01
    (tmp_path / GOLDEN).write_text(json.dumps(content))
    with pytest.raises(ArmorError, match=r"1 of 16 golden vectors \(number 3 is off by 0\.0[01]"):
        check_golden(served.encoder, tmp_path)


def test_a_slim_copy_without_embeddings_serves_any_trained_retriever(copy: Workspace) -> None:
    copy.delete("embeddings")
    assert version_of(open_retriever(copy, "other")) == "other@print-retrievers/other"
    assert open_retriever(copy).encoders["adapted"].names == ("promoted", "tiny")


def test_each_job_of_a_batch_gets_its_own_answer(served: Served) -> None:
    retriever = open_retriever(Workspace(str(served.folder)), compare=True)
    jobs = [
        Job((QUESTIONS[0], LONG), wanted=Wanted(3)),
        Job((QUESTIONS[0],), "base", Wanted(3)),
        Job((QUESTIONS[1],)),
        Job((QUESTIONS[2],), wanted=Wanted(7)),
    ]
    answers = retriever.answer(jobs)
    for job, answer in zip(jobs, answers, strict=True):
        base = job.arm == "base"
        assert answer.encoder.version.split("@")[0] == ("base" if base else "tiny")
        encoder = served.base if base else served.encoder
        np.testing.assert_allclose(answer.vectors, encoder.encode(list(job.texts), "query"), atol=1e-6)
        for text, passages in zip(job.texts, answer.passages, strict=True):
            assert [passage.passage_id for passage in passages] == (served.top(text, job.wanted.k, base)[0] if job.wanted else [])
    assert answers[0].truncated == (False, True)
    assert answers[0].tokens == len(served.encoder.tokenize([QUESTIONS[0]], "query")[0]) + 24


def retrieve(retriever: Retriever, question: str, wanted: Wanted, arm: Arm = "adapted") -> list[tuple[int, float]]:
    """Passage ids with their scores."""
    [answer] = retriever.answer([Job((question,), arm, wanted)])
    return [(passage.passage_id, passage.score) for passage in answer.passages[0]]


def test_a_filter_gives_the_best_of_the_passages_that_it_leaves(served: Served) -> None:
    retriever = open_retriever(Workspace(str(served.folder)))
    conditions = (("doc_type", frozenset(["paper"])), ("source", frozenset(["source0", "source2"])))
    rows = passage_table().to_pylist()
    left = [i for i in served.top(QUESTIONS[0], 30)[0] if rows[i]["doc_type"] == "paper" and rows[i]["source"] != "source1"]
    assert [row for row, _ in retrieve(retriever, QUESTIONS[0], Wanted(6, conditions))] == left[:6]
    assert [row for row, _ in retrieve(retriever, QUESTIONS[0], Wanted(30, conditions))] == left
    assert retrieve(retriever, QUESTIONS[0], Wanted(5, (("doc_id", frozenset(["none"])),))) == []


def test_fusion_is_that_of_the_evaluation_with_its_weight(copy: Workspace, served: Served) -> None:
    weights = {"retrievers/tiny": 0.3, "base": 0.6}
    copy.publish(
        "reports", stage="evaluate", fingerprint="f", inputs={}, config={}, write=lambda draft: draft.details.update(fusion_weights=weights)
    )
    retriever = open_retriever(copy, compare=True, fusion={})
    assert {arm: encoder.fusion_weight for arm, encoder in retriever.encoders.items()} == {"adapted": 0.3, "base": 0.6}
    lexical = Bm25(passage_table().column("text").to_pylist())
    question = QUESTIONS[3]
    dense = VectorSearch(lambda texts: served.encoder.encode(texts, "query"), served.passage_vectors)
    scores, rows = ConvexFusion(dense, lexical, 0.3).search([question], 30)
    found = retrieve(retriever, question, Wanted(7, dense_weight=0.3))
    assert [row for row, _ in found] == rows[0, :7].tolist()
    np.testing.assert_allclose([score for _, score in found], scores[0, :7], atol=1e-5)
    papers = [row for row in rows[0].tolist() if row % 2]
    filtered = Wanted(7, (("doc_type", frozenset(["paper"])),), dense_weight=0.3)
    assert [row for row, _ in retrieve(retriever, question, filtered)] == papers[:7]


def test_the_reranker_sees_more_than_k_and_orders_them(served: Served) -> None:
    class LastFirst:
        """Scores every passage by its place in the first ranking: the last is best."""

        def rerank(self, question: str, passages: list[str], scores: np.ndarray) -> np.ndarray:
            return np.arange(len(passages), dtype=np.float32)

    opened = open_retriever(Workspace(str(served.folder)))
    store = PassageStore.open(Workspace(str(served.folder)))
    retriever = Retriever(opened.encoders, store, PassageReranker(LastFirst(), depth=9))
    [answer] = retriever.answer([Job((QUESTIONS[1],), wanted=Wanted(2, rerank=True))])
    first = served.top(QUESTIONS[1], 9)[0]
    assert [(p.passage_id, p.rank, p.score) for p in answer.passages[0]] == [(first[8], 1, 8.0), (first[7], 2, 7.0)]


# -- promotion -----------------------------------------------------------------------------------------------------------------


def test_promotion_replaces_the_encoder_and_names_what_it_cannot_find(copy: Workspace) -> None:
    manifest = promote(copy, "other")
    assert manifest.details == {"retriever": "other", "fingerprint": "print-retrievers/other"}
    assert version_of(open_retriever(copy)) == "other@print-retrievers/other"
    with pytest.raises(ArmorError, match=r"no retriever 'best'; trained retrievers: other, tiny"):
        promote(copy, "best")


def test_the_promoted_encoder_is_copied_out_and_nothing_is_overwritten(copy: Workspace, tmp_path: Path) -> None:
    promote_to(copy, tmp_path / "out")
    assert (tmp_path / "out" / "modules.json").exists()
    with pytest.raises(ArmorError, match="not an empty folder"):
        promote_to(copy, tmp_path / "out")


# -- HTTP ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    log: Path
    logs: Path
    pid: int

    def wait_for_log(self, text: str) -> str:
        """The log once it holds `text`."""
        for _ in range(120):
            log = self.log.read_text(errors="replace")
            if text in log:
                return log
            time.sleep(0.5)
        raise AssertionError(f"{text!r} not in the log:\n{log[-4000:]}")

    def deploy(self, config: dict[str, Any]) -> None:
        """`serve deploy` of a changed config."""
        dashboard = re.search(r"http://127\.0\.0\.1:\d+", self.wait_for_log("dashboard at"))
        assert dashboard is not None
        path = self.log.parent / "changed.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [_SERVE, "deploy", str(path), "--address", dashboard[0]]
        environment = {**os.environ, "RAY_AUTH_MODE": "token"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr

    def replicas(self, name: str) -> list[psutil.Process]:
        """Processes of a deployment, such as `app2:index-0`."""
        return processes_below(self.pid, f":{name}")


@pytest.fixture(scope="module")
def config(served: Served, tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> dict[str, Any]:
    """One good application, one whose golden vectors are another encoder's, and one with its index in two shards."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(served.folder, folder / "good")
    shutil.copytree(served.folder, folder / "bad")
    _swap_weights(Workspace(str(folder / "bad")), tiny_bert)
    good = {"workspace": "good", "max_query_characters": 200, "max_queries": 4, "max_batch_size": 8, "max_body_bytes": 4096}
    good["body_timeout_seconds"] = 3
    sharded = {"workspace": "good", "topology": "sharded", "num_shards": 2, "shard_timeout_seconds": 5}
    applications = {"/": good, "/bad": {"workspace": "bad"}, "/sharded": sharded}
    deployments = {"/sharded": ["retriever", "index-0", "index-1"]}
    config = yaml.safe_load((Path(__file__).parents[2] / "serve_configs" / "retriever.yaml").read_text())
    config["http_options"]["port"] = _free_port()
    shipped = config["applications"][0]
    # Six replicas on the two CPUs of a small machine.
    config["applications"] = [
        {
            **shipped,
            "name": f"app{i}",
            "route_prefix": prefix,
            "args": {**shipped["args"], **arguments},
            "deployments": [{"name": name, "ray_actor_options": {"num_cpus": 0.1}} for name in deployments.get(prefix, ["retriever"])],
        }
        for i, (prefix, arguments) in enumerate(applications.items())
    ]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return {**config, "folder": folder}


@pytest.fixture(scope="module")
def server(config: dict[str, Any]) -> Iterator[Server]:
    """`serve run` of the config."""
    with _serve_run(config.pop("folder")) as running:
        server = Server(f"http://127.0.0.1:{config['http_options']['port']}", *running)
        for prefix in ("", "/sharded"):
            _wait_until_ready(server, prefix)
        yield server


_SERVE = str(Path(sys.executable).parent / "serve")


class _serve_run:
    """Runs `serve run config.yaml` in a folder, on a Ray of its own; stops both."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log.txt"

    def __enter__(self) -> tuple[Path, Path, int]:
        # Short: Ray's socket paths have a length limit.
        self._ray_folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
        offline = {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        environment = {**os.environ, **offline, **advised_environment(), "RAY_ADDRESS": "local", "RAY_TMPDIR": self._ray_folder}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [_SERVE, "run", "config.yaml"],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._log, Path(self._ray_folder), self._process.pid

    def __exit__(self, *exception: object) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._ray_folder, ignore_errors=True)


def _wait_until_ready(server: Server, prefix: str) -> None:
    for _ in range(240):
        try:
            if httpx.get(f"{server.url}{prefix}/info", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"not ready:\n{server.log.read_text(errors='replace')[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_retrieve_gives_the_passages_of_plain_numpy(server: Server, served: Served) -> None:
    answer = httpx.post(f"{server.url}/v1/retrieve", json={"queries": [QUESTIONS[0], LONG], "k": 4}).raise_for_status().json()
    assert answer["encoder"] == "tiny@print-retrievers/tiny"
    assert [result["truncated"] for result in answer["results"]] == [False, True]
    table = passage_table().to_pylist()
    for result in answer["results"]:
        rows, scores = served.top(result["query"], 4)
        assert [passage["passage_id"] for passage in result["passages"]] == rows
        assert [passage["rank"] for passage in result["passages"]] == [1, 2, 3, 4]
        np.testing.assert_allclose([passage["score"] for passage in result["passages"]], scores, atol=1e-5)
        for passage, row in zip(result["passages"], rows, strict=True):
            assert {name: passage[name] for name in ("doc_id", "title", "text")} == {
                name: table[row][name] for name in ("doc_id", "title", "text")
            }


def test_a_request_chooses_between_the_adapted_and_the_base_encoder(server: Server, served: Served) -> None:
    answers = {}
    for encoder in ("adapted", "base"):
        body = {"query": QUESTIONS[0], "k": 8, "encoder": encoder}
        answers[encoder] = httpx.post(f"{server.url}/v1/retrieve", json=body).raise_for_status().json()
        rows = [passage["passage_id"] for passage in answers[encoder]["results"][0]["passages"]]
        assert rows == served.top(QUESTIONS[0], 8, base=encoder == "base")[0]
    assert httpx.get(f"{server.url}/info").json()["encoders"] == {encoder: answer["encoder"] for encoder, answer in answers.items()}
    assert answers["base"]["encoder"] == f"base@{served.base.identity.fingerprint()}"


def test_k_defaults_to_five_and_may_be_the_whole_corpus(server: Server) -> None:
    def ranks(**body: object) -> int:
        answer = httpx.post(f"{server.url}/v1/retrieve", json={"query": "w3", **body}).raise_for_status()
        return len(answer.json()["results"][0]["passages"])

    assert ranks() == 5
    assert ranks(k=NUM_PASSAGES) == NUM_PASSAGES


def test_concurrent_requests_are_batched_and_never_mixed_up(server: Server, served: Served) -> None:
    def ask(i: int) -> list[int]:
        body = {"query": QUESTIONS[i % 20], "k": 1 + i % 5}
        answer = httpx.post(f"{server.url}/v1/retrieve", json=body, timeout=60).raise_for_status().json()
        return [passage["passage_id"] for passage in answer["results"][0]["passages"]]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(60)))
    assert answers == [served.top(QUESTIONS[i % 20], 1 + i % 5)[0] for i in range(60)]


def test_the_openai_client_gets_the_encoders_own_query_vectors(server: Server, served: Served) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    texts = [QUESTIONS[5], LONG]
    packed = client.embeddings.create(model="promoted", input=texts)  # the client asks for base64 unless told otherwise
    plain = client.embeddings.create(model="tiny", input=texts, encoding_format="float", dimensions=32)
    assert [row.index for row in plain.data] == [0, 1]
    vectors = [np.array([row.embedding for row in answer.data], np.float32) for answer in (packed, plain)]
    assert np.array_equal(vectors[0], vectors[1])
    np.testing.assert_allclose(vectors[0], served.encoder.encode(texts, "query"), atol=1e-6)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 24
    assert plain.model_dump()["truncated"] == [1]
    single = client.embeddings.create(model="promoted", input=texts[0])
    np.testing.assert_allclose(single.data[0].embedding, plain.data[0].embedding, atol=1e-6)


def test_the_openai_client_raises_its_own_errors(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.UnprocessableEntityError, match="token ids are not supported"):
        client.embeddings.create(model="promoted", input=[1, 2, 3])
    with pytest.raises(openai.NotFoundError, match="text-embedding-3-small"):
        client.embeddings.create(model="text-embedding-3-small", input="w1")


def test_limits_hold_through_the_proxy(server: Server) -> None:
    def post(body: bytes | str) -> tuple[int, str]:
        answer = httpx.post(f"{server.url}/v1/retrieve", content=body, headers={"content-type": "application/json"})
        return answer.status_code, answer.json()["error"]["type"]

    assert post(json.dumps({"query": "w" * 201})) == (413, "too_large")
    assert post(json.dumps({"queries": ["w"] * 5})) == (413, "too_large")
    assert post(b" " * 5000) == (413, "too_large")
    assert post(json.dumps({"query": "w", "k": NUM_PASSAGES + 1})) == (422, "invalid_request")
    assert post(b"{") == (422, "invalid_request")
    assert post('{"query": "\\ud800"}') == (422, "invalid_request")
    odd = {"query": "\x00\u202e<script>'; DROP TABLE passages;-- 🛰 ../../etc/passwd"}
    assert httpx.post(f"{server.url}/v1/retrieve", json=odd).status_code == 200


def test_clients_that_dribble_are_sent_away_and_hold_nobody_up(server: Server, served: Served) -> None:
    """More of them than a replica takes requests."""
    port = int(server.url.rsplit(":", 1)[1])
    head = b"POST /v1/retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    with ExitStack() as opened:
        slow = [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(150)]
        for connection in slow:
            connection.sendall(head)
        statuses = {connection.recv(65536).split(b" ", 2)[1] for connection in slow}
    assert b"408" in statuses
    assert statuses <= {b"408", b"503"}  # 503: the replica's room was taken
    answer = httpx.post(f"{server.url}/v1/retrieve", json={"query": QUESTIONS[0]}, timeout=30).raise_for_status().json()
    assert [passage["passage_id"] for passage in answer["results"][0]["passages"]] == served.top(QUESTIONS[0], 5)[0]


def test_health_info_and_metrics_tell_what_is_served_and_how_it_goes(server: Server) -> None:
    httpx.post(f"{server.url}/v1/retrieve", json={"query": "w1"}).raise_for_status()
    httpx.post(f"{server.url}/v1/retrieve", json={"query": ""})
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    info = httpx.get(f"{server.url}/info").json()
    assert (info["model"], info["dimension"], info["max_length"], info["passages"]) == ("promoted", 32, 24, NUM_PASSAGES)
    assert info["limits"]["max_query_characters"] == 200
    metrics = httpx.get(f"{server.url}/metrics").text
    for series in (
        'armor_ray_requests_total{route="/v1/retrieve",status="200"}',
        'armor_ray_requests_total{route="/v1/retrieve",status="422"}',
        "armor_ray_encode_seconds_count",
        "armor_ray_search_seconds_count",
        "armor_ray_queue_seconds_count",
        "armor_ray_queued_requests 0.0",
    ):
        assert series in metrics


def test_serve_run_shows_why_an_application_does_not_start(server: Server) -> None:
    log = server.wait_for_log("does not reproduce 16 of 16 golden vectors")
    line = next(line for line in log.splitlines() if "does not reproduce" in line)
    assert "ArmorError: " in line
    assert f"bad/promoted/{GOLDEN}" in line  # the relative path of the config, resolved where the command ran
    assert "promote again" in line
    assert httpx.get(f"{server.url}/bad/health").status_code in (404, 503)


# -- faults and changes under load; last, as they leave the server changed ------------------------------------------------------


def test_two_shards_answer_as_one_index_and_a_killed_one_makes_answers_partial_until_it_is_back(server: Server, served: Served) -> None:
    def ask(question: str) -> tuple[bool, list[int]]:
        answer = httpx.post(f"{server.url}/sharded/v1/retrieve", json={"query": question, "k": 9}, timeout=30).raise_for_status().json()
        return answer["partial"], [passage["passage_id"] for passage in answer["results"][0]["passages"]]

    for question in QUESTIONS[:8]:
        assert ask(question) == (False, served.top(question, 9)[0])
    [victim] = server.replicas("app2:index-1")
    victim.kill()
    everything = served.top(QUESTIONS[0], NUM_PASSAGES)[0]
    allowed = {False: everything[:9], True: [row for row in everything if row < NUM_PASSAGES // 2][:9]}
    seen = []
    for _ in range(60):
        partial, rows = ask(QUESTIONS[0])
        assert rows == allowed[partial]
        seen.append(partial)
        if True in seen and not partial:
            return
        time.sleep(0.2)
    raise AssertionError(f"never partial, or never whole again: {seen}")


def test_encoders_are_swapped_through_user_config_under_load_without_a_failed_or_mixed_answer(
    server: Server, served: Served, config: dict[str, Any], tiny_bert: Path
) -> None:
    encoders = {"tiny": served.encoder, "other": adapted(tiny_bert, 1)}
    best = {
        name: [np.argsort(-(served.passage_vectors @ vector), kind="stable")[:5].tolist() for vector in encoder.encode(QUESTIONS, "query")]
        for name, encoder in encoders.items()
    }
    [replica] = server.replicas("app0:retriever")
    stop = threading.Event()

    def load(i: int) -> set[str]:
        seen = set()
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                answer = client.post(f"{server.url}/v1/retrieve", json={"query": QUESTIONS[i]}).raise_for_status().json()
                name = answer["encoder"].split("@")[0]
                assert [passage["passage_id"] for passage in answer["results"][0]["passages"]] == best[name][i]
                seen.add(name)
        return seen

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(load, i) for i in range(4)]
        try:
            for name in ("other", "tiny"):
                config["applications"][0]["deployments"][0]["user_config"] = {"retriever": name}
                server.deploy(config)
                _wait_until_answered_by(server, name)
        finally:
            stop.set()
        seen = set().union(*(client.result() for client in clients))
    assert seen == {"tiny", "other"}
    assert server.replicas("app0:retriever") == [replica]  # no restart, no index reload


def test_a_new_version_of_the_application_takes_over_without_a_lost_request(server: Server, served: Served, config: dict[str, Any]) -> None:
    """The old replica answers what it holds; what comes meanwhile waits for the new one, or is told to come again."""
    [old] = server.replicas("app0:retriever")
    with _under_load(server, served) as statuses:
        config["applications"][0]["args"]["max_queries"] = 3
        server.deploy(config)
        _wait_for_limit(server, 3)
    assert set(statuses) <= {200, 503}
    assert statuses[200] > 4
    old.wait(60)  # it may still be on its way out


@contextmanager
def _under_load(server: Server, served: Served) -> Iterator[Counter[int]]:
    """Four clients ask all the while and check every answer; afterwards, how often they got which status."""
    stop = threading.Event()
    statuses: Counter[int] = Counter()

    def ask(i: int) -> Counter[int]:
        seen: Counter[int] = Counter()
        with httpx.Client(timeout=120) as client:
            while not stop.is_set():
                answer = client.post(f"{server.url}/v1/retrieve", json={"query": QUESTIONS[i]})
                seen[answer.status_code] += 1
                if answer.status_code == 503:
                    assert answer.headers["retry-after"]
                    assert answer.json()["error"]["type"] == "overloaded"
                    time.sleep(0.1)
                else:
                    rows = [passage["passage_id"] for passage in answer.raise_for_status().json()["results"][0]["passages"]]
                    assert rows == served.top(QUESTIONS[i], 5)[0]
        return seen

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask, i) for i in range(4)]
        try:
            yield statuses
        finally:
            stop.set()
        for client in clients:
            statuses.update(client.result())


def _wait_for_limit(server: Server, max_queries: int) -> None:
    for _ in range(240):
        answer = httpx.get(f"{server.url}/info", timeout=120)
        if answer.status_code == 200 and answer.json()["limits"]["max_queries"] == max_queries:
            return
        time.sleep(0.25)
    raise AssertionError(f"the new version never answered:\n{server.log.read_text(errors='replace')[-4000:]}")


def _wait_until_answered_by(server: Server, name: str) -> None:
    for _ in range(150):
        if httpx.get(f"{server.url}/info", timeout=30).json()["encoder"].startswith(f"{name}@"):
            return
        time.sleep(0.1)
    raise AssertionError(f"{name} never answered")


def test_a_replica_killed_under_load_costs_no_request_and_no_answer_is_wrong(server: Server, served: Served) -> None:
    with _under_load(server, served) as statuses:
        killed: set[int] = set()
        for _ in range(2):
            victim = _next_replica(server, killed)
            time.sleep(1)
            victim.suspend()  # so that it holds requests when it dies
            time.sleep(0.5)
            victim.kill()
            killed.add(victim.pid)
        _next_replica(server, killed)
        time.sleep(1)
    assert set(statuses) == {200, 503}  # 503: what the replicas held


def _next_replica(server: Server, killed: set[int]) -> psutil.Process:
    """The replica that answers after others were killed."""
    for _ in range(240):
        alive = [process for process in server.replicas("app0:retriever") if process.pid not in killed]
        if alive and httpx.get(f"{server.url}/info", timeout=120).status_code == 200:
            return alive[0]
        time.sleep(0.25)
    raise AssertionError(f"no replica came back:\n{server.log.read_text(errors='replace')[-4000:]}")


def test_a_killed_proxy_comes_back_and_the_replicas_never_notice(server: Server, served: Served) -> None:
    replicas = server.replicas("app0:retriever")
    [proxy] = processes_below(server.pid, "ProxyActor")
    proxy.kill()
    refused = 0
    for _ in range(240):
        try:
            answer = httpx.post(f"{server.url}/v1/retrieve", json={"query": QUESTIONS[0]}, timeout=60)
        except httpx.TransportError:  # nobody listens
            refused += 1
            time.sleep(0.25)
            continue
        assert answer.status_code in (200, 404, 503), answer.text  # 404: the new proxy does not know its routes yet
        if answer.status_code == 200:
            break
        time.sleep(0.25)
    assert answer.status_code == 200
    assert [passage["passage_id"] for passage in answer.json()["results"][0]["passages"]] == served.top(QUESTIONS[0], 5)[0]
    assert refused
    assert [again.pid for again in processes_below(server.pid, "ProxyActor")] != [proxy.pid]
    assert server.replicas("app0:retriever") == replicas


def test_no_passage_and_no_question_reaches_the_log(server: Server) -> None:
    assert httpx.post(f"{server.url}/v1/retrieve", json={"query": "zebracrossing w1 w2", "k": 0}).status_code == 422
    assert httpx.post(f"{server.url}/v1/retrieve", json={"query": "zebracrossing w1 w2"}).status_code == 200
    logs = [path.read_text(errors="replace") for path in [server.log, *server.logs.glob("ray/session_2*/logs/**/*")] if path.is_file()]
    assert any("app0" in log for log in logs)  # the replicas' own are among them
    texts = passage_table().column("text").to_pylist()
    assert not [text for text in ["zebracrossing", *QUESTIONS, *texts] for log in logs if text in log]


def test_beyond_loopback_nothing_is_open_but_rays_own_ports_and_these_ask_for_its_token(server: Server) -> None:
    [proxy] = processes_below(server.pid, "ProxyActor")
    port = int(server.url.rsplit(":", 1)[1])
    assert {address for address, listening in _listening(proxy) if listening == port} == {"127.0.0.1"}
    [replica] = server.replicas("app0:retriever")
    codes = Counter(_call(port) for address, port in _listening(replica) if address != "127.0.0.1")
    # Serve's port between replicas, which would unpickle what it is sent, and the worker's of Ray, which knows no such call.
    assert codes == {grpc.StatusCode.UNAUTHENTICATED: 1, grpc.StatusCode.UNIMPLEMENTED: 1}


def _listening(process: psutil.Process) -> list[tuple[str, int]]:
    return [(each.laddr.ip, each.laddr.port) for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]


def _call(port: int) -> grpc.StatusCode:
    """What a replica's call between deployments answers to a stranger."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/ray.serve.ASGIService/HandleRequest")(b"", timeout=10)
    return refused.value.code()


def test_the_page_and_its_files_come_through_the_proxy(server: Server) -> None:
    page = httpx.get(f"{server.url}/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert httpx.get(f"{server.url}/assets/page.js").headers["content-type"].startswith("text/javascript")
