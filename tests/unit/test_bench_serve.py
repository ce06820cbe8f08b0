"""The serving benchmark counts what happened, and its two servers do the same work, on a toy."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner
from fastapi.testclient import TestClient
from serving_workspace import QUESTIONS, build_workspace

from armor_ray.config import IndexConfig
from armor_ray.retrieval.dense import build_index
from armor_ray.retrieval.index_file import FILE, save_index
from armor_ray.workspace import Workspace
from benchmarks import faults, index_kinds, load, plain_app, serve


def run_against(answer, work) -> load.Load:
    """What `work(url)` measures of a server whose handler is `answer`."""

    async def once() -> load.Load:
        app = web.Application()
        app.router.add_post("/", answer)
        async with TestServer(app) as server:
            return await work(str(server.make_url("/")))

    return asyncio.run(once())


def test_a_closed_loop_never_has_more_open_than_clients():
    open_now, most = 0, 0
    asked = Counter()

    async def answer(request: web.Request) -> web.Response:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        asked[(await request.json())["query"]] += 1
        await asyncio.sleep(0.01)
        open_now -= 1
        return web.json_response({})

    result = run_against(answer, lambda url: load._closed_loop(url, ["a", "b"], 3, 0.2))
    assert most == 3
    assert result.statuses == Counter({200: sum(asked.values())})
    assert abs(asked["a"] - asked["b"]) <= 1
    assert result.percentile(50) >= 10
    assert result.rate == pytest.approx(len(result.seconds) / result.wall)


def test_an_open_loop_goes_on_whatever_becomes_of_its_requests():
    seen = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal seen
        seen += 1
        mine = seen
        while seen < 40:  # nobody is answered before everybody is here: a loop that waited for answers would never end
            await asyncio.sleep(0.005)
        if mine % 4 == 2:
            request.transport.close()  # no answer at all
        return web.json_response({}, status={0: 503, 1: 500}.get(mine % 4, 200))

    result = run_against(answer, lambda url: load._open_loop(url, ["a"], 400, 0.1))
    assert result.statuses == Counter({200: 10, 503: 10, 500: 10, 0: 10})
    assert (len(result.seconds), len(result.refusals), result.failed) == (10, 10, 20)
    shares = serve._overload_rows(result, 1e6)
    assert (shares[0].ratio, shares[0].met, shares[1].met) == (0.5, False, True)


def test_the_plain_app_gives_the_answers_of_ours(tiny_bert, tmp_path):
    served = build_workspace(tmp_path / "workspace", tiny_bert)
    workspace = Workspace(str(served.folder))
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "encoder").symlink_to(workspace.local("promoted"))
    (folder / "index.faiss").symlink_to(workspace.local("index") / FILE)
    (folder / "passages.parquet").symlink_to(workspace.local("passages") / "passages.parquet")
    client = TestClient(plain_app.build(folder))
    for question in QUESTIONS[:5]:
        [result] = client.post("/v1/retrieve", json={"query": question, "k": 4}).json()["results"]
        rows, scores = served.top(question, 4)
        assert [passage["passage_id"] for passage in result["passages"]] == rows
        np.testing.assert_allclose([passage["score"] for passage in result["passages"]], scores, atol=1e-5)


def test_made_vectors_lie_around_real_ones_and_an_opened_index_finds_them(tmp_path: Path):
    real = np.random.default_rng(1).standard_normal((20, 64)).astype(np.float32)
    real /= np.linalg.norm(real, axis=1, keepdims=True)
    made = index_kinds.made_vectors(real, 3000, tmp_path / "vectors.npy")
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)
    assert np.median((made @ real.T).max(1)) == pytest.approx(0.89, abs=0.02)
    queries = np.ascontiguousarray(made[:7])
    save_index(build_index(made, IndexConfig()), tmp_path, {"encoder": "made"})
    opened = index_kinds.open_and_search(tmp_path, queries)
    assert opened.rows == index_kinds._exact(made, queries).tolist()
    assert [rows[0] for rows in opened.rows] == list(range(7))


def test_an_hnsw_index_is_searched_at_wider_widths_too_and_finds_more(tmp_path: Path):
    random = np.random.default_rng(1)
    real, queries = (random.standard_normal((count, 16)).astype(np.float32) for count in (4, 20))
    real /= np.linalg.norm(real, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    narrow, *wider = index_kinds.measure(real, queries, tmp_path, 20000, ["hnsw"])
    assert [line.kind for line in (narrow, *wider)] == ["hnsw 128", "hnsw 512", "hnsw 2048"]
    assert narrow.recall < wider[0].recall <= wider[1].recall <= 1
    assert {line.vectors for line in wider} == {20000}


def test_an_answer_is_right_when_its_passages_score_best_whatever_the_order_of_equal_ones():
    scores = np.array([0.1, 0.9, 0.5, 0.5, 0.7, 0.6, 0.5, 0.2], np.float32)

    def is_right(*rows: int) -> bool:
        return faults.is_right({"results": [{"passages": [{"passage_id": row} for row in rows]}]}, scores)

    assert is_right(1, 4, 5, 2, 3)
    assert is_right(1, 4, 5, 6, 2)
    assert not is_right(1, 4, 5, 2, 7)
    assert not is_right(4, 1, 5, 2, 3)
    assert not is_right(1, 4, 5, 2, 2)
    assert not is_right(1, 4, 5, 2)


def test_swaps_under_load_are_checked_by_the_encoder_that_each_answer_names(monkeypatch):
    for name, value in (("SWAPS", 3), ("_POLL_SECONDS", 0.005)):
        monkeypatch.setattr(faults, name, value)
    scores = {name: np.random.default_rng(seed).random((2, 9)).astype(np.float32) for seed, name in enumerate(("a", "b"))}
    serving, killed, asked, due = "a", 0, 0, 0

    def deploy(user_config: dict[str, str]) -> None:
        nonlocal serving, due
        serving, due = user_config["retriever"], asked + 5

    def kill() -> None:
        nonlocal killed
        killed += 1

    async def retrieve(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked == 5:
            return web.json_response({}, status=503)
        rows = np.argsort(-scores[serving][int((await request.json())["query"])])[: load.K]
        ranked = rows[::-1] if asked == 7 else rows  # one wrong answer
        return web.json_response({"encoder": f"{serving}@1", "results": [{"passages": [{"passage_id": int(row)} for row in ranked]}]})

    async def info(request: web.Request) -> web.Response:
        # Not before some questions were asked of it, however busy the machine is.
        return web.json_response({"encoder": f"{serving}@1" if asked >= due else "earlier@1"})

    async def both() -> tuple[faults.Checked, faults.Checked]:
        app = web.Application()
        app.router.add_post("/v1/retrieve", retrieve)
        app.router.add_get("/info", info)
        async with TestServer(app) as running:
            server = SimpleNamespace(
                url=str(running.make_url("")).rstrip("/"), deploy=deploy, replicas=lambda: [SimpleNamespace(kill=kill)]
            )
            monkeypatch.setattr(faults, "SECONDS_BETWEEN_KILLS", 0.02)
            swapped = await faults._under_load(server.url, ["0", "1"], scores, lambda: faults._swap(server, ["a", "b"]))
            return swapped, await faults._under_load(server.url, ["0", "1"], scores, lambda: faults._kill(server))

    swapped, unharmed = asyncio.run(both())
    assert set(swapped.statuses) == {200, 503}
    assert (swapped.statuses[503], swapped.wrong, set(swapped.encoders)) == (1, 1, {"a", "b"})
    assert (killed, unharmed.share_well_answered) == (faults.KILLS, 1)


def test_refusals_are_well_answered_and_wrong_or_lost_ones_are_not():
    checked = faults.Checked(Counter({200: 6, 503: 2, 500: 1, 0: 1}), wrong=1)
    assert checked.share_well_answered == pytest.approx(0.7)
    assert faults.Checked().share_well_answered == 0


@pytest.mark.parametrize(("option", "value", "message"), [("--only", "speed", "no 'speed'"), ("--kinds", "flat,pq", "no 'pq'")])
def test_mistakes_end_in_one_line(tmp_path, option, value, message):
    result = CliRunner().invoke(serve.main, ["--data", str(tmp_path), "--out", str(tmp_path / "out"), option, value])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert message in result.stderr
