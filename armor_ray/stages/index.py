"""Stage `index`: frozen passage vectors become a FAISS index that plain `faiss.read_index` opens."""

from __future__ import annotations

import json
from pathlib import Path

import faiss

from armor_ray.errors import ArmorError
from armor_ray.retrieval.dense import build_index
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.embed import open_embeddings
from armor_ray.workspace import Draft, read_json

STAGE = "index"
FILE = "index.faiss"


def run_all(context: Context, todo: list[Plan]) -> None:
    [plan] = todo
    embeddings = context.workspace.require("embeddings")
    vectors = open_embeddings(context.local("embeddings"))

    def write(draft: Draft) -> None:
        index = build_index(vectors, context.config.index)
        faiss.write_index(index, str(draft.path / FILE))
        facts = {
            "kind": context.config.index.kind if len(vectors) >= context.config.index.flat_below else "flat",
            "metric": "inner product",
            "dimension": int(vectors.shape[1]),
            "encoder": embeddings.details["encoder"],
        }
        (draft.path / "index.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
        draft.rows["vectors"] = len(vectors)
        draft.details |= facts

    context.publish(plan, write)


def open_index(folder: Path, encoder_identity: str) -> faiss.Index:
    """Opens an index artifact for queries of one encoder.

    Raises:
        ArmorError: the index holds another encoder's vectors, or the file is not an index.
    """
    encoder = read_json(folder / "index.json", STAGE).get("encoder")
    if encoder != encoder_identity:
        raise ArmorError(
            f"the index holds vectors of encoder {encoder}, the queries come from {encoder_identity}",
            where=str(folder),
            hint="use the encoder the index was built with, or rebuild it with --force embed",
        )
    try:
        return faiss.read_index(str(folder / FILE), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1][:120]
        raise ArmorError(f"not a readable FAISS index ({reason})", where=str(folder / FILE), hint="rerun with --force index") from None
