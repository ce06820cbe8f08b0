"""What curation keeps, what it drops and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from armor_ray.corpus.chunking import Chunker
from armor_ray.corpus.records import Document, QAPair, Span

Kind = Literal["document", "passage", "question"]

BELOW_THRESHOLD, NO_SUPPORT, REPEATED = "below_threshold", "no_support", "repeated_question"
NO_QUESTION, PROMPT_TOO_LONG = "no_readable_question", "prompt_too_long"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that did not pass.

    Attributes:
        id: of the document or question; of a passage its document's, with its character offsets.
        step: the judge's name, or the step's.
        reason: one of this module's words, or a class of `judges.failures.Failure`.
        scores: name → value in [0, 1]; empty where nothing was scored.
        text: the question, or the document's title.
    """

    kind: Kind
    id: str
    step: str
    reason: str
    scores: Mapping[str, float]
    text: str


@dataclass(frozen=True, slots=True)
class CuratedPair:
    """A kept question; `scores` by name, `support` one value per span of the pair where a judge gave it."""

    pair: QAPair
    scores: Mapping[str, float]
    support: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk of a document, before passages have numbers."""

    document: Document
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.document.text[self.start : self.end]

    @property
    def span(self) -> Span:
        return Span(self.document.doc_id, self.start, self.end)


def passages_of(document: Document, chunker: Chunker) -> list[Passage]:
    """The document's passages, exactly those that `prepare` will cut."""
    passages = [Passage(document, start, end) for start, end in chunker(document.text)]
    return [passage for passage in passages if not passage.text.isspace()]
