"""What rerankers may ask for when they are built; the stage decides how each is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from armor_ray.config_baselines import EndpointConfig
from armor_ray.models.generators.protocol import GenerationRequest, SampledAnswer
from armor_ray.retrieval.protocols import Chat


class Sampler(Protocol):
    """A language model whose answers can be drawn at temperature 1 (`OpenAIGenerator`)."""

    def sample(self, request: GenerationRequest, count: int) -> Sequence[SampledAnswer]:
        """`count` answers to the question over its passages."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Surroundings of a reranker.

    Attributes:
        chat: opens an endpoint.
        sampler: opens an endpoint that also reports log-likelihoods, for answers of at most so many tokens.
        references: question → its reference answers, for rerankers that are upper bounds.
        faults: filled while reranking: what went wrong → how often. Replies that could not be read never stop a run, and never vanish.
    """

    chat: Callable[[EndpointConfig], Chat]
    sampler: Callable[[EndpointConfig, int], Sampler]
    references: Mapping[str, Sequence[str]]
    faults: Counter[str] = field(default_factory=Counter)
