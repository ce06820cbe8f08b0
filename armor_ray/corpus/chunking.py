"""Cutting documents into passages at exact character offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

import pyarrow as pa

from armor_ray.config import DataConfig
from armor_ray.corpus.blocks import find_blocks
from armor_ray.corpus.records import Document
from armor_ray.corpus.schemas import PASSAGES
from armor_ray.corpus.sentences import split_sentences

_ROWS_PER_BATCH = 16_384

Chunks = list[tuple[int, int]]
"""Half-open character offsets, ascending by start and by end."""

Chunker = Callable[[str], Chunks]

TokenOffsets = Callable[[str], Chunks]
"""Where a tokenizer's tokens stand in a text, special tokens excepted."""


def chunk_characters(text: str, size: int) -> Chunks:
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


def chunk_sentences(text: str, size: int, blocks: Chunks) -> Chunks:
    """Packs whole sentences into chunks of at most `size` characters; they tile `text`. A longer sentence is cut between words.

    Args:
        text: any string.
        size: characters per chunk, at least 1.
        blocks: stretches that count as one sentence each (see `find_blocks`), ascending and apart.
    """
    return _pack(_units(text, blocks, split_sentences), text, size)


def chunk_around_blocks(text: str, size: int, blocks: Chunks) -> Chunks:
    """As `chunk_characters`, but a block of at most `size` characters is not cut. Chunks tile `text`.

    What lies between two blocks is cut by itself; a chunk that has room left takes the block after it, or what follows the block.
    """
    return _pack(_units(text, blocks, lambda prose: chunk_characters(prose, size)), text, size)


def chunk_tokens(text: str, size: int, overlap: int, offsets: TokenOffsets) -> Chunks:
    """Windows of `size` tokens, each sharing `overlap` tokens with the one before; together they cover `text`.

    What lies between two tokens belongs to the first of them. The last window ends with the text and may be shorter.

    Args:
        text: any string; one without tokens is a single chunk.
        size: tokens per window, above `overlap`.
        overlap: at least 0.
        offsets: of the tokenizer. Tokens that share one character (its bytes) are not separated.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap must lie in [0, {size}), not {overlap}")
    if not text:
        return []
    starts = list(accumulate((start for start, _ in offsets(text)), max))  # a normaliser may swap the marks of one character
    bounds = [0, *starts[1:], len(text)]
    num_tokens = len(bounds) - 1
    chunks: Chunks = []
    for first in range(0, max(1, num_tokens - overlap), size - overlap):
        chunk = (bounds[first], bounds[min(first + size, num_tokens)])
        if chunk[0] < chunk[1] and (not chunks or chunk[1] > chunks[-1][1]):
            chunks.append(chunk)
    return chunks


def _units(text: str, blocks: Chunks, split: Callable[[str], Chunks]) -> Iterator[tuple[int, int]]:
    """Blocks, and the pieces that `split` makes of what lies between them: together they tile `text`."""
    place = 0
    for start, end in [*blocks, (len(text), len(text))]:
        yield from ((place + first, place + last) for first, last in split(text[place:start]))
        if start < end:
            yield start, end
        place = end


def _pack(units: Iterable[tuple[int, int]], text: str, size: int) -> Chunks:
    """Joins neighbouring units as long as they fit into `size` characters together; a longer unit is cut by itself."""
    chunks: Chunks = []
    open_to_more = False
    for start, end in units:
        if open_to_more and end - chunks[-1][0] <= size:
            chunks[-1] = (chunks[-1][0], end)
        elif end - start <= size:
            chunks.append((start, end))
            open_to_more = True
        else:
            chunks += [(start + first, start + last) for first, last in chunk_characters(text[start:end], size)]
            open_to_more = True
    return chunks


def make_chunker(config: DataConfig, offsets: TokenOffsets | None = None) -> Chunker:
    """The chunker that `data.chunking` and `data.passage_characters` describe.

    Args:
        config: section `data`.
        offsets: the encoder's tokens; only the mode `tokens` needs them.
    """
    chunking, size = config.chunking, config.passage_characters
    find = find_blocks if chunking.keep_blocks else lambda text: []
    if chunking.mode == "tokens":
        if offsets is None:
            raise ValueError("the mode 'tokens' needs a tokenizer")
        return lambda text: chunk_tokens(text, chunking.tokens, chunking.overlap, offsets)
    if chunking.mode == "whole":
        return keep_whole
    if chunking.mode == "sentences":
        return lambda text: chunk_sentences(text, size, find(text))
    if chunking.keep_blocks:
        return lambda text: chunk_around_blocks(text, size, find(text))
    return lambda text: chunk_characters(text, size)


def keep_whole(text: str) -> Chunks:
    """The chunker of documents that are finished passages."""
    return [(0, len(text))] if text else []


def cut_passages(documents: Iterable[Document], chunker: Chunker) -> pa.Table:
    """The passages of all documents, in their order, as a PASSAGES table.

    Args:
        documents: in the order that fixes the passage ids.
        chunker: see `make_chunker`.

    Chunks of nothing but whitespace are left out; the others keep their exact offsets, and ids stay dense.
    """
    batches: list[pa.RecordBatch] = []
    rows: list[dict[str, object]] = []
    for passage_id, row in enumerate(_passage_rows(documents, chunker)):
        row["passage_id"] = passage_id
        rows.append(row)
        if len(rows) == _ROWS_PER_BATCH:
            batches.append(pa.RecordBatch.from_pylist(rows, schema=PASSAGES))
            rows = []
    batches.append(pa.RecordBatch.from_pylist(rows, schema=PASSAGES))
    return pa.Table.from_batches(batches, schema=PASSAGES)


def _passage_rows(documents: Iterable[Document], chunker: Chunker) -> Iterator[dict[str, object]]:
    for document in documents:
        for start, end in chunker(document.text):
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
