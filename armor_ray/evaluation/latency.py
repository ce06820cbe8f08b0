"""End-to-end latency of methods: how it is measured and what is said of it (the UAE paper's Figure 1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from armor_ray.evaluation.summary import Row
from armor_ray.retrieval.protocols import FirstStage

LATENCY, RATIO = "latency_ms", "latency_ratio"
_FEWEST = 3


def time_stages(
    stages: Mapping[str, FirstStage],
    warm_up: str,
    questions: Sequence[str],
    k: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each method for one question after the other: encoding, search, fusion and reranking together.

    Every method is warm and every question is asked of all methods in turn, each time beginning
    with another, so that whatever else the machine does meets all of them alike.

    Args:
        warm_up: a question that is not among the measured ones, whose answers may be cached.
        k: passages wanted.
        seconds: no further question is begun after these, once three are measured.
        clock: seconds, rising.
    """
    found: dict[str, list[float]] = {name: [] for name in stages}
    names = list(stages)
    for stage in stages.values():
        stage.search([warm_up], k)
    began = clock()
    for number, question in enumerate(questions):
        if number >= _FEWEST and clock() - began > seconds:
            break
        for name in names[number % len(names) :] + names[: number % len(names)]:
            started = clock()
            stages[name].search([question], k)
            found[name].append(1000 * (clock() - started))
    return found


def latency_rows(dataset: str, latencies: Mapping[str, Sequence[float]], base: str, resamples: int, seed: int) -> list[Row]:
    """Per method the median `latency_ms` and `latency_ratio`, its quotient with the base's median, with bootstrapped 95 % intervals.

    Medians, because a single hiccup of the machine would carry a mean over a few dozen questions.

    Args:
        latencies: method → milliseconds a question.
        base: the method of ratio 1.
    """
    medians = {name: _resampled_medians(np.asarray(values), resamples, seed + i) for i, (name, values) in enumerate(latencies.items())}
    rows = []
    for name, values in latencies.items():
        ratios = medians[name] / medians[base] if name != base else np.ones(resamples)
        ratio = float(np.median(values) / np.median(latencies[base]))
        rows.append(Row(dataset, name, LATENCY, float(np.median(values)), *_interval(medians[name]), len(values)))
        rows.append(Row(dataset, name, RATIO, ratio, *_interval(ratios), len(values)))
    return rows


def _resampled_medians(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.median(values[random.integers(0, len(values), (resamples, len(values)))], axis=1)


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)
