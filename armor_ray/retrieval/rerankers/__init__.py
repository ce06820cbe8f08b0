"""Rerankers by kind. A new one is a module here with `build(config, tools)`, its config, and a line in `MODULES`."""

from __future__ import annotations

import importlib

from armor_ray.config_baselines import RerankerConfigBase
from armor_ray.retrieval.protocols import Reranker
from armor_ray.retrieval.rerankers.tools import Tools

MODULES = {"cross-encoder": "cross_encoder", "listwise": "listwise", "pointwise": "pointwise", "seper": "seper", "gain": "gain"}


def build_reranker(config: RerankerConfigBase, tools: Tools) -> Reranker:
    """Loads or opens what the configured reranker needs.

    Raises:
        ArmorError: a model is missing, or an endpoint cannot be used.
    """
    return importlib.import_module(f"{__name__}.{MODULES[config.kind]}").build(config, tools)
