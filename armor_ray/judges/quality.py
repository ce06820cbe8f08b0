"""Is a generated question-answer pair worth training on? (ARMOR, appendix A.5: generated example quality judge)"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from armor_ray.judges.domain import Domain
from armor_ray.judges.judge import Judge
from armor_ray.judges.keywords import KeywordScorer
from armor_ray.judges.parsing import Reading, read_score
from armor_ray.judges.reading import entry_readings, flag, list_schema
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.templates import render_messages
from armor_ray.judges.verdicts import LEXICAL

_FIELDS = {"keep": "boolean", "answerable_without_context": "boolean", "technical": "number", "clarity": "number"}
_READERS = {"keep": flag, "answerable_without_context": flag, "technical": read_score, "clarity": read_score}

# Words that point at a text which the reader of the question does not have.
_POINTS_AT_CONTEXT = re.compile(
    r"\b(?:(?:this|the|above|following|given|provided)"
    r" (?:passage|text|document|section|paper|article|context|excerpt|paragraph|authors?|study)"
    r"|(?:in|from|see|the|this) (?:figure|table|equation|clause)"
    r"|(?:mentioned|described|shown|listed) (?:above|below|here))\b",
    re.IGNORECASE,
)
_MIN_QUESTION_WORDS, _MAX_QUESTION_WORDS, _MAX_ANSWER_WORDS = 4, 60, 150


@dataclass(frozen=True, slots=True)
class GeneratedExample:
    """A question and answer written from a passage."""

    question: str
    answer: str
    passage: str


@dataclass(frozen=True)
class ExampleQuality(Judge[GeneratedExample]):
    """Flags `keep` and `answerable_without_context`, scores `technical` and `clarity`; kept when both flags hold and both scores pass."""

    name = "example_quality"
    stand_in = LEXICAL

    domain: Domain
    technical_threshold: float = 0.70
    clarity_threshold: float = 0.70
    batch_size: int = 20
    passage_characters: int = 1800
    temperature: float = 0.2
    top_p: float = 0.9
    max_tokens: int = 900
    timeout_seconds: float = 120.0
    max_retries: int = 6

    def batches(self, items: Sequence[GeneratedExample]) -> Iterator[Sequence[int]]:
        return (range(start, min(start + self.batch_size, len(items))) for start in range(0, len(items), self.batch_size))

    def request(self, batch: Sequence[GeneratedExample]) -> ChatRequest:
        messages = render_messages(self.name, domain=self.domain, examples=batch, passage_characters=self.passage_characters)
        schema = list_schema("example_quality", "examples", {"example": "integer", **_FIELDS}, len(batch), len(batch))
        return ChatRequest(messages, self.max_tokens, self.temperature, self.top_p, schema, self.timeout_seconds, self.max_retries)

    def read(self, reply: Reply, batch: Sequence[GeneratedExample]) -> list[Reading | None]:
        return entry_readings(reply, "examples", "example", len(batch), _READERS)

    def stand_in_scores(self, item: GeneratedExample) -> dict[str, float]:
        """Keywords for `technical`; halved `clarity` for each fault of form; no words that point at a missing context."""
        return {
            "keep": float(bool(item.answer.strip()) and item.answer.strip().casefold() != item.question.strip().casefold()),
            "answerable_without_context": float(_POINTS_AT_CONTEXT.search(item.question) is None),
            "technical": self._keywords.score(f"{item.question}\n{item.answer}\n{item.passage}"),
            "clarity": 2.0 ** -_faults_of_form(item),
        }

    def keep(self, items: Sequence[GeneratedExample], scores: Sequence[dict[str, float]]) -> list[bool]:
        return [bool(given) and self._passes(given) for given in scores]

    def _passes(self, given: dict[str, float]) -> bool:
        flags = given["keep"] == 1.0 and given["answerable_without_context"] == 1.0
        return flags and given["technical"] >= self.technical_threshold and given["clarity"] >= self.clarity_threshold

    @cached_property
    def _keywords(self) -> KeywordScorer:
        return KeywordScorer(self.domain)


def _faults_of_form(item: GeneratedExample) -> int:
    words = len(item.question.split())
    return sum(
        (
            not item.question.rstrip().endswith("?"),
            not _MIN_QUESTION_WORDS <= words <= _MAX_QUESTION_WORDS,
            len(item.answer.split()) > _MAX_ANSWER_WORDS,
        )
    )
