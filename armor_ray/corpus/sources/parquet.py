"""A folder with corpus.parquet and qa.parquet: the columns are the fields of the JSON Lines format (see `rows`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources.fields import Fields
from armor_ray.corpus.sources.files import data_path, member
from armor_ray.corpus.sources.rows import DOCUMENT_FIELDS, QUESTION_FIELDS, corpus_from_rows
from armor_ray.errors import ArmorError


def read(config: DataConfig) -> Corpus:
    """Reads the folder `data.path`."""
    folder = data_path(config)
    if not folder.is_dir():
        raise ArmorError("not a folder", where=str(folder), hint="data.path is the folder that holds corpus.parquet and qa.parquet")
    documents = _rows(member(folder, "corpus.parquet"), required="text", known=DOCUMENT_FIELDS)
    questions = _rows(member(folder, "qa.parquet"), required="question", known=QUESTION_FIELDS)
    return corpus_from_rows(documents, questions)


def _rows(path: Path, required: str, known: frozenset[str]) -> Iterator[Fields]:
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(file.schema_arrow.names, str(path), required, known)
            number = 0
            for batch in file.iter_batches():
                for record in batch.to_pylist():
                    number += 1
                    yield Fields(record, f"{path}:row {number}")
    except UnicodeDecodeError:
        # Batches are decoded as a whole, so the row itself is not known.
        raise ArmorError(f"invalid UTF-8 at or after row {number + 1}", where=str(path), hint="write string columns as UTF-8") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ArmorError(f"not a readable Parquet file ({reason})", where=str(path), hint="write the file again") from None


def _check_columns(names: list[str], where: str, required: str, known: frozenset[str]) -> None:
    if required not in names:
        raise ArmorError(f"missing column '{required}'", where=where, hint=f"the file has: {', '.join(names)}")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ArmorError(f"unknown column '{unknown[0]}'", where=where, hint=f"known columns: {', '.join(sorted(known))}")
