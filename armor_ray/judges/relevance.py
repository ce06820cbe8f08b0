"""Does a document belong to the domain? (ARMOR, appendix A.5: document relevance post-filter)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from armor_ray.judges.domain import Domain
from armor_ray.judges.judge import Judge
from armor_ray.judges.keywords import KeywordScorer
from armor_ray.judges.parsing import Reading
from armor_ray.judges.reading import object_or_number_reading, object_schema
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.templates import render_messages
from armor_ray.judges.verdicts import KEYWORDS


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A document to be kept or dropped."""

    title: str
    text: str


@dataclass(frozen=True)
class DocumentRelevance(Judge[DocumentText]):
    """Score `relevance`; kept from `threshold` on. Only the first `snippet_characters` of a document are judged, by either judge."""

    name = "document_relevance"
    stand_in = KEYWORDS

    domain: Domain
    threshold: float = 0.50
    snippet_characters: int = 2000
    max_tokens: int = 32
    timeout_seconds: float = 120.0
    max_retries: int = 6

    def request(self, batch: Sequence[DocumentText]) -> ChatRequest:
        (document,) = batch
        messages = render_messages(self.name, domain=self.domain, title=document.title, text=document.text[: self.snippet_characters])
        schema = object_schema(self.name, {"relevance": "number"})
        return ChatRequest(messages, self.max_tokens, schema=schema, timeout_seconds=self.timeout_seconds, max_retries=self.max_retries)

    def read(self, reply: Reply, batch: Sequence[DocumentText]) -> list[Reading | None]:
        return [object_or_number_reading(reply, "relevance")]

    def stand_in_scores(self, item: DocumentText) -> dict[str, float]:
        return {"relevance": self._keywords.score(f"{item.title}\n{item.text[: self.snippet_characters]}")}

    def keep(self, items: Sequence[DocumentText], scores: Sequence[dict[str, float]]) -> list[bool]:
        return [given.get("relevance", 0.0) >= self.threshold for given in scores]

    @cached_property
    def _keywords(self) -> KeywordScorer:
        return KeywordScorer(self.domain)
