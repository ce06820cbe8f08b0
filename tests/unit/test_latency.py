"""Latencies: fair turns on a clock of our own, medians and ratios by hand, and the picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from armor_ray.evaluation.latency import latency_rows, time_stages
from armor_ray.evaluation.latency_figure import _front, latency_figure
from armor_ray.evaluation.report import ReportData, write_report
from armor_ray.evaluation.summary import Row


class Clock:
    """Seconds that pass only while a stage works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []

    def __call__(self) -> float:
        return self.now


class Slow:
    """A stage that takes its time, and longer when it is cold."""

    def __init__(self, name: str, clock: Clock, seconds: float) -> None:
        self._name, self._clock, self._seconds, self._cold = name, clock, seconds, 10.0

    def search(self, questions: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        assert (len(questions), k) == (1, 5)
        assert (questions == ["w"]) == bool(self._cold)  # a reranker would answer a measured question from its cache
        self._clock.asked.append(self._name)
        self._clock.now += self._seconds + self._cold
        self._cold = 0.0
        return np.zeros((1, k), np.float32), np.zeros((1, k), np.int64)


def test_every_method_is_warm_and_answers_in_turn() -> None:
    clock = Clock()
    stages = {"fast": Slow("fast", clock, 0.25), "slow": Slow("slow", clock, 2.0)}
    found = time_stages(stages, "w", ["a", "b", "c"], 5, seconds=1e9, clock=clock)
    assert found == {"fast": [250.0] * 3, "slow": [2000.0] * 3}
    assert clock.asked == ["fast", "slow", *("fast", "slow"), *("slow", "fast"), *("fast", "slow")]


@pytest.mark.parametrize(("seconds", "measured"), [(0.5, 3), (7.5, 4), (100.0, 6)])
def test_a_slow_method_is_measured_on_fewer_questions_but_on_three(seconds: float, measured: int) -> None:
    clock = Clock()
    found = time_stages({"slow": Slow("slow", clock, 2.0)}, "w", list("abcdef"), 5, seconds, clock)
    assert len(found["slow"]) == measured


def test_rows_are_medians_and_multiples_of_the_base() -> None:
    latencies = {"base": [4.0, 5.0, 1000.0], "armor": [5.0] * 4, "base>llm": [500.0, 400.0, 900.0]}
    rows = {(row.method, row.metric): row for row in latency_rows("d", latencies, "base", 200, 0)}
    assert rows["base", "latency_ms"].value == 5.0
    assert rows["base", "latency_ratio"] == Row("d", "base", "latency_ratio", 1.0, 1.0, 1.0, 3)
    assert rows["armor", "latency_ms"] == Row("d", "armor", "latency_ms", 5.0, 5.0, 5.0, 4)
    assert rows["armor", "latency_ratio"].value == 1.0
    assert rows["armor", "latency_ratio"].low == 5 / 1000  # the base's median may be any of its three
    assert rows["base>llm", "latency_ratio"].value == 100.0
    assert rows["base>llm", "latency_ms"].low == 400.0


def test_the_front_joins_what_nothing_beats_in_both() -> None:
    assert _front([(9.0, 0.5), (10.0, 0.4), (9.0, 0.6), (2000.0, 0.7), (1000.0, 0.6)]) == [(9.0, 0.6), (2000.0, 0.7)]


def test_the_report_shows_latencies_and_the_picture(tmp_path: Path) -> None:
    rows = [Row("d", method, "R@3", value, value, value, 9) for method, value in (("base", 0.5), ("uae", 0.6), ("uae>rankgpt", 0.65))]
    rows.append(Row("d", "uae", "R@3 vs base", 0.1, 0.0, 0.2, 9))
    rows += latency_rows("d", {"base": [9.0, 9.5], "uae": [9.1, 9.2], "uae>rankgpt": [1610.0] * 2}, "base", 100, 0)
    markdown = write_report(tmp_path, ReportData(dataset="d", rows=rows))[1].read_text()
    assert "| UAE | 9.15 ms (9.10 to 9.20) | 0.989 × (" in markdown
    assert "| UAE → rankgpt | 1,610 ms" in markdown
    assert matplotlib.image.imread(tmp_path / "figures" / "latency.png").shape[1] >= 1200
    assert "Recall@3" in markdown.partition("## Other protocols")[0]


def test_methods_at_one_place_have_names_of_their_own(tmp_path: Path) -> None:
    rows = [Row("d", f"m{i}", metric, value, value, value, 9) for i in range(6) for metric, value in (("R@3", 0.5), ("latency_ms", 9.0))]
    assert latency_figure(rows, tmp_path / "x.png", "R@3").exists()
