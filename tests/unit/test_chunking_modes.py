"""However a document is cut: nothing lost, nothing doubled but what was asked for, tables and code whole where they fit."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armor_ray.config import ChunkingConfig, DataConfig, EncoderConfig, load_config
from armor_ray.corpus.alignment import PassageLocator
from armor_ray.corpus.blocks import find_blocks
from armor_ray.corpus.chunking import (
    Chunks,
    chunk_around_blocks,
    chunk_characters,
    chunk_sentences,
    chunk_tokens,
    cut_passages,
    make_chunker,
)
from armor_ray.corpus.records import Document, Span
from armor_ray.corpus.sentences import split_sentences
from armor_ray.errors import ArmorError
from armor_ray.models.tokens import token_offsets

TABLE = "| kind | ohm |\n| --- | --- |\n| coax | 50 |\n"
CODE = "```\nplug in. Then\n\ntwist | pull\n```\n"
PIECES = st.sampled_from(
    ["Word ", "A sentence. ", "e.g. this. ", "\n", "\n\n", "\r\n", TABLE, CODE, "```\n", "| a |", "é😀. ", " ", "x" * 40]
)
TEXTS = st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=80)


def tiles(chunks: Chunks, text: str) -> bool:
    return "".join(text[start:end] for start, end in chunks) == text and all(start < end for start, end in chunks)


def words(text: str) -> Chunks:
    """Offsets of a tokenizer of words and single signs."""
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


@settings(deadline=None)
@given(TEXTS)
def test_sentences_tile_the_text(text: str) -> None:
    assert tiles(split_sentences(text), text)


def test_sentences_end_at_full_stops_and_blank_lines_but_not_at_abbreviations() -> None:
    text = "See e.g. Fig. 3 for it. The AMF pages!  Does it?\n\n5.2 Title\n\nText goes on"
    assert [text[start:end] for start, end in split_sentences(text)] == [
        "See e.g. Fig. 3 for it. ",
        "The AMF pages!  ",
        "Does it?\n\n",
        "5.2 Title\n\n",
        "Text goes on",
    ]


@settings(deadline=None)
@given(TEXTS)
def test_blocks_are_whole_lines_apart_from_each_other(text: str) -> None:
    blocks = find_blocks(text)
    bounds = [place for block in blocks for place in block]
    assert bounds == sorted(bounds)
    assert all(start < end <= len(text) for start, end in blocks)
    assert all(place in (0, len(text)) or text[place - 1] in "\r\n" for place in bounds)


def test_tables_and_fenced_code_are_blocks() -> None:
    text = f"Intro | text\n\n{TABLE}\n{CODE}Outro\n"
    assert [text[start:end] for start, end in find_blocks(text)] == [TABLE, CODE]


@settings(deadline=None)
@given(TEXTS, st.integers(1, 120), st.booleans())
def test_packed_chunks_tile_the_text_and_fit(text: str, size: int, keep: bool) -> None:
    blocks = find_blocks(text) if keep else []
    for chunks in (chunk_sentences(text, size, blocks), chunk_around_blocks(text, size, blocks)):
        assert tiles(chunks, text)
        assert all(end - start <= size for start, end in chunks)
        for block in blocks:
            cuts = [start for start, _ in chunks if block[0] < start < block[1]]
            assert not cuts or block[1] - block[0] > size


@settings(deadline=None)
@given(TEXTS, st.integers(1, 120))
def test_a_sentence_that_fits_is_never_cut_and_chunks_are_full(text: str, size: int) -> None:
    sentences = split_sentences(text)
    chunks = chunk_sentences(text, size, [])
    starts = {start for start, _ in chunks}
    assert not any(inside in starts for start, end in sentences if end - start <= size for inside in range(start + 1, end))
    for (start, _), (after, _) in pairwise(chunks):
        following = next((end for begin, end in sentences if begin == after), None)
        assert following is None or following - start > size


def test_a_table_is_cut_by_characters_unless_it_is_kept() -> None:
    text = "Some words before the table.\n\n" + TABLE
    assert [text[s:e] for s, e in chunk_around_blocks(text, 50, find_blocks(text))] == ["Some words before the table.\n\n", TABLE]
    assert TABLE not in [text[s:e] for s, e in chunk_characters(text, 50)]


@settings(deadline=None)
@given(TEXTS, st.integers(1, 12), st.data())
def test_token_windows_cover_all_and_overlap_as_asked(text: str, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    chunks = chunk_tokens(text, size, overlap, words)
    assert {place for start, end in chunks for place in range(start, end)} == set(range(len(text)))
    tokens = [{place for place, (start, _) in enumerate(words(text)) if first <= start < last} for first, last in chunks]
    for before, after in pairwise(tokens):
        assert len(before) == size
        assert len(before & after) == overlap
        assert not after <= before
    assert all(len(window) <= size for window in tokens)


def test_token_windows_keep_the_tokens_of_one_character_together() -> None:
    offsets = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert chunk_tokens("a😀b", 2, 0, lambda _: offsets) == [(0, 1), (1, 2), (2, 3)]
    assert chunk_tokens("", 2, 0, lambda _: []) == []
    assert chunk_tokens("  ", 2, 0, lambda _: []) == [(0, 2)]


@settings(deadline=None)
@given(TEXTS.filter(str.strip), st.data())
def test_evidence_meets_every_window_that_it_overlaps(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    passages = cut_passages([Document("d", "", text, "", "")], lambda text: chunk_tokens(text, 6, 2, words))
    rows = passages.to_pylist()
    same = [row["passage_id"] for row in rows if (row["start"], row["end"]) == (start, end)]  # that passage was judged, and it alone
    expected = same or [row["passage_id"] for row in rows if row["start"] < end and start < row["end"]]
    assert PassageLocator(passages).overlapping(Span("d", start, end)) == expected


def test_the_encoders_tokens_have_offsets_beyond_its_window(tiny_bert: Path) -> None:
    offsets = token_offsets(EncoderConfig(model=str(tiny_bert)))
    text = "signal unknownish  signal " * 400
    found = offsets(text)
    assert len(found) >= 1200
    assert text[slice(*found[0])] == "signal"
    assert all(0 <= start < end <= len(text) for start, end in found)
    assert found == sorted(found)


def test_the_config_chooses_the_chunker() -> None:
    text = f"First sentence here. Second one.\n\n{TABLE}"
    cut = {
        mode: make_chunker(DataConfig.model_validate({"passage_characters": 48, "chunking": {"mode": mode, **more}}), words)(text)
        for mode, more in {"characters": {}, "sentences": {"keep_blocks": True}, "tokens": {"tokens": 8, "overlap": 2}}.items()
    }
    assert cut["characters"] == chunk_characters(text, 48)
    assert cut["sentences"] == chunk_sentences(text, 48, find_blocks(text))
    assert cut["tokens"] == chunk_tokens(text, 8, 2, words)
    assert ChunkingConfig() == ChunkingConfig(mode="characters")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.chunking.tokens=64", "tokens has no effect on mode 'characters'"),
        ("data.chunking={mode: tokens, keep_blocks: true}", "keep_blocks has no effect on mode 'tokens'"),
        ("data.chunking={mode: tokens, tokens: 16, overlap: 16}", "overlap 16 is not below tokens 16"),
        ("data.duplicate_similarity=0.9", "duplicate_similarity has no effect without deduplicate"),
    ],
)
def test_settings_without_effect_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ArmorError, match=message):
        load_config(None, [setting])
