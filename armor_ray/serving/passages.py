"""The passages of one process and the search among them: vectors in, passages out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from armor_ray.errors import ArmorError
from armor_ray.retrieval.dense import score_all, search, search_within
from armor_ray.retrieval.fusion import convex
from armor_ray.retrieval.lexical import Bm25
from armor_ray.retrieval.ranking import top_k
from armor_ray.serving.indexes import Indexes, IndexKey
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
    """Passages, whole or a part of the corpus, and the indexes over the corpus.

    Args:
        passages: those of `rows` of the corpus.
        corpus: fingerprint of all passages.
        lexical: over all passages; needs them all to be here.

    Attributes:
        num_passages: of the whole corpus.
    """

    def __init__(self, passages: pa.Table, rows: range, corpus: str, indexes: Indexes, num_passages: int, lexical: Bm25 | None) -> None:
        self.rows = rows
        self.corpus = corpus
        self.num_passages = num_passages
        self._columns: dict[str, pa.ChunkedArray] = {name: passages.column(name) for name in (*_COLUMNS, *_NOT_SHOWN)}
        self._indexes = indexes
        self._lexical = lexical
        self._mask = functools.lru_cache(_MASKS_KEPT)(self._find)

    @classmethod
    def open(cls, workspace: Workspace, lexical: bool = False, part: int = 0, parts: int = 1) -> PassageStore:
        """Reads the passages of one of `parts` equal parts of the corpus.

        Args:
            lexical: build a BM25 index, too; only over the whole corpus.

        Raises:
            ArmorError: the passages are missing or damaged, or fewer than parts.
        """
        corpus = workspace.require("passages").fingerprint
        folder = workspace.local("passages")
        passages = read_parquet(folder / "passages.parquet", "prepare")
        count = len(passages)
        if count < parts:
            raise ArmorError(f"{count} passages do not fill {parts} shards", where=str(folder), hint="lower num_shards")
        rows = range(count * part // parts, count * (part + 1) // parts)
        # Taken, not sliced: a slice keeps the whole corpus in memory.
        mine = passages if parts == 1 else passages.take(pa.array(rows))
        bm25 = Bm25(passages.column("text").to_pylist()) if lexical else None
        return cls(mine, rows, corpus, Indexes(workspace, corpus, count), count, bm25)

    def require_index(self, key: IndexKey) -> faiss.Index:
        """See `Indexes.require`."""
        return self._indexes.require(key)

    @property
    def _is_whole(self) -> bool:
        return len(self.rows) == self.num_passages

    def search(self, key: IndexKey, texts: Sequence[str], vectors: np.ndarray, wanted: Wanted) -> list[list[Passage]]:
        """The best of these passages for every query, best first; fewer than k where there are fewer.

        Args:
            texts: of n queries; only BM25 reads them.
            vectors: of the same queries [n, D].
        """
        index = self.require_index(key)
        mask = self._mask(wanted.conditions) if wanted.conditions else None
        if wanted.dense_weight is not None:
            scores, rows = self._fused(index, texts, vectors, wanted.dense_weight, wanted.k, mask)
        elif mask is None and self._is_whole:
            scores, rows = search(index, vectors, wanted.k)
        else:
            scores, rows = search_within(index, vectors, wanted.k, self.rows if mask is None else mask)
        return [self._passages(*found) for found in zip(scores, rows, strict=True)]

    def extent(self, passage_id: int) -> Extent:
        """Where a passage of `rows` stands in its document."""
        return Extent(*(self._value(name, passage_id) for name in ("doc_id", "start", "end", "text")))

    def _fused(
        self, index: faiss.Index, texts: Sequence[str], vectors: np.ndarray, weight: float, k: int, mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        assert self._lexical is not None, "requests for fusion are refused where there is no BM25 index"
        assert self._is_whole, "arguments refuse BM25 in shards"
        scores_QC = convex(score_all(index, vectors), self._lexical.score_matrix(texts), weight)
        if mask is None:
            return top_k(scores_QC, k)
        allowed = np.flatnonzero(mask)
        if not len(allowed):
            return np.empty((len(texts), 0), np.float32), np.empty((len(texts), 0), np.int64)
        scores, places = top_k(scores_QC[:, allowed], min(k, len(allowed)))
        return scores, allowed[places]

    def _find(self, conditions: tuple[tuple[str, frozenset[str]], ...]) -> np.ndarray:
        """Which passages of the corpus [C] are here and meet all conditions."""
        found = np.zeros(self.num_passages, bool)
        mine = found[self.rows.start : self.rows.stop]
        mine[:] = True
        for name, values in conditions:
            mine &= pc.is_in(self._columns[name], pa.array(sorted(values))).to_numpy()
        return found

    def _passages(self, scores: np.ndarray, rows: np.ndarray) -> list[Passage]:
        return [
            Passage.model_construct(rank=rank, score=float(score), **{name: self._value(name, int(row)) for name in _COLUMNS})
            for rank, (score, row) in enumerate(zip(scores, rows, strict=True), start=1)
        ]

    def _value(self, name: str, row: int) -> Any:
        return self._columns[name][row - self.rows.start].as_py()
