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
from typing import Literal

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
    """A line of the table; sizes in MB, times as named."""

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
    """Builds, opens and searches every kind; recall@10 is against exact search.

    Args:
        real: [C, D] unit vectors of real passages.
        queries: [Q, D] unit vectors of real questions.
        folder: room for the vectors and one index of each kind.
        count: vectors to make.
    """
    vectors = made_vectors(real, count, folder / "vectors.npy")
    np.save(folder / "queries.npy", queries)
    exact = _exact(vectors, queries)
    return [_measure(kind, vectors, exact, folder) for kind in kinds]


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


def _measure(kind: Kind, vectors: np.ndarray, exact: np.ndarray, folder: Path) -> Measured:
    home = folder / kind
    home.mkdir()
    cost, index = timed(lambda: build_index(vectors, IndexConfig(kind=kind)))
    save_index(index, home, {"encoder": _ENCODER})
    del index
    command = [sys.executable, "-m", "benchmarks.index_kinds", str(home), str(folder / "queries.npy")]
    opened = Opened(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    found = [len(set(rows) & set(wanted)) for rows, wanted in zip(opened.rows, exact.tolist(), strict=True)]
    mega = 1e-6
    return Measured(
        kind=kind,
        vectors=len(vectors),
        build_cpu_seconds=cost.cpu,
        file_mb=(home / FILE).stat().st_size * mega,
        start_seconds=opened.start,
        private_mb=opened.private * mega,
        resident_mb=opened.resident * mega,
        p50_ms=opened.p50,
        p99_ms=opened.p99,
        recall=sum(found) / exact.size,
    )


def open_and_search(home: Path, queries: np.ndarray) -> Opened:
    """What the child process does."""
    faiss.omp_set_num_threads(1)
    process = psutil.Process()
    before = process.memory_info()
    started = time.perf_counter()
    index = open_index(home, _ENCODER)
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
    print(json.dumps(asdict(open_and_search(Path(sys.argv[1]), np.load(sys.argv[2])))))
