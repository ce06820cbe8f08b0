"""Whatever a file holds, reading it ends in a corpus or in one ArmorError: never in another exception."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armor_ray.config import DataConfig
from armor_ray.corpus.sources import read_corpus
from armor_ray.corpus.sources.parsers import PARSERS, parse
from armor_ray.errors import ArmorError
from armor_ray.judges import domain

FIXTURES = Path(__file__).parents[1] / "fixtures"
FEW = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
# (format, file that is damaged): each reader's every kind of file
TARGETS = [
    ("beir", "corpus.jsonl"),
    ("beir", "queries.jsonl"),
    ("beir", "qrels/test.tsv"),
    ("documents", "qa.jsonl"),
    ("hotpotqa", "hotpot_dev_distractor_v1.json"),
    ("jsonl", "corpus.jsonl"),
    ("jsonl", "qa.jsonl"),
    ("newsqa", "combined-newsqa-data-v1.json"),
    ("qasper", "qasper-train-v0.3.json"),
    ("scifact", "corpus.jsonl"),
    ("scifact", "claims_train.jsonl"),
    ("squad", "train-v2.0.json"),
    ("squad_flat", "train.jsonl"),
    ("tele_eval", "tele-eval.json"),
    ("tele_eval", "tele-data/standard.jsonl"),
    ("teleqna", "TeleQnA.txt"),
    ("telequad_tables", "TeleQuAD-v1-full-Tabular.json"),
]
HOSTILE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([10**400, -1, 1e308, "\0", "\ud800", "", " ", [], {}, [[]], [None], {"": None}, "{" * 500, "9" * 5000])
    | st.text(max_size=5)
)
VALUES = st.recursive(
    HOSTILE, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2), max_leaves=4
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, entry in inner for place in places(entry, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def read_or_refuse(format: str, path: Path) -> None:
    fault = None
    try:
        corpus = read_corpus(DataConfig.model_validate({"format": format.removesuffix("_flat"), "path": str(path)}))
    except ArmorError as error:
        fault = error
    if fault is not None:
        assert fault.where
        assert "\n" not in str(fault)
        return
    texts = {document.doc_id: document.text for document in corpus.documents}
    for pair in corpus.pairs:
        assert pair.question.strip()
        assert pair.documents() <= texts.keys()
        assert all(0 <= span.start < span.end <= len(texts[span.doc_id]) for span in pair.spans)
        assert all(answer.strip() for answer in pair.answers)
    "".join([*texts.values(), *(pair.question for pair in corpus.pairs)]).encode()  # Arrow takes them


def damaged(tmp_path: Path, format: str, file: str, raw: bytes) -> Path:
    folder = tmp_path / format
    if not folder.exists():
        shutil.copytree(FIXTURES / format, folder)
        for other in folder.glob("*.html"):  # slow to parse, and fuzzed by itself
            other.unlink()
    (folder / file).write_bytes(raw)
    return folder


@pytest.mark.parametrize(("format", "file"), TARGETS)
@FEW
@given(data=st.data())
def test_wrong_values_anywhere(tmp_path: Path, format: str, file: str, data: st.DataObject) -> None:
    raw = (FIXTURES / format / file).read_text()
    if file.endswith(".tsv"):
        cells = [line.split("\t") for line in raw.splitlines()]
        text = "\n".join(
            "\t".join(row) for row in replaced(cells, data.draw(st.sampled_from([(1, 0), (1, 1), (1, 2)])), data.draw(st.text(max_size=4)))
        )
        read_or_refuse(format, damaged(tmp_path, format, file, text.encode("utf-8", "surrogatepass")))
        return
    lines = file.endswith(".jsonl") or file == "tele-eval.json"
    value = [json.loads(line) for line in raw.splitlines()] if lines else json.loads(raw)
    value = replaced(value, data.draw(st.sampled_from(places(value)[1:])), data.draw(VALUES))
    text = "".join(json.dumps(row) + "\n" for row in value) if lines else json.dumps(value)
    read_or_refuse(format, damaged(tmp_path, format, file, text.encode()))


@pytest.mark.parametrize(("format", "file"), TARGETS)
@FEW
@given(data=st.data())
def test_damaged_bytes_anywhere(tmp_path: Path, format: str, file: str, data: st.DataObject) -> None:
    raw = (FIXTURES / format / file).read_bytes()
    start = data.draw(st.integers(0, len(raw)))
    patch = data.draw(
        st.binary(max_size=6) | st.sampled_from([b"[" * 60_000, b'{"a":' * 60_000, b"1" * 6000, b"\xff", b"\0", b'"\\ud800"'])
    )
    keep = data.draw(st.booleans())
    read_or_refuse(format, damaged(tmp_path, format, file, raw[:start] + patch + (raw[start:] if keep else b"")))


@pytest.mark.parametrize("suffix", sorted({".txt", ".md", ".html", ".pdf"} & PARSERS.keys()))
@FEW
@given(data=st.data())
def test_hostile_documents(suffix: str, data: st.DataObject) -> None:
    whole = next((FIXTURES / "documents").rglob(f"*{suffix}")).read_bytes()
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    patches = st.binary(max_size=40) | st.sampled_from(
        [b"<" * 5000, b"<table><tr>" * 900, b"<!DOCTYPE [", b"<![CDATA[", b"&#xD800;", b"\0" * 9]
    )
    raw = whole[:start] + data.draw(patches) + whole[end:]
    try:
        title, text = parse(raw, Path(f"x{suffix}"))
    except ArmorError:
        return
    (title + text).encode()
    assert "\0" not in text


def write_parquet(fixture: str, folder: Path) -> None:
    """The fixture's JSON Lines as Parquet files; all but `metadata`, whose empty objects are no Parquet."""
    for source in (FIXTURES / fixture).glob("*.jsonl"):
        rows = [json.loads(line) for line in source.read_text().splitlines()]
        names = {name for row in rows for name in row} - {"metadata"}
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in sorted(names)}), folder / f"{source.stem}.parquet")


