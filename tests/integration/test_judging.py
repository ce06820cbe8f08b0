"""Judging over HTTP: whatever the endpoint does, the result is right, nothing is paid for twice, and everything is counted."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chat_server import (
    COMPLETION_TOKENS,
    FORM_FAULTS,
    HTTP_FAULTS,
    PROMPT_TOKENS,
    REPLY_FAULTS,
    SLOW_FAULTS,
    WIRE_FAULTS,
    Body,
    ChatServer,
)
from judging_driver import CONCURRENCY, as_rows, judge_pairs, pairs, qa_domain

from armor_ray.config import JudgeConfig
from armor_ray.errors import ArmorError
from armor_ray.judges.alignment import CandidateChunk, ChunkAlignment
from armor_ray.judges.blocking import BlockingChat
from armor_ray.judges.cache import ReplyCache
from armor_ray.judges.client import ChatClient
from armor_ray.judges.failures import BudgetExhausted, ChatError, Failure
from armor_ray.judges.grading import AnswerGrading, CandidateAnswer
from armor_ray.judges.judge import Judgement, judge_items, run_judge
from armor_ray.judges.request import ChatRequest, Schema

KEY = "sk-a-secret-of-the-tests-0123456789"
# Of requests that are meant to time out; the others have time even on a busy machine.
SHORT_SECONDS, LONG_SECONDS = 0.3, 10.0


def number_of(body: Body) -> int:
    """The number in "question 7?"."""
    return int(body["messages"][1]["content"].split("question ")[1].split("?")[0])


def true_scores(number: int) -> dict[str, float]:
    return {"isac": number % 11 / 10, "jcc": number % 7 / 10, "sagin": number % 3 / 10}


def answer_pair(body: Body) -> str:
    return json.dumps(true_scores(number_of(body)))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(answer_pair) as running:
        yield running


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def config(server: ChatServer, **values) -> JudgeConfig:
    return JudgeConfig(base_url=server.url, model="tiny", **values)


def ask(text: str = "question 1?", **values) -> ChatRequest:
    values = {"max_tokens": 10, "timeout_seconds": LONG_SECONDS, "max_retries": 3, **values}
    return ChatRequest(({"role": "system", "content": "Rate."}, {"role": "user", "content": text}), **values)


def with_client(settings: JudgeConfig, cache: Path, use: Callable):
    async def run():
        async with ChatClient(settings, cache, backoff_seconds=0.01) as client:
            return await use(client)

    return asyncio.run(run())


def judged(server: ChatServer, cache: Path, count: int, **values) -> Judgement:
    judge = qa_domain(LONG_SECONDS)
    return with_client(config(server, **values), cache, lambda client: judge_items(judge, pairs(count), client))


class TestMisbehaviour:
    def test_every_fault_ends_in_the_right_result_and_in_the_accounts(self, server, tmp_path):
        """60 pairs, up to two faults each: right scores, exact counts; nothing is paid for beyond what could not be read."""
        rng = random.Random(5)
        kinds = [*HTTP_FAULTS, *sorted(set(WIRE_FAULTS) - SLOW_FAULTS), *REPLY_FAULTS, *FORM_FAULTS]
        plans = [[kinds[number % len(kinds)], *rng.sample(kinds, rng.randint(0, 1))] for number in range(60)]
        for plan in plans:
            plan.sort(key=lambda kind: kind in FORM_FAULTS)  # a form that can be read ends the asking
        prompts = [qa_domain().request([pair]).messages[1]["content"] for pair in pairs(60)]
        for prompt, plan in zip(prompts, plans, strict=True):
            server.plan(prompt, plan[: 1 + next((i for i, kind in enumerate(plan) if kind in FORM_FAULTS), len(plan))])

        judgement = judged(server, tmp_path / "cache", 60)

        assert [dict(verdict.scores) for verdict in judgement.verdicts] == [true_scores(number) for number in range(60)]
        assert [verdict.keep for verdict in judgement.verdicts] == [max(true_scores(number).values()) >= 0.65 for number in range(60)]
        assert judgement.by == "tiny"
        assert not judgement.failures
        met = Counter(kind for plan in plans for kind in plan) - Counter(kind for left in server.faults.values() for kind in left)
        unreadable = sum(met[kind] for kind in REPLY_FAULTS)
        assert sum(server.paid.values()) == 60 + unreadable == judgement.account.paid
        classes = {
            **dict.fromkeys(("408",), Failure.TIMEOUT),
            **dict.fromkeys(("500", "503"), Failure.SERVER),
            **dict.fromkeys(("429", "429 with a date"), Failure.RATE_LIMIT),
            **dict.fromkeys(("html", "half a body", "no choices"), Failure.MALFORMED),
            **{"409": Failure.CONFLICT, "reset": Failure.CONNECTION},
        }
        expected = Counter()
        for kind, failure in classes.items():
            expected[failure] += met[kind]
        assert judgement.account.retries == expected
        assert judgement.account.readings["unreadable"] == unreadable
        assert judgement.account.readings["in prose"] == met["prose"]
        assert all(str(failure) in str(judgement.summary) for failure in expected)

    @pytest.mark.parametrize("fault", sorted(SLOW_FAULTS))
    def test_a_reply_that_does_not_come_in_time_is_asked_for_again(self, server, tmp_path, fault):
        """Silence, and a reply that drips in byte by byte so that the connection is never silent."""
        server.plan("question 1?", [fault])
        request = ask(timeout_seconds=SHORT_SECONDS, max_retries=9)

        async def use(client: ChatClient):
            return await client.chat(request), client.account.retries

        reply, retries = with_client(config(server), tmp_path / "cache", use)
        assert reply.text == json.dumps(true_scores(1))
        assert list(retries) == [Failure.TIMEOUT]

    def test_a_rerun_costs_nothing(self, server, tmp_path):
        server.plan(qa_domain().request(pairs(1)).messages[1]["content"], ["chatter", "cut"])
        first = judged(server, tmp_path / "cache", 5)
        asked = len(server.bodies)
        second = judged(server, tmp_path / "cache", 5)
        assert as_rows(second) == as_rows(first)
        assert len(server.bodies) == asked
        assert (second.account.paid, second.account.cached) == (0, first.account.paid)

    def test_retries_end_and_the_failure_is_classified(self, server, tmp_path):
        prompts = [qa_domain().request([pair]).messages[1]["content"] for pair in pairs(3)]
        server.plan(prompts[0], ["500"] * 4)
        server.plan(prompts[1], ["chatter"] * 3)
        judgement = judged(server, tmp_path / "cache", 3)
        assert [verdict.failure for verdict in judgement.verdicts] == [Failure.SERVER, Failure.UNREADABLE, None]
        assert [verdict.keep for verdict in judgement.verdicts[:2]] == [False, False]
        assert judgement.account.retries == {Failure.SERVER: 3}
        assert judgement.summary.as_dict()["failures"] == {"server_error": 1, "unreadable_reply": 1}
        again = judged(server, tmp_path / "cache", 3)
        assert [verdict.failure for verdict in again.verdicts] == [None, Failure.UNREADABLE, None]

    def test_scores_out_of_range_are_clamped_and_counted(self, tmp_path):
        with ChatServer(lambda body: "7" if "good" in body["messages"][1]["content"] else "-0.5") as server:
            items = [CandidateAnswer("q", "r", "good"), CandidateAnswer("q", "r", "bad")]
            judgement = with_client(config(server), tmp_path / "cache", lambda client: judge_items(AnswerGrading(), items, client))
        assert [verdict.scores["grade"] for verdict in judgement.verdicts] == [1.0, 0.0]
        assert judgement.account.readings == {"clamped": 2}

    def test_an_ungraded_answer_has_grade_zero_and_says_why(self, tmp_path):
        with ChatServer(lambda body: "no idea") as server:
            items = [CandidateAnswer("q", "r", "a")]
            judgement = with_client(config(server), tmp_path / "cache", lambda client: judge_items(AnswerGrading(), items, client))
        assert judgement.verdicts[0].scores == {"grade": 0.0}
        assert judgement.verdicts[0].failure is Failure.UNREADABLE

    def test_a_cut_batch_asks_again_for_the_missing_chunks_only(self, tmp_path):
        """Chunks before the cut keep their scores; top 3 by score are kept, over batches of eight."""
        support = [0.0, 0.9, 0.1, 0.8, 0.0, 0.0, 0.2, 0.0, 0.0, 0.5]

        def answer(body: Body) -> str:
            numbers = [int(line.split()[1]) for line in body["messages"][1]["content"].splitlines() if line.startswith("chunk ")]
            return json.dumps({"chunks": [{"chunk": i + 1, "support": support[number]} for i, number in enumerate(numbers)]})

        chunks = [CandidateChunk("q1", "q", "a", f"chunk {number}") for number in range(10)]
        done: list[int] = []
        with ChatServer(answer) as server:
            server.plan(ChunkAlignment().request(chunks[:8]).messages[1]["content"], ["cut"])
            judgement = with_client(
                config(server), tmp_path / "cache", lambda client: judge_items(ChunkAlignment(), chunks, client, advance=done.append)
            )
        assert sorted(done) == [2, 8]
        assert [verdict.scores["support"] for verdict in judgement.verdicts] == support
        assert [number for number, verdict in enumerate(judgement.verdicts) if verdict.keep] == [1, 3, 9]
        assert judgement.account.paid == 3
        assert 0 < server.bodies[-1]["messages"][1]["content"].count("<chunk ") < 8

    def test_twenty_failures_in_a_row_stop_the_run(self, server, tmp_path):
        for pair in pairs(40):
            server.plan(qa_domain().request([pair]).messages[1]["content"], ["500"] * 9)
        with pytest.raises(ArmorError, match="20 requests in a row failed, the last with server_error: HTTP 500"):
            judged(server, tmp_path / "cache", 40)
        assert len(server.bodies) <= (20 + 16) * 4

    @pytest.mark.parametrize(
        ("status", "body", "message"),
        [
            (401, {"message": f"wrong key {KEY}"}, "refused the key"),
            (404, {"message": "no such model"}, "knows no model 'tiny'"),
            (429, {"message": "pay", "code": "insufficient_quota"}, "no quota left"),
        ],
    )
    def test_what_no_request_can_cure_stops_at_once(self, server, tmp_path, monkeypatch, status, body, message):
        from aiohttp import web

        monkeypatch.setattr(server, "_http_fault", lambda fault, echoed: web.json_response({"error": body}, status=status))
        server.plan("question 1?", ["500"])
        with pytest.raises(ArmorError, match=message) as raised:
            with_client(config(server), tmp_path / "cache", lambda client: client.chat(ask()))
        assert len(server.bodies) == 1
        assert KEY not in str(raised.value)


class TestPacing:
    def test_retry_after_holds_for_all_requests(self, server, tmp_path):
        server.retry_after_seconds = 0.3
        server.plan("question 0?", ["429"])

        async def use(client: ChatClient) -> None:
            first = asyncio.create_task(client.chat(ask("question 0?")))
            await asyncio.sleep(0.1)
            await asyncio.gather(first, *(client.chat(ask(f"question {number}?")) for number in range(1, 4)))

        with_client(config(server), tmp_path / "cache", use)
        assert min(server.times[1:]) - server.times[0] >= 0.3
        assert len(server.times) == 5

    def test_a_wait_of_hours_is_given_up(self, server, tmp_path):
        server.retry_after_seconds = 7200
        server.plan("question 1?", ["429"])
        with pytest.raises(ChatError) as raised:
            with_client(config(server), tmp_path / "cache", lambda client: client.chat(ask()))
        assert raised.value.failure is Failure.RATE_LIMIT
        assert len(server.bodies) == 1

    def test_concurrency_is_a_ceiling(self, server, tmp_path):
        server.delay_seconds = 0.01
        judged(server, tmp_path / "cache", 20, concurrency=3)
        assert server.most_at_once == 3

    @pytest.mark.parametrize("limit", [{"requests_per_minute": 10}, {"tokens_per_minute": 10 * ask().estimated_prompt_tokens + 100}])
    def test_rates_let_a_minutes_worth_through_and_no_more(self, server, tmp_path, limit):
        async def use(client: ChatClient) -> None:
            tasks = [asyncio.create_task(client.chat(ask(f"question {number}?"))) for number in range(10, 30)]
            while len(server.bodies) < 10:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()

        with_client(config(server, concurrency=20, **limit), tmp_path / "cache", use)
        assert len(server.bodies) == 10


class TestNothingTwice:
    def test_equal_requests_under_way_are_one(self, server, tmp_path):
        server.delay_seconds = 0.05

        async def use(client: ChatClient):
            replies = await asyncio.gather(*(client.chat(ask()) for _ in range(8)))
            return replies, client.account

        replies, account = with_client(config(server), tmp_path / "cache", use)
        assert len(server.bodies) == 1
        assert len(set(replies)) == 1
        assert (account.paid, account.joined) == (1, 7)

    def test_two_clients_on_one_cache_pay_once(self, server, tmp_path):
        server.delay_seconds = 0.1

        async def use(client: ChatClient):
            async with ChatClient(config(server), tmp_path / "cache") as other:
                await asyncio.gather(client.chat(ask()), other.chat(ask()))
                return client.account.paid + other.account.paid, client.account.cached + other.account.cached

        assert with_client(config(server), tmp_path / "cache", use) == (1, 1)
        assert len(server.bodies) == 1

    def test_a_cancelled_caller_keeps_what_is_paid_for(self, server, tmp_path):
        server.delay_seconds = 0.1

        async def use(client: ChatClient) -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.chat(ask()), 0.05)

        with_client(config(server), tmp_path / "cache", use)
        reply = with_client(config(server), tmp_path / "cache", lambda client: client.chat(ask()))
        assert reply.cached
        assert len(server.bodies) == 1

    def test_threads_share_one_blocking_client(self, server, tmp_path):
        with BlockingChat(config(server), tmp_path / "cache", max_tokens=10) as chat:
            texts: list[str] = []
            threads = [threading.Thread(target=lambda: texts.append(chat(ask().messages))) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert texts == [json.dumps(true_scores(1))] * 4
        assert len(server.bodies) == 1

    def test_killed_at_random_moments_it_resumes_to_the_identical_result(self, server, tmp_path):
        """SIGKILL three times on one cache: at most the requests in flight at each kill are paid for again."""
        count, kills = 100, 3
        server.delay_seconds = 0.01
        rng = random.Random(20261130)
        for kill in range(kills):
            before = len(server.bodies)
            _run_and_kill(server, tmp_path, count, after=before + rng.randint(1, 16), seconds=rng.uniform(0, 0.02))
            assert len(server.bodies) > before, f"kill {kill} came before the first request"
        resumed = asyncio.run(judge_pairs(server.url, tmp_path / "cache", count))
        assert not (tmp_path / "output").exists()
        assert [dict(verdict.scores) for verdict in resumed.verdicts] == [true_scores(number) for number in range(count)]
        assert resumed.account.cached > 0
        assert resumed.account.cached + resumed.account.paid == count
        assert count <= sum(server.paid.values()) <= count + kills * CONCURRENCY
        untouched = asyncio.run(judge_pairs(server.url, tmp_path / "other", count))
        assert as_rows(resumed) == as_rows(untouched)


def _run_and_kill(server: ChatServer, folder: Path, count: int, *, after: int, seconds: float) -> None:
    driver = Path(__file__).parents[1] / "judging_driver.py"
    arguments = [server.url, folder / "cache", folder / "output", count]
    process = subprocess.Popen([sys.executable, driver, *map(str, arguments)])
    deadline = time.monotonic() + 60
    while len(server.bodies) < after and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


class TestBudget:
    # 100 prompt and 10 reply tokens as the server bills them.
    PRICES = {"prompt_price": 100.0, "completion_price": 1000.0}  # noqa: RUF012
    COST = (PROMPT_TOKENS * 100 + COMPLETION_TOKENS * 1000) / 1e6

    def test_it_stops_cleanly_keeps_what_is_paid_and_goes_on_with_more(self, server, tmp_path):
        estimate = (qa_domain().request(pairs(1)).estimated_prompt_tokens * 100 + 128 * 1000) / 1e6
        budget = estimate + 9.5 * self.COST  # the tenth request may still cost its estimate, the eleventh may not
        server.delay_seconds = 0.005
        first = judged(server, tmp_path / "cache", 30, budget=budget, **self.PRICES)
        assert first.summary.stopped_by_budget
        assert sum(server.paid.values()) == 10
        assert first.failures == {Failure.BUDGET: 20}
        assert first.account.cost == pytest.approx(10 * self.COST)
        assert "stopped by the budget" in str(first.summary)
        second = judged(server, tmp_path / "cache", 30, budget=100.0, **self.PRICES)
        assert not second.failures
        assert (second.account.cached, second.account.paid) == (10, 20)
        assert set(server.paid.values()) == {1}

    def test_it_covers_the_life_of_the_cache_not_of_the_run(self, server, tmp_path):
        settings = config(server, budget=0.05, **self.PRICES)
        with_client(settings, tmp_path / "cache", lambda client: client.chat(ask("question 1?")))
        with_client(settings, tmp_path / "cache", lambda client: client.chat(ask("question 2?")))
        with pytest.raises(BudgetExhausted):
            with_client(settings, tmp_path / "cache", lambda client: client.chat(ask("question 3?")))
        assert with_client(settings, tmp_path / "cache", lambda client: client.chat(ask("question 1?"))).cached

    def test_a_lost_reply_counts_at_its_estimate(self, server, tmp_path):
        """Nobody knows whether a request that timed out is billed; a refused one is not."""
        server.plan("question 1?", ["silence", "500"])

        async def use(client: ChatClient):
            await client.chat(ask(timeout_seconds=SHORT_SECONDS, max_retries=9))
            return client.ledger(), client.account.retries[Failure.TIMEOUT]

        ledger, lost = with_client(config(server, **self.PRICES), tmp_path / "cache", use)
        assert lost >= 1
        assert ledger.paid == pytest.approx(self.COST)
        assert ledger.unconfirmed == pytest.approx(lost * (ask().estimated_prompt_tokens * 100 + 10 * 1000) / 1e6)
        assert ledger.open == 0


class TestDialects:
    SCHEMA = Schema("score", {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]})

    def _formats(self, server: ChatServer, start: int = 0) -> list[str | None]:
        return [body.get("response_format", {}).get("type") for body in server.bodies[start:]]

    @pytest.mark.parametrize("complaint", ["response_format of type json_schema is not supported", "Bad Request"])
    def test_structured_output_is_downgraded_once_and_remembered(self, server, tmp_path, complaint):
        accepted = (None, "json_object")
        server.refuse = lambda body: None if body.get("response_format", {}).get("type") in accepted else complaint

        async def use(client: ChatClient):
            await client.chat(ask("question 1?", schema=self.SCHEMA))
            await client.chat(ask("question 2?", schema=self.SCHEMA))
            return client.account.dropped

        dropped = with_client(config(server), tmp_path / "cache", use)
        assert self._formats(server) == ["json_schema", "json_object", "json_object"]
        assert dropped == ("json_schema (uses json_object)",)
        with_client(config(server), tmp_path / "cache", lambda client: client.chat(ask("question 3?", schema=self.SCHEMA)))
        assert self._formats(server, 3) == ["json_object"]

    def test_parameters_that_an_endpoint_lacks_are_left_out_and_reported(self, server, tmp_path):
        def refuse(body: Body) -> str | None:
            if "max_completion_tokens" in body:
                return "Unsupported parameter: 'max_completion_tokens'"
            if "temperature" in body:
                return "Unsupported value: 'temperature' does not support 0.0 with this model."
            return "structured output is not available" if "response_format" in body else None

        server.refuse = refuse

        async def use(client: ChatClient):
            return await client.chat(ask(schema=self.SCHEMA)), client.account

        reply, account = with_client(config(server), tmp_path / "cache", use)
        assert reply.text == json.dumps(true_scores(1))
        assert account.dropped == ("json_schema (uses none)", "temperature")
        assert set(server.bodies[-1]) == {"model", "messages", "max_tokens"}

    def test_a_refusal_of_the_request_itself_teaches_nothing(self, server, tmp_path):
        too_long = "This model's maximum context length is 10 tokens"
        server.refuse = lambda body: too_long if "question 1?" in body["messages"][1]["content"] else None

        async def use(client: ChatClient):
            with pytest.raises(ChatError) as raised:
                await client.chat(ask("question 1?", schema=self.SCHEMA))
            await client.chat(ask("question 2?", schema=self.SCHEMA))
            return raised.value, client.account

        error, account = with_client(config(server), tmp_path / "cache", use)
        assert error.failure is Failure.REFUSED
        assert too_long in str(error)
        assert account.dropped == ()
        assert self._formats(server)[-1] == "json_schema"


class TestTheKey:
    def test_it_appears_in_no_file_log_account_or_error(self, server, tmp_path, caplog, capfd):
        """Even where the endpoint repeats it in replies, complaints and errors."""
        server.echo = ("Authorization",)
        caplog.set_level(logging.DEBUG)
        server.plan("question 2?", ["500"] * 4)
        server.refuse = lambda body: "too long" if "question 3?" in body["messages"][1]["content"] else None
        shown: list[str] = []

        async def use(client: ChatClient) -> None:
            shown.append(repr(await client.chat(ask("question 1?"))))
            for number in (2, 3):
                try:
                    await client.chat(ask(f"question {number}?"))
                except ChatError as error:
                    shown.extend((repr(error), *traceback.format_exception(error)))
            shown.extend((str(client.account), repr(client.account), repr(client)))

        with_client(config(server), tmp_path / "cache", use)
        shown.extend((caplog.text, *capfd.readouterr()))
        assert "[key]" in shown[0]
        assert any("HTTP 500" in text for text in shown)
        assert not [text for text in shown if KEY in text]
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if KEY.encode() in path.read_bytes()]

    @pytest.mark.parametrize("key", ["sk-one\nX-Header: two", "sk-ключ", "two words"])
    def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(self, server, tmp_path, monkeypatch, key):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(ArmorError) as raised:
            ChatClient(config(server), tmp_path / "cache")
        assert key not in str(raised.value)


class TestWithoutAnEndpoint:
    @pytest.mark.parametrize("settings", [JudgeConfig(), JudgeConfig(model="tiny"), JudgeConfig(base_url="http://127.0.0.1:1/v1")])
    def test_the_stand_in_judges_and_says_so(self, tmp_path, monkeypatch, caplog, settings):
        monkeypatch.delenv("OPENAI_API_KEY")
        judgement = run_judge(qa_domain(), pairs(2), settings, tmp_path / "cache")
        assert judgement.by == "keywords"
        assert {verdict.judge for verdict in judgement.verdicts} == {"keywords"}
        assert judgement.summary.as_dict()["by"] == "keywords"
        assert "no model judged" in str(judgement.summary)
        assert "judged by keywords" in caplog.text
        assert not (tmp_path / "cache").exists()

    def test_a_base_url_needs_no_key(self, server, tmp_path, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY")
        assert run_judge(qa_domain(), pairs(2), config(server), tmp_path / "cache").by == "tiny"

    def test_a_file_that_is_no_cache_is_refused(self, server, tmp_path):
        (tmp_path / "cache").write_text("not a database, and longer than the sixteen bytes of a header")
        with pytest.raises(ArmorError, match="not a usable cache"):
            ReplyCache(tmp_path / "cache")
