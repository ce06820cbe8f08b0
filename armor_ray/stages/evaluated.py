"""What the evaluation holds of every method while its numbers are computed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from armor_ray.stages.rankings import Ranking

Values = dict[str, np.ndarray]
"""Metric → values [S, Q] of S training seeds and Q questions."""


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the results.

    Attributes:
        rankings: of the whole corpus, one a training seed (one alone where nothing is trained).
        pooled: of the hard pools, likewise; empty where these are not ranked.
        reference: the method that it is compared with; None for that method itself.
        fusion_weight: of the dense side, mean over the seeds.
        faults: replies of a judge that could not be used, by kind.
        tuned: the fusion weight of each encoder, by its artifact or as `base`.
    """

    name: str
    rankings: list[Ranking]
    reference: str | None
    fusion_weight: float | None = None
    faults: dict[str, int] = field(default_factory=dict)
    pooled: list[Ranking] = field(default_factory=list)
    tuned: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Evaluated:
    """Methods with their metrics of each test question."""

    methods: list[Method] = field(default_factory=list)
    values: dict[str, Values] = field(default_factory=dict)

    def method(self, name: str) -> Method:
        return next(method for method in self.methods if method.name == name)
