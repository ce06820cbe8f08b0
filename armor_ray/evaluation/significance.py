"""Bootstrap over questions: how far a mean, or a difference of two methods on the same questions, could be chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from armor_ray.errors import ArmorError

_TAIL = 0.025
_BLOCK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % percentile interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of `a - b` over the same questions with its 95 % interval; significant when the interval excludes 0."""

    difference: float
    low: float
    high: float
    significant: bool


def bootstrap_mean(values: np.ndarray, resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean over questions with its interval; the same seed gives the same interval.

    Args:
        values: [Q], or [S, Q] for S training seeds: averaged per question first, so the interval tells what other questions
            would change, not what other seeds would.
        resamples: draws of Q questions with replacement.

    Raises:
        ArmorError: no questions, or a value that is not finite.
    """
    per_question = _per_question(values)
    low, high = np.quantile(_resampled_means(per_question, resamples, seed), [_TAIL, 1 - _TAIL])
    return Interval(float(per_question.mean()), float(low), float(high))


def paired_bootstrap(a: np.ndarray, b: np.ndarray, resamples: int = 2000, seed: int = 0) -> PairedDifference:
    """Mean difference `a - b`, both resampled by the same draws of questions.

    Args:
        a, b: [Q] or [S, Q] each, aligned by question; the numbers of seeds may differ.

    Raises:
        ArmorError: different questions, no questions, or a value that is not finite.
    """
    first, second = _per_question(a), _per_question(b)
    if len(first) != len(second):
        raise ArmorError(f"a paired comparison needs the same questions, got {len(first)} and {len(second)}", where="significance")
    interval = bootstrap_mean(first - second, resamples, seed)
    return PairedDifference(interval.value, interval.low, interval.high, interval.low > 0 or interval.high < 0)


def _per_question(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    mean = values.mean(0) if values.ndim == 2 else values
    if mean.size == 0:
        raise ArmorError("no questions to average over", where="significance")
    if not np.isfinite(mean).all():
        question = int(np.argmin(np.isfinite(mean)))
        raise ArmorError(f"the metric of question {question} is not finite", where="significance")
    return mean


def _resampled_means(values_Q: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_ELEMENTS // len(values_Q))
    means = []
    for start in range(0, resamples, block):
        size = (min(block, resamples - start), len(values_Q))
        means.append(values_Q[generator.integers(0, len(values_Q), size)].mean(1))
    return np.concatenate(means)
