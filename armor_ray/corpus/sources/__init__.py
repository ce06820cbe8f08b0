"""Readers of data sets: one module per format, each with `read(config) -> Corpus`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources import demo, jsonl, parquet, teleqna, telequad
from armor_ray.corpus.sources.files import data_path, member
from armor_ray.errors import ArmorError

_READERS: dict[str, Callable[[DataConfig], Corpus]] = {
    "demo": demo.read,
    "jsonl": jsonl.read,
    "parquet": parquet.read,
    "telequad": telequad.read,
    "teleqna": teleqna.read,
}


def read_corpus(config: DataConfig) -> Corpus:
    """Reads the data set that `data.format` and `data.path` name.

    Raises:
        ArmorError: the first fault of the data, with file and line or key.
    """
    if config.password is not None and config.format != "teleqna":
        raise ArmorError(f"format '{config.format}' has no password", where="data.password", hint="remove it")
    return _READERS[config.format](config)


def source_files(config: DataConfig) -> list[Path]:
    """The files that `read_corpus` would read: what a fingerprint of the input covers.

    Raises:
        ArmorError: a file or folder is missing.
    """
    if config.format == "demo":
        return [Path(str(resources.files("armor_ray.demo") / "data" / name)) for name in ("corpus.jsonl", "qa.jsonl")]
    path = data_path(config)
    published = {"telequad": telequad.PUBLISHED_NAME, "teleqna": teleqna.PUBLISHED_NAME}
    if config.format in published:
        return [member(path, published[config.format])]
    return [member(path, f"{name}.{config.format}") for name in ("corpus", "qa")]
