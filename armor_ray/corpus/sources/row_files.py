"""Files of records: JSON Lines, JSON arrays and Parquet, one `Fields` a record, each knowing its file and line or row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.corpus.sources.fields import Fields
from armor_ray.corpus.sources.files import decode_json, read_bytes
from armor_ray.errors import ArmorError

SUFFIXES = (".jsonl", ".json", ".parquet")


def rows(path: Path) -> Iterator[Fields]:
    """The records of one file, streamed where its format allows: `.parquet`, `.jsonl`, or `.json` (an array, or JSON Lines all the same).

    Raises:
        ArmorError: an unreadable file, a malformed record, or a record that is no object.
    """
    if path.suffix == ".parquet":
        return parquet_rows(path)
    return json_lines(path) if path.suffix == ".jsonl" or _is_json_lines(path) else _array(path)


def json_lines(path: Path) -> Iterator[Fields]:
    """The records of a JSON Lines file; blank lines are skipped."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield Fields(decode_json(line.rstrip(), str(path), number), f"{path}:{number}")
    except OSError as error:
        raise ArmorError(f"cannot be read ({error.strerror})", where=str(path), hint="check the file and its permissions") from None


def parquet_rows(path: Path) -> Iterator[Fields]:
    """The records of a Parquet file, batch by batch."""
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for record in batch.to_pylist():
                    number += 1
                    yield Fields(record, f"{path}:row {number}")
    except UnicodeDecodeError:
        # Batches are decoded as a whole, so the row itself is not known.
        raise ArmorError(f"invalid UTF-8 at or after row {number + 1}", where=str(path), hint="write string columns as UTF-8") from None
    except (pa.ArrowException, OSError, OverflowError) as error:
        raise unreadable_parquet(path, error) from None


def parquet_columns(path: Path) -> list[str]:
    """Column names of a Parquet file."""
    try:
        with pq.ParquetFile(path) as file:
            return file.schema_arrow.names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise unreadable_parquet(path, error) from None


def unreadable_parquet(path: Path, error: Exception) -> ArmorError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return ArmorError(f"not a readable Parquet file ({reason})", where=str(path), hint="write the file again")


def record_files(path: Path, stem: str = "*") -> list[Path]:
    """The record files that `path` names: itself, or those below it whose name matches `stem`, sorted.

    Raises:
        ArmorError: there is none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob(f"{stem}.*") if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise ArmorError(f"no {stem}.json, .jsonl or .parquet file", where=str(path), hint="correct data.path or add the file")
    return found


def _is_json_lines(path: Path) -> bool:
    """Hugging Face names JSON Lines `.json` too: a file that begins with an object and not with an array."""
    try:
        with path.open("rb") as file:
            return file.read(512).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    except OSError as error:
        raise ArmorError(f"cannot be read ({error.strerror})", where=str(path), hint="check the file and its permissions") from None


def _array(path: Path) -> Iterator[Fields]:
    records = decode_json(read_bytes(path), str(path))
    if not isinstance(records, list):
        raise ArmorError(f"the file holds {type(records).__name__}, not an array of records", where=str(path), hint="give it as published")
    return (Fields(record, f"{path}: [{number}]") for number, record in enumerate(records))
