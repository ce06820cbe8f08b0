"""Dense retrieval: a FAISS inner-product index over frozen passage vectors, built in blocks and checked before every search."""

from __future__ import annotations

import math
from typing import Any

import faiss
import numpy as np

from armor_ray.config import IndexConfig
from armor_ray.errors import ArmorError

_parameters: Any = faiss  # FAISS's type stubs lack the search parameters, and know selectors by their C++ arguments

_BLOCK = 65536
# FAISS's own bounds for k-means: fewer points per centroid than 39 train badly, more than 256 are not used.
_MIN_POINTS, _MAX_POINTS = 39, 256
# With the default `hnsw_ef_search` wide enough that recall against a flat index stays above 0.95 at top-16 (tests/unit/test_retrieval.py).
_HNSW_BUILD_WIDTH = 200


def build_index(vectors: np.ndarray, config: IndexConfig, seed: int = 0) -> faiss.Index:
    """An inner-product index whose ids are the rows of `vectors`.

    Args:
        vectors: [C, D] floats, C ≥ 2; may be memory-mapped, it is read one block at a time.
        config: the kind asked for; below `flat_below` passages the index is flat whatever the kind.
        seed: of the IVF training sample and its k-means.

    Raises:
        ArmorError: fewer than two passages, vectors that are not finite, or more IVF lists than passages.
    """
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ArmorError(f"an index needs at least 2 passages, the corpus has {len(vectors)}", where="index", hint="add documents")
    index = _empty_index(vectors, config, seed)
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        index.add(_finite(block, np.arange(start, start + len(block))))
    return index


def search(index: faiss.Index, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Inner products fp32 [Q, k] and passage rows int64 [Q, k], best first; equal scores are ordered by row.

    A question whose probed IVF lists hold fewer than k passages is searched again in all lists, so every row is a real passage.

    Args:
        queries: [Q, D] floats, Q ≥ 0.
        k: 1 to the number of passages in the index.

    Raises:
        ArmorError: k out of range, or queries of another dimension than the index.
    """
    if not 1 <= k <= index.ntotal:
        hint = f"choose k between 1 and {index.ntotal}"
        raise ArmorError(f"k is {k}, the index holds {index.ntotal} passages", where="search", hint=hint)
    if queries.ndim != 2 or queries.shape[1] != index.d:
        raise ArmorError(
            f"queries have shape {queries.shape}, the index holds vectors of dimension {index.d}",
            where="search",
            hint="use the encoder that the index was built with",
        )
    if len(queries) == 0:
        return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
    wanted = np.ascontiguousarray(queries, np.float32)
    scores, rows = index.search(wanted, k)
    short = (rows < 0).any(1)
    if short.any():
        scores[short], rows[short] = index.search(wanted[short], k, params=_exhaustive(index))
    if (rows < 0).any():
        hint = "its graph is not connected: use index.kind ivf or flat"
        raise ArmorError(f"the index found fewer than {k} passages for a question", where="search", hint=hint)
    return _ordered(scores, rows)


def search_within(index: faiss.Index, queries: np.ndarray, k: int, allowed: np.ndarray | range) -> tuple[np.ndarray, np.ndarray]:
    """`search` among some passages only, exactly, whatever the kind of the index: scores fp32 [Q, K] and rows int64 [Q, K].

    Args:
        queries: [Q, D] floats, Q ≥ 0.
        k: ≥ 1; K is smaller where fewer passages are allowed.
        allowed: bool mask [C] over the index's passages, or a range of rows, which of a flat index reads those vectors only.
    """
    count = len(allowed) if isinstance(allowed, range) else int(np.count_nonzero(allowed))
    k = min(k, count)
    if k == 0 or len(queries) == 0:
        return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    exact = _exact(index)
    selector = _selector(allowed)
    if isinstance(exact, faiss.IndexIVF):
        parameters = _parameters.SearchParametersIVF(sel=selector, nprobe=exact.nlist)
    else:
        parameters = _parameters.SearchParameters(sel=selector)
    scores, rows = exact.search(np.ascontiguousarray(queries, np.float32), k, params=parameters)
    return _ordered(scores, rows)


def score_all(index: faiss.Index, queries: np.ndarray) -> np.ndarray:
    """Inner products fp32 [Q, C] of every query with every passage, whatever the kind of the index."""
    scores, rows = search_within(index, queries, index.ntotal, range(index.ntotal))
    scores_QC = np.empty_like(scores)
    np.put_along_axis(scores_QC, rows, scores, 1)
    return scores_QC


def _exact(index: faiss.Index) -> faiss.Index:
    """An index over the same vectors whose exhaustive search misses none: a graph may not reach all of them."""
    return faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSW) else index


def _selector(allowed: np.ndarray | range) -> faiss.IDSelector:
    if isinstance(allowed, range):
        return faiss.IDSelectorRange(allowed.start, allowed.stop)
    return _parameters.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


def _ordered(scores: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _empty_index(vectors: np.ndarray, config: IndexConfig, seed: int) -> faiss.Index:
    count, dim = vectors.shape
    if config.kind == "flat" or count < config.flat_below:
        return faiss.IndexFlatIP(dim)
    if config.kind == "hnsw":
        index: Any = faiss.index_factory(dim, f"HNSW{config.hnsw_m},Flat", faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _HNSW_BUILD_WIDTH
        index.hnsw.efSearch = config.hnsw_ef_search  # stored in the index file
        return index
    return _trained_ivf(vectors, config, seed)


def _trained_ivf(vectors: np.ndarray, config: IndexConfig, seed: int) -> faiss.Index:
    count, dim = vectors.shape
    nlist = config.nlist or max(1, min(round(4 * math.sqrt(count)), count // _MIN_POINTS))
    if nlist > count:
        raise ArmorError(f"{nlist} lists for {count} passages", where="index.nlist", hint="leave it out to derive it from the corpus size")
    index: Any = faiss.index_factory(dim, f"IVF{nlist},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = seed
    index.nprobe = min(config.nprobe, nlist)
    size = min(count, _MAX_POINTS * nlist)
    sample = np.sort(np.random.default_rng(seed).choice(count, size, replace=False))  # sorted: a memory map is read forwards
    index.train(_finite(vectors[sample], sample))
    return index


def _exhaustive(index: faiss.Index) -> faiss.SearchParameters:
    if isinstance(index, faiss.IndexIVF):
        return _parameters.SearchParametersIVF(nprobe=index.nlist)
    return _parameters.SearchParametersHNSW(efSearch=index.ntotal)


def _finite(block: np.ndarray, rows: np.ndarray) -> np.ndarray:
    block = np.ascontiguousarray(block, np.float32)
    finite = np.isfinite(block).all(1)
    if not finite.all():
        row = int(rows[np.argmin(finite)])
        raise ArmorError(f"the vector of passage {row} is not finite", where="embeddings", hint="rerun with --force embed")
    return block
