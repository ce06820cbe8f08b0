"""A FAISS index on disk: the file, which plain `faiss.read_index` opens, and beside it whose vectors it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faiss

from armor_ray.errors import ArmorError

FILE = "index.faiss"
FACTS = "index.json"
# Vectors of flat, IVF and HNSW indexes alike stay in the page cache, shared by all processes of a machine. The older IO_FLAG_MMAP maps
# the lists of IVF only, and the two together cannot open one.
_MAPPED = faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY


def save_index(index: faiss.Index, folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes the index and its facts, of which `encoder` is the fingerprint of the encoder that made the vectors."""
    faiss.write_index(index, str(folder / FILE))
    (folder / FACTS).write_text(json.dumps(facts, indent=2), encoding="utf-8")


def open_index(folder: Path, encoder_identity: str) -> faiss.Index:
    """Maps an index into memory for queries of one encoder; its vectors are read when a search first touches them.

    Args:
        folder: holds what `save_index` wrote, in full length: FAISS reads a mapped file past its end (`Workspace.local` compares sizes).
        encoder_identity: fingerprint of the encoder that the queries come from.

    Raises:
        ArmorError: the index holds another encoder's vectors, or the file is not an index.
    """
    encoder = _encoder(folder / FACTS)
    if encoder != encoder_identity:
        raise ArmorError(
            f"the index holds vectors of encoder {encoder}, the queries come from {encoder_identity}",
            where=str(folder),
            hint="use the encoder the index was built with, or rebuild it with --force embed",
        )
    try:
        return faiss.read_index(str(folder / FILE), _MAPPED)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1][:120]
        raise ArmorError(f"not a readable FAISS index ({reason})", where=str(folder / FILE), hint="rerun with --force index") from None


def _encoder(path: Path) -> str:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["encoder"]
    except (OSError, ValueError, TypeError, KeyError):
        raise ArmorError("the index does not tell whose vectors it holds", where=str(path), hint="rerun with --force index") from None
