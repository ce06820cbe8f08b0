"""Utilities, the gate, pairs drawn from a pool, and agreement with the generator: against plain float64 and values by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armor_ray.evaluation.agreement import agreement, gold_accuracy
from armor_ray.objectives.utility import gated_negatives, utility
from armor_ray.training.reward_pairs import draw_pairs

ANSWERS = st.lists(st.tuples(st.floats(-80, -1e-3), st.integers(1, 40), st.floats(-80, -1e-3)), min_size=1, max_size=4)


@given(ANSWERS)
def test_every_kind_is_the_mean_over_answers_of_the_papers_formula(answers: list[tuple[float, int, float]]) -> None:
    values, tokens, closed = zip(*answers, strict=True)
    plain = {"inverse_perplexity": 0.0, "perplexity_reduction": 0.0, "log_ratio": 0.0}
    for nats, count, without in answers:
        plain["inverse_perplexity"] += math.exp(nats / count)
        plain["perplexity_reduction"] += math.exp(-without / count) - math.exp(-nats / count)
        plain["log_ratio"] += (nats - without) / count
    for kind, total in plain.items():
        assert utility(kind, values, tokens, closed) == pytest.approx(total / len(answers), rel=1e-12)  # type: ignore[arg-type]


def test_utilities_refuse_what_is_no_likelihood() -> None:
    with pytest.raises(ValueError, match="closed-book"):
        utility("log_ratio", [-1.0], [1])
    for values, tokens in (([], []), ([-1.0], [0]), ([float("nan")], [1]), ([-1.0], [1, 2])):
        with pytest.raises(ValueError, match="not answer log-likelihoods"):
            utility("inverse_perplexity", values, tokens)


def test_the_gate_needs_both_the_base_top_k_and_the_margin_to_the_best_gold_passage() -> None:
    rewards = np.array([2.0, 0.5, 1.1, 0.9, -3.0, np.nan, 1.0])
    positive = np.array([True, True, False, False, False, False, False])
    retrieved = np.array([True, True, True, True, False, True, True])
    # 2.0 - 1.1 < 1, 2.0 - 0.9 > 1, -3 is outside the top k, NaN has no reward, and 2.0 - 1.0 is not more than 1.
    assert gated_negatives(rewards, positive, retrieved, 1.0).tolist() == [False, False, False, True, False, False, False]
    assert not gated_negatives(rewards, np.zeros(7, bool), retrieved, 0.0).any()
    assert not gated_negatives(np.array([np.nan, 0.0]), np.array([True, False]), np.ones(2, bool), 0.0).any()


POOLS = st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), min_size=1, max_size=9)


@given(POOLS, st.floats(0, 0.3), st.integers(1, 60), st.integers(0, 5))
def test_drawn_pairs_are_ordered_distinct_and_above_the_noise(pool: list[tuple[float, float]], floor: float, count: int, seed: int) -> None:
    utilities, base = np.array(pool).T
    utilities[0] = np.nan
    better, worse = draw_pairs(utilities, base, floor, count, np.random.default_rng(seed))
    possible = {(i, j) for i in range(len(pool)) for j in range(len(pool)) if utilities[i] - utilities[j] > floor}
    drawn = list(zip(better.tolist(), worse.tolist(), strict=True))
    assert set(drawn) <= possible
    assert len(set(drawn)) == len(drawn) == min(count, len(possible))


def test_easy_pairs_do_not_swamp_the_few_hard_ones() -> None:
    """One distractor that the base prefers to the gold passage, among 19 passages that it orders rightly."""
    utilities = np.linspace(1.0, 0.0, 20)
    base = np.linspace(0.9, 0.1, 20)
    base[7] = 0.95  # a distractor: hard against the seven better passages
    shares = []
    for seed in range(50):
        better, worse = draw_pairs(utilities, base, 0.0, 8, np.random.default_rng(seed))
        shares.append(np.mean(base[better] <= base[worse]))
    assert 7 / 190 < 0.05
    assert np.mean(shares) > 0.2


def test_agreement_by_hand() -> None:
    utilities = np.array([[0.8, 0.4, 0.1, np.nan], [0.2, 0.2, 0.2, 0.2]])
    scores = np.array([[1.0, 3.0, 3.0, 9.0], [4.0, 3.0, 2.0, 1.0]])
    found = agreement(scores, utilities, noise_floor=0.05, threshold=0.4)
    # First question: .8 against .4 and .1 wrong, .4 against .1 a tie. The second has no pair and nothing relevant.
    assert found["pairwise_accuracy"] == pytest.approx(0.5 / 3)
    assert found["nDCG@1"] == pytest.approx((0.4 / 0.8 + 1.0) / 2)
    ideal = 0.8 + 0.4 / math.log2(3) + 0.1 / 2
    assert found["nDCG@5"] == pytest.approx(((0.4 + 0.1 / math.log2(3) + 0.8 / 2) / ideal + 1.0) / 2)
    assert found["Recall@5"] == 1.0
    gold = np.array([[True, False, False, False], [False, False, True, False]])
    assert gold_accuracy(scores, gold, ~np.isnan(utilities)) == pytest.approx((0 + 0 + 0 + 0 + 1) / 5)
