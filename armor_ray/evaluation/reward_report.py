"""What the report says of utilities, the reward model that learns them, and the gate (the UAE paper's Figures 3 and 4).

Shape legend: Q questions, N pool columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from armor_ray.evaluation.agreement import AGREEMENT_METRICS
from armor_ray.evaluation.labels import BASE, BM25, method_label
from armor_ray.evaluation.tables import Cell, Table

GOLD_ACCURACY = "gold_accuracy"
_METRICS = {"pairwise_accuracy": "Pairwise accuracy", GOLD_ACCURACY: "Gold above other"}
_METHODS = {"reward": "Reward model", "priors": "Its priors alone", "cross_encoder": "Stock cross-encoder"}


@dataclass(frozen=True, slots=True)
class GatePassage:
    """A passage as the gate saw it; utility None where the generator could not score it."""

    text: str
    utility: float | None
    reward: float


@dataclass(frozen=True, slots=True)
class GateExample:
    """A training question with some of its gold passages, of the negatives that the gate let through, and of those it did not."""

    question: str
    gold: Sequence[GatePassage]
    accepted: Sequence[GatePassage]
    rejected: Sequence[GatePassage]

    def rows(self) -> list[tuple[str, GatePassage]]:
        """(role, passage) in the order of the table."""
        groups = (("gold", self.gold), ("accepted", self.accepted), ("rejected", self.rejected))
        return [(role, passage) for role, passages in groups for passage in passages]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """Results of the stages `utility`, `reward` and `mine`.

    Attributes:
        kind: of the utility (`utility.kind`).
        utility_QN, reward_QN, positive_QN: pools of questions on validation documents; NaN for padding and unscored pairs.
        noise_floor: below which two utilities are equal.
        agreements: a row a method, `method` beside `AGREEMENT_METRICS` and `gold_accuracy`.
        gold_accuracy: of the utilities themselves, the ceiling of the methods'.
        counts: split → what the gate counted, in words.
        margin: δ of the gate.
        examples: for a person to judge the gate.
    """

    kind: str
    utility_QN: np.ndarray
    reward_QN: np.ndarray
    positive_QN: np.ndarray
    noise_floor: float
    agreements: Sequence[Mapping[str, str | float]]
    gold_accuracy: float
    counts: Mapping[str, Mapping[str, int]]
    margin: float
    examples: Sequence[GateExample]

    @property
    def agreement_table(self) -> Table:
        """Methods by metrics, as in Figure 4."""
        metrics = (*AGREEMENT_METRICS, GOLD_ACCURACY)
        best = {metric: max(self._values(metric), default=math.nan) for metric in metrics}
        rows = [
            [Cell(agreement_label(str(row["method"]))), *(_cell(float(row[metric]), best[metric]) for metric in metrics)]
            for row in self.agreements
        ]
        return Table(["Method", *(_METRICS.get(metric, metric) for metric in metrics)], rows)

    @property
    def gate_table(self) -> Table:
        """What became of the base's top k, split by split."""
        names = list(next(iter(self.counts.values())))
        rows = [[Cell(split), *(Cell(f"{found[name]:,}") for name in names)] for split, found in self.counts.items()]
        return Table(["Split", *(name.capitalize() for name in names)], rows)

    def _values(self, metric: str) -> list[float]:
        return [value for row in self.agreements if math.isfinite(value := float(row[metric]))]


def agreement_label(method: str) -> str:
    """`reward` → `Reward model`, `base` → `Base`."""
    return method_label(method) if method in (BASE, BM25) else _METHODS.get(method, method)


def gold_deltas(values_QN: np.ndarray, positive_QN: np.ndarray) -> np.ndarray:
    """value(gold) − value(other), fp64 [pairs], over all such pairs of a pool, question after question; NaN entries take no part."""
    found = [np.empty(0)]
    for values, gold in zip(values_QN.astype(np.float64), positive_QN, strict=True):
        known = ~np.isnan(values)
        found.append((values[gold & known][:, None] - values[~gold & known][None, :]).ravel())
    return np.concatenate(found)


def _cell(value: float, best: float) -> Cell:
    return Cell(f"{value:.3f}", best=value == best) if math.isfinite(value) else Cell("–")
