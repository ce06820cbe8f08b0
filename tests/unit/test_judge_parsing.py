"""Reading replies: what is stated is read in any form, what is not stated for certain is never guessed; no text breaks a reader."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armor_ray.judges.parsing import UnreadableReply, read_flag, read_list, read_number, read_object, read_score
from armor_ray.judges.reading import entry_readings
from armor_ray.judges.request import Reply

# Text made of what replies are made of, and then some.
WORDS = ["Score", " is ", "out of", '"score"', "0.8", "1e999", "/10", "NaN", "Infinity", "true", "null", "```json", "```"]
SHREDS = st.sampled_from([*WORDS, *'{}[]:,-%.01"\\\n\x00é\ud800', "<think>", "</think>", "9" * 400, "[" * 1500])
HOSTILE = st.one_of(st.text(max_size=80), st.lists(SHREDS, max_size=25).map("".join))
SCORES = st.floats(0, 1).map(lambda value: round(value, 3))


@pytest.mark.parametrize(
    ("text", "score", "notes"),
    [
        ("0.8", 0.8, ()),
        (" 1 \n", 1.0, ()),
        ("0.8.", 0.8, ()),
        ("**0.75**", 0.75, ()),
        (".5", 0.5, ()),
        ("0,7", 0.7, ()),
        ("Score:0.8", 0.8, ("in prose",)),
        ("I compared 3 facts. Score: **0.6**", 0.6, ("in prose",)),
        ("On the scale [0, 1] I would say 0.4", 0.4, ("in prose",)),
        ("Between 0 and 1, my rating is 0.3.", 0.3, ("in prose",)),
        ("8/10", 0.8, ()),
        ("7 out of 10", 0.7, ()),
        ("85%", 0.85, ()),
        ("7", 1.0, ("clamped",)),
        ("-0.5", 0.0, ("clamped",)),
        ("GPT-4 and 6G, clause 5.2.1: 0.2", 0.2, ("in prose",)),
        ("<think>Maybe 0.1</think>0.9", 0.9, ()),
        ('{"score": 0.7}', 0.7, ("in prose",)),
    ],
)
def test_a_stated_number_is_read(text, score, notes):
    assert read_number(text) == (pytest.approx(score), notes)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-Infinity", "none", "GPT-4", "6G", "v1.2.3", "1e999", "<think>0.9 because", "zero"])
def test_what_states_no_number_is_unreadable(text):
    """The authors' code gave 1.0 for "nan" and "inf"."""
    with pytest.raises(UnreadableReply):
        read_number(text)


def test_a_number_at_a_cut_is_not_trusted():
    """ "0." at the token limit may have become 0.9."""
    assert read_number("0.9")[0] == 0.9
    for text in ("0.9", "0.", "Score: 0"):
        with pytest.raises(UnreadableReply):
            read_number(text, cut=True)
    assert read_number("Score: 0.7 because it is", cut=True)[0] == 0.7


@given(HOSTILE, st.booleans())
def test_no_text_breaks_the_readers(text, cut):
    for read in (lambda: read_number(text, cut=cut), lambda: read_score(text)):
        with contextlib.suppress(UnreadableReply):
            score, _ = read()
            assert 0.0 <= score <= 1.0
    with contextlib.suppress(UnreadableReply):
        assert "score" in read_object(text, ["score"])[0]
    with contextlib.suppress(UnreadableReply):
        assert all(isinstance(entry, dict) for entry in read_list(text, "score")[0])
    with contextlib.suppress(UnreadableReply):
        read_flag(text)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3))
)
def test_no_json_value_breaks_the_readers(value):
    for read in (read_score, read_flag):
        with contextlib.suppress(UnreadableReply):
            read(value)
    text = json.dumps({"chunks": [{"chunk": value, "support": value}, value]})
    with contextlib.suppress(UnreadableReply):
        entry_readings(Reply(text, "stop", 1, 1), "chunks", "chunk", 2, {"support": read_score})


@given(
    st.dictionaries(st.sampled_from(["isac", "jcc", "sagin"]), SCORES, min_size=3), st.sampled_from(["", "Sure: ", "```json\n", "{ok} "])
)
def test_an_object_in_prose_is_read_exactly(scores, before):
    text = json.dumps(scores)
    value, notes = read_object(f"{before}{text}", list(scores))
    assert value == scores
    assert (notes == ()) == (before in {"", "```json\n"})


@given(st.lists(SCORES, min_size=1, max_size=8), st.data())
def test_a_cut_list_keeps_what_stands_whole_before_the_cut(scores, data):
    """Wherever the reply breaks off, no chunk ever gets another score than it was given."""
    text = json.dumps({"chunks": [{"chunk": number + 1, "support": score} for number, score in enumerate(scores)]})
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        readings = entry_readings(Reply(cut, "length", 1, 1), "chunks", "chunk", len(scores), {"support": read_score})
    except UnreadableReply:
        readings = [None] * len(scores)
    for number, (score, reading) in enumerate(zip(scores, readings, strict=True)):
        whole = cut.startswith(text[: text.index("}", text.index(f'"chunk": {number + 1},'))] + "}")
        assert reading is not None or not whole
        assert reading is None or reading.scores == {"support": score}


def test_entries_count_once_and_only_where_they_belong():
    text = json.dumps(
        [{"chunk": "2", "support": "0.5"}, {"chunk": 2, "support": 0.9}, {"chunk": 7, "support": 1}, {"chunk": True, "support": 1}]
    )
    first, second, third = entry_readings(Reply(text, "stop", 1, 1), "chunks", "chunk", 3, {"support": read_score})
    assert first is None
    assert second is not None
    assert second.scores == {"support": 0.5}
    assert third is None


@pytest.mark.parametrize(("value", "flag"), [(True, True), ("true", True), ("No", False), (0, False), (1, True)])
def test_flags(value, flag):
    assert read_flag(value) is flag


@pytest.mark.parametrize("value", ["maybe", None, 2, 0.5, [True]])
def test_what_is_no_flag_is_unreadable(value):
    with pytest.raises(UnreadableReply):
        read_flag(value)
