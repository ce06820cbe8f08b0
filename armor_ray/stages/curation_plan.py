"""What the curated data set is made of beside the data files: the judge, the domain, the prompts, the section `curation`."""

from __future__ import annotations

from typing import Any

from armor_ray.judges.domain import load_domain
from armor_ray.judges.endpoint import has_endpoint
from armor_ray.judges.templates import template_texts
from armor_ray.judges.writing import TEMPLATE
from armor_ray.stages.context import Context
from armor_ray.stages.curated import ARTIFACT
from armor_ray.workspace import fingerprint

_JUDGES = {
    "tele_eval": ("qa_domain", "chunk_alignment"),
    "documents": ("document_relevance", "example_quality", TEMPLATE),
    "teleqna": ("teleqna_domain",),
}


def curation_settings(context: Context) -> dict[str, Any]:
    """For the plan. The domain and the prompts count by their texts, so an edited file makes the data set stale."""
    settings = context.config.curation
    assert settings is not None, "planned only where there is one"
    prompts = {name: template_texts(name) for name in _JUDGES[settings.pipeline]}
    curation = settings.model_dump(exclude={"domain", "questions"})
    if settings.pipeline == "documents":
        curation["questions"] = settings.questions.model_dump(exclude={"generator", "batch_size"})
    return {
        "curation": curation,
        "domain": load_domain(settings.domain).model_dump(mode="json"),
        "prompts": fingerprint("prompts", prompts, {}),
        "judge": _judge(context),
        "seed": context.config.seed,
    }


def _judge(context: Context) -> dict[str, Any]:
    """Who judges: the model where it can be reached, else the stand-ins. What it judged already stays valid where its key is not set."""
    judge = context.config.judge
    named = {"model": judge.model, "base_url": judge.base_url}
    published = context.workspace.manifest(ARTIFACT)
    if has_endpoint(judge) or (judge.model is not None and published is not None and published.config.get("judge") == named):
        return named
    return {"model": None, "base_url": None}
