"""Generators: one protocol, three engines."""

from __future__ import annotations

from armor_ray.config import GeneratorConfig
from armor_ray.errors import ArmorError
from armor_ray.models.generators.protocol import Generator, Writer


def load_generator(config: GeneratorConfig) -> Generator:
    """Loads the configured engine; only the chosen engine's libraries are imported.

    Raises:
        ArmorError: the model or the engine's package is missing, or the engine cannot run the model.
    """
    if config.engine == "hf":
        from armor_ray.models.generators.hf import HfGenerator

        return HfGenerator(config)
    if config.engine == "vllm":
        from armor_ray.models.generators.vllm import VllmGenerator

        return VllmGenerator(config)
    from armor_ray.models.generators.openai import OpenAIGenerator

    return OpenAIGenerator(config)


def load_writer(config: GeneratorConfig) -> Writer:
    """Loads an engine that writes: `hf` or `vllm`.

    Raises:
        ArmorError: as `load_generator`, or the openai engine.
    """
    if config.engine == "hf":
        from armor_ray.models.generators.hf import HfGenerator

        return HfGenerator(config)
    if config.engine == "vllm":
        from armor_ray.models.generators.vllm import VllmGenerator

        return VllmGenerator(config)
    raise ArmorError("the openai engine writes no questions", where="generator.engine", hint="set curation.questions.writer: judge")
