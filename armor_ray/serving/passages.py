"""The passages of one replica and the indexes over them: vectors in, passages out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from armor_ray.errors import ArmorError
from armor_ray.retrieval.dense import score_all, search, search_within
from armor_ray.retrieval.fusion import convex
from armor_ray.retrieval.index_file import open_index
from armor_ray.retrieval.lexical import Bm25
from armor_ray.retrieval.ranking import top_k
from armor_ray.serving.encoders import QueryEncoder
from armor_ray.serving.schemas import Passage
from armor_ray.workspace import Workspace, read_parquet

_COLUMNS = ("passage_id", "doc_id", "title", "text")
_NOT_SHOWN = ("doc_type", "source", "start", "end")  # read for filters and feedback
_MASKS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of the search; equal ones are searched together.

    Attributes:
        conditions: columns with the values that are accepted.
        dense_weight: of the dense score in the mix with BM25, in [0, 1]; None: no BM25.
        rerank: whether the cross-encoder orders the best passages anew.
    """

    k: int
    conditions: tuple[tuple[str, frozenset[str]], ...] = ()
    dense_weight: float | None = None
    rerank: bool = False


@dataclass(frozen=True, slots=True)
class Extent:
    """A passage as `text[start:end]` of its document, in characters."""

    doc_id: str
    start: int
    end: int
    text: str


class PassageStore:
    """Passage texts with the indexes that encoders search them by, one per index artifact."""

    def __init__(self, passages: pa.Table, indexes: dict[str, faiss.Index], lexical: Bm25 | None = None) -> None:
        self._columns: dict[str, pa.ChunkedArray] = {name: passages.column(name) for name in (*_COLUMNS, *_NOT_SHOWN)}
        self._indexes = indexes
        self._lexical = lexical
        self._mask = functools.lru_cache(_MASKS_KEPT)(self._find)
        self.num_passages = len(passages)

    @classmethod
    def open(cls, workspace: Workspace, encoders: Iterable[QueryEncoder], lexical: bool = False) -> PassageStore:
        """Maps the indexes that the encoders search.

        Args:
            lexical: build a BM25 index, too.

        Raises:
            ArmorError: an artifact is missing or damaged, or an index holds another encoder's vectors or another corpus' passages.
        """
        passages = read_parquet(workspace.local("passages") / "passages.parquet", "prepare")
        store = cls(passages, {}, Bm25(passages.column("text").to_pylist()) if lexical else None)
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

    def search(self, index: str, texts: Sequence[str], vectors: np.ndarray, wanted: Wanted) -> list[list[Passage]]:
        """The best passages of every query, best first; fewer than k where the filter leaves fewer.

        Args:
            texts: of n queries; only BM25 reads them.
            vectors: of the same queries [n, D].
        """
        mask = self._mask(wanted.conditions) if wanted.conditions else None
        if wanted.dense_weight is not None:
            scores, rows = self._fused(index, texts, vectors, wanted.dense_weight, wanted.k, mask)
        elif mask is not None:
            scores, rows = search_within(self._indexes[index], vectors, wanted.k, mask)
        else:
            scores, rows = search(self._indexes[index], vectors, wanted.k)
        return [self._passages(*found) for found in zip(scores, rows, strict=True)]

    def extent(self, passage_id: int) -> Extent:
        """Where a passage stands in its document; `passage_id` is in range."""
        return Extent(*(self._columns[name][passage_id].as_py() for name in ("doc_id", "start", "end", "text")))

    def _fused(
        self, index: str, texts: Sequence[str], vectors: np.ndarray, weight: float, k: int, mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        assert self._lexical is not None, "requests for fusion are refused where there is no BM25 index"
        scores_QC = convex(score_all(self._indexes[index], vectors), self._lexical.score_matrix(texts), weight)
        if mask is None:
            return top_k(scores_QC, k)
        allowed = np.flatnonzero(mask)
        if not len(allowed):
            return np.empty((len(texts), 0), np.float32), np.empty((len(texts), 0), np.int64)
        scores, places = top_k(scores_QC[:, allowed], min(k, len(allowed)))
        return scores, allowed[places]

    def _find(self, conditions: tuple[tuple[str, frozenset[str]], ...]) -> np.ndarray:
        """Which passages [C] meet all conditions."""
        found = np.ones(self.num_passages, bool)
        for name, values in conditions:
            found &= pc.is_in(self._columns[name], pa.array(sorted(values))).to_numpy()
        return found

    def _passages(self, scores: np.ndarray, rows: np.ndarray) -> list[Passage]:
        return [
            Passage.model_construct(rank=rank, score=float(score), **self._passage(int(row)))
            for rank, (score, row) in enumerate(zip(scores, rows, strict=True), start=1)
        ]

    def _passage(self, row: int) -> dict[str, Any]:
        return {name: self._columns[name][row].as_py() for name in _COLUMNS}


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
