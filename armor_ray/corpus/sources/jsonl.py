"""A folder with corpus.jsonl and qa.jsonl (fields: see `rows`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources.files import data_path, member
from armor_ray.corpus.sources.row_files import json_lines
from armor_ray.corpus.sources.rows import corpus_from_rows
from armor_ray.errors import ArmorError


def files(path: Path) -> list[Path]:
    """Both files of the folder."""
    return [member(path, "corpus.jsonl"), member(path, "qa.jsonl")]


def read(config: DataConfig) -> Corpus:
    """Reads the folder `data.path`."""
    return read_folder(data_path(config))


def read_folder(folder: Path) -> Corpus:
    """Reads corpus.jsonl and qa.jsonl of `folder`."""
    if not folder.is_dir():
        raise ArmorError("not a folder", where=str(folder), hint="data.path is the folder that holds corpus.jsonl and qa.jsonl")
    corpus, questions = member(folder, "corpus.jsonl"), member(folder, "qa.jsonl")
    return corpus_from_rows(json_lines(corpus), partial(json_lines, corpus.absolute()), json_lines(questions))
