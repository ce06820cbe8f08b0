"""The one way to ask an LLM: cached, counted, paced, retried, and within a budget.

    async with ChatClient(config.judge, Path("cache/judges.sqlite")) as client:
        reply = await client.chat(ChatRequest(messages=({"role": "user", "content": "..."},), max_tokens=32))
        print(client.account)

Nothing is paid for twice: a request equal to one answered before comes from the cache, one equal to a request under way (in this client
or in another process on the same cache) waits for that one.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import TracebackType

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from armor_ray.config import JudgeConfig
from armor_ray.errors import ArmorError
from armor_ray.judges.accounting import Account
from armor_ray.judges.cache import Ledger, ReplyCache
from armor_ray.judges.claims import Claims
from armor_ray.judges.dialect import Dialect, common
from armor_ray.judges.endpoint import Endpoint
from armor_ray.judges.failures import TRANSIENT, UNCONFIRMED, BudgetExhausted, ChatError, Failure
from armor_ray.judges.pacing import Pacer
from armor_ray.judges.request import ChatRequest, Reply

_log = logging.getLogger(__name__)

_MAX_BACKOFF_SECONDS = 60.0
# Longer waits are a matter of hours or days (a daily quota): give up and let the user decide.
_MAX_RETRY_AFTER_SECONDS = 300.0
_MAX_FAILURES_IN_A_ROW = 20
_MILLION = 1e6


class ChatClient:
    """An endpoint with its cache, for one event loop. Use as an async context manager.

    Args:
        config: endpoint, rates, prices and budget.
        cache: file of paid replies on a local disk.
        backoff_seconds: the first retry waits up to this long, the next up to twice as long, … (full jitter, at most a minute); what an
            endpoint asks for in Retry-After holds on top, for all requests.

    Raises:
        ArmorError: see `Endpoint` and `ReplyCache`.
    """

    def __init__(self, config: JudgeConfig, cache: Path, *, backoff_seconds: float = 1.0) -> None:
        self.account = Account()
        self._config = config
        self._backoff_seconds = backoff_seconds
        self._endpoint = Endpoint(config)
        self._cache = ReplyCache(cache)
        self._claims = Claims(cache.with_name(f"{cache.name}.lock"))
        self._pacer = Pacer(config.concurrency, config.requests_per_minute, config.tokens_per_minute)
        self._under_way: dict[bytes, asyncio.Task[Reply]] = {}
        self._failures_in_a_row = 0
        self._dialect = self._remembered_dialect()

    @property
    def name(self) -> str:
        """The judge's name in manifests and reports."""
        return self._endpoint.model

    def ledger(self) -> Ledger:
        """Money over the cache's life, other runs included."""
        return self._cache.ledger()

    async def chat(self, request: ChatRequest) -> Reply:
        """The endpoint's reply, from the cache where it was paid for before.

        Cancelling the caller does not cancel a request that is under way: its reply is kept.

        Raises:
            BudgetExhausted: the request was not sent.
            ChatError: it failed for good, by its class; nothing is cached, a rerun asks again.
            ArmorError: no request can succeed (key, model, quota), or twenty in a row did not.
        """
        fingerprint = request.fingerprint(self._endpoint.url, self._endpoint.model)
        task = self._under_way.get(fingerprint)
        if task is not None:
            self.account.joined += 1
            return await asyncio.shield(task)
        cached = self._cached(fingerprint)
        if cached is not None:
            return cached
        task = asyncio.create_task(self._fetch(request, fingerprint))
        self._under_way[fingerprint] = task
        task.add_done_callback(lambda done: self._landed(fingerprint, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Waits for the requests under way, since they are paid for, and closes the files."""
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        await self._endpoint.close()
        self._claims.close()
        self._cache.close()

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # -- one request, however many attempts -------------------------------------------------------------------------------------

    def _cached(self, fingerprint: bytes) -> Reply | None:
        reply = self._cache.get(fingerprint)
        if reply is not None:
            self.account.cached += 1
        return reply

    def _landed(self, fingerprint: bytes, task: asyncio.Task[Reply]) -> None:
        del self._under_way[fingerprint]
        if not task.cancelled():
            task.exception()  # marks it as seen: everyone who waited for it may have been cancelled

    async def _fetch(self, request: ChatRequest, fingerprint: bytes) -> Reply:
        async with self._claims.hold(fingerprint):
            # Another process may have paid for it while we waited.
            cached = self._cached(fingerprint)
            if cached is not None:
                return cached
            try:
                reply: Reply = await self._retrying(request)(self._negotiate, request, fingerprint)
            except ChatError as error:
                self._count_failure(error)
                raise
        self._failures_in_a_row = 0
        return reply

    def _retrying(self, request: ChatRequest) -> AsyncRetrying:
        return AsyncRetrying(
            retry=retry_if_exception(_is_worth_retrying),
            stop=stop_after_attempt(1 + request.max_retries),
            wait=wait_random_exponential(multiplier=self._backoff_seconds, max=_MAX_BACKOFF_SECONDS),
            before_sleep=self._count_retry,
            reraise=True,
        )

    def _count_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, ChatError)
        self.account.retries[error.failure] += 1
        _log.info("attempt %d failed, trying again: %s", state.attempt_number, error)

    def _count_failure(self, error: ChatError) -> None:
        self.account.failures[error.failure] += 1
        if error.failure not in TRANSIENT:
            return
        _log.warning("a request failed for good: %s", error)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            message = f"{_MAX_FAILURES_IN_A_ROW} requests in a row failed, the last with {error}"
            raise ArmorError(message, where=self._endpoint.url, hint="paid replies are kept; rerun when the endpoint works") from None

    async def _negotiate(self, request: ChatRequest, fingerprint: bytes) -> Reply:
        """Sends a request in the wording that this endpoint is known to take, or finds one that it takes and remembers it."""
        tried: list[Dialect] = []
        todo = [self._dialect]
        while True:
            dialect = todo.pop(0)
            tried.append(dialect)
            try:
                reply = await self._attempt(request, fingerprint, dialect)
            except ChatError as error:
                if error.failure is not Failure.REFUSED:
                    raise
                todo = [option for option in (*dialect.weaker(error.message, request), *todo) if option not in tried]
                if not todo:
                    raise
            else:
                self._remember(dialect)
                return reply

    # -- one attempt ------------------------------------------------------------------------------------------------------------

    async def _attempt(self, request: ChatRequest, fingerprint: bytes, dialect: Dialect) -> Reply:
        prompt_tokens = request.estimated_prompt_tokens
        async with self._pacer.turn(prompt_tokens + request.max_tokens):
            attempt = self._open_attempt(fingerprint, self._cost(prompt_tokens, request.max_tokens))
            try:
                reply = await self._endpoint.send(request, dialect)
            except BaseException as error:
                billed = not isinstance(error, ArmorError) and not (isinstance(error, ChatError) and error.failure not in UNCONFIRMED)
                self._cache.release(attempt, unconfirmed=billed)
                self._pause(error)
                raise
            cost = self._cost(reply.prompt_tokens, reply.completion_tokens)
            self._cache.settle(attempt, fingerprint, reply, cost)
        self._count_paid(reply, cost)
        return reply

    def _open_attempt(self, fingerprint: bytes, estimate: float) -> int:
        attempt = self._cache.open_attempt(fingerprint, estimate, self._config.budget)
        if attempt is None:
            spent = self.ledger()
            raise BudgetExhausted(
                f"{spent.committed:.4f} of {self._config.budget:g} is spent or under way, this request may cost {estimate:.4f}"
            )
        return attempt

    def _pause(self, error: BaseException) -> None:
        if isinstance(error, ChatError) and error.retry_after is not None and _is_worth_retrying(error):
            self._pacer.pause(error.retry_after)

    def _count_paid(self, reply: Reply, cost: float) -> None:
        self.account.paid += 1
        self.account.prompt_tokens += reply.prompt_tokens
        self.account.completion_tokens += reply.completion_tokens
        self.account.cost += cost

    def _cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        prices = (self._config.prompt_price or 0.0, self._config.completion_price or 0.0)
        return (prompt_tokens * prices[0] + completion_tokens * prices[1]) / _MILLION

    # -- the endpoint's dialect -------------------------------------------------------------------------------------------------

    @property
    def _dialect_key(self) -> str:
        return f"{self._endpoint.url} {self._endpoint.model}"

    def _remembered_dialect(self) -> Dialect:
        known = self._cache.dialect(self._dialect_key)
        dialect = Dialect.from_json(known) if known else Dialect()
        self.account.dropped = dialect.dropped()
        return dialect

    def _remember(self, dialect: Dialect) -> None:
        agreed = common(self._dialect, dialect)
        if agreed == self._dialect:
            return
        self._dialect = agreed
        self._cache.remember_dialect(self._dialect_key, agreed.to_json())
        self.account.dropped = agreed.dropped()
        _log.warning("%s takes another wording; not sent from now on: %s", self._endpoint.url, ", ".join(agreed.dropped()) or "nothing")


def _is_worth_retrying(error: BaseException) -> bool:
    return isinstance(error, ChatError) and error.failure in TRANSIENT and (error.retry_after or 0.0) <= _MAX_RETRY_AFTER_SECONDS
