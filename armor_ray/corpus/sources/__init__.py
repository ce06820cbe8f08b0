"""Readers of data sets: one module per format, each with `read(config) -> Corpus`."""

from __future__ import annotations

from collections.abc import Callable

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources import demo, jsonl, parquet, teleqna, telequad
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
