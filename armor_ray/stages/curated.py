"""Where `prepare` finds its data: as configured, or as the stage `curate` left it."""

from __future__ import annotations

from armor_ray.config import ChunkingConfig, DataConfig
from armor_ray.stages.context import Context

ARTIFACT = "curated"


def data_of(context: Context) -> DataConfig:
    """The section `data`, pointed at the curated folder where there is a section `curation`."""
    data = context.config.data
    if context.config.curation is None:
        return data
    changes = {"format": "jsonl", "path": str(context.local(ARTIFACT)), "password": None}
    if context.workspace.require(ARTIFACT).details["whole_documents"]:
        return data.model_copy(update={**changes, "chunking": ChunkingConfig(mode="whole")})
    return data.model_copy(update=changes)
