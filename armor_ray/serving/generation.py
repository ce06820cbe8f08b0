"""Answers from passages by any OpenAI-compatible chat endpoint, piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from typing import Any, TypeVar

import openai
from openai.types.chat import ChatCompletionMessageParam
from starlette.exceptions import HTTPException

from armor_ray.models.api_key import ApiKey
from armor_ray.serving.arguments import GeneratorArguments
from armor_ray.serving.schemas import Passage

Result = TypeVar("Result")

_RETRY_AFTER = {"Retry-After": "5"}
_BUSY = {408, 429, 503}
_CITATION = re.compile(r"\[(\d{1,18})\]")
_INSTRUCTION = (
    "Answer the question from the passages alone, in a few sentences. Put the id of each passage that you use behind the "
    "statement, in square brackets, like [17]. If the passages do not hold the answer, say that they do not."
)


class Generator:
    """Asks the endpoint; failures of the endpoint become HTTP errors of ours that repeat nothing it said.

    Raises:
        ArmorError: a key that no HTTP header can hold.
    """

    def __init__(self, arguments: GeneratorArguments) -> None:
        self._arguments = arguments
        key = ApiKey.read(arguments.api_key_env)
        self._client = openai.AsyncOpenAI(base_url=arguments.base_url, api_key=key.value, timeout=arguments.timeout_seconds, max_retries=0)
        self._running = 0

    @property
    def model(self) -> str:
        return self._arguments.model

    async def stream(self, question: str, passages: Sequence[Passage]) -> AsyncGenerator[str]:
        """The answer's pieces as they come.

        Raises:
            HTTPException: 502 when the endpoint fails or cannot be reached, 503 when it is busy or too slow, or when as many answers are
                under way as may be.
        """
        if self._running >= self._arguments.max_concurrent:
            raise HTTPException(503, f"{self._running} answers are being written already", _RETRY_AFTER)
        self._running += 1
        deadline = time.monotonic() + self._arguments.timeout_seconds
        empty = True
        try:
            with _upstream_errors(self._arguments.timeout_seconds):
                chunks = await _before(deadline, self._client.chat.completions.create(**self._request(question, passages)))
                async with chunks:
                    pieces = aiter(chunks)
                    while (chunk := await _before(deadline, anext(pieces, None))) is not None:
                        if chunk.choices and (text := chunk.choices[0].delta.content):
                            empty = False
                            yield text
        finally:
            self._running -= 1
        if empty:
            raise HTTPException(502, "the generator's answer is empty or cannot be read")

    def _request(self, question: str, passages: Sequence[Passage]) -> dict[str, Any]:
        listed = "\n\n".join(f"[{passage.passage_id}] {passage.title}\n{passage.text}" for passage in passages)
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": _INSTRUCTION},
            {"role": "user", "content": f"Passages:\n\n{listed}\n\nQuestion: {question}"},
        ]
        sampling = {"max_tokens": self._arguments.max_tokens, "temperature": self._arguments.temperature}
        return {"model": self.model, "messages": messages, "stream": True, **sampling}


def citations(answer: str, passages: Sequence[Passage]) -> list[int]:
    """Ids of the passages that the answer cites, in the order of their first mention; ids that were not given count for nothing."""
    given = {passage.passage_id for passage in passages}
    return [cited for cited in dict.fromkeys(int(match) for match in _CITATION.findall(answer)) if cited in given]


async def _before(deadline: float, awaitable: Awaitable[Result]) -> Result:
    # Not around the whole stream: its pieces may be awaited by other tasks than the first.
    async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
        return await awaitable


@contextlib.contextmanager
def _upstream_errors(seconds: float) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, openai.APITimeoutError):
        raise HTTPException(503, f"the generator took longer than {seconds:g} s", _RETRY_AFTER) from None
    except openai.APIStatusError as error:
        if error.status_code in _BUSY:
            raise HTTPException(503, f"the generator is busy (HTTP {error.status_code})", _RETRY_AFTER) from None
        raise HTTPException(502, f"the generator refused (HTTP {error.status_code})") from None
    except openai.APIConnectionError:
        raise HTTPException(502, "the generator cannot be reached") from None
    except (openai.OpenAIError, ValueError):
        raise HTTPException(502, "the generator's answer cannot be read") from None
