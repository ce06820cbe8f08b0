"""Sources of many documents stream them: same corpus, same faults, only the documents that questions name in memory."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_cases import write_corpus

from armor_ray.config import DataConfig
from armor_ray.corpus import streams
from armor_ray.corpus.records import Corpus, Document
from armor_ray.corpus.sources import read_corpus
from armor_ray.corpus.streams import DocumentStream, survey
from armor_ray.errors import ArmorError

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every corpus is too large to hold."""
    monkeypatch.setattr(streams, "HELD_CHARACTERS", 0)


def read(format: str, path: Path) -> Corpus:
    return read_corpus(DataConfig.model_validate({"format": format, "path": str(path)}))


def source(format: str, tmp_path: Path) -> Path:
    """A data set of this format that names more documents than its questions do."""
    if format == "tele_data":
        return FIXTURES / "tele_eval" / "tele-data"
    if format in {"beir", "documents"}:
        return FIXTURES / format
    folder = write_corpus(tmp_path / "corpus")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"id": "unasked", "title": "t", "text": "nothing is asked about this"}) + "\n")
    if format == "parquet":
        for name in ("corpus", "qa"):
            rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
            pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize("format", ["jsonl", "parquet", "beir", "documents", "tele_data"])
def test_a_stream_is_the_same_corpus(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(format, tmp_path)
    whole = read(format, path)
    monkeypatch.setattr(streams, "HELD_CHARACTERS", 0)
    streamed = read(format, path)
    assert isinstance(whole.documents, list)
    assert isinstance(streamed.documents, DocumentStream)
    assert list(streamed.documents) == list(streamed.documents) == whole.documents
    assert len(streamed.documents) == len(whole.documents)
    assert (streamed.pairs, streamed.notes) == (whole.pairs, whole.notes)
    asked = {name for pair in whole.pairs for name in pair.documents()}
    assert {document.doc_id for document in streamed.documents.asked} == asked


@pytest.mark.usefixtures("streaming")
def test_another_process_reads_a_stream_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = source("jsonl", tmp_path)
    monkeypatch.chdir(folder.parent)
    documents = read("jsonl", Path(folder.name)).documents
    assert isinstance(documents, DocumentStream)
    monkeypatch.chdir("/")
    assert list(pickle.loads(pickle.dumps(documents.read))()) == list(documents)


def test_documents_are_let_go_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HELD_CHARACTERS", 10)
    few = [Document(name, "", "12345", "", "") for name in "ab"]
    assert survey(few, lambda: few, {"b", "z"}) == (few, {"b": few[1]})
    many = [*few, Document("c", "", "1", "", "")]
    found, asked = survey(many, lambda: many, {"b"})
    assert isinstance(found, DocumentStream)
    assert (list(found), found.asked, asked) == (many, [few[1]], {"b": few[1]})


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize(("format", "name", "field"), [("jsonl", "corpus.jsonl", "id"), ("beir", "corpus.jsonl", "_id")])
def test_a_repeated_id_names_both_places(format: str, name: str, field: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(source(format, tmp_path), tmp_path / "copy"))
    lines = (folder / name).read_text().splitlines()
    repeated = json.loads(lines[1])[field]
    (folder / name).write_text("\n".join([*lines, lines[1]]) + "\n")
    with pytest.raises(ArmorError) as caught:
        read(format, folder)
    assert caught.value.where == f"{folder / name}:{len(lines) + 1}"
    assert str(caught.value).endswith(f"duplicate id '{repeated}'; it is taken by {folder / name}:2: ids must be unique")
