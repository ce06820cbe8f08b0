"""A folder with corpus.parquet and qa.parquet: the columns are the fields of the JSON Lines format (see `rows`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources.fields import Fields
from armor_ray.corpus.sources.files import data_path, member
from armor_ray.corpus.sources.row_files import parquet_columns, parquet_rows
from armor_ray.corpus.sources.rows import DOCUMENT_FIELDS, QUESTION_FIELDS, corpus_from_rows
from armor_ray.errors import ArmorError


def files(path: Path) -> list[Path]:
    """Both files of the folder."""
    return [member(path, "corpus.parquet"), member(path, "qa.parquet")]


def read(config: DataConfig) -> Corpus:
    """Reads the folder `data.path`."""
    folder = data_path(config)
    if not folder.is_dir():
        raise ArmorError("not a folder", where=str(folder), hint="data.path is the folder that holds corpus.parquet and qa.parquet")
    corpus = member(folder, "corpus.parquet")
    documents = _rows(corpus, required="text", known=DOCUMENT_FIELDS)
    questions = _rows(member(folder, "qa.parquet"), required="question", known=QUESTION_FIELDS)
    return corpus_from_rows(documents, partial(parquet_rows, corpus.absolute()), questions)


def _rows(path: Path, required: str, known: frozenset[str]) -> Iterator[Fields]:
    _check_columns(parquet_columns(path), str(path), required, known)
    return parquet_rows(path)


def _check_columns(names: list[str], where: str, required: str, known: frozenset[str]) -> None:
    if required not in names:
        raise ArmorError(f"missing column '{required}'", where=where, hint=f"the file has: {', '.join(names)}")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ArmorError(f"unknown column '{unknown[0]}'", where=where, hint=f"known columns: {', '.join(sorted(known))}")
