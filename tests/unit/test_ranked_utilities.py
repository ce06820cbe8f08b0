"""Metrics by utility on test questions: which questions count, and what is relevant."""

from __future__ import annotations

import numpy as np
import pytest

from armor_ray.config import Config, EvaluationConfig, UtilityConfig
from armor_ray.stages.evaluated import Method
from armor_ray.stages.hard_pool import HardPools
from armor_ray.stages.ranked_utilities import ByUtility, metrics_by_utility
from armor_ray.stages.rankings import Ranking

# Three questions, four passages, pools of three; the generator could not score passage 3 for question 1.
UTILITIES = [{0: 0.9, 1: 0.1, 2: 0.2, 3: 0.3}, {0: 0.5, 1: 0.8, 2: 0.05}, {0: 0.1, 1: 0.15, 2: 0.12, 3: 0.7}]
POOLS = HardPools(["a", "b", "c", "never asked"], np.array([[0, 1, 2], [1, 2, 3], [0, 1, 2], [0, 1, 2]]))
CONFIG = Config(utility=UtilityConfig(relevant_share=0.25), evaluation=EvaluationConfig(ks=[1, 2, 5]))


def ranking(*rows: list[int]) -> Ranking:
    return Ranking(np.array([*rows, [0, 0, 0][: len(rows[0])]]), np.zeros((4, len(rows[0])), np.float32))


def test_a_question_counts_for_all_methods_or_for_none() -> None:
    """The second method's top passage of question 1 has no utility, so the first method loses that question, too."""
    methods = [
        Method("base", [ranking([0, 1, 2], [1, 0, 2], [3, 0, 1])], None),
        Method("uae", [ranking([1, 0, 2], [3, 0, 2], [0, 3, 1]), ranking([0, 1, 2], [0, 1, 2], [3, 1, 2])], "base"),
    ]
    found = metrics_by_utility(ByUtility(3), methods, None, UTILITIES, CONFIG)
    assert (found.expected, found.threshold) == (2, None)
    np.testing.assert_allclose(found.values["base"]["ExpUtil@1"], [[0.9, 0.7]])
    np.testing.assert_allclose(found.values["uae"]["ExpUtil@1"], [[0.1, 0.1], [0.9, 0.7]])


def test_relevance_is_the_top_share_of_all_pools() -> None:
    """Eight scored pairs in the pools, so two are relevant: 0.9 of question 0 and 0.8 of question 1. Question 2 has none and is left out;
    its 0.7 lies outside of its pool."""
    top = ranking([0, 1, 2], [1, 2, 3], [0, 1, 2])
    methods = [Method("base", [top], None, pooled=[ranking([1, 0, 2], [3, 2, 1], [0, 1, 2])])]
    found = metrics_by_utility(ByUtility(3), methods, POOLS, UTILITIES, CONFIG)
    assert found.threshold == pytest.approx(0.8)
    assert found.relevant == 2
    values = found.values["base"]
    np.testing.assert_array_equal(values["utility:R@1"], [[0, 0]])
    np.testing.assert_array_equal(values["utility:R@2"], [[1, 0]])
    np.testing.assert_allclose(values["utility:MAP"], [[1 / 2, 1 / 3]])
    assert "utility:R@5" not in values  # a pool of three has no fifth
    assert found.expected == 2  # the pool's top passage of question 1 could not be scored
    np.testing.assert_allclose(values["pool:ExpUtil@1"], [[0.1, 0.1]])
