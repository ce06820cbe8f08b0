"""TeleQuAD's extractive set: one SQuAD file (see `squad`) whose paragraphs are clauses of specifications, titled `specification#clause`.

(Its own `source` field mixes clauses and addresses and is not read.)
"""

from __future__ import annotations

from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources.files import data_path, member
from armor_ray.corpus.sources.squad import read_nested

PUBLISHED_NAME = "TeleQuAD-v4-full.json"


def files(path: Path) -> list[Path]:
    """The published file, or any SQuAD file named by its own path."""
    return [member(path, PUBLISHED_NAME)]


def read(config: DataConfig) -> Corpus:
    """Reads the published file, or the folder that holds it; unanswerable questions are left out and counted."""
    return read_nested(files(data_path(config)))
