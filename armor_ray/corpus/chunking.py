"""Cutting documents into passages at exact character offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from armor_ray.corpus.records import Document
from armor_ray.corpus.schemas import PASSAGES

_ROWS_PER_BATCH = 16_384


def chunk_characters(text: str, size: int) -> list[tuple[int, int]]:
    """Cuts `text` into chunks of at most `size` characters between words: half-open offsets that tile it, nothing lost, nothing doubled.

    A chunk ends after the last whitespace of its second half; where there is none (a long token, a script without spaces) it ends at
    `size`. Half a word at an edge is noise to an encoder and to a reader.

    Args:
        text: any string; an empty one has no chunks.
        size: characters per chunk, at least 1.
    """
    if size < 1:
        raise ValueError(f"chunk size must be at least 1, not {size}")
    chunks = []
    start = 0
    while start < len(text):
        end = min(start + size, len(text))
        if end < len(text):
            end = _after_last_space(text, start + (size + 1) // 2, end)
        chunks.append((start, end))
        start = end
    return chunks


def _after_last_space(text: str, earliest: int, end: int) -> int:
    """The place after the last whitespace of text[earliest:end]; `end` where there is none, or where the next character is one."""
    if text[end].isspace():
        return end
    return next((place for place in range(end, earliest, -1) if text[place - 1].isspace()), end)


def cut_passages(documents: Iterable[Document], size: int | None) -> pa.Table:
    """The passages of all documents, in their order, as a PASSAGES table.

    Args:
        documents: in the order that fixes the passage ids.
        size: characters per passage (`data.passage_characters`); None keeps every document whole.

    Chunks of nothing but whitespace are left out; the others keep their exact offsets, and ids stay dense.
    """
    batches: list[pa.RecordBatch] = []
    rows: list[dict[str, object]] = []
    for passage_id, row in enumerate(_passage_rows(documents, size)):
        row["passage_id"] = passage_id
        rows.append(row)
        if len(rows) == _ROWS_PER_BATCH:
            batches.append(pa.RecordBatch.from_pylist(rows, schema=PASSAGES))
            rows = []
    batches.append(pa.RecordBatch.from_pylist(rows, schema=PASSAGES))
    return pa.Table.from_batches(batches, schema=PASSAGES)


def _passage_rows(documents: Iterable[Document], size: int | None) -> Iterator[dict[str, object]]:
    for document in documents:
        for start, end in chunk_characters(document.text, size or max(1, len(document.text))):
            text = document.text[start:end]
            if not text.isspace():
                yield {
                    "doc_id": document.doc_id,
                    "title": document.title,
                    "text": text,
                    "source": document.source,
                    "doc_type": document.doc_type,
                    "start": start,
                    "end": end,
                }
