"""What a source yields: documents, and questions with answers and evidence."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One document; `source` is what `data.group_by: source` keeps together (a specification, an article)."""

    doc_id: str
    title: str
    text: str
    source: str
    doc_type: str
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Evidence: the characters [start, end) of one document, 0 <= start < end <= len(text)."""

    doc_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class QAPair:
    """A question with its reference answers and what supports them.

    `spans` mark evidence by character; `positive_ids` name whole documents, every passage of which is positive (so a document
    that fits in one passage *is* the positive passage). At least one of the two is not empty.
    """

    example_id: str
    question: str
    answers: tuple[str, ...]
    doc_id: str
    spans: tuple[Span, ...]
    positive_ids: tuple[str, ...]
    domain: str
    where: str  # file:line or key path, for errors

    def documents(self) -> set[str]:
        """Ids of all documents that this question belongs to."""
        return {self.doc_id, *self.positive_ids, *(span.doc_id for span in self.spans)}


class Documents(Protocol):
    """A list of documents, or a stream that reads them anew at every iteration (see `streams`)."""

    def __iter__(self) -> Iterator[Document]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Corpus:
    """All that a source gives; `whole_documents` when its documents are finished passages that are not cut."""

    documents: Documents
    pairs: list[QAPair]
    whole_documents: bool
    notes: dict[str, int] = field(default_factory=dict)  # what the source dropped or merged, by name


def normalise_question(question: str) -> str:
    """The form under which two questions are the same: case, spacing and closing punctuation do not count."""
    return re.sub(r"\s+", " ", question).casefold().strip().rstrip(" ?.!")


def question_id(question: str) -> str:
    """An id for a question that has none; repetitions of a question (see `normalise_question`) share it."""
    return "q-" + hashlib.sha256(normalise_question(question).encode()).hexdigest()[:16]
