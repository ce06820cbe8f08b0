"""Stage `index`: frozen passage vectors become a FAISS index that plain `faiss.read_index` opens."""

from __future__ import annotations

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
        index = build_index(vectors, context.config.index)
        facts = {
            "kind": context.config.index.kind if len(vectors) >= context.config.index.flat_below else "flat",
            "metric": "inner product",
            "dimension": int(vectors.shape[1]),
            "encoder": embeddings.details["encoder"],
        }
        save_index(index, draft.path, facts)
        draft.rows["vectors"] = len(vectors)
        draft.details |= facts

    context.publish(plan, write)
