"""How large a model is, read from the headers of its weight files: nothing is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import get_safetensors_metadata, snapshot_download
from huggingface_hub.errors import HTTPError, NotASafetensorsRepoError, SafetensorsParsingError
from safetensors import safe_open

from armor_ray.models.hub import resolve_model

_TABLES = ("embed", "lm_head")  # in the names of vocabulary tables, in every architecture that we load
_OUT_OF_REACH = (OSError, HTTPError, NotASafetensorsRepoError, SafetensorsParsingError)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters of a model.

    Attributes:
        total: all of them; what a device holds.
        body: without vocabulary tables; a forward pass takes about two operations for each of these and token.
        width: size of a hidden vector, hence of an encoder's embedding.
    """

    total: int
    body: int
    width: int


def model_size(model_id: str, revision: str | None = None) -> ModelSize | None:
    """The size of a configured model; None where neither a folder, the cache nor the hub tells.

    Raises:
        ArmorError: no such model (see `resolve_model`).
    """
    source = resolve_model(model_id, revision)
    try:
        shapes = dict(_shapes(source, revision))
    except _OUT_OF_REACH:
        return None
    tables = {name: shape for name, shape in shapes.items() if any(part in name for part in _TABLES)}
    if not shapes or not tables:
        return None
    total = sum(map(math.prod, shapes.values()))
    width = max(tables.values(), key=math.prod)[-1]
    return ModelSize(total, total - sum(map(math.prod, tables.values())), width)


def _shapes(source: str, revision: str | None) -> Iterator[tuple[str, list[int]]]:
    if Path(source).is_dir():
        yield from _folder_shapes(Path(source))
        return
    try:
        folder = snapshot_download(source, revision=revision, local_files_only=True, allow_patterns=["*.safetensors"])
    except OSError:
        folder = None
    if folder is not None and any(Path(folder).glob("*.safetensors")):
        yield from _folder_shapes(Path(folder))
        return
    for file in get_safetensors_metadata(source, revision=revision).files_metadata.values():
        yield from ((name, tensor.shape) for name, tensor in file.tensors.items())


def _folder_shapes(folder: Path) -> Iterator[tuple[str, list[int]]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            yield from ((name, file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 (not a mapping)