@pytest.mark.parametrize(("format", "damaged_name"), [("squad_flat", "train"), ("parquet", "corpus"), ("parquet", "qa")])
@FEW
@given(data=st.data())
def test_damaged_parquet(tmp_path: Path, format: str, damaged_name: str, data: st.DataObject) -> None:
    if not (tmp_path / "whole").exists():
        write_parquet(format.replace("parquet", "jsonl"), tmp_path)
    path = tmp_path / f"{damaged_name}.parquet"
    if not (tmp_path / "whole").exists():
        shutil.copy(path, tmp_path / "whole")
    raw = bytearray((tmp_path / "whole").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) // 2]))])
    read_or_refuse(format, tmp_path)


@FEW
@given(data=st.data())
def test_damaged_archives(tmp_path: Path, data: st.DataObject) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("TeleQnA.txt", (FIXTURES / "teleqna" / "TeleQnA.txt").read_bytes())
    raw = bytearray(whole.getvalue())
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "TeleQnA.zip").write_bytes(raw)
    read_or_refuse("teleqna", tmp_path / "TeleQnA.zip")


def test_the_undamaged_fixtures_read(tmp_path: Path) -> None:
    write_parquet("jsonl", tmp_path)
    whole = read_corpus(DataConfig(format="jsonl", path=str(FIXTURES / "jsonl")))
    assert [pair.doc_id for pair in whole.pairs] == ["a", "b", "b"]
    assert read_corpus(DataConfig(format="parquet", path=str(tmp_path))).documents == whole.documents


@FEW
@given(data=st.data())
def test_hostile_domain_files(tmp_path: Path, data: st.DataObject) -> None:
    shipped = yaml.safe_load((Path(domain.__file__).parent / "domains" / "isac.yaml").read_text())
    value = replaced(shipped, data.draw(st.sampled_from(places(shipped))), data.draw(VALUES))
    text = data.draw(st.sampled_from([yaml.safe_dump(value), "a: [", "a: \0", "\t", "&a [*a]", "!!python/object:os.system x", "? {a: b}"]))
    (tmp_path / "own.yaml").write_bytes(text.encode("utf-8", "surrogatepass") + data.draw(st.binary(max_size=3)))
    fault = None
    try:
        domain.load_domain(str(tmp_path / "own.yaml"))
    except ArmorError as error:
        fault = error
    if fault is not None:
        assert fault.where
        assert "\n" not in str(fault)
