"""A folder with corpus.jsonl and qa.jsonl (fields: see `rows`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources.fields import Fields
from armor_ray.corpus.sources.files import data_path, decode_json, member
from armor_ray.corpus.sources.rows import corpus_from_rows
from armor_ray.errors import ArmorError


def read(config: DataConfig) -> Corpus:
    """Reads the folder `data.path`."""
    return read_folder(data_path(config))


def read_folder(folder: Path) -> Corpus:
    """Reads corpus.jsonl and qa.jsonl of `folder`."""
    if not folder.is_dir():
        raise ArmorError("not a folder", where=str(folder), hint="data.path is the folder that holds corpus.jsonl and qa.jsonl")
    return corpus_from_rows(_rows(member(folder, "corpus.jsonl")), _rows(member(folder, "qa.jsonl")))


def _rows(path: Path) -> Iterator[Fields]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield Fields(decode_json(line.rstrip(), str(path), number), f"{path}:{number}")
    except OSError as error:
        raise ArmorError(f"cannot be read ({error.strerror})", where=str(path), hint="check the file and its permissions") from None
