"""Every format reads as published, and every fault of the data is one line with its place and a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pyzipper

from armor_ray.config import DataConfig
from armor_ray.corpus.prepare import prepare
from armor_ray.corpus.records import Corpus, Span
from armor_ray.corpus.sources import read_corpus
from armor_ray.errors import ArmorError

DOCUMENTS: list[dict[str, Any]] = [
    {
        "id": "d1",
        "title": "One",
        "text": "The AMF selects the SMF. The amf also pages.",
        "source": "TS 1",
        "doc_type": "standard",
        "domain": "core",
    },
    {"id": "d2", "text": "A beam is swept."},
]
QUESTION: dict[str, Any] = {"id": "q1", "question": "Who pages?", "answers": ["AMF"], "doc_id": "d1"}


def read(format: str, path: Path | None, **settings: Any) -> Corpus:
    return read_corpus(DataConfig.model_validate({"format": format, "path": None if path is None else str(path), **settings}))


def fault_of(format: str, path: Path | None, **settings: Any) -> ArmorError:
    with pytest.raises(ArmorError) as caught:
        read(format, path, **settings)
    assert caught.value.where
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


def jsonl_folder(folder: Path, documents: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> Path:
    for name, rows in (("corpus.jsonl", documents), ("qa.jsonl", pairs)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


# JSON Lines


def test_jsonl_finds_verbatim_answers(tmp_path: Path) -> None:
    corpus = read("jsonl", jsonl_folder(tmp_path, DOCUMENTS, [QUESTION]))
    assert [d.doc_id for d in corpus.documents] == ["d1", "d2"]
    (pair,) = corpus.pairs
    assert pair.spans == (Span("d1", 4, 7), Span("d1", 29, 32))
    assert (pair.example_id, pair.answers, pair.doc_id, pair.domain) == ("q1", ("AMF",), "d1", "core")
    assert pair.where == f"{tmp_path / 'qa.jsonl'}:1"


def test_jsonl_evidence_and_positive_ids_come_before_verbatim_answers(tmp_path: Path) -> None:
    pairs = [{**QUESTION, "evidence": [{"start": 25, "end": 44}]}, {"question": "B?", "answer": "AMF", "positive_ids": ["d2", "d1"]}]
    by_evidence, by_name = read("jsonl", jsonl_folder(tmp_path, DOCUMENTS, pairs)).pairs
    assert by_evidence.spans == (Span("d1", 25, 44),)
    assert (by_name.spans, by_name.positive_ids, by_name.doc_id) == ((), ("d2", "d1"), "d2")


def test_jsonl_accepts_beir_names_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    rows = [{"_id": "a", "title": "", "text": "x y", "metadata": {"url": "z"}}, {"_id": "b", "text": "y"}]
    (tmp_path / "corpus.jsonl").write_bytes(b"\xef\xbb\xbf" + "\n\n".join(map(json.dumps, rows)).encode())
    (tmp_path / "qa.jsonl").write_text(json.dumps({"_id": "q", "question": "?", "answer": "y", "positive_ids": ["b"]}))
    corpus = read("jsonl", tmp_path)
    assert [d.doc_id for d in corpus.documents] == ["a", "b"]
    assert corpus.pairs[0].example_id == "q"


def test_a_question_without_id_keeps_its_id_when_lines_move(tmp_path: Path) -> None:
    bare = {"question": "Who pages?", "answer": "AMF", "doc_id": "d1"}
    first = read("jsonl", jsonl_folder(tmp_path, DOCUMENTS, [bare, QUESTION])).pairs[0].example_id
    second = read("jsonl", jsonl_folder(tmp_path, DOCUMENTS, [QUESTION, bare])).pairs[1].example_id
    assert first == second != "q1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, "missing field 'question'"),
        ({"question": " "}, "field 'question' is empty"),
        ({"question": 7}, "field 'question' is int, not a string"),
        ({"answers": None}, "question without answers"),
        ({"answers": []}, "question without answers"),
        ({"answers": "AMF"}, "field 'answers' is str, not a list"),
        ({"answers": ["AMF", ""]}, "an entry of 'answers' is empty"),
        ({"answers": [1]}, "an entry of 'answers' is int, not a string"),
        ({"answer": "AMF"}, "fields 'answer' and 'answers' are both given"),
        ({"answers": ["UPF"]}, "question without positives"),
        ({"doc_id": None}, "question without positives"),
        ({"doc_id": "d9"}, "unknown document id 'd9'"),
        ({"positive_ids": ["d2", "d9"]}, "unknown document id 'd9'"),
        ({"evidence": [{"start": 40, "end": 45}]}, "evidence[0]: span [40, 45) lies outside document 'd1' of 44 characters"),
        ({"evidence": [{"start": -1, "end": 4}]}, "evidence[0]: span [-1, 4) lies outside document 'd1' of 44 characters"),
        ({"evidence": [{"start": 4, "end": 4}]}, "evidence[0]: span [4, 4) lies outside document 'd1' of 44 characters"),
        ({"evidence": [{"start": 4}]}, "evidence[0]: missing field 'end'"),
        ({"evidence": [{"start": 4, "end": 7.0}]}, "evidence[0]: field 'end' is float, not an integer"),
        ({"evidence": [{"start": False, "end": 7}]}, "evidence[0]: field 'start' is bool, not an integer"),
        ({"evidence": [[4, 7]]}, "evidence[0]: the record is list, not an object"),
        ({"evidence": [{"start": 4, "end": 7}], "doc_id": None}, "evidence without 'doc_id'"),
        ({"anwsers": ["AMF"]}, "unknown field 'anwsers'; did you mean 'answers'?"),
        ({"id": "q0"}, "duplicate id 'q0'"),
        ({"question": "\ud800"}, "field 'question' holds half of a surrogate pair"),
    ],
)
def test_a_faulty_question_is_named_by_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    jsonl_folder(tmp_path, DOCUMENTS, [{**QUESTION, "id": "q0"}, {**QUESTION, **change}])
    fault = fault_of("jsonl", tmp_path)
    assert str(fault).startswith(f"{tmp_path / 'qa.jsonl'}:2")
    assert message in str(fault)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "missing field 'id'"),
        ({"id": 3}, "field 'id' is int, not a string"),
        ({"id": "d1"}, "duplicate id 'd1'"),
        ({"text": None}, "missing field 'text'"),
        ({"text": " \n"}, "field 'text' is empty"),
        ({"title": ["x"]}, "field 'title' is list, not a string"),
        ({"titel": "x"}, "unknown field 'titel'; did you mean 'title'?"),
    ],
)
def test_a_faulty_document_is_named_by_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    jsonl_folder(tmp_path, [DOCUMENTS[0], {**DOCUMENTS[1], **change}], [QUESTION])
    fault = fault_of("jsonl", tmp_path)
    assert str(fault).startswith(f"{tmp_path / 'corpus.jsonl'}:2: {message}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "x", ', "malformed JSON"),
        (b'{"id": "\xff"}', "invalid UTF-8"),
        (b"[1]", "the record is list, not an object"),
        (b"[" * 100_000, "malformed JSON"),
        (b'{"id": ' + b"1" * 5000 + b"}", "malformed JSON"),
    ],
)
def test_an_undecodable_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    jsonl_folder(tmp_path, DOCUMENTS, [QUESTION])
    with (tmp_path / "corpus.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert str(fault_of("jsonl", tmp_path)).startswith(f"{tmp_path / 'corpus.jsonl'}:3: {message}")


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    assert "data.path: not set" in str(fault_of("jsonl", None))
    assert "no such file or folder" in str(fault_of("jsonl", tmp_path / "nowhere"))
    assert "corpus.jsonl: missing file" in str(fault_of("jsonl", tmp_path))
    (tmp_path / "corpus.jsonl").write_text("")
    assert "qa.jsonl: missing file" in str(fault_of("jsonl", tmp_path))
    assert "not a folder" in str(fault_of("jsonl", tmp_path / "corpus.jsonl"))
    assert "TeleQuAD-v4-full.json: missing file" in str(fault_of("telequad", tmp_path))


def test_settings_that_a_format_ignores_are_refused(tmp_path: Path) -> None:
    assert "data.password: format 'jsonl' has no password" in str(fault_of("jsonl", tmp_path, password="x"))
    assert "data.path: format 'demo' reads the packaged data" in str(fault_of("demo", tmp_path))


def test_demo_reads_the_packaged_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armor_ray.corpus.sources.demo.files", lambda package: tmp_path / package)
    folder = tmp_path / "armor_ray.demo" / "data"
    assert str(fault_of("demo", None)).startswith(f"{folder}: not a folder")
    folder.mkdir(parents=True)
    jsonl_folder(folder, DOCUMENTS, [QUESTION])
    assert len(read("demo", None).pairs) == 1


# Parquet


def parquet_folder(folder: Path, documents: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(documents), folder / "corpus.parquet")
    pq.write_table(pa.Table.from_pylist(pairs), folder / "qa.parquet")
    return folder


def test_parquet_reads_what_jsonl_reads(tmp_path: Path) -> None:
    pairs = [{**QUESTION, "evidence": None}, {**QUESTION, "id": "q2", "evidence": [{"start": 4, "end": 7}]}]
    from_parquet = read("parquet", parquet_folder(tmp_path, DOCUMENTS, pairs))
    from_jsonl = read("jsonl", jsonl_folder(tmp_path, DOCUMENTS, pairs))
    assert from_parquet.documents == from_jsonl.documents
    assert [(p.example_id, p.spans, p.answers) for p in from_parquet.pairs] == [
        (p.example_id, p.spans, p.answers) for p in from_jsonl.pairs
    ]


def test_parquet_faults_name_file_row_and_column(tmp_path: Path) -> None:
    parquet_folder(tmp_path, DOCUMENTS, [QUESTION, {**QUESTION, "id": "q2", "doc_id": "d9"}])
    assert f"{tmp_path / 'qa.parquet'}:row 2: unknown document id 'd9'" in str(fault_of("parquet", tmp_path))
    parquet_folder(tmp_path, [{"id": "d1", "body": "x"}], [QUESTION])
    assert "corpus.parquet: missing column 'text'" in str(fault_of("parquet", tmp_path))
    parquet_folder(tmp_path, [{**DOCUMENTS[0], "pages": 3}], [QUESTION])
    assert "corpus.parquet: unknown column 'pages'" in str(fault_of("parquet", tmp_path))
    parquet_folder(tmp_path, DOCUMENTS, [{**QUESTION, "answers": 5}])
    assert "qa.parquet:row 1: field 'answers' is int, not a list" in str(fault_of("parquet", tmp_path))
    assert "not a folder" in str(fault_of("parquet", tmp_path / "qa.parquet"))


@pytest.mark.parametrize("damage", [b"", b"PAR1 not really", None])
def test_corrupt_parquet_is_named(tmp_path: Path, damage: bytes | None) -> None:
    path = parquet_folder(tmp_path, DOCUMENTS * 1, [QUESTION]) / "corpus.parquet"
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    assert str(fault_of("parquet", tmp_path)).startswith(f"{path}: not a readable Parquet file")


def test_parquet_with_invalid_utf8_is_named(tmp_path: Path) -> None:
    parquet_folder(tmp_path, DOCUMENTS, [QUESTION])
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"], pa.binary()).buffers())
    pq.write_table(pa.table({"id": ["d1"], "text": broken}), tmp_path / "corpus.parquet")
    assert "corpus.parquet: invalid UTF-8 at or after row 1" in str(fault_of("parquet", tmp_path))


# TeleQuAD

CONTEXT = "An RE is a\nresource element. An RB is a\tresource block. "


def squad_question(name: str, question: str, *texts: str, impossible: bool = False) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": CONTEXT.find(text), "contributor": "1"} for text in texts]
    return {"id": name, "type": "SHORT", "question": question, "answers": answers, "is_impossible": impossible}


def telequad_entry(docid: str, title: str, qas: list[dict[str, Any]]) -> dict[str, Any]:
    return {"docid": docid, "title": title, "source": f"https://{docid}", "paragraphs": [{"context": CONTEXT, "qas": qas}]}


def telequad_file(folder: Path, entries: list[dict[str, Any]]) -> Path:
    path = folder / "TeleQuAD-v4-full.json"
    path.write_text(json.dumps({"version": "4", "data": entries}), encoding="utf-8")
    return path


def test_telequad_reads_the_published_form(tmp_path: Path) -> None:
    qas = [
        squad_question("q1", "What\tis an\nRE?", "resource element. ", "a\nresource element", ""),
        squad_question("q2", "Nothing?", "resource", impossible=True),
    ]
    telequad_file(tmp_path, [telequad_entry("1", "3GPP#23273-g50#30", qas), telequad_entry("2", "Home", [])])
    corpus = read("telequad", tmp_path)
    assert [(d.doc_id, d.title, d.source, d.doc_type) for d in corpus.documents] == [
        ("1", "3GPP#23273-g50#30", "3GPP#23273-g50", "specification"),
        ("2", "Home", "Home", "article"),
    ]
    (pair,) = corpus.pairs
    assert pair.question == "What is an RE?"
    assert pair.answers == ("resource element.", "a resource element")
    assert [CONTEXT[span.start : span.end] for span in pair.spans] == ["resource element.", "a\nresource element"]
    assert corpus.notes == {"unanswerable_questions_dropped": 1}


def test_telequad_merges_repeated_questions_and_keeps_specifications_together(tmp_path: Path) -> None:
    entries = [
        telequad_entry(str(i), f"S#{i // 3}#{i % 3}", [squad_question(f"{i}-{j}", f"Q {i} {j}?", "RE") for j in range(2)])
        for i in range(15)
    ]
    entries[0]["paragraphs"][0]["qas"] += [squad_question("again", "q 0  0", "resource block")]
    config = DataConfig(format="telequad", path=str(telequad_file(tmp_path, entries)), group_by="source", passage_characters=32)
    prepared = prepare(config, 0)
    assert prepared.notes["repeated_questions_merged"] == 1
    rows = {name: table.to_pylist() for name, table in prepared.examples.items()}
    assert {name: len(members) for name, members in rows.items()} == {"train": 18, "validation": 6, "test": 6}
    specifications = [{int(row["doc_id"]) // 3 for row in members} for members in rows.values()]
    assert sum(map(len, specifications)) == 5
    (merged,) = [row for members in rows.values() for row in members if row["example_id"] == "0-0"]
    assert (merged["answers"], merged["positive_ids"]) == (["RE", "resource block"], [0, 1])


def test_plain_squad_articles_are_sources_of_their_paragraphs(tmp_path: Path) -> None:
    article = {
        "title": "Normans",
        "paragraphs": [{"context": CONTEXT, "qas": [squad_question("q", "RE?", "RE")]}, {"context": "x", "qas": []}],
    }
    corpus = read("telequad", telequad_file(tmp_path, [article]))
    assert [(d.doc_id, d.source) for d in corpus.documents] == [("Normans/0", "Normans"), ("Normans/1", "Normans")]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (squad_question("q1", "?"), "duplicate id 'q1'"),
        (squad_question("q2", "RE?"), "question without positives"),
        (squad_question("q2", "RE?", ""), "question without positives"),
        ({**squad_question("q2", "RE?", "RE"), "is_impossible": "False"}, "field 'is_impossible' is str, not true or false"),
        (
            {**squad_question("q2", "RE?"), "answers": [{"text": "RE", "answer_start": 900}]},
            "answers[0]: span [900, 902) lies outside its context",
        ),
        (
            {**squad_question("q2", "RE?"), "answers": [{"text": "RE", "answer_start": 0}]},
            "answers[0]: the context has 'An' at answer_start",
        ),
        ({**squad_question("q2", "RE?"), "answers": [{"text": "RE"}]}, "answers[0]: missing field 'answer_start'"),
    ],
)
def test_a_faulty_squad_question_is_named_by_its_place(tmp_path: Path, question: dict[str, Any], message: str) -> None:
    path = telequad_file(tmp_path, [telequad_entry("1", "T", [squad_question("q1", "RE?", "RE"), question])])
    fault = fault_of("telequad", path)
    assert str(fault).startswith(f"{path}: data[0] paragraphs[0] qas[1]")
    assert message in str(fault)


def test_faulty_squad_files_are_named(tmp_path: Path) -> None:
    path = telequad_file(tmp_path, [telequad_entry("1", "T", []), telequad_entry("1", "U", [])])
    assert "data[1] paragraphs[0]: duplicate id '1'" in str(fault_of("telequad", path))
    path.write_bytes(b'{\n"data":\n}')
    assert f"{path}:3: malformed JSON" in str(fault_of("telequad", path))
    path.write_bytes(b'{\n"data": "\xff"}')
    assert f"{path}:2: invalid UTF-8" in str(fault_of("telequad", path))
    path.write_text("{}")
    assert "missing field 'data'" in str(fault_of("telequad", path))


# TeleQnA


def teleqna_row(number: int, answer: Any, explanation: str | None = None, question: str | None = None) -> dict[str, Any]:
    options = {f"option {n}": f"text {n} of {number}" for n in range(1, 5)}
    return {
        "question": question or f"Question {number}? [3GPP Release 18]",
        **options,
        "answer": answer,
        "explanation": explanation or f"Because {number}.",
        "category": "Lexicon",
    }


def teleqna_zip(folder: Path, rows: Any, password: str = "teleqnadataset", members: int = 1) -> Path:
    path = folder / "TeleQnA.zip"
    with pyzipper.AESZipFile(path, "w", compression=pyzipper.ZIP_DEFLATED, encryption=pyzipper.WZ_AES) as archive:
        archive.setpassword(password.encode())
        for number in range(members):
            archive.writestr(f"TeleQnA{number or ''}.txt", json.dumps(rows))
    return path


def test_teleqna_reads_the_encrypted_archive(tmp_path: Path) -> None:
    rows = {
        "question 0": teleqna_row(0, "option 1: text 1 of 0", explanation="Long. " * 200),
        "question 1": teleqna_row(1, "option 4: text 4 of 1", question="What is [0, 1]?"),
        "question 2": teleqna_row(2, "option 2: text 2 of 2", explanation="Because 1."),
        "question 3": teleqna_row(3, "option 2: text 2 of 3", question="Research Papers"),
    }
    teleqna_zip(tmp_path, rows)
    corpus = read("teleqna", tmp_path)
    assert corpus.whole_documents
    assert [d.text for d in corpus.documents] == [("Long. " * 200).strip(), "Because 1.", "Because 3."]
    assert [(p.question, p.answers, p.positive_ids, p.domain) for p in corpus.pairs] == [
        ("Question 0?", ("text 1 of 0",), ("question 0",), "Lexicon"),
        ("What is [0, 1]?", ("text 4 of 1",), ("question 1",), "Lexicon"),
        ("Question 2?", ("text 2 of 2",), ("question 1",), "Lexicon"),
    ]
    assert corpus.notes == {"same_explanations_merged": 1, "lost_questions_dropped": 1}


def test_teleqna_explanations_are_whole_passages(tmp_path: Path) -> None:
    rows = {f"question {i}": teleqna_row(i, f"option 3: text 3 of {i}", explanation=f"{i} " * 300) for i in range(20)}
    prepared = prepare(DataConfig(format="teleqna", path=str(teleqna_zip(tmp_path, rows)), split_by="question"), 0)
    assert prepared.passages.num_rows == 20
    assert [prepared.notes[name] for name in ("train", "validation", "test")] == [16, 2, 2]


@pytest.mark.parametrize(
    "label", [0, 1, "0", "1", "A", "b", "option 0: text", "option 5: text", "option A: text", "option 1", "text 1 of 0"]
)
def test_teleqna_never_guesses_what_a_label_means(tmp_path: Path, label: Any) -> None:
    path = teleqna_zip(tmp_path, {"question 0": teleqna_row(0, label)})
    fault = str(fault_of("teleqna", path))
    assert fault.startswith(f"{path}/TeleQnA.txt: question 0: field 'answer'")


@pytest.mark.parametrize("password", [None, "wrong", ""])
def test_teleqna_password_faults_are_named(tmp_path: Path, password: str | None) -> None:
    path = teleqna_zip(tmp_path, {}, password="another")
    assert f"{path}: wrong or missing password; set data.password" in str(fault_of("teleqna", path, password=password))


def test_teleqna_password_can_be_set(tmp_path: Path) -> None:
    path = teleqna_zip(tmp_path, {"question 0": teleqna_row(0, "option 1: text 1 of 0")}, password="another")
    assert len(read("teleqna", path, password="another").pairs) == 1


def test_teleqna_faulty_archives_are_named(tmp_path: Path) -> None:
    path = teleqna_zip(tmp_path, {"question 0": teleqna_row(0, "option 1: x")})
    whole = path.read_bytes()
    path.write_bytes(whole[:80] + bytes(255 - byte for byte in whole[80:90]) + whole[90:])  # behind the password check
    assert "corrupt archive" in str(fault_of("teleqna", path))
    path.write_bytes(b"no zip at all")
    assert "corrupt archive" in str(fault_of("teleqna", path))
    teleqna_zip(tmp_path, {}, members=2)
    assert "the archive holds 2 files, not one" in str(fault_of("teleqna", path))
    teleqna_zip(tmp_path, [1])
    assert "not an object of questions" in str(fault_of("teleqna", path))
