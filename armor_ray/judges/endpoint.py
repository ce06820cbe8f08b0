"""One attempt at one request, through the `openai` package; every way it can fail comes out as a class of ours.

The key is read from the environment, sent, and kept out of everything else: messages that may repeat it are redacted, and the client
library's exceptions, which hold the request, never leave this module.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import openai

from armor_ray.config import JudgeConfig
from armor_ray.errors import ArmorError
from armor_ray.judges.dialect import Dialect
from armor_ray.judges.failures import ChatError, Failure
from armor_ray.judges.request import ChatRequest, Reply, estimate_tokens
from armor_ray.models.api_key import OPENAI_URL, ApiKey

_CLASSES = {408: Failure.TIMEOUT, 409: Failure.CONFLICT, 429: Failure.RATE_LIMIT}
_NOT_IMPLEMENTED = 501
_COMPLAINT_CHARACTERS = 300


def has_endpoint(config: JudgeConfig) -> bool:
    """Whether the config and the environment together name something that can judge: a model, and a base URL or a key."""
    return config.model is not None and (config.base_url is not None or not ApiKey.read(config.key_variable).missing)


class Endpoint:
    """A model behind an OpenAI-compatible URL.

    Raises:
        ArmorError: no model is named, OpenAI's own endpoint without a key, or a key that no HTTP header can hold.
    """

    def __init__(self, config: JudgeConfig) -> None:
        if config.model is None:
            raise ArmorError("no model is named", where="judge.model", hint="set it to a model of the endpoint")
        self.model = config.model
        self._key_variable = config.key_variable
        self._key = _read_key(config)
        # Its own retries are off: they would be invisible to accounts, budget and rate limits.
        self._client = openai.AsyncOpenAI(api_key=self._key.value, base_url=config.base_url or OPENAI_URL, max_retries=0)
        self.url = str(self._client.base_url)

    async def send(self, request: ChatRequest, dialect: Dialect) -> Reply:
        """One attempt, sent at once.

        Raises:
            ChatError: it failed; `REFUSED` carries the endpoint's complaint as its message.
            ArmorError: no request can succeed (wrong key, unknown model, no quota).
        """
        try:
            # The library's time-out is one of silence; a reply that drips in byte by byte would never meet it.
            async with asyncio.timeout(request.timeout_seconds):
                completion = await self._client.chat.completions.create(
                    model=self.model, timeout=request.timeout_seconds, **dialect.parameters(request)
                )
        except (TimeoutError, openai.APITimeoutError):
            raise ChatError(Failure.TIMEOUT, f"no reply within {request.timeout_seconds:g} s") from None
        except openai.APIConnectionError as error:
            raise ChatError(Failure.CONNECTION, type(error.__cause__ or error).__name__) from None
        except openai.APIStatusError as error:
            raise self._status_error(error) from None
        except (openai.OpenAIError, ValueError) as error:
            raise ChatError(Failure.MALFORMED, f"the body is not a chat completion ({type(error).__name__})") from None
        return self._reply(completion, request)

    async def close(self) -> None:
        await self._client.close()

    def _status_error(self, error: openai.APIStatusError) -> Exception:
        status = error.status_code
        if status in {401, 403}:
            # The body often repeats (part of) the key; it tells nothing more.
            return ArmorError(f"the endpoint refused the key (HTTP {status})", where=self.url, hint=f"check {self._key_variable}")
        complaint = self._key.redact(" ".join(f"{error.message} {error.param or ''}".split()))[:_COMPLAINT_CHARACTERS]
        if status == 404:
            return ArmorError(
                f"the endpoint knows no model '{self.model}' ({complaint})", where=self.url, hint="check judge.model, base_url"
            )
        if status == 402 or error.code == "insufficient_quota":
            return ArmorError(f"the account has no quota left (HTTP {status})", where=self.url, hint="paid replies are kept; rerun later")
        if status in _CLASSES or (status >= 500 and status != _NOT_IMPLEMENTED):
            failure = _CLASSES.get(status, Failure.SERVER)
            return ChatError(failure, f"HTTP {status} ({complaint})", retry_after=_retry_after(error.response.headers))
        return ChatError(Failure.REFUSED, f"HTTP {status} ({complaint})")

    def _reply(self, completion: Any, request: ChatRequest) -> Reply:
        # The library does not validate what it parses: a proxy's error page comes back as a string, a wrong body as half a model.
        try:
            choice = completion.choices[0]
            # Half a surrogate pair can be written in JSON, but in no file.
            text = (choice.message.content or "").encode("utf-8", "replace").decode()
            finish_reason = choice.finish_reason
        except (AttributeError, IndexError, KeyError, TypeError):
            raise ChatError(Failure.MALFORMED, "the body is not a chat completion") from None
        if getattr(choice.message, "refusal", None) and not text:
            finish_reason = "content_filter"
        prompt, written = _usage(completion)
        return Reply(
            text=self._key.redact(text),
            finish_reason=finish_reason if isinstance(finish_reason, str) else None,
            prompt_tokens=request.estimated_prompt_tokens if prompt is None else prompt,
            completion_tokens=estimate_tokens([{"content": text}]) if written is None else written,
        )


def _read_key(config: JudgeConfig) -> ApiKey:
    key = ApiKey.read(config.key_variable)
    if key.missing and config.base_url is None:
        raise ArmorError(f"{config.key_variable} is not set", where="judge", hint="set it, or set judge.base_url")
    return key


def _usage(completion: Any) -> tuple[int | None, int | None]:
    usage = getattr(completion, "usage", None)
    counts = (getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None))
    prompt, written = (count if isinstance(count, int) and count >= 0 else None for count in counts)
    return prompt, written


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds ≥ 0 from `retry-after-ms`, or from `Retry-After` as seconds or as a date; None when absent or unreadable."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            return max(0.0, float(value) * scale)
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            continue
    return None
