"""Cutting documents into passages at exact character offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from armor_ray.corpus.records import Document
from armor_ray.corpus.schemas import PASSAGES

_ROWS_PER_BATCH = 16_384


def chunk_characters(text: str, size: int) -> list[tuple[int, int]]:
    """Cuts `text` every `size` characters: half-open offsets that tile it, nothing lost, nothing doubled.

    Args:
        text: any string; an empty one has no chunks.
        size: characters per chunk, at least 1; only the last chunk may be shorter.
    """
    if size < 1:
        raise ValueError(f"chunk size must be at least 1, not {size}")
    return [(start, min(start + size, len(text))) for start in range(0, len(text), size)]


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
