"""Clocks: both sides of a race run in turn on the same inputs, and the median of their times counts."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import faiss
import torch
from transformers.utils import logging as transformers_logging


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one piece of work: CPU time of this process over all its threads, and wall time."""

    cpu: float
    wall: float

    def per(self, units: float) -> Cost:
        """The cost of one of `units` equal parts."""
        return Cost(self.cpu / units, self.wall / units)


@dataclass(frozen=True, slots=True)
class Finish:
    """Median cost over the repeats of one side of a race, and what its last run returned."""

    cost: Cost
    value: Any


def one_thread() -> None:
    """Settles this process: all sides run as a Ray actor of ours does: one thread, no GPU (the targets are for CPUs)."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    transformers_logging.disable_progress_bar()


def timed(work: Callable[[], Any]) -> tuple[Cost, Any]:
    """Runs `work` once."""
    cpu, wall = time.process_time(), time.perf_counter()
    value = work()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall), value


def race(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Finish]:
    """Times every side `repeats` times, taking turns and reversing the order each round, so that load on the machine hits all alike.

    Nothing is warmed up here: run each side on a part of its input first.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    values: dict[str, Any] = {}
    for turn in range(repeats):
        for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            cost, values[name] = timed(sides[name])
            costs[name].append(cost)
    return {name: Finish(median_cost(costs[name]), values[name]) for name in sides}


def median_cost(costs: list[Cost]) -> Cost:
    """Medians of CPU and of wall time, each on its own."""
    return Cost(statistics.median(cost.cpu for cost in costs), statistics.median(cost.wall for cost in costs))
