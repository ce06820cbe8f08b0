"""`chat(messages) -> str` for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from armor_ray.config import JudgeConfig
from armor_ray.judges.client import ChatClient
from armor_ray.judges.request import ChatRequest, Message


class BlockingChat:
    """A `ChatClient` on an event loop in a thread of its own. Call it from any number of threads; use as a context manager.

        with BlockingChat(config.judge, Path("cache/judges.sqlite"), max_tokens=64) as chat:
            text = chat([{"role": "user", "content": "..."}])

    Args:
        max_tokens: upper limit of each reply.
        temperature, timeout_seconds, max_retries: as in `ChatRequest`.

    Raises:
        ArmorError: see `ChatClient`.
    """

    def __init__(
        self,
        config: JudgeConfig,
        cache: Path,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        timeout_seconds: float = 60.0,
        max_retries: int = 3,
    ) -> None:
        self.client = ChatClient(config, cache)
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._timeout_seconds = timeout_seconds
        self._max_retries = max_retries
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="armor-chat", daemon=True)
        self._thread.start()

    def __call__(self, messages: Sequence[Message]) -> str:
        """The reply's text.

        Raises:
            ChatError, ArmorError: see `ChatClient.chat`.
        """
        request = ChatRequest(
            messages=tuple(messages),
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            timeout_seconds=self._timeout_seconds,
            max_retries=self._max_retries,
        )
        return asyncio.run_coroutine_threadsafe(self.client.chat(request), self._loop).result().text

    def close(self) -> None:
        """Waits for requests under way."""
        asyncio.run_coroutine_threadsafe(self.client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> BlockingChat:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
