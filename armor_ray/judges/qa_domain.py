"""Which domains does a question-answer pair belong to? (ARMOR, appendix A.5: Tele-Eval QA domain filtering judge)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from armor_ray.judges.domain import Domain
from armor_ray.judges.judge import Judge
from armor_ray.judges.keywords import KeywordScorer
from armor_ray.judges.parsing import Reading, read_score
from armor_ray.judges.reading import object_reading, object_schema
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.templates import render_messages
from armor_ray.judges.verdicts import KEYWORDS, Verdict


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """A pair to be sorted by domain."""

    question: str
    answer: str


@dataclass(frozen=True)
class QADomain(Judge[QuestionAnswer]):
    """One score per domain, under its name, all from one request; kept when any reaches `threshold` (see `domains_of`)."""

    name = "qa_domain"
    stand_in = KEYWORDS

    domains: tuple[Domain, ...]
    threshold: float = 0.65
    max_tokens: int = 128
    timeout_seconds: float = 60.0
    max_retries: int = 3

    def request(self, batch: Sequence[QuestionAnswer]) -> ChatRequest:
        (pair,) = batch
        messages = render_messages(self.name, domains=self.domains, pair=pair)
        schema = object_schema("qa_domain", {domain.name: "number" for domain in self.domains})
        return ChatRequest(messages, self.max_tokens, schema=schema, timeout_seconds=self.timeout_seconds, max_retries=self.max_retries)

    def read(self, reply: Reply, batch: Sequence[QuestionAnswer]) -> list[Reading | None]:
        return [object_reading(reply, {domain.name: read_score for domain in self.domains})]

    def stand_in_scores(self, item: QuestionAnswer) -> dict[str, float]:
        return {name: scorer.score(f"{item.question}\n{item.answer}") for name, scorer in self._keywords.items()}

    def keep(self, items: Sequence[QuestionAnswer], scores: Sequence[dict[str, float]]) -> list[bool]:
        return [any(score >= self.threshold for score in given.values()) for given in scores]

    def domains_of(self, verdict: Verdict) -> list[str]:
        """Names of the domains that a pair belongs to, in the order of `domains`; a pair may belong to several."""
        return [domain.name for domain in self.domains if verdict.scores.get(domain.name, 0.0) >= self.threshold]

    @cached_property
    def _keywords(self) -> dict[str, KeywordScorer]:
        return {domain.name: KeywordScorer(domain) for domain in self.domains}
