"""What rerankers may ask for when they are built; the stage decides how each is made."""

from __future__ import annotations

import threading
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


class Faults:
    """Counts what went wrong while reranking, from any number of threads: such a thing never stops a run, and never vanishes."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, fault: str, times: int = 1) -> None:
        with self._lock:
            self._counts[fault] += times

    def counts(self) -> dict[str, int]:
        """Fault → times."""
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True, slots=True)
class Tools:
    """Surroundings of a reranker.

    Attributes:
        chat: opens an endpoint (None: the judge's) for replies of at most so many tokens.
        sampler: opens an endpoint that also reports log-likelihoods, for answers of at most so many tokens.
        references: question → its reference answers, for rerankers that are upper bounds.
        faults: filled while reranking.
    """

    chat: Callable[[EndpointConfig | None, int], Chat]
    sampler: Callable[[EndpointConfig, int], Sampler]
    references: Mapping[str, Sequence[str]]
    faults: Faults = field(default_factory=Faults)
