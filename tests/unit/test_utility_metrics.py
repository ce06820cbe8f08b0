"""Metrics by generator utility, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armor_ray.errors import ArmorError
from armor_ray.evaluation.utility import calibrated_threshold, expected_utility_at_1, relevant_by_utility

POOLS = [{3: 0.9, 1: 0.2, 7: 0.5}, {2: 0.1, 3: 0.4}]


def test_expected_utility_is_that_of_the_top_passage():
    np.testing.assert_array_equal(expected_utility_at_1(np.array([[1, 3], [3, 2]]), POOLS), [0.2, 0.4])


def test_a_top_passage_without_utility_is_never_taken_for_a_bad_one():
    with pytest.raises(ArmorError, match="1 of 2 top passages"):
        expected_utility_at_1(np.array([[1, 3], [7, 2]]), POOLS)


def test_relevance_by_the_top_share_of_all_pairs():
    """Five pairs: the top 40 % are 0.9 and 0.5, both of the first question."""
    threshold = calibrated_threshold(POOLS, 0.4)
    assert threshold == 0.5
    relevant = relevant_by_utility(POOLS, threshold)
    assert [rows.tolist() for rows in relevant] == [[3, 7], []]
    assert calibrated_threshold(POOLS) == 0.9  # a tenth of five pairs is still one


@given(st.lists(st.floats(-5, 5), min_size=10, max_size=60, unique=True))
def test_a_tenth_of_the_pairs_is_relevant(values):
    pools = [dict(enumerate(values[:7])), dict(enumerate(values[7:]))]
    relevant = relevant_by_utility(pools, calibrated_threshold(pools))
    assert sum(len(rows) for rows in relevant) == len(values) // 10


@pytest.mark.parametrize(("pools", "words"), [([{}], "no utilities"), ([{1: float("nan")}], "not finite")])
def test_a_threshold_needs_finite_utilities(pools, words):
    with pytest.raises(ArmorError, match=words):
        calibrated_threshold(pools)
