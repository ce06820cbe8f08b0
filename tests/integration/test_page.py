"""The page in real Chromium, over the real API and a tiny workspace; Ray Serve's part is tests/integration/test_serving.py."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
from evaluated_workspace import RETRIEVER, VERSION, publish_evaluation
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from serving_workspace import NUM_PASSAGES, QUESTIONS, Served, adapted, build_workspace, passage_table, publish_encoder

from armor_ray.serving.api import build_api
from armor_ray.serving.arguments import AuthArguments, ServingArguments
from armor_ray.serving.retriever import Retriever
from armor_ray.serving.service import Service
from armor_ray.workspace import Workspace

DEPTH = 20  # passages that the page asks of each encoder
TOKEN = "page-token-0123456789"
HELPED, HURT = QUESTIONS[0], QUESTIONS[1]
# As root, and with nothing in the background that calls out.
PATIENCE = 20_000  # milliseconds; a busy machine is slow
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[socket.socket]:
    """A server that the page must not call: the report's picture is there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, elsewhere: socket.socket) -> Served:
    """The adapted encoder is another one than the base, so that ranks move; the evaluation knows two questions and an answer."""
    served = build_workspace(tmp_path_factory.mktemp("page") / "workspace", tiny_bert)
    workspace = Workspace(str(served.folder))
    encoder = adapted(tiny_bert, 0)
    publish_encoder(workspace, f"retrievers/{RETRIEVER}", encoder, golden_of=encoder)
    gold = served.top(HELPED, 3)[0][1]
    answer = " ".join(passage_table()["text"][gold].as_py().split()[1:3])
    examples = {"e0": (HELPED, [answer.upper()], [gold], 0.1, 0.5), "e1": (HURT, ["nowhere"], [0], 1.0, 0.0)}
    publish_evaluation(workspace, examples, picture=f"http://127.0.0.1:{elsewhere.getsockname()[1]}/tracker.png")
    return served


@pytest.fixture(scope="module")
def arguments(served: Served) -> ServingArguments:
    return ServingArguments(workspace=str(served.folder), retriever=RETRIEVER, compare=True, max_query_characters=200)


@pytest.fixture(scope="module")
def retriever(arguments: ServingArguments) -> Retriever:
    return Retriever.open(Workspace(arguments.workspace), arguments)


