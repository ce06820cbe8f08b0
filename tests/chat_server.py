"""An OpenAI-compatible endpoint of the tests' own, which misbehaves exactly as told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from aiohttp import web

Body = dict[str, Any]
PROMPT_TOKENS, COMPLETION_TOKENS = 100, 10

# HTTP errors: the endpoint answers, and bills nothing.
HTTP_FAULTS = {"408": 408, "409": 409, "429": 429, "429 with a date": 429, "500": 500, "503": 503}
# The connection fails in some way after the request was taken.
SLOW_FAULTS = {"silence", "drip"}
WIRE_FAULTS = (*sorted(SLOW_FAULTS), "reset", "html", "half a body", "no choices")
CUT_STREAM = "cut stream"
# HTTP 200 with a reply that holds no judgement: paid for.
REPLY_FAULTS: dict[str, Callable[[str], tuple[str, str]]] = {
    "cut": lambda text: (text[: len(text) // 2], "length"),
    "nan": lambda text: ('{"isac": NaN, "jcc": NaN, "sagin": NaN}', "stop"),
    "chatter": lambda text: ("I would rather not say.", "stop"),
    "empty": lambda text: ("", "stop"),
}
# HTTP 200 with the judgement in a form that was not asked for.
FORM_FAULTS: dict[str, Callable[[str], tuple[str, str]]] = {
    "prose": lambda text: (f"Sure! Here are the scores you asked for: {text}. Anything else?", "stop"),
    "fence": lambda text: (f"```json\n{text}\n```", "stop"),
    "thoughts": lambda text: (f"<think>Perhaps {{}} or 0.1?</think>\n{text}", "stop"),
}


@dataclass
class ChatServer:
    """Serves on a free loopback port while used as a context manager.

    Attributes:
        answer: the text for a request.
        faults: per first user message, the faults of its next requests.
        refuse: a complaint about a request (HTTP 400), or None.
        echo: headers that error bodies and replies repeat, as careless servers do.
        paid: requests with an HTTP 200 reply, per first user message.
        bodies: every request, in order of arrival; `times` their arrival (monotonic seconds).
        most_at_once: requests under way at the same moment.
    """

    answer: Callable[[Body], str]
    delay_seconds: float = 0.0
    refuse: Callable[[Body], str | None] = lambda body: None
    echo: tuple[str, ...] = ()
    retry_after_seconds: float = 0.0
    faults: dict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))
    paid: Counter[str] = field(default_factory=Counter)
    bodies: list[Body] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def plan(self, prompt: str, faults: Iterable[str]) -> None:
        """The next requests with this first user message meet these faults, one after the other."""
        self.faults[prompt].extend(faults)

    def __enter__(self) -> ChatServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner, self._port = self._await(self._start())
        return self

    def __exit__(self, *error: object) -> None:
        self._await(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    async def _start(self) -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self._respond(request, await request.json())
        finally:
            self._at_once -= 1

    async def _respond(self, request: web.Request, body: Body) -> web.StreamResponse:
        self.bodies.append(body)
        self.times.append(time.monotonic())
        echoed = " ".join(request.headers[name] for name in self.echo)
        complaint = self.refuse(body)
        if complaint is not None:
            return web.json_response({"error": {"message": f"{complaint} {echoed}"}}, status=400)
        prompt = first_user_message(body)
        fault = self.faults[prompt].popleft() if self.faults[prompt] else None
        if fault in HTTP_FAULTS:
            return self._http_fault(fault, echoed)
        if fault in WIRE_FAULTS:
            return await self._wire_fault(fault, request)
        await asyncio.sleep(self.delay_seconds)
        self.paid[prompt] += 1
        text, finish_reason = {**REPLY_FAULTS, **FORM_FAULTS}.get(fault or "", lambda text: (text, "stop"))(self.answer(body))
        if body.get("stream"):
            return await self._stream(request, text, cut=fault == CUT_STREAM)
        return web.json_response(completion(text + echoed, finish_reason))

    async def _stream(self, request: web.Request, text: str, cut: bool) -> web.StreamResponse:
        """The text word by word as server-sent events; the connection breaks after the first word when `cut`."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in text.split(" "):
            delta = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "tiny"}
            choices = [{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}]
            await response.write(f"data: {json.dumps({**delta, 'choices': choices})}\n\n".encode())
            if cut and request.transport is not None:
                request.transport.close()  # what was written still arrives, on however busy a machine; its end never does
                return response
        await response.write(b"data: [DONE]\n\n")
        return response

    def _http_fault(self, fault: str, echoed: str) -> web.Response:
        headers = {"Retry-After": str(self.retry_after_seconds)} if fault.startswith("429") else {}
        if fault.endswith("date"):
            headers["Retry-After"] = formatdate(time.time() - 5, usegmt=True)
        return web.json_response({"error": {"message": f"no {echoed}"}}, status=HTTP_FAULTS[fault], headers=headers)

    async def _wire_fault(self, fault: str, request: web.Request) -> web.StreamResponse:
        if fault == "silence":
            await asyncio.sleep(5)
        elif fault == "drip":
            return await self._drip(request)
        elif fault == "reset" and request.transport is not None:
            request.transport.abort()
        elif fault == "html":
            return web.Response(text="<html>Bad gateway, but politely</html>", content_type="text/html")
        elif fault == "half a body":
            return web.Response(text=json.dumps(completion("0.5", "stop"))[:40], content_type="application/json")
        return web.json_response({"id": "x", "object": "chat.completion", "choices": []})

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        """A byte now and then: the connection is never silent for long, the reply never complete."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the client gave up
            for _ in range(100):
                await response.write(b" ")
                await asyncio.sleep(0.05)
        return response


def first_user_message(body: Body) -> str:
    return next(message["content"] for message in body["messages"] if message["role"] == "user")


def completion(text: str, finish_reason: str) -> Body:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [choice], "usage": usage}
