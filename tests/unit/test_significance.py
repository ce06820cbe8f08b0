"""Bootstrap intervals: hand cases, coverage, determinism; summary rows there and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from armor_ray.errors import ArmorError
from armor_ray.evaluation.significance import bootstrap_mean, paired_bootstrap
from armor_ray.evaluation.summary import Row, metric_rows, read_summary, write_summary


def test_a_constant_has_no_spread():
    interval = bootstrap_mean(np.full(40, 0.25))
    assert (interval.value, interval.low, interval.high) == (0.25, 0.25, 0.25)


def test_two_questions_by_hand():
    """Draws of {0, 1} average to 0, ½, 1 with probabilities ¼, ½, ¼: the 95 % interval is all of it."""
    interval = bootstrap_mean(np.array([0.0, 1.0]), resamples=4000)
    assert (interval.value, interval.low, interval.high) == (0.5, 0.0, 1.0)


def test_the_width_is_that_of_the_normal_approximation():
    values = np.random.default_rng(0).random(2000)
    interval = bootstrap_mean(values, resamples=4000, seed=3)
    half = 1.96 * values.std() / np.sqrt(2000)
    assert interval.high - interval.value == pytest.approx(half, rel=0.08)
    assert interval.value - interval.low == pytest.approx(half, rel=0.08)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(1)
    intervals = [bootstrap_mean((generator.random(150) < 0.3).astype(float), resamples=400, seed=i) for i in range(300)]
    covered = np.mean([interval.low <= 0.3 <= interval.high for interval in intervals])
    assert 0.91 <= covered <= 0.98


def test_same_seed_same_interval_and_blocks_do_not_show(monkeypatch):
    values = np.random.default_rng(2).random(50)
    assert bootstrap_mean(values, seed=5) == bootstrap_mean(values, seed=5)
    assert bootstrap_mean(values, seed=5) != bootstrap_mean(values, seed=6)
    whole = bootstrap_mean(values, seed=5)
    monkeypatch.setattr("armor_ray.evaluation.significance._BLOCK_ELEMENTS", 50 * 7)
    assert bootstrap_mean(values, seed=5) == whole


def test_pairing_sees_what_separate_intervals_do_not():
    """One question in ten improves and none gets worse: the two means' own intervals overlap widely."""
    base = (np.arange(400) % 2).astype(float)
    better = np.where(np.arange(400) % 20 == 0, 1.0, base)
    paired = paired_bootstrap(better, base)
    assert paired.difference == pytest.approx(0.05)
    assert paired.significant
    assert paired.low > 0
    assert bootstrap_mean(better).low < bootstrap_mean(base).high
    assert not paired_bootstrap(base, base).significant
    worse = paired_bootstrap(base, better)
    assert worse.significant
    assert worse.high < 0


def test_seeds_are_averaged_per_question_first():
    """Three seeds are not three times the questions: stacking equal seeds leaves the interval as it is."""
    values = np.random.default_rng(4).random(60)
    assert bootstrap_mean(np.stack([values] * 3), seed=1).low == pytest.approx(bootstrap_mean(values, seed=1).low)
    two = np.array([[0.0, 1.0], [1.0, 1.0]])
    assert bootstrap_mean(two).value == 0.75
    assert paired_bootstrap(two, np.zeros(2)).difference == 0.75


@pytest.mark.parametrize(("values", "words"), [(np.array([]), "no questions"), (np.array([1.0, np.nan]), "question 1 is not finite")])
def test_nothing_to_average(values, words):
    with pytest.raises(ArmorError, match=words):
        bootstrap_mean(values)


def test_pairs_of_different_questions():
    with pytest.raises(ArmorError, match="got 3 and 2"):
        paired_bootstrap(np.ones(3), np.ones(2))


def test_summary_rows_come_back(tmp_path):
    base = {"R@1": np.zeros(30), "R@3": np.ones(30)}
    ours = {"R@1": np.ones((2, 30)), "R@3": np.ones((2, 30))}
    rows = [*metric_rows("demo", "base", base), *metric_rows("demo", "armor", ours, ("base", base))]
    assert [(row.method, row.metric, row.value, row.significant) for row in rows] == [
        ("base", "R@1", 0, False),
        ("base", "R@3", 1, False),
        ("armor", "R@1", 1, False),
        ("armor", "R@1 vs base", 1, True),
        ("armor", "R@3", 1, False),
        ("armor", "R@3 vs base", 0, False),
    ]
    assert [row.reference for row in rows] == [None, None, None, "base", None, "base"]
    path = write_summary(tmp_path / "summary.json", rows)
    assert json.loads(path.read_text())[0] == {
        "dataset": "demo",
        "method": "base",
        "metric": "R@1",
        "value": 0,
        "low": 0,
        "high": 0,
        "n": 30,
    }
    assert read_summary(path) == rows


@pytest.mark.parametrize(
    ("text", "words"), [('[{"dataset": 1}]', "not a list of rows"), ("[\n{", r"json:2: not valid JSON"), (None, "no such")]
)
def test_a_summary_that_cannot_be_read(tmp_path, text, words):
    path = tmp_path / "s.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ArmorError, match=words):
        read_summary(path)


def test_not_a_number_never_reaches_the_file(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_summary(tmp_path / "s.json", [Row("d", "m", "R@1", float("nan"), 0, 0, 1)])
