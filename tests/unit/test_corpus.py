"""Passages tile their documents, evidence meets its passages, nothing straddles a split."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armor_ray.config import DataConfig
from armor_ray.corpus.alignment import PassageLocator, merge_repeated, verbatim_spans
from armor_ray.corpus.chunking import Chunker, chunk_characters, cut_passages, keep_whole
from armor_ray.corpus.prepare import prepare
from armor_ray.corpus.records import Document, QAPair, Span, normalise_question
from armor_ray.corpus.schemas import CANDIDATES, EXAMPLES, PASSAGES, UTILITIES, validate_table
from armor_ray.corpus.splitting import limit_splits, split_pairs
from armor_ray.errors import ArmorError

TEXTS = st.text(alphabet=st.sampled_from("ab é😀\n\t "), max_size=200)


def document(doc_id: str, text: str = "some text", source: str = "") -> Document:
    return Document(doc_id, f"title of {doc_id}", text, source, "paper")


def pair(name: str, *doc_ids: str, question: str | None = None, answers: tuple[str, ...] = ("a",), spans: tuple[Span, ...] = ()) -> QAPair:
    return QAPair(name, question or f"question {name}?", answers, doc_ids[0], spans, () if spans else doc_ids, "", f"qa.jsonl:{name}")


def by_characters(size: int) -> Chunker:
    return lambda text: chunk_characters(text, size)


def write_jsonl(folder: Path, documents: list[dict], pairs: list[dict]) -> DataConfig:
    for name, rows in (("corpus.jsonl", documents), ("qa.jsonl", pairs)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return DataConfig(format="jsonl", path=str(folder))


# Chunking


@settings(deadline=None)
@given(TEXTS, st.integers(1, 50))
def test_chunks_tile_the_text(text: str, size: int) -> None:
    chunks = chunk_characters(text, size)
    assert "".join(text[start:end] for start, end in chunks) == text
    for start, end in chunks[:-1]:
        assert size / 2 < end - start <= size
        between_words = text[end - 1].isspace() or text[end].isspace()
        assert between_words or (end - start == size and not any(map(str.isspace, text[start + (size + 1) // 2 : end])))


def test_chunks_end_between_words_and_long_words_are_cut_at_the_size() -> None:
    assert chunk_characters("alpha beta gamma delta", 12) == [(0, 11), (11, 22)]
    assert chunk_characters("abcd efgh", 4) == [(0, 4), (4, 8), (8, 9)]
    assert chunk_characters("x" * 10, 4) == [(0, 4), (4, 8), (8, 10)]


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=5), st.integers(1, 50))
def test_passages_lose_only_whitespace_and_ids_are_dense(texts: list[str], size: int) -> None:
    passages = cut_passages([document(f"d{i}", text) for i, text in enumerate(texts)], by_characters(size)).to_pylist()
    assert [row["passage_id"] for row in passages] == list(range(len(passages)))
    for number, text in enumerate(texts):
        mine = [row for row in passages if row["doc_id"] == f"d{number}"]
        assert all(row["text"] == text[row["start"] : row["end"]] and row["text"].strip() for row in mine)
        kept = {place for row in mine for place in range(row["start"], row["end"])}
        assert sum(len(row["text"]) for row in mine) == len(kept)
        assert not "".join(char for place, char in enumerate(text) if place not in kept).strip()


def test_whole_documents_are_not_cut() -> None:
    passages = cut_passages([document("d", "x" * 1000), document("e", "y")], keep_whole)
    assert passages["text"].to_pylist() == ["x" * 1000, "y"]
    assert passages["end"].to_pylist() == [1000, 1]


# Alignment


@settings(deadline=None)
@given(TEXTS.filter(str.strip), st.integers(1, 50), st.data())
def test_a_passage_is_positive_exactly_when_it_overlaps(text: str, size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    passages = cut_passages([document("other", "zz"), document("d", text)], by_characters(size))
    expected = [
        row["passage_id"]
        for row in passages.to_pylist()
        if row["doc_id"] == "d" and set(range(start, end)) & set(range(row["start"], row["end"]))
    ]
    assert PassageLocator(passages).overlapping(Span("d", start, end)) == expected


def test_touching_is_not_overlapping() -> None:
    locator = PassageLocator(cut_passages([document("d", "aaaabbbbcccc")], by_characters(4)))
    assert locator.overlapping(Span("d", 4, 8)) == [1]
    assert locator.overlapping(Span("d", 3, 9)) == [0, 1, 2]


def test_a_named_document_makes_all_its_passages_positive() -> None:
    locator = PassageLocator(cut_passages([document("a", "xx"), document("b", "y" * 10)], by_characters(4)))
    assert locator.positives(pair("1", "b")) == [1, 2, 3]
    assert locator.positives(pair("1", "a")) == [0]


def test_verbatim_answers_are_found_everywhere_in_any_case() -> None:
    text = "The AMF and the amf; İ before Amf"
    assert [text[s.start : s.end] for s in verbatim_spans("d", text, ["amf"])] == ["AMF", "amf", "Amf"]


def test_a_number_is_not_found_inside_a_longer_one() -> None:
    text = "15 or 3.5 or 5,000 but 5 ms. In 5G it is 5."
    assert [s.start for s in verbatim_spans("d", text, ["5"])] == [text.index("5 ms"), text.index("5G"), len(text) - 2]


def test_repeated_questions_unite_answers_and_evidence_in_any_order() -> None:
    one = pair("1", "a", question="What is RE?", answers=("Resource Element", "x"), spans=(Span("a", 0, 2),))
    two = pair("2", "b", question=" what  is re ? ", answers=("resource element", "y"), spans=(Span("b", 1, 2), Span("a", 0, 2)))
    other = pair("3", "a")
    (merged, alone) = merge_repeated([two, one, other])
    assert (merged.example_id, merged.question, merged.doc_id) == ("1", "What is RE?", "a")
    assert merged.answers == ("Resource Element", "x", "y")
    assert set(merged.spans) == {Span("a", 0, 2), Span("b", 1, 2)}
    assert alone == other


# Splitting


def corpus_of(num_documents: int, questions_each: int = 3) -> tuple[list[Document], list[QAPair]]:
    documents = [document(f"d{i}", source=f"s{i // 2}") for i in range(num_documents)]
    return documents, [pair(f"{d.doc_id}-{j}", d.doc_id) for d in documents for j in range(questions_each)]


@settings(deadline=None)
@given(
    num_documents=st.integers(6, 40),
    group_by=st.sampled_from(["document", "source"]),
    test_fraction=st.floats(0.01, 0.3),
    seed=st.integers(0, 1000),
    shuffle=st.randoms(use_true_random=False),
)
def test_no_group_straddles_and_input_order_does_not_matter(
    num_documents: int, group_by: str, test_fraction: float, seed: int, shuffle: random.Random
) -> None:
    documents, pairs = corpus_of(num_documents)
    config = DataConfig.model_validate({"group_by": group_by, "test_fraction": test_fraction, "validation_fraction": 0.2})
    splits = split_pairs(documents, pairs, config, seed)
    group = {d.doc_id: d.doc_id if group_by == "document" else d.source for d in documents}
    groups = {name: {group[p.doc_id] for p in members} for name, members in splits.items()}
    num_groups = len(set(group.values()))
    assert sum(map(len, groups.values())) == num_groups
    assert len(groups["test"]) == max(1, round(test_fraction * num_groups))
    assert len(groups["validation"]) == max(1, round(0.2 * (num_groups - len(groups["test"]))))
    assert sum(map(len, splits.values())) == len(pairs)
    shuffled_documents, shuffled_pairs = documents[:], pairs[:]
    shuffle.shuffle(shuffled_documents)
    shuffle.shuffle(shuffled_pairs)
    assert split_pairs(shuffled_documents, shuffled_pairs, config, seed) == splits


def test_another_seed_is_another_split() -> None:
    documents, pairs = corpus_of(30)
    assert split_pairs(documents, pairs, DataConfig(), 0) != split_pairs(documents, pairs, DataConfig(), 1)


def test_a_question_of_two_splits_is_dropped_one_of_a_single_split_is_kept() -> None:
    documents, pairs = corpus_of(10)
    before = split_pairs(documents, pairs, DataConfig(test_fraction=0.2), 0)
    (in_test, also_in_test) = sorted({p.doc_id for p in before["test"]})
    in_train = before["train"][0].doc_id
    leak, fine = pair("leak", in_test, in_train), pair("fine", in_test, also_in_test)
    after = split_pairs(documents, [*pairs, leak, fine], DataConfig(test_fraction=0.2), 0)
    assert fine in after["test"]
    assert leak not in [p for members in after.values() for p in members]


def test_split_by_question_ignores_documents() -> None:
    documents = [document("d")]
    pairs = [pair(str(i), "d") for i in range(100)]
    splits = split_pairs(documents, pairs, DataConfig(split_by="question", test_fraction=0.15), 0)
    assert {name: len(members) for name, members in splits.items()} == {"train": 77, "validation": 8, "test": 15}


def test_limits_take_a_sample_that_larger_limits_extend() -> None:
    documents, pairs = corpus_of(20, questions_each=10)
    splits = split_pairs(documents, pairs, DataConfig(), 0)
    small = limit_splits(splits, DataConfig(max_train=5, max_test=1))
    large = limit_splits(splits, DataConfig(max_train=50))
    assert len(small["train"]) == 5
    assert large["train"][:5] == small["train"]
    assert len(small["test"]) == 1
    assert small["validation"] == splits["validation"]
    assert len({p.doc_id for p in large["train"]}) > 10  # a sample of all documents, not the first ones


@pytest.mark.parametrize(("num_documents", "split"), [(2, "train"), (1, "train")])
def test_an_empty_split_is_named_with_its_remedy(num_documents: int, split: str) -> None:
    documents, pairs = corpus_of(num_documents)
    with pytest.raises(ArmorError, match=rf"the {split} split is empty: {num_documents} document groups.*; lower data.test_fraction"):
        split_pairs(documents, pairs, DataConfig(), 0)


def test_a_split_emptied_by_straddling_questions_is_named() -> None:
    documents, pairs = corpus_of(10, questions_each=1)
    in_test = split_pairs(documents, pairs, DataConfig(), 0)["test"][0].doc_id
    everywhere = tuple(d.doc_id for d in documents)
    pairs = [pair("x", *everywhere) if p.doc_id == in_test else p for p in pairs]
    with pytest.raises(ArmorError, match=r"the test split is empty.*; raise data.test_fraction"):
        split_pairs(documents, pairs, DataConfig(), 0)


def test_group_by_source_needs_sources() -> None:
    with pytest.raises(ArmorError, match="document 'd' has no source; fill the field 'source'"):
        split_pairs([document("d")], [pair("1", "d")], DataConfig(group_by="source"), 0)


# Preparing


def test_prepare_end_to_end(tmp_path: Path) -> None:
    documents = [{"id": f"d{i}", "text": "x" * 60 + f" answer{i} " + "y" * 40 + " " * 100, "title": "t"} for i in range(12)]
    pairs: list[dict] = [{"question": f"Q{i}?", "answer": f"answer{i}", "doc_id": f"d{i}"} for i in range(12)]
    pairs += [{"question": "q0", "answers": ["other"], "doc_id": "d0", "evidence": [{"start": 0, "end": 1}]}]
    config = write_jsonl(tmp_path, documents, pairs).model_copy(update={"passage_characters": 64, "max_train": 7})
    prepared = prepare(config, seed=3)
    validate_table(prepared.passages, PASSAGES, "passages")
    # 209 or 210 characters: cut after the first word, then inside the blanks; what follows holds no text.
    assert prepared.passages["doc_id"].to_pylist() == [f"d{i}" for i in range(12) for _ in range(2)]
    assert prepared.notes | {"passages": 24, "repeated_questions_merged": 1, "train": 7, "validation": 1, "test": 1} == prepared.notes
    assert prepared.notes["questions_over_limit"] == 3
    rows = [row for table in prepared.examples.values() for row in validate_table(table, EXAMPLES, "examples").to_pylist()]
    second = {f"d{i}": [2 * i + 1] for i in range(12)}
    assert {row["doc_id"]: row["positive_ids"] for row in rows}.items() <= (second | {"d0": [0, 1]}).items()
    again = prepare(config, seed=3)
    assert again.passages.equals(prepared.passages)
    assert all(again.examples[name].equals(table) for name, table in prepared.examples.items())


@pytest.mark.parametrize("num_documents", [0, 1])
def test_a_corpus_without_choice_is_refused(tmp_path: Path, num_documents: int) -> None:
    config = write_jsonl(tmp_path, [{"id": "d", "text": "short"}] * num_documents, [])
    with pytest.raises(ArmorError, match=f"the corpus has {num_documents} passages; retrieval needs at least 2"):
        prepare(config, 0)


def test_no_questions_are_refused(tmp_path: Path) -> None:
    config = write_jsonl(tmp_path, [{"id": "d", "text": "long " * 100}], [])
    with pytest.raises(ArmorError, match="no questions"):
        prepare(config, 0)


def test_evidence_of_blanks_only_is_a_question_without_positives(tmp_path: Path) -> None:
    documents = [{"id": f"d{i}", "text": "a" * 32 + " " * 32 + "b"} for i in range(5)]
    pairs = [{"question": f"{i}", "answer": "z", "doc_id": f"d{i}", "evidence": [{"start": 40, "end": 44}]} for i in range(5)]
    config = write_jsonl(tmp_path, documents, pairs).model_copy(update={"passage_characters": 32})
    with pytest.raises(ArmorError, match=r"qa\.jsonl:1: question without positives"):
        prepare(config, 0)


@pytest.mark.parametrize(("left", "right"), [("What is RE?", "what  is\nre"), ("Straße?", "STRASSE")])
def test_questions_that_count_as_the_same(left: str, right: str) -> None:
    assert normalise_question(left) == normalise_question(right)
    assert normalise_question("What is RB?") != normalise_question(left)


# Schemas


def test_validate_table_orders_columns_and_accepts_large_types() -> None:
    table = pa.table(
        {
            "domain": pa.array([""], pa.large_string()),
            "doc_id": ["d"],
            "positive_ids": pa.array([[1]], pa.large_list(pa.int64())),
            "answers": [["a"]],
            "question": ["q"],
            "example_id": ["e"],
        }
    )
    assert validate_table(table, EXAMPLES, "x").schema == EXAMPLES


def candidates(**columns: object) -> pa.Table:
    base = {
        "example_id": pa.array(["e"]),
        "passage_ids": pa.array([[1]]),
        "scores": pa.array([[0.5]], pa.list_(pa.float32())),
        "is_positive": pa.array([[True]]),
    }
    return pa.table({name: column for name, column in {**base, **columns}.items() if column is not None})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (candidates(scores=None), "w: missing column 'scores'"),
        (candidates(extra=pa.array([1])), "w: unknown column 'extra'"),
        (candidates(scores=pa.array([[0.5]])), "w: column 'scores' is list<.*double>, not list<.*float>"),
        (candidates(example_id=pa.array([None], pa.string())), "w: column 'example_id' has 1 nulls"),
        (candidates().append_column("scores", pa.array([1])), "w: a column name occurs twice"),
    ],
)
def test_validate_table_names_the_fault(table: pa.Table, message: str) -> None:
    with pytest.raises(ArmorError, match=message):
        validate_table(table, CANDIDATES, "w")


def test_an_unscored_pair_has_an_error_and_no_numbers() -> None:
    row = {"example_id": "e", "passage_id": 1, "answer_idx": 0, "log_likelihood": None, "answer_tokens": None, "error": "too long"}
    assert validate_table(pa.Table.from_pylist([row], schema=UTILITIES), UTILITIES, "u").num_rows == 1
