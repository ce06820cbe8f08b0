"""Is a multiple-choice question about the domain? (ARMOR, appendix A.5: TeleQnA domain relevance confidence judge)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from armor_ray.judges.domain import Domain
from armor_ray.judges.judge import Judge
from armor_ray.judges.keywords import KeywordScorer
from armor_ray.judges.parsing import Reading
from armor_ray.judges.reading import number_reading
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.templates import render_messages
from armor_ray.judges.verdicts import KEYWORDS


@dataclass(frozen=True, slots=True)
class MultipleChoice:
    """A TeleQnA item; `answer` is the text of the right option, `explanation` may be empty."""

    question: str
    options: tuple[str, ...]
    answer: str
    explanation: str


@dataclass(frozen=True)
class TeleQnADomain(Judge[MultipleChoice]):
    """Score `confidence`; kept from `threshold` on (0.70; the paper's later split wrapper used 0.75)."""

    name = "teleqna_domain"
    stand_in = KEYWORDS

    domain: Domain
    threshold: float = 0.70
    field_characters: int = 5000
    max_tokens: int = 16
    timeout_seconds: float = 60.0
    max_retries: int = 3

    def request(self, batch: Sequence[MultipleChoice]) -> ChatRequest:
        (item,) = batch
        messages = render_messages(self.name, domain=self.domain, item=item, field_characters=self.field_characters)
        return ChatRequest(messages, self.max_tokens, timeout_seconds=self.timeout_seconds, max_retries=self.max_retries)

    def read(self, reply: Reply, batch: Sequence[MultipleChoice]) -> list[Reading | None]:
        return [number_reading(reply, "confidence")]

    def stand_in_scores(self, item: MultipleChoice) -> dict[str, float]:
        fields = (item.question, *item.options, item.explanation)
        return {"confidence": self._keywords.score("\n".join(text[: self.field_characters] for text in fields))}

    def keep(self, items: Sequence[MultipleChoice], scores: Sequence[dict[str, float]]) -> list[bool]:
        return [given.get("confidence", 0.0) >= self.threshold for given in scores]

    @cached_property
    def _keywords(self) -> KeywordScorer:
        return KeywordScorer(self.domain)
