"""Stage `index`: frozen passage vectors become a FAISS index that plain `faiss.read_index` opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from armor_ray.config import IndexConfig
from armor_ray.retrieval.dense import build_index
from armor_ray.retrieval.index_file import save_index
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.embed import open_embeddings
from armor_ray.workspace import Draft


def run_all(context: Context, todo: list[Plan]) -> None:
    [plan] = todo
    embeddings = context.workspace.require("embeddings")
    vectors = open_embeddings(context.local("embeddings"))

    def write(draft: Draft) -> None:
        draft.details |= write_index(vectors, context.config.index, embeddings.details["encoder"], draft.path)
        draft.rows["vectors"] = len(vectors)

    context.publish(plan, write)


def write_index(vectors: np.ndarray, config: IndexConfig, encoder: str, folder: Path) -> dict[str, Any]:
    """Builds the index of one encoder's vectors; returns its facts."""
    facts = {
        "kind": config.kind if len(vectors) >= config.flat_below else "flat",
        "metric": "inner product",
        "dimension": int(vectors.shape[1]),
        "encoder": encoder,
    }
    save_index(build_index(vectors, config), folder, facts)
    return facts
