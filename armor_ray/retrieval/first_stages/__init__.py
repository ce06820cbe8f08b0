"""First stages by kind. A new one is a module here with `build(config, passages)`, its config, and a line in `MODULES`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from armor_ray.config_baselines import EncoderStageConfig
from armor_ray.retrieval.protocols import ExhaustiveStage

MODULES = {"bi-encoder": "bi_encoder", "splade": "splade", "late-interaction": "late_interaction"}


def build_first_stage(config: EncoderStageConfig, passages: Sequence[str]) -> ExhaustiveStage:
    """Loads the configured model and indexes the corpus; only its own libraries are imported.

    Args:
        passages: texts in row order.

    Raises:
        ArmorError: the model or its library is missing.
    """
    return importlib.import_module(f"{__name__}.{MODULES[config.kind]}").build(config, passages)
