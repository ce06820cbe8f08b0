"""Stage `reindex`: where both towers were trained, the corpus is embedded and indexed anew, one artifact a retriever.

The base index stays what it is; retrievers of one tower go on using it.
"""

from __future__ import annotations

from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context, Plan, work_folder
from armor_ray.stages.embed import assemble, embed_missing, open_embeddings
from armor_ray.stages.index import write_index
from armor_ray.stages.methods import retriever_of
from armor_ray.workspace import Draft

STAGE = "reindex"


def run_all(context: Context, todo: list[Plan]) -> None:
    """Embeds with each retriever's own passage tower; a killed run goes on where it was."""
    connect(context.workspace)
    for plan in todo:
        _reindex(context, plan)


def _reindex(context: Context, plan: Plan) -> None:
    blocks = f"{work_folder(STAGE)}/{plan.fingerprint}"
    context.say(f"reindex: the corpus with {retriever_of(plan.name)}")
    embed_missing(context, blocks, retriever_of(plan.name))

    def write(draft: Draft) -> None:
        facts = assemble(context, blocks, draft)
        draft.details |= write_index(open_embeddings(draft.path), context.config.index, facts.encoder, draft.path)

    context.publish(plan, write)
