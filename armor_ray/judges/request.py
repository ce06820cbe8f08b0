"""What is asked of a chat endpoint and what comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, str]

# Bytes of UTF-8 a token: common tokenizers take about 4 of English prose, fewer of tables and formulas. Estimates lean to the high side.
_BYTES_PER_TOKEN = 3
_TOKENS_PER_MESSAGE = 8


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON schema that the reply must follow, where the endpoint can enforce one."""

    name: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat completion.

    Attributes:
        messages: `{"role", "content"}` mappings.
        max_tokens: upper limit of the reply.
        temperature: ≥ 0; 0 asks for the most likely reply.
        top_p: nucleus in (0, 1]; None leaves the endpoint's own.
        schema: of the reply; None asks for plain text.
        timeout_seconds: of one attempt, from sending to the last byte.
        max_retries: attempts after the first one that failed in a transient way.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float | None = None
    schema: Schema | None = None
    timeout_seconds: float = 60.0
    max_retries: int = 3

    def fingerprint(self, endpoint: str, model: str) -> bytes:
        """32 bytes that name everything the reply depends on; time-out and retries are not part of it."""
        asked = [endpoint, model, list(map(dict, self.messages)), self.max_tokens, self.temperature, self.top_p]
        schema = [self.schema.name, self.schema.definition] if self.schema else None
        return hashlib.sha256(json.dumps([*asked, schema], sort_keys=True).encode()).digest()

    @property
    def estimated_prompt_tokens(self) -> int:
        """An upper guess, made without the model's tokenizer."""
        return estimate_tokens(self.messages)

    def followed_by(self, reply: str, reminder: str) -> ChatRequest:
        """The same request after a reply that could not be read, with a reminder of the format."""
        more = ({"role": "assistant", "content": reply}, {"role": "user", "content": reminder})
        return ChatRequest(
            (*self.messages, *more), self.max_tokens, self.temperature, self.top_p, self.schema, self.timeout_seconds, self.max_retries
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What the endpoint answered.

    Attributes:
        text: of the first choice.
        finish_reason: `stop`, `length` (cut at `max_tokens`), …; None where the endpoint does not say.
        prompt_tokens, completion_tokens: as billed; estimated where the endpoint sends no usage.
        cached: it was paid for earlier.
    """

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cached: bool = False


def estimate_tokens(messages: Sequence[Message]) -> int:
    """Tokens of a prompt, estimated from its bytes."""
    return sum(_TOKENS_PER_MESSAGE + -(-len(message["content"].encode("utf-8", "replace")) // _BYTES_PER_TOKEN) for message in messages)
