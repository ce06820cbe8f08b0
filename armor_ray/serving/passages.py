"""The passages of one replica and the indexes over them: vectors in, passages out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from armor_ray.errors import ArmorError
from armor_ray.retrieval.dense import search
from armor_ray.retrieval.index_file import open_index
from armor_ray.serving.encoders import QueryEncoder
from armor_ray.serving.schemas import Passage
from armor_ray.workspace import Workspace, read_parquet

_COLUMNS = ("passage_id", "doc_id", "title", "text")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of the search; equal ones are searched together."""

    k: int


class PassageStore:
    """Passage texts with the indexes that encoders search them by, one per index artifact."""

    def __init__(self, passages: pa.Table, indexes: dict[str, faiss.Index]) -> None:
        self._columns: dict[str, pa.ChunkedArray] = {name: passages.column(name) for name in _COLUMNS}
        self._indexes = indexes
        self.num_passages = len(passages)

    @classmethod
    def open(cls, workspace: Workspace, encoders: Iterable[QueryEncoder]) -> PassageStore:
        """Maps the indexes that the encoders search.

        Raises:
            ArmorError: an artifact is missing or damaged, or an index holds another encoder's vectors or another corpus' passages.
        """
        store = cls(read_parquet(workspace.local("passages") / "passages.parquet", "prepare"), {})
        for encoder in encoders:
            store.require_index(workspace, encoder)
        return store

    def require_index(self, workspace: Workspace, encoder: QueryEncoder) -> None:
        """Checks that the encoder's index fits it and these passages, and maps it unless it is mapped already.

        Raises:
            ArmorError: it does not.
        """
        check_same_corpus(workspace, encoder.index)
        folder = workspace.local(encoder.index)
        index = open_index(folder, encoder.model.identity.fingerprint())
        if index.ntotal != self.num_passages:
            message = f"the index holds {index.ntotal} vectors, the corpus has {self.num_passages} passages"
            raise ArmorError(message, where=str(folder), hint="rerun with --force embed")
        self._indexes.setdefault(encoder.index, index)

    def search(self, index: str, vectors: np.ndarray, wanted: Wanted) -> list[list[Passage]]:
        """The best passages of every query vector [n, D], best first."""
        scores, rows = search(self._indexes[index], vectors, wanted.k)
        return [self._passages(*found) for found in zip(scores, rows, strict=True)]

    def _passages(self, scores: np.ndarray, rows: np.ndarray) -> list[Passage]:
        return [
            Passage.model_construct(rank=rank, score=float(score), **self._passage(int(row)))
            for rank, (score, row) in enumerate(zip(scores, rows, strict=True), start=1)
        ]

    def _passage(self, row: int) -> dict[str, Any]:
        return {name: column[row].as_py() for name, column in self._columns.items()}


def check_same_corpus(workspace: Workspace, index_artifact: str = "index") -> None:
    """Refuses an index that was built from other passages than the workspace holds now.

    Raises:
        ArmorError: an artifact is missing, or the chain passages - embeddings - index is broken (an interrupted rerun).
    """
    passages, index = workspace.require("passages"), workspace.require(index_artifact)
    embeddings = workspace.manifest("embeddings") if index_artifact == "index" else index
    if embeddings is None:  # not needed for serving; a slim copy of a workspace leaves it out
        return
    links = [(embeddings, passages)] if index is embeddings else [(index, embeddings), (embeddings, passages)]
    for product, source in links:
        if product.inputs.get(source.name) != source.fingerprint:
            message = f"'{product.name}' was made of other '{source.name}' than the workspace holds"
            raise ArmorError(message, where=workspace.uri, hint="finish the run with `armor-ray run`")
