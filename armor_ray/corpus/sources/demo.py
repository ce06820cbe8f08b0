"""The telecom corpus that ships with the package, in the JSON Lines format."""

from __future__ import annotations

from importlib.resources import as_file, files

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources.jsonl import read_folder
from armor_ray.errors import ArmorError


def read(config: DataConfig) -> Corpus:
    """Reads the packaged data; `data.path` must not be set."""
    if config.path is not None:
        raise ArmorError("format 'demo' reads the packaged data", where="data.path", hint="remove data.path, or set data.format: jsonl")
    with as_file(files("armor_ray.demo") / "data") as folder:
        return read_folder(folder)
