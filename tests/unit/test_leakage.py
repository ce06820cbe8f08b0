"""Near duplicates are found, and none straddles splits; what was moved or dropped is listed with its reason."""

from __future__ import annotations

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
    return QAPair(name, question or f"{hash(name)} own words of {name * 3}", ("a",), doc_ids[0], (), doc_ids, "", "qa.jsonl:1")


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
    texts = {p.example_id: (gold or {}).get(p.example_id, [f"{hash(p.example_id)} text"]) for pairs in splits.values() for p in pairs}
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
    clean = {"train": [pair("t", "d")], "validation": [pair("v", "f")], "test": [pair("x", "e")]}
    assert separated(clean) == ({"train": ["t"], "validation": ["v"], "test": ["x"]}, [])
    train = [pair("t", "d"), pair("t2", "d"), pair("t3", "d")]
    after, leaks = separated({**clean, "train": train}, {"t": [LONG], "v": [LIKE], "x": [LIKE]})
    assert leaks[0].target == "test"
    assert (leaks[0].example_id, after["test"]) == ("v", ["x", "v"])  # which would leave no validation questions


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
    bodies = [f"{i} " * 20 + f"answer{i} " + "".join(chr(97 + (i * j) % 26) for j in range(60)) for i in range(12)]
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"id": "d{i}", "text": "{b} copy"}}\n' for i, b in enumerate(bodies + bodies)))
    rows = [
        f'{{"question": "What of {i * 7919} in {b[50:90]}?", "answer": "answer{i % 12}", "doc_id": "d{i}"}}\n'
        for i, b in enumerate(bodies * 2)
    ]
    (tmp_path / "qa.jsonl").write_text("".join(rows))
    plain = prepare(DataConfig(path=str(tmp_path), test_fraction=0.4), 0)
    assert plain.leaks == []
    assert "duplicate_questions_moved" not in plain.notes
    clean = prepare(DataConfig(path=str(tmp_path), test_fraction=0.4, deduplicate=True), 0)
    gold = {name: {row["doc_id"][1:] for row in table.to_pylist()} for name, table in clean.examples.items()}
    bodies_of = {name: {int(doc) % 12 for doc in docs} for name, docs in gold.items()}
    assert not bodies_of["train"] & bodies_of["test"]
    assert not bodies_of["train"] & bodies_of["validation"]
    assert clean.notes["duplicate_questions_moved"] == len(clean.leaks) > 0
