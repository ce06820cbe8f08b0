"""What decides a generator's numbers, known from the config without loading the model."""

from __future__ import annotations

from typing import Any

from armor_ray.config import GeneratorConfig
from armor_ray.models.generators.prompts import PROMPT_VERSION
from armor_ray.models.hub import identify_model


def generator_identity(config: GeneratorConfig) -> dict[str, Any]:
    """Engine, model, arithmetic, window and prompt version: equal identities share cached utilities.

    Raises:
        ArmorError: no such model.
    """
    model = config.model if config.engine == "openai" else identify_model(config.model, config.revision)
    return {
        "engine": config.engine,
        "model": model,
        "dtype": config.dtype,
        "window": config.max_length,
        "prompt": PROMPT_VERSION,
        **({"base_url": config.base_url} if config.engine == "openai" else {}),
    }
