"""Memory, start-up, latency and recall of every index kind over as many vectors as asked for, made from real ones.

A made vector is a real passage vector plus Gaussian noise, normalised again: clusters as real corpora have them, without their texts.
Queries are real questions. Every kind is opened and searched in a process of its own, as a replica does it, so that its memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
import psutil

from armor_ray.config import IndexConfig
from armor_ray.retrieval.dense import build_index, search
from armor_ray.retrieval.index_file import FILE, open_index, save_index
from benchmarks.measure import timed

Kind = Literal["flat", "ivf", "hnsw"]
KINDS: tuple[Kind, ...] = ("flat", "ivf", "hnsw")
K = 10
# Of an HNSW index: what it was built with, then wider (vectors that a search keeps in sight).
_WIDER = (512, 2048)
_BLOCK = 65536
# Length of the noise beside the unit vector: a made vector's cosine to its real one is 1/√(1 + 0.5²) ≈ 0.89, about that of passages of one
# document.
_NOISE = 0.5
_ENCODER = "made"


@dataclass(frozen=True, slots=True)
class Opened:
    """One kind as a replica has it.

    Attributes:
        start: seconds from opening the file to the first answer.
        private, resident: bytes that the index added to the process: its own, and with the file's mapped pages, which replicas share.
        p50, p99: milliseconds of a lone query.
        rows: [Q, K] passage rows found.
    """

    start: float
    private: int
    resident: int
    p50: float
    p99: float
    rows: list[list[int]]


@dataclass(frozen=True, slots=True)
class Measured:
    """A line of the table; sizes in MB, times as named.

    Attributes:
        kind: of an index that is searched more than once with the width of the search behind it.
    """

    kind: str
    vectors: int
    build_cpu_seconds: float
    file_mb: float
    start_seconds: float
    private_mb: float
    resident_mb: float
    p50_ms: float
    p99_ms: float
    recall: float


def measure(real: np.ndarray, queries: np.ndarray, folder: Path, count: int, kinds: Sequence[Kind]) -> list[Measured]:
    """Builds, opens and searches every kind, HNSW at several widths; recall@10 is against exact search.

    Args:
        real: [C, D] unit vectors of real passages.
        queries: [Q, D] unit vectors of real questions.
        folder: room for the vectors and one index of each kind.
        count: vectors to make.
    """
    vectors = made_vectors(real, count, folder / "vectors.npy")
    np.save(folder / "queries.npy", queries)
    exact = _exact(vectors, queries)
    return [line for kind in kinds for line in _measure(kind, vectors, exact, folder)]


def made_vectors(real: np.ndarray, count: int, path: Path, seed: int = 0) -> np.ndarray:
    """`count` unit vectors fp32 around the `real` ones, written block by block to `path` and memory-mapped."""
    random = np.random.default_rng(seed)
    made = np.lib.format.open_memmap(path, "w+", np.float32, (count, real.shape[1]))
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        block = real[random.integers(len(real), size=size)]
        block = block + random.standard_normal(block.shape, np.float32) * (_NOISE / np.sqrt(real.shape[1]))
        made[start : start + size] = block / np.linalg.norm(block, axis=1, keepdims=True)
    made.flush()
    return np.load(path, mmap_mode="r")


def _exact(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    return faiss.knn(queries, np.asarray(vectors), K, metric=faiss.METRIC_INNER_PRODUCT)[1]


def _measure(kind: Kind, vectors: np.ndarray, exact: np.ndarray, folder: Path) -> list[Measured]:
    home = folder / kind
    home.mkdir()
    config = IndexConfig(kind=kind)
    cost, index = timed(lambda: build_index(vectors, config))
    save_index(index, home, {"encoder": _ENCODER})
    del index
    widths = (config.hnsw_ef_search, *_WIDER) if kind == "hnsw" else (None,)
    return [_line(kind, width, cost.cpu, home, exact, len(vectors)) for width in widths]


def _line(kind: Kind, width: int | None, build_seconds: float, home: Path, exact: np.ndarray, vectors: int) -> Measured:
    opened = _open_apart(home, width)
    found = [len(set(rows) & set(wanted)) for rows, wanted in zip(opened.rows, exact.tolist(), strict=True)]
    mega = 1e-6
    return Measured(
        kind=kind if width is None else f"{kind} {width}",
        vectors=vectors,
        build_cpu_seconds=build_seconds,
        file_mb=(home / FILE).stat().st_size * mega,
        start_seconds=opened.start,
        private_mb=opened.private * mega,
        resident_mb=opened.resident * mega,
        p50_ms=opened.p50,
        p99_ms=opened.p99,
        recall=sum(found) / exact.size,
    )


def _open_apart(home: Path, width: int | None) -> Opened:
    """`open_and_search` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.index_kinds", str(home), str(home.parent / "queries.npy")]
    command += [] if width is None else [str(width)]
    return Opened(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def open_and_search(home: Path, queries: np.ndarray, width: int | None = None) -> Opened:
    """What the child process does; `width` is that of an HNSW search."""
    faiss.omp_set_num_threads(1)
    process = psutil.Process()
    before = process.memory_info()
    started = time.perf_counter()
    index = open_index(home, _ENCODER)
    if width is not None:
        graph: Any = faiss.downcast_index(index)
        graph.hnsw.efSearch = width
    search(index, queries[:1], K)
    start = time.perf_counter() - started
    seconds, rows = [], []
    for query in queries:
        began = time.perf_counter()
        _, found = search(index, query[None], K)
        seconds.append(time.perf_counter() - began)
        rows.append(found[0].tolist())
    after = process.memory_info()
    p50, p99 = (float(np.percentile(seconds, q)) * 1000 for q in (50, 99))
    resident, shared = after.rss - before.rss, after.shared - before.shared
    return Opened(start, resident - shared, resident, p50, p99, rows)


if __name__ == "__main__":
    print(json.dumps(asdict(open_and_search(Path(sys.argv[1]), np.load(sys.argv[2]), *map(int, sys.argv[3:])))))
