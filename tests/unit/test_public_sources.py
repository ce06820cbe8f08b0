"""Every public data set reads in its published form (tests/fixtures), with what it drops counted and its faults named by place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from armor_ray.config import DataConfig
from armor_ray.corpus.prepare import prepare
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources import read_corpus, source_files
from armor_ray.errors import ArmorError

FIXTURES = Path(__file__).parents[1] / "fixtures"


def read(format: str, path: Path | str | None = None) -> Corpus:
    return read_corpus(DataConfig.model_validate({"format": format, "path": str(path or FIXTURES / format)}))


def evidence(corpus: Corpus) -> dict[str, list[str]]:
    """The text of every question's spans, or the ids of its positive documents."""
    texts = {document.doc_id: document.text for document in corpus.documents}
    return {
        pair.question: [texts[span.doc_id][span.start : span.end] for span in pair.spans] or list(pair.positive_ids)
        for pair in corpus.pairs
    }


def fault_of(format: str, path: Path | str) -> str:
    with pytest.raises(ArmorError) as caught:
        read(format, path)
    assert caught.value.where
    assert caught.value.hint
    return str(caught.value)


def copy(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, folder / name))


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Applies `change` to a JSON file, or to the list of records of a JSON Lines file."""
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        change(rows)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))


# What each reads


def test_tele_eval_joins_questions_to_their_tele_data_documents() -> None:
    corpus = read("tele_eval")
    assert [(d.doc_id, d.title, d.doc_type) for d in corpus.documents] == [
        ("standard_1", "99001-a00", "standard"),
        ("arxiv_7", "Following beams", "arxiv"),
    ]
    assert evidence(corpus) == {"What does a relay node forward?": ["standard_1"], "What do the beams follow?": ["arxiv_7"]}
    assert corpus.notes == {
        "empty_questions_dropped": 1,
        "repeated_documents_dropped": 1,
        "empty_documents_dropped": 1,
        "questions_without_document_dropped": 1,
    }


def test_tele_data_is_documents_alone() -> None:
    corpus = read("tele_data", FIXTURES / "tele_eval" / "tele-data")
    assert [d.doc_id for d in corpus.documents] == ["standard_1", "arxiv_7", "web_4"]
    assert corpus.pairs == []


def test_teleqna_reads_a_decrypted_copy() -> None:
    assert read("teleqna").pairs[0].answers == ("A direction of much gain",)


def test_qasper_evidence_is_found_at_its_paragraphs_and_captions() -> None:
    corpus = read("qasper")
    assert evidence(corpus) == {
        "How many recordings are there?": ["We collected forty recordings of city noise.", "Table 1: Accuracy by street."],
        "Is the network small?": ["The model is a  small network\nof two layers."],
    }
    assert [pair.answers for pair in corpus.pairs] == [("forty recordings", "40"), ("Yes",)]
    assert corpus.notes == {"unanswerable_questions_dropped": 1, "questions_without_evidence_dropped": 1}


def test_qasper_as_parquet_of_columns_reads_the_same(tmp_path: Path) -> None:
    ((name, paper),) = json.loads((FIXTURES / "qasper" / "qasper-train-v0.3.json").read_text()).items()

    def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
        return {key: [row[key] for row in rows] for key in rows[0]}

    questions = [{**question, "answers": columns(question["answers"])} for question in paper["qas"]]
    row = {**paper, "id": name, "full_text": columns(paper["full_text"]), "qas": columns(questions)}
    pq.write_table(pa.Table.from_pylist([{**row, "figures_and_tables": columns(paper["figures_and_tables"])}]), tmp_path / "train.parquet")
    published, stored = read("qasper"), read("qasper", tmp_path)
    assert stored.documents == published.documents
    assert evidence(stored) == evidence(published)


def test_newsqa_takes_the_agreed_spans() -> None:
    corpus = read("newsqa")
    assert evidence(corpus) == {"When did the fox cross?": ["on Monday."], "Who waved?": ["The mayor waved."]}
    assert sum(corpus.notes.values()) == 4
    assert corpus.notes["disputed_questions_dropped"] == 1


def test_squad_unites_its_files_and_both_layouts_agree() -> None:
    nested, flat = read("squad"), read("squad", FIXTURES / "squad_flat")
    assert evidence(nested) == {"What does a harbour shelter?": ["boats"], "What does a lighthouse warn?": ["ships"]}
    assert evidence(flat) == {"What does a lighthouse warn?": ["ships"], "Which paragraph?": ["Another"]}
    assert [d.doc_id for d in flat.documents] == ["Lighthouse/0", "Lighthouse/1"]
    assert nested.notes == flat.notes == {"unanswerable_questions_dropped": 1}


def test_hotpotqa_supporting_sentences_have_offsets_in_both_layouts() -> None:
    expected = {"Which resin floats, amber or copal?": ["It floats on salt water.", "Copal is younger than amber."]}
    published = read("hotpotqa")
    assert evidence(published) == evidence(read("hotpotqa", FIXTURES / "hotpotqa_flat")) == expected
    assert [d.doc_id for d in published.documents] == ["Amber", "Copal"]
    assert published.notes == {
        "supporting_facts_without_sentence": 2,
        "questions_without_evidence_dropped": 1,
        "empty_questions_dropped": 1,
    }


def test_scifact_claims_point_at_sentences() -> None:
    corpus = read("scifact")
    assert evidence(corpus) == {"Bees see ultraviolet.": ["Bees see ultraviolet light."], "Bees see red.": ["They do not see red."]}
    assert [pair.answers for pair in corpus.pairs] == [("supported",), ("refuted",)]
    assert corpus.notes == {"claims_without_evidence_dropped": 2}


def test_beir_scores_above_zero_are_positives() -> None:
    corpus = read("beir")
    assert corpus.whole_documents
    assert evidence(corpus) == {"hard stone": ["a"], "soft stone": ["b"]}
    assert corpus.notes == {"empty_documents_dropped": 1, "judgements_of_unknown_documents": 1, "queries_without_positives_dropped": 1}


def test_telequad_tables_fall_back_to_the_whole_context() -> None:
    corpus = read("telequad_tables")
    assert evidence(corpus) == {"What delay is allowed?": ["20 ms"], "How many rows has the table?": ["99002-a00.docx/0"]}
    assert corpus.documents[0].source == "99002-a00.docx"


def test_a_plain_folder_reads_text_markdown_html_and_pdf() -> None:
    corpus = read("documents")
    texts = {document.doc_id: document.text for document in corpus.documents}
    assert set(texts) == {"guide.md", "notes/plain.txt", "old.txt", "page.html", "paper.pdf"}
    assert texts["page.html"] == (
        "# Cables\n\nA cable carries & bends.\n\n| kind | ohm |\n| --- | --- |\n| coax | 50 |\n\n```\nplug in\n  twist\n```"
    )
    assert texts["paper.pdf"] == "A page about filters."
    assert "größere Entfernungen" in texts["old.txt"]
    assert {d.title for d in corpus.documents} == {"Guide to masts", "plain", "old", "Page of cables", "Filters"}
    assert {d.source for d in corpus.documents} >= {"notes", "guide.md"}
    assert set(evidence(corpus)["What is tall?"]) == {"mast"}
    assert corpus.notes == {"documents_without_text_dropped": 1}


def test_a_data_set_by_name_is_fetched_once_and_read_as_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def snapshot(name: str, *, revision: str | None, **_: Any) -> str:
        asked.append((name, revision))
        return str(FIXTURES / "squad_flat")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert len(read("squad", "hf://datasets/own/harbour@v1").pairs) == 2
    assert asked == [("own/harbour", "v1")]
    assert "not of the form hf://datasets/OWNER/NAME" in fault_of("squad", "hf://harbour")


def test_every_fixture_names_its_files() -> None:
    for format, count in {"beir": 4, "documents": 7, "newsqa": 1, "scifact": 3, "squad": 2, "tele_eval": 2}.items():
        files = source_files(DataConfig.model_validate({"format": format, "path": str(FIXTURES / format)}))
        assert len(files) == count
        assert all(file.is_file() for file in files)


# What is refused


@pytest.mark.parametrize(
    ("format", "file", "change", "message"),
    [
        ("tele_eval", "tele-data/standard.jsonl", lambda rows: rows[1].update(content=5), "standard.jsonl:2: field 'content' is int"),
        ("tele_eval", "tele-data/standard.jsonl", lambda rows: rows[1].pop("id"), "standard.jsonl:2: missing field 'id'"),
        ("qasper", "qasper-train-v0.3.json", lambda value: value.update(x=None), "qasper-train-v0.3.json: x: the record is NoneType"),
        (
            "qasper",
            "qasper-train-v0.3.json",
            lambda value: value["0001.0001"]["qas"][1].update(question_id="q1"),
            "qas[1]: duplicate id 'q1'",
        ),
        (
            "newsqa",
            "combined-newsqa-data-v1.json",
            lambda value: value["data"][0]["questions"][0]["consensus"].update(s=900, e=905),
            "data[0] questions[0] consensus: span [900, 905) holds no text",
        ),
        ("squad_flat", "train.jsonl", lambda rows: rows[0].update(answers={"text": ["a"], "answer_start": []}), "train.jsonl:1: the lists"),
        ("hotpotqa", "hotpot_dev_distractor_v1.json", lambda rows: rows[1].update(_id="h1"), "json: [1]: duplicate id 'h1'"),
        (
            "hotpotqa",
            "hotpot_dev_distractor_v1.json",
            lambda rows: rows[0].update(supporting_facts=[["Amber", "1"]]),
            "[0] supporting_facts[0]: field 'sent_id' is str",
        ),
        (
            "scifact",
            "claims_train.jsonl",
            lambda rows: rows[0].update(evidence={"99": []}),
            "claims_train.jsonl:1 evidence: unknown document",
        ),
        (
            "scifact",
            "claims_train.jsonl",
            lambda rows: rows[0]["evidence"]["11"][0].update(sentences=[2]),
            "evidence 11[0]: sentences [2] of an abstract of 2",
        ),
        ("beir", "queries.jsonl", lambda rows: rows[1].update(_id="1"), "queries.jsonl:2: duplicate id '1'"),
        ("documents", "qa.jsonl", lambda rows: rows[0].update(doc_id="gone.md"), "qa.jsonl:1: unknown document id 'gone.md'"),
    ],
)
def test_a_faulty_record_is_named_by_its_place(tmp_path: Path, format: str, file: str, change: Callable[[Any], None], message: str) -> None:
    folder = copy(format, tmp_path)
    edit(folder / file, change)
    assert message in fault_of(format.removesuffix("_flat"), folder)


@pytest.mark.parametrize("line", ["1\ta", "1\ta\thigh", "1 a 1"])
def test_a_faulty_judgement_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = copy("beir", tmp_path) / "qrels" / "test.tsv"
    path.write_text(f"query-id\tcorpus-id\tscore\n{line}\n")
    assert f"{path}:2: not 'query-id, corpus-id, score'" in fault_of("beir", tmp_path / "beir")


@pytest.mark.parametrize("format", ["beir", "documents", "hotpotqa", "newsqa", "qasper", "scifact", "squad", "tele_data", "tele_eval"])
def test_an_empty_folder_is_named(tmp_path: Path, format: str) -> None:
    assert str(tmp_path) in fault_of(format, tmp_path)


@pytest.mark.parametrize(("name", "raw"), [("a.pdf", b"%PDF-1.4\nnothing"), ("a.html", b"<b>" * 1500 + b"x")])
def test_a_document_that_its_parser_gives_up_on_is_named(tmp_path: Path, name: str, raw: bytes) -> None:
    (tmp_path / name).write_bytes(raw)
    assert fault_of("documents", tmp_path).startswith(str(tmp_path / name))


def test_questions_without_answers_are_not_prepared(tmp_path: Path) -> None:
    folder = copy("beir", tmp_path)
    edit(folder / "queries.jsonl", lambda rows: rows[0].pop("metadata"))
    with pytest.raises(ArmorError, match=r"queries.jsonl:1: 1 of 2 questions have no answer; .*metadata.answers"):
        prepare(DataConfig(format="beir", path=str(folder)), 0)
