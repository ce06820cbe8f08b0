"""Documents that are too many to hold: read once to check them, and again whenever they are used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from armor_ray.corpus.records import Document, Documents

HELD_CHARACTERS = 16_000_000
"""Up to so much text a source holds its documents; beyond, it streams them."""


@dataclass(frozen=True, slots=True)
class DocumentStream:
    """Documents that every iteration reads anew, in one fixed order.

    Attributes:
        read: begins at the first document; picklable and of absolute paths, so that another process of this machine can read them too.
        count: how many there are.
        characters: of their texts together.
        asked: those that questions are about. They alone stay in memory.
    """

    read: Callable[[], Iterable[Document]]
    count: int
    characters: int
    asked: list[Document]

    def __iter__(self) -> Iterator[Document]:
        return iter(self.read())

    def __len__(self) -> int:
        return self.count


def survey(
    documents: Iterable[Document], read: Callable[[], Iterable[Document]], wanted: Collection[str]
) -> tuple[Documents, dict[str, Document]]:
    """Goes through all documents once, so that every fault of them is found before anything is spent on any.

    Args:
        documents: at their first reading, with all checks and counts.
        read: reads them again (see `DocumentStream`).
        wanted: ids of the documents that questions are about.

    Returns:
        The documents, as a stream where their texts exceed `HELD_CHARACTERS`; and the wanted ones by id, as far as they exist.
    """
    held: list[Document] | None = []
    asked: dict[str, Document] = {}
    count = characters = 0
    for document in documents:
        count += 1
        characters += len(document.text)
        if document.doc_id in wanted:
            asked[document.doc_id] = document
        if held is not None:
            held.append(document)
            held = held if characters <= HELD_CHARACTERS else None
    return (DocumentStream(read, count, characters, list(asked.values())) if held is None else held), asked
