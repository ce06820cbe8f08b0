"""Near duplicates are found, and none straddles splits; what was moved or dropped is listed with its reason."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armor_ray.config import DataConfig
from armor_ray.corpus.duplicates import find_duplicates
from armor_ray.corpus.leakage import Leak, separate
from armor_ray.corpus.prepare import prepare
from armor_ray.corpus.records import QAPair
from armor_ray.errors import ArmorError

LONG = "The access and mobility function selects a session management function for every protocol data unit session of the user."
LIKE = LONG.replace("selects", "chooses").upper() + "!"


def pair(name: str, *doc_ids: str, question: str = "") -> QAPair:
    return QAPair(
        name, question or f"{zlib.crc32(name.encode())} own words of {name * 3}", ("a",), doc_ids[0], (), doc_ids, "", "qa.jsonl:1"
    )


def jaccard(one: str, two: str) -> float:
    left, right = ({text[i : i + 5] for i in range(max(1, len(text) - 4))} for text in (one, two))
    return len(left & right) / len(left | right)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=14).map("".join), max_size=8), st.floats(0.3, 0.9))
def test_nothing_below_the_threshold_is_ever_a_duplicate(texts: list[str], similarity: float) -> None:
    found = find_duplicates(texts, similarity)
    for one, left in zip(texts, found.kind_of, strict=True):
        for two, right in zip(texts, found.kind_of, strict=True):
            value = found.similar[left].get(right, 0.0)
            assert value == found.similar[right].get(left, 0.0)
            assert value == pytest.approx(jaccard(one, two)) if value else jaccard(one, two) < 1
            assert value == 0 or value >= similarity


def test_case_spacing_and_punctuation_make_no_other_text_but_blank_ones_are_all_different() -> None:
    found = find_duplicates(["Who pages?", "who  PAGES", "", " ", LONG, LIKE, "something else"], 0.8)
    assert found.kind_of[0] == found.kind_of[1]
    assert found.kind_of[2] != found.kind_of[3]
    assert 0.8 < found.similar[found.kind_of[4]][found.kind_of[5]] < 1
    assert found.similar[found.kind_of[6]] == {found.kind_of[6]: 1.0}


def separated(splits: dict[str, list[QAPair]], gold: dict[str, list[str]] | None = None) -> tuple[dict[str, list[str]], list[Leak]]:
    texts = {
        p.example_id: (gold or {}).get(p.example_id, [f"{zlib.crc32(p.example_id.encode())} text"])
        for pairs in splits.values()
        for p in pairs
    }
    after, leaks = separate(splits, texts, QAPair.documents, 0.8)
    return {name: [p.example_id for p in pairs] for name, pairs in after.items()}, leaks


def test_a_question_with_a_twin_in_test_is_dropped_from_train() -> None:
    train = [pair(f"t{i}", "d") for i in range(3)] + [pair("leak", "d", question="Which function selects the session function?")]
    test = [pair("x", "e", question="which function selects  the session function")]
    after, leaks = separated({"train": train, "validation": [pair("v", "f")], "test": test})
    assert after == {"train": ["t0", "t1", "t2"], "validation": ["v"], "test": ["x"]}
    assert leaks == [Leak("leak", "dropped", "train", "test", "question", 1.0, "x")]


def test_a_copied_document_moves_with_all_its_questions() -> None:
    train = [pair("a", "copy"), pair("b", "copy"), pair("other", "d")]
    after, leaks = separated(
        {"train": train, "validation": [pair("v", "f")], "test": [pair("x", "e")]}, {"a": [LIKE], "x": ["another", LONG]}
    )
    assert after == {"train": ["other"], "validation": ["v"], "test": ["x", "a", "b"]}
    assert [(leak.example_id, leak.action, leak.reason, leak.twin) for leak in leaks] == [
        ("a", "moved", "passage", "x"),
        ("b", "moved", "document", ""),
    ]


def test_test_is_protected_before_validation_and_splits_without_duplicates_stay() -> None:
    clean = {
        "train": [pair(f"t{i}", "d") for i in range(3)],
        "validation": [pair(f"v{i}", "f") for i in range(3)],
        "test": [pair("x", "e")],
    }
    names = {name: [p.example_id for p in members] for name, members in clean.items()}
    assert separated(clean) == (names, [])
    after, leaks = separated(clean, {"t0": [LONG], "v0": [LIKE], "x": [LIKE], "t1": [LONG[::-1]], "v1": [LONG[::-1]]})
    assert [(leak.example_id, leak.action, leak.target, leak.twin) for leak in leaks] == [
        ("v0", "dropped", "test", "x"),
        ("t0", "dropped", "test", "x"),
        ("t1", "dropped", "validation", "v1"),
    ]
    assert after == {"train": ["t2"], "validation": ["v1", "v2"], "test": ["x"]}


def test_a_split_that_is_all_duplicates_is_named() -> None:
    with pytest.raises(ArmorError, match="the validation split is empty: all of its questions have duplicates elsewhere"):
        separated({"train": [pair("t", "d")], "validation": [pair("v", "f")], "test": [pair("x", "e")]}, {"v": [LIKE], "x": [LIKE]})


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(0, 7)), min_size=6, max_size=30))
def test_nothing_straddles_afterwards(rows: list[tuple[int, int, int]]) -> None:
    """Rows are (document, question, passage); documents 0-1 are test, 2-3 validation, the rest train."""
    pairs = [pair(f"q{i}", f"d{d}", question=f"{q} is this about topic {q * 7919}?") for i, (d, q, _) in enumerate(rows)]
    texts = {p.example_id: [f"{g * 104729} and text"] for p, (_, _, g) in zip(pairs, rows, strict=True)}
    splits: dict[str, list[QAPair]] = {"train": [], "validation": [], "test": []}
    for p, (d, _, _) in zip(pairs, rows, strict=True):
        splits[("test", "validation", "train")[min(d // 2, 2)]].append(p)
    try:
        after, leaks = separate(splits, texts, QAPair.documents, 1.0)
    except ArmorError:
        return
    seen: dict[str, set[str]] = {
        name: {p.question for p in members} | {texts[p.example_id][0] for p in members} | {p.doc_id for p in members}
        for name, members in after.items()
    }
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]
    dropped = {leak.example_id for leak in leaks if leak.action == "dropped"}
    assert {p.example_id for members in after.values() for p in members} == {p.example_id for p in pairs} - dropped


def test_prepare_reports_duplicates_only_when_asked(tmp_path: Path) -> None:
    rng = random.Random(0)
    bodies = ["".join(rng.choices("abcdefgh ", k=150)) + f" answer{i}" for i in range(20)]
    copies = 8  # documents 20 to 27 repeat the first eight
    documents = [{"id": f"d{i}", "text": bodies[i % 20] + (" (copy)" if i >= 20 else "")} for i in range(20 + copies)]
    questions = [
        {"question": f"{doc['text'][:40]}?" + "x" * i, "answer": f"answer{i % 20}", "doc_id": doc["id"]} for i, doc in enumerate(documents)
    ]
    for name, rows in (("corpus", documents), ("qa", questions)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"path": str(tmp_path), "test_fraction": 0.3, "validation_fraction": 0.3}
    plain = prepare(DataConfig.model_validate(asked), 0)
    assert plain.leaks is None
    assert "duplicate_questions_moved" not in plain.notes
    clean = prepare(DataConfig.model_validate({**asked, "deduplicate": True}), 0)
    originals = {name: {int(row["doc_id"][1:]) % 20 for row in table.to_pylist()} for name, table in clean.examples.items()}
    assert sum(map(len, originals.values())) == 20
    assert clean.notes["duplicate_questions_moved"] == len(clean.leaks or []) > 0
