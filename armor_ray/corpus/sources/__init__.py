"""Readers of data sets: one module per format, each with `read(config) -> Corpus` and `files(path)`, what a fingerprint covers."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from types import ModuleType

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources import (
    beir,
    demo,
    documents,
    hotpotqa,
    jsonl,
    newsqa,
    parquet,
    qasper,
    scifact,
    squad,
    tele_data,
    tele_eval,
    teleqna,
    telequad,
    telequad_tables,
)
from armor_ray.corpus.sources.files import data_path
from armor_ray.errors import ArmorError

_SOURCES: dict[str, ModuleType] = {
    "beir": beir,
    "demo": demo,
    "documents": documents,
    "hotpotqa": hotpotqa,
    "jsonl": jsonl,
    "newsqa": newsqa,
    "parquet": parquet,
    "qasper": qasper,
    "scifact": scifact,
    "squad": squad,
    "tele_data": tele_data,
    "tele_eval": tele_eval,
    "teleqna": teleqna,
    "telequad": telequad,
    "telequad_tables": telequad_tables,
}


def read_corpus(config: DataConfig) -> Corpus:
    """Reads the data set that `data.format` and `data.path` name.

    Raises:
        ArmorError: the first fault of the data, with file and line or key.
    """
    if config.password is not None and config.format != "teleqna":
        raise ArmorError(f"format '{config.format}' has no password", where="data.password", hint="remove it")
    return _SOURCES[config.format].read(config)


def source_files(config: DataConfig) -> list[Path]:
    """The files that `read_corpus` would read: what a fingerprint of the input covers.

    Raises:
        ArmorError: a file or folder is missing.
    """
    if config.format == "demo":
        return [Path(str(resources.files("armor_ray.demo") / "data" / name)) for name in ("corpus.jsonl", "qa.jsonl")]
    return _SOURCES[config.format].files(data_path(config))