@contextlib.contextmanager
def serving(retriever: Retriever, arguments: ServingArguments) -> Iterator[str]:
    """The API on a port of its own; gives its address."""
    server = uvicorn.Server(uvicorn.Config(build_api(Service(retriever, arguments)), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def url(retriever: Retriever, arguments: ServingArguments) -> Iterator[str]:
    with serving(retriever, arguments) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "the page is tested in Chromium: install it (Debian: apt-get install chromium)"
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@dataclass(slots=True)
class Watched:
    """A page, what its console complained about, and where it sent requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator:
    contexts = []

    def open_(goto: bool = True, **options) -> Watched:
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        watched = Watched(context.new_page())
        watched.page.on("console", lambda message: watched.complaints.append(message.text) if message.type == "error" else None)
        watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        watched.page.on("request", lambda request: watched.requests.append(request.url))
        if goto:
            watched.page.goto(url)
            expect(watched.page.locator("#served")).to_contain_text(VERSION)
        return watched

    yield open_
    for context in contexts:
        context.close()


def ask(page: Page, question: str) -> None:
    page.get_by_role("searchbox", name="Question").fill(question)
    page.get_by_role("searchbox", name="Question").press("Enter")


def rankings(served: Served, question: str) -> tuple[dict[int, int], dict[int, int]]:
    """Passage id → rank with the base and with the adapted encoder, by plain numpy."""
    base, adapted = (served.top(question, DEPTH, base)[0] for base in (True, False))
    return {row: rank for rank, row in enumerate(base, 1)}, {row: rank for rank, row in enumerate(adapted, 1)}


def test_both_rankings_stand_side_by_side_with_the_ranks_that_moved(open_page, served, url):
    watched = open_page()
    page = watched.page
    question = QUESTIONS[7]
    ask(page, question)
    expect(page.get_by_role("status").first).to_contain_text("of the first 5 passages")
    base, now = rankings(served, question)
    table = passage_table()
    for name, order, other, words in (("base", base, now, ("rises to", "falls to")), ("adapted", now, base, ("up from", "down from"))):
        items = page.locator(f"#{name}-passages > li")
        assert items.count() == 5
        for item, row in zip(items.all(), list(order), strict=False):
            text = item.inner_text()
            rank, there = order[row], other.get(row)
            assert text.startswith(f"{rank}.")
            assert table["text"][row].as_py() in text
            better = there is not None and ((there > rank) if name == "adapted" else (there < rank))
            moved = f"{words[0] if better else words[1]} {there}"
            assert (moved if there not in (None, rank) else "same rank" if there else "not among") in item.text_content()
    entered = sum(base.get(row, 99) > 5 for row in list(now)[:5])
    assert 0 < entered <= 5  # the case tests something
    expect(page.get_by_role("status").first).to_contain_text(f"{entered} of the first 5 passages changed")
    expect(page.locator("#adapted-facts")).to_contain_text(f"{VERSION} · ")
    expect(page.locator("#adapted-facts")).to_contain_text("ms round trip")
    assert all(request.startswith(url) for request in watched.requests)
    assert watched.complaints == []


def test_everything_works_by_keyboard_alone(open_page, served, elsewhere):
    watched = open_page()
    page = watched.page
    press = page.keyboard.press
    expect(page.get_by_role("searchbox", name="Question")).to_be_focused()
    examples = page.get_by_role("toolbar").get_by_role("button")
    expect(examples.first).to_be_visible()  # they are fetched: a Tab before they came would go past them
    for _ in range(4):  # passages, compare, the examples' summary, the first example
        press("Tab")
    expect(examples.first).to_be_focused()
    press("ArrowDown")
    expect(examples.nth(1)).to_be_focused()
    assert "1 → –" in examples.nth(1).inner_text()
    press("ArrowDown")  # round to the first
    press("Enter")
    expect(page.locator("#status")).to_contain_text("Best gold passage: rank ")
    expect(examples.first).to_have_attribute("aria-pressed", "true")
    gold = page.locator("#adapted-passages .gold").first
    assert gold.locator("mark").inner_text() == " ".join(passage_table()["text"][served.top(HELPED, 3)[0][1]].as_py().split()[1:3])

    page.get_by_role("tab", name="Ask").focus()
    press("ArrowRight")
    expect(page.get_by_role("tab", name="Evaluation report")).to_be_focused()
    heading = page.frame_locator("iframe").get_by_role("heading")
    expect(heading).to_have_text("What changed")  # its script did not run
    expect(heading).to_have_css("color", "rgb(1, 2, 3)")  # but its style was allowed
    page.frames[1].wait_for_load_state("load")
    with pytest.raises(BlockingIOError):  # nobody came for its picture
        elsewhere.accept()
    press("ArrowLeft")
    expect(page.get_by_role("tabpanel", name="Ask")).to_be_visible()
    expect(page.locator("iframe")).to_be_hidden()


def answering(status: int, said: str = "", headers: dict[str, str] | None = None):
    def answer(route: Route) -> None:
        body = json.dumps({"error": {"type": "x", "message": said}})
        route.fulfill(status=status, body=body, headers={"content-type": "application/json", **(headers or {})})

    return answer


def test_what_goes_wrong_is_said_and_can_be_tried_again(open_page):
    page = open_page().page
    alert = page.get_by_role("alert").first
    ask(page, "   ")
    expect(alert).to_have_text("Type a question, or choose an example.")
    ask(page, "w1 " * 100)
    expect(alert).to_contain_text("The question is too long (queries[0]: 299 characters, the limit is 200)")
    page.route("**/v1/retrieve", answering(503, "full", {"retry-after": "7"}))
    ask(page, "w1")
    expect(alert).to_contain_text("The server is busy. Try again in 7 s.")
    page.unroute("**/v1/retrieve")
    page.context.set_offline(True)
    page.get_by_role("button", name="Try again").click()
    expect(alert).to_contain_text("This device is offline.")
    page.context.set_offline(False)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#adapted-passages > li")).to_have_count(5)
    expect(alert).to_be_hidden()


def test_a_token_is_asked_for_sent_and_kept_in_memory_only(open_page, retriever, arguments, monkeypatch):
    monkeypatch.setenv("PAGE_TOKENS", TOKEN)
    watched = open_page(goto=False)
    page = watched.page
    with serving(retriever, arguments.model_copy(update={"auth": AuthArguments(tokens_env="PAGE_TOKENS")})) as address:
        page.goto(address)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#served")).to_have_text("This server answers only with a bearer token.")
        ask(page, "w1")
        for token in ("wrong", TOKEN):
            dialog.get_by_label("Bearer token").fill(token)
            dialog.get_by_label("Bearer token").press("Enter")
            if token == "wrong":
                expect(dialog.get_by_role("alert")).to_have_text("The server did not accept that token.")
        expect(page.locator("#adapted-passages > li")).to_have_count(5)
        expect(page.get_by_role("toolbar")).to_be_visible()  # the examples came with it
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert page.locator("#token").input_value() == ""
    assert TOKEN not in page.content()


def test_a_server_without_base_encoder_or_evaluation_says_so(open_page, url):
    page = open_page(goto=False).page
    info = {"encoder": VERSION, "encoders": {"adapted": VERSION}, "passages": NUM_PASSAGES, "limits": {"max_k": 4}}
    page.route("**/info", lambda route: route.fulfill(json=info))
    page.route("**/v1/examples", lambda route: route.fulfill(json={"absent": "nothing was evaluated.", "helped": [], "hurt": []}))
    page.route("**/v1/report", answering(404, "no report"))
    page.goto(url)
    expect(page.locator("#examples-note")).to_have_text("No examples: nothing was evaluated.")
    ask(page, "w1")
    expect(page.locator("#base-passages")).to_contain_text("holds no base encoder to compare with")
    expect(page.locator("#adapted-passages > li")).to_have_count(4)
    assert "from" not in page.locator("#adapted-passages").text_content()
    page.get_by_role("tab", name="Evaluation report").click()
    expect(page.locator("#report-status")).to_have_text("This workspace has no evaluation report.")


def test_passages_are_text_whatever_they_hold(open_page):
    watched = open_page()
    page = watched.page
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    passage = {"passage_id": 1, "doc_id": hostile, "title": hostile, "text": hostile, "score": 0.5, "rank": 1}
    answer = {"encoder": hostile, "partial": True, "results": [{"query": "w1", "truncated": True, "passages": [passage]}]}
    page.route("**/v1/retrieve", lambda route: route.fulfill(json=answer))
    page.on("dialog", lambda dialog: watched.complaints.append(dialog.message))
    ask(page, "w1")
    expect(page.locator("#base-passages .text")).to_have_text(hostile)
    expect(page.locator("#status")).to_contain_text("A part of the index did not answer")
    expect(page.locator("#status")).to_contain_text("was cut")
    assert page.locator("#columns img, #columns script").count() == 0
    assert watched.complaints == []


def test_it_fits_a_phone_and_follows_the_dark_scheme(open_page):
    page = open_page(viewport={"width": 360, "height": 740}, color_scheme="dark").page
    page.get_by_role("toolbar").get_by_role("button").first.click()
    expect(page.locator("#adapted-passages > li")).to_have_count(5)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(page.locator("#examples-list")).to_be_hidden()  # folded away for the results
    boxes = [page.locator(f"#{name}-passages").bounding_box() for name in ("base", "adapted")]
    assert boxes[0]["x"] == boxes[1]["x"]
    assert boxes[0]["y"] < boxes[1]["y"]
    expect(page.locator("body")).to_have_css("background-color", "rgb(21, 25, 30)")
