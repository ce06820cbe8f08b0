"""A served workspace made by hand: a tiny random encoder, thirty passages, artifacts published as the stages publish them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from training_cases import WORDS, load_tiny

from armor_ray.config import IndexConfig
from armor_ray.corpus.schemas import PASSAGES
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.golden import write_golden
from armor_ray.retrieval.dense import build_index
from armor_ray.retrieval.index_file import save_index
from armor_ray.stages.promote import promote
from armor_ray.workspace import CONFIG, Draft, Workspace

QUESTIONS = [f"{WORDS[i]} {WORDS[(3 * i + 1) % 40]} {WORDS[(7 * i + 2) % 40]}" for i in range(20)]
NUM_PASSAGES = 30


@dataclass(frozen=True, slots=True)
class Served:
    """The workspace's folder, the encoder it serves, the one that it came from, and its base passage vectors [30, 32]."""

    folder: Path
    encoder: BiEncoder
    base: BiEncoder
    passage_vectors: np.ndarray

    def top(self, question: str, k: int, base: bool = False) -> tuple[list[int], np.ndarray]:
        """Rows and scores of the k best passages, by plain numpy."""
        encoder = self.base if base else self.encoder
        scores = self.passage_vectors @ encoder.encode([question], "query")[0]
        rows = np.argsort(-scores, kind="stable")[:k]
        return rows.tolist(), scores[rows]


def passage_table(count: int = NUM_PASSAGES) -> pa.Table:
    texts = [" ".join(WORDS[(i * step + step) % 40] for step in (1, 3, 7, 9, 11)) for i in range(count)]
    columns = {
        "passage_id": list(range(count)),
        "doc_id": [f"doc{i // 3}" for i in range(count)],
        "title": [f"Título {i // 3}" for i in range(count)],
        "text": texts,
        "source": [f"source{i % 3}" for i in range(count)],
        "doc_type": ["paper" if i % 2 else "standard" for i in range(count)],
        "start": [0] * count,
        "end": [len(text) for text in texts],
    }
    return pa.table(columns, schema=PASSAGES)


def build_workspace(folder: Path, model: Path) -> Served:
    """Publishes passages, embeddings, index, retrievers/tiny, retrievers/other and promoted (= tiny)."""
    workspace = Workspace(str(folder))
    base = load_tiny(model)
    vectors = base.encode(passage_table().column("text").to_pylist(), "passage")

    def write_index(draft: Draft) -> None:
        save_index(build_index(vectors, IndexConfig()), draft.path, {"encoder": base.identity.fingerprint()})

    publish_passages(workspace, NUM_PASSAGES, "print-passages")
    _publish(workspace, "embeddings", lambda draft: np.save(draft.path / "part-00000.npy", vectors), source="passages")
    _publish(workspace, "index", write_index, source="embeddings")
    encoders = {name: adapted(model, seed) for seed, name in enumerate(("tiny", "other"))}
    for name, encoder in encoders.items():
        publish_encoder(workspace, f"retrievers/{name}", encoder, golden_of=encoder)
    promote(workspace, "tiny")
    settings = {"model": str(model), "max_length": 24, "query_prefix": "query: ", "passage_prefix": "passage: "}
    workspace.write_bytes(CONFIG, yaml.safe_dump({"encoder": settings}).encode())
    return Served(folder, encoders["tiny"], base, vectors)


def adapted(model: Path, seed: int) -> BiEncoder:
    """The base encoder with other weights, as training leaves it."""
    encoder = load_tiny(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in encoder.body.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return encoder


def publish_encoder(workspace: Workspace, name: str, encoder: BiEncoder, golden_of: BiEncoder | None) -> None:
    """An exported encoder, with the golden vectors of `golden_of`."""

    def write(draft: Draft) -> None:
        encoder.save(draft.path)
        if golden_of is not None:
            write_golden(golden_of, QUESTIONS, draft.path)

    _publish(workspace, name, write)


def publish_passages(workspace: Workspace, count: int, fingerprint: str) -> None:
    def write(draft: Draft) -> None:
        pq.write_table(passage_table(count), draft.path / "passages.parquet")

    workspace.publish("passages", stage="prepare", fingerprint=fingerprint, inputs={}, config={}, write=write)


def _publish(workspace: Workspace, name: str, write: Callable[[Draft], None], source: str | None = None) -> None:
    inputs = {source: f"print-{source}"} if source else {}
    workspace.publish(name, stage=name.split("/")[0], fingerprint=f"print-{name}", inputs=inputs, config={}, write=write)
