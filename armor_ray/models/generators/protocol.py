"""What every generator engine takes and returns; engines are interchangeable behind `Generator`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """How likely is each answer, given the question and one passage (None: closed book)?

    Attributes:
        key: the caller's name for the pair, returned unchanged.
        answers: reference answers; each is scored on its own.
    """

    key: str
    question: str
    passage: str | None
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """log p(answer | question, passage): the sum over the answer's tokens, in nats (≤ 0), and their number (≥ 1)."""

    log_likelihood: float
    tokens: int


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """One `AnswerScore` per answer of the request, in order.

    Attributes:
        scores: None where the answer could not be scored; `error` then says why.
        passage_tokens_cut: tokens removed from the end of the passage so that question and answers fit the window.
        error: None when every answer was scored.
    """

    key: str
    scores: tuple[AnswerScore | None, ...]
    passage_tokens_cut: int
    error: str | None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A question and its retrieved passages, best first; none for a closed-book answer."""

    question: str
    passages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """An answer drawn at temperature 1, and the mean log-likelihood of its tokens in nats (≤ 0)."""

    text: str
    log_likelihood: float


@dataclass(frozen=True, slots=True)
class WritingRequest:
    """A message to reply to in free form, and the seed (64 bits) of what is drawn."""

    message: str
    seed: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a reply is drawn: `temperature` > 0, `top_p` in (0, 1], at most `max_new_tokens` tokens."""

    temperature: float
    top_p: float
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class SampledText:
    """A reply; `cut` when it ended at the token limit."""

    text: str
    cut: bool


class Writer(Protocol):
    """An instruction model that writes."""

    def write(self, requests: Sequence[WritingRequest], sampling: Sampling) -> list[SampledText | None]:
        """One reply a request, in the given order; None where message and reply exceed the window."""


class Generator(Protocol):
    """A frozen language model that scores answers and writes them."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Scores every request, in the given order; a request that cannot be scored carries an error and leaves the others alone."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[str]:
        """Greedy answers, in the given order."""

    def identity(self) -> dict[str, Any]:
        """All that decides a score: engine, model fingerprint, dtype, prompt, window. Equal identities may share cached utilities."""
