"""Which parameters an endpoint takes. All "compatible" endpoints differ; what one refuses is dropped, remembered and reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from armor_ray.judges.request import ChatRequest

Structure = Literal["json_schema", "json_object", "none"]

_WEAKER: dict[Structure, Structure] = {"json_schema": "json_object", "json_object": "none"}
_STRUCTURE_WORDS = ("response_format", "json_schema", "json_object", "structured", "guided")
_LIMIT_WORDS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests are worded for one endpoint and model.

    Attributes:
        structure: strongest form of structured output to ask for.
        limit: name of the reply's token limit. OpenAI's own models take only the newer one, older compatible servers only the older.
        temperature, top_p: whether the parameter is sent; reasoning models refuse them.
    """

    structure: Structure = "json_schema"
    limit: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    temperature: bool = True
    top_p: bool = True

    def parameters(self, request: ChatRequest) -> dict[str, Any]:
        """Arguments of `chat.completions.create`, without the model."""
        values: dict[str, Any] = {"messages": [dict(message) for message in request.messages], self.limit: request.max_tokens}
        if self.temperature:
            values["temperature"] = request.temperature
        if self.top_p and request.top_p is not None:
            values["top_p"] = request.top_p
        if request.schema is not None and self.structure == "json_schema":
            schema = {"name": request.schema.name, "schema": dict(request.schema.definition), "strict": True}
            values["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif request.schema is not None and self.structure == "json_object":
            values["response_format"] = {"type": "json_object"}
        return values

    def weaker(self, complaint: str, request: ChatRequest) -> Iterator[Dialect]:
        """Dialects to try after the endpoint refused this one with `complaint`, likeliest first.

        A complaint that names no parameter may still be about the response format, so that one is tried as well.
        """
        complaint = complaint.lower()
        sends_structure = request.schema is not None and self.structure in _WEAKER
        if sends_structure and any(word in complaint for word in _STRUCTURE_WORDS):
            yield replace(self, structure=_WEAKER[self.structure])
        if any(word in complaint for word in _LIMIT_WORDS):
            yield replace(self, limit="max_tokens" if self.limit == "max_completion_tokens" else "max_completion_tokens")
        if self.temperature and "temperature" in complaint:
            yield replace(self, temperature=False)
        if self.top_p and request.top_p is not None and "top_p" in complaint:
            yield replace(self, top_p=False)
        if sends_structure:
            yield replace(self, structure=_WEAKER[self.structure])

    def dropped(self) -> tuple[str, ...]:
        """What is not sent as asked; the token limit's other name is the same thing."""
        missing = [] if self.structure == "json_schema" else [f"json_schema (uses {self.structure})"]
        return (*missing, *(name for name in ("temperature", "top_p") if not getattr(self, name)))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Dialect:
        return cls(**json.loads(text))


def common(known: Dialect, found: Dialect) -> Dialect:
    """The strongest dialect that asks for nothing which either of two had to leave out; requests under way find refusals separately."""
    return Dialect(
        structure=max(known.structure, found.structure, key=list(get_args(Structure)).index),
        limit=found.limit,
        temperature=known.temperature and found.temperature,
        top_p=known.top_p and found.top_p,
    )
