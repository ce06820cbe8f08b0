"""What the reward model learns from: pools with utilities, and pairs of passages drawn from them.

Shape legend: Q questions, N pool columns, M pairs, F priors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.retrieval.lexical import Bm25


@dataclass(slots=True)
class RewardPools:
    """Questions of one split with the utilities of their candidates.

    Attributes:
        example_ids, questions: as in the examples artifact.
        pool_QN: candidate passage rows, right-padded with `table.PADDING`.
        positive_QN: gold passages of the question.
        utility_QN: fp32, NaN for padding and for pairs that the generator could not score.
        base_QN: the base bi-encoder's scores of the pool; read only where there is a utility.
        prior_QNF: fp32, retrieval scores that the reward model corrects, in the order of the table's `priors`.
    """

    example_ids: list[str]
    questions: list[str]
    pool_QN: np.ndarray
    positive_QN: np.ndarray
    utility_QN: np.ndarray
    base_QN: np.ndarray
    prior_QNF: np.ndarray

    def __len__(self) -> int:
        return len(self.questions)

    def between(self, start: int, stop: int | None) -> RewardPools:
        """The questions from `start` to before `stop`; to the end for None."""
        part = slice(start, stop)
        arrays = (self.pool_QN, self.positive_QN, self.utility_QN, self.base_QN, self.prior_QNF)
        return RewardPools(self.example_ids[part], self.questions[part], *(array[part] for array in arrays))

    def with_pairs(self, noise_floor: float) -> np.ndarray:
        """Numbers of the questions whose utilities differ by more than the noise floor."""
        spread_Q = np.nanmax(self._or(-np.inf), axis=1) - np.nanmin(self._or(np.inf), axis=1)
        return np.flatnonzero(spread_Q > noise_floor)

    def _or(self, value: float) -> np.ndarray:
        return np.where(np.isnan(self.utility_QN), value, self.utility_QN)


@dataclass(slots=True, kw_only=True)
class PoolTable:
    """Both splits' pools, the passages' texts by row, and the names of the F priors."""

    train: RewardPools
    validation: RewardPools
    texts_C: Sequence[str]
    priors: tuple[str, ...] = ()

    def split(self, name: str) -> RewardPools:
        """`train` or `validation`."""
        return {"train": self.train, "validation": self.validation}[name]


@dataclass(slots=True, kw_only=True)
class RewardTable(PoolTable):
    """What the reward model learns from: pools with utilities, and what tells a difference of utilities from noise.

    Raises:
        ArmorError: a split without a pair of passages whose utilities differ.
    """

    noise_floor: float
    threshold: float

    def __post_init__(self) -> None:
        for name, pools in (("training", self.train), ("validation", self.validation)):
            if not len(pools.with_pairs(self.noise_floor)):
                message = f"no {name} question has two passages whose utilities differ by more than the noise ({self.noise_floor:.2g})"
                raise ArmorError(message, where="reward", hint="raise candidates.pool_size or choose another generator")


def prior_scores(names: Sequence[str], questions: Sequence[str], pool_QN: np.ndarray, base_QN: np.ndarray, bm25: Bm25 | None) -> np.ndarray:
    """fp32 [Q, N, F], the scores of the named priors in that order.

    Args:
        names: of "base" and "bm25"; none gives F = 0.
        bm25: where it is among them.
    """
    scores = {"base": base_QN}
    if bm25 is not None:
        scores["bm25"] = bm25.score_pools(questions, pool_QN)
    return np.stack([scores[name] for name in names], axis=-1) if names else np.empty((*pool_QN.shape, 0), np.float32)


def draw_pairs(
    utility_N: np.ndarray, base_N: np.ndarray, noise_floor: float, count: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Up to `count` distinct pairs (better, worse) of pool columns with U_better − U_worse > noise floor, easy and hard in balance.

    A pool's pairs fall into four strata: the base encoder orders them as the utilities do (easy) or not (hard), and their utilities
    differ by more (wide) or at most (narrow) the median difference of the question. Each stratum gives an equal share; what a small
    one lacks, the others make up for.

    Args:
        utility_N: NaN where unknown.
        base_N: scores of the base encoder.
        count: ≥ 1.

    Returns:
        int64 [M] each, M ≤ count; empty where no two utilities differ enough.
    """
    known = np.flatnonzero(~np.isnan(utility_N))
    gaps = utility_N[known][:, None] - utility_N[known][None, :]
    first, second = np.nonzero(gaps > noise_floor)
    if not len(first):
        return first, second
    wide = gaps[first, second] > np.median(gaps[first, second])
    better, worse = known[first], known[second]
    hard = base_N[better] <= base_N[worse]
    chosen = _in_turn([random.permutation(np.flatnonzero((wide == w) & (hard == h))) for w in (True, False) for h in (True, False)], count)
    return better[chosen], worse[chosen]


def _in_turn(strata: list[np.ndarray], count: int) -> np.ndarray:
    """The first `count` elements when one is taken from each list after the other."""
    turns = np.concatenate([np.arange(len(stratum)) for stratum in strata])
    return np.concatenate(strata)[np.argsort(turns, kind="stable")][:count]
