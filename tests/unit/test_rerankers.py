"""Rerankers with judges made of arithmetic: orders and scores by hand, and every unreadable reply counted."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armor_ray.errors import ArmorError
from armor_ray.models.generators.protocol import SampledAnswer
from armor_ray.retrieval.first_stages.vectors import VectorSearch
from armor_ray.retrieval.rerankers.composition import Reranked
from armor_ray.retrieval.rerankers.cross_encoder import CrossEncoderReranker
from armor_ray.retrieval.rerankers.gain import GainReranker
from armor_ray.retrieval.rerankers.listwise import INCOMPLETE, INVALID, UNREADABLE, ListwiseReranker, parse_permutation, windows
from armor_ray.retrieval.rerankers.pointwise import PointwiseReranker, parse_utility
from armor_ray.retrieval.rerankers.seper import SePerReranker, semantic_belief
from armor_ray.retrieval.rerankers.tools import Faults

FIRST_SCORES = np.zeros(0, np.float32)


class ByNumber:
    """Scores "passage 7" as 7, whatever the question."""

    def score(self, pairs):
        return np.array([float(passage.split()[-1]) for _, passage in pairs], np.float32)


def perfect_judge(messages) -> str:
    """Puts the shown passages in descending order of the number in their text."""
    shown = re.findall(r"\[(\d+)\] passage (\d+)", messages[-1]["content"])
    return " > ".join(f"[{number}]" for number, value in sorted(shown, key=lambda pair: -int(pair[1])))


def named(values) -> list[str]:
    return [f"passage {value}" for value in values]


# -- composition ---------------------------------------------------------------------------------------------------------------


def first_stage(scores) -> VectorSearch:
    return VectorSearch(lambda questions: np.array([scores] * len(questions)), np.eye(len(scores), dtype=np.float32))


@pytest.mark.parametrize("workers", [1, 3])
def test_reranking_changes_the_head_and_keeps_the_tail(workers):
    """First stage: 4 2 0 1 3. Of the top three the reranker prefers 4, 2, 0 in the order of its own scores: 0 is best."""
    stage = first_stage([0.5, 0.4, 0.6, 0.1, 0.9])
    texts = named([9, 1, 3, 8, 2])
    reranked = Reranked(stage, CrossEncoderReranker(ByNumber()), texts.__getitem__, 5, depth=3, workers=workers)
    scores, rows = reranked.search(["a", "b"], 5)
    np.testing.assert_array_equal(rows, [[0, 2, 4, 1, 3]] * 2)
    np.testing.assert_allclose(scores, [[9, 3, 2, 1, 0.7]] * 2, rtol=1e-6)  # below: 2 - 1 - (0.4 - s)
    assert (scores.dtype, rows.dtype) == (np.float32, np.int64)


def test_a_cut_above_the_depth_still_reranks_the_whole_depth():
    reranked = Reranked(first_stage([0.5, 0.4, 0.6]), CrossEncoderReranker(ByNumber()), named([1, 7, 2]).__getitem__, 3, depth=50)
    np.testing.assert_array_equal(reranked.search(["a"], 1)[1], [[1]])
    assert reranked.search([], 2)[1].shape == (0, 2)


def test_equal_scores_keep_the_first_stages_order():
    reranked = Reranked(first_stage([0.5, 0.4, 0.6]), CrossEncoderReranker(ByNumber()), named([4, 4, 4]).__getitem__, 3, depth=3)
    np.testing.assert_array_equal(reranked.search(["a"], 3)[1], [[2, 0, 1]])


def test_a_reranker_without_a_finite_score_is_stopped():
    reranked = Reranked(first_stage([0.5, 0.4]), CrossEncoderReranker(ByNumber()), named(["nan", 1]).__getitem__, 2, depth=2)
    with pytest.raises(ArmorError, match="finite score"):
        reranked.search(["a"], 1)


def test_a_reranked_ranking_is_reranked_again():
    """Compositions are first stages: a deep cheap reranker under a shallow one."""
    inner = Reranked(first_stage([0.1, 0.2, 0.3, 0.4]), CrossEncoderReranker(ByNumber()), named([4, 3, 2, 1]).__getitem__, 4, depth=4)
    outer = Reranked(inner, CrossEncoderReranker(ByNumber()), named([1, 9, 5, 5]).__getitem__, 4, depth=2)
    np.testing.assert_array_equal(outer.search(["a"], 4)[1], [[1, 0, 2, 3]])


# -- listwise ------------------------------------------------------------------------------------------------------------------


def test_windows_slide_from_the_end_to_the_front():
    assert list(windows(10, 4, 2)) == [(6, 10), (4, 8), (2, 6), (0, 4)]
    assert list(windows(9, 4, 2)) == [(5, 9), (3, 7), (1, 5), (0, 3)]
    assert list(windows(3, 4, 2)) == [(0, 3)]
    assert list(windows(1, 4, 2)) == []


def test_sliding_windows_by_hand():
    """Window 3, step 1 on 5 1 4 2 3: [4 2 3] → 4 3 2; [1 4 3] → 4 3 1; [5 4 3] stays: 5 4 3 1 2."""
    seen = []

    def judge(messages):
        seen.append([int(value) for value in re.findall(r"passage (\d+)", messages[-1]["content"])])
        return perfect_judge(messages)

    scores = ListwiseReranker(judge, 3, 1, 300, Faults()).rerank("q", named([5, 1, 4, 2, 3]), FIRST_SCORES)
    assert seen == [[4, 2, 3], [1, 4, 3], [5, 4, 3]]
    np.testing.assert_allclose(scores, [1, 1 / 4, 1 / 2, 1 / 5, 1 / 3], rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(order=st.permutations(range(23)), window=st.integers(2, 30), data=st.data())
def test_a_perfect_judge_sorts_a_window_exactly_and_a_longer_list_at_the_top(order, window, data):
    step = data.draw(st.integers(1, window - 1))
    faults = Faults()
    scores = ListwiseReranker(perfect_judge, window, step, 300, faults).rerank("q", named(order), FIRST_SCORES)
    ranked = [order[i] for i in np.argsort(-scores, kind="stable")]
    exact = 23 if window >= 23 else window - step
    assert ranked[:exact] == list(range(22, 22 - exact, -1))
    assert sorted(ranked) == list(range(23))
    assert not faults.counts()


@pytest.mark.parametrize(
    ("reply", "order", "faults"),
    [
        ("[2] > [3] > [1]", [1, 2, 0], {}),
        ("Here are the 3 passages: [3] > [1] > [2].", [2, 0, 1], {}),
        ("3, 1, 2", [2, 0, 1], {}),
        ("[3]", [2, 0, 1], {INCOMPLETE: 1}),
        ("[2] > [2] > [1] > [3] > [7]", [1, 0, 2], {INVALID: 2}),
        ("[0] > [2]", [1, 0, 2], {INVALID: 1, INCOMPLETE: 1}),
        ("I cannot rank these.", [0, 1, 2], {UNREADABLE: 1}),
        ("", [0, 1, 2], {UNREADABLE: 1}),
    ],
)
def test_every_reply_is_an_order_and_every_fault_is_counted(reply, order, faults):
    found = parse_permutation(reply, 3)
    assert found.order == order
    assert found.faults == faults


@given(reply=st.text(st.sampled_from("[]0123456789 >,.abc")), count=st.integers(1, 12))
def test_any_reply_gives_a_permutation(reply, count):
    assert sorted(parse_permutation(reply, count).order) == list(range(count))


def test_listwise_counts_faults_of_all_windows_and_shows_only_so_many_words():
    faults = Faults()
    prompts = []

    def mute(messages):
        prompts.append(messages[-1]["content"])
        return "no idea"

    scores = ListwiseReranker(mute, 3, 2, 2, faults).rerank("q", ["one two three"] * 5, FIRST_SCORES)
    assert faults.counts() == {UNREADABLE: 2}
    assert "[3] one two\n" in prompts[0]
    assert "three" not in prompts[0]
    np.testing.assert_array_equal(np.argsort(-scores), range(5))


# -- pointwise -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "scale", "utility"),
    [
        ("Yes.", "yes-no", 1.0),
        ("**no**, it does not", "yes-no", 0.0),
        ("I know nothing", "yes-no", None),  # "know" and "nothing" hold no "no"
        ("4", "graded", 0.8),
        ("Grade: 2.5 of 5", "graded", 0.5),
        ("-3", "graded", None),
        ("10", "graded", None),
        ("useful", "graded", None),
    ],
)
def test_judgements_are_read_or_missing_never_guessed(reply, scale, utility):
    assert parse_utility(reply, scale) == utility


def test_pointwise_orders_by_grade_and_counts_what_it_cannot_read():
    replies = {"passage 1": "2", "passage 2": "Five!", "passage 3": "5"}
    faults = Faults()
    judge = PointwiseReranker(lambda messages: replies[messages[-1]["content"].split("\n")[1]], "graded", faults)
    np.testing.assert_allclose(judge.rerank("q", named([1, 2, 3]), FIRST_SCORES), [0.4, 0, 1])
    assert faults.counts() == {"unreadable judgement": 1}


# -- SePer and GainRAG ---------------------------------------------------------------------------------------------------------


def test_semantic_belief_is_the_weight_of_the_samples_that_mean_a_reference():
    """Likelihoods e^-1 and e^-2 per token: weights 0.731 and 0.269. The second reference is the better matched one."""
    log_likelihoods, entailment = np.array([-1.0, -2.0]), np.array([[0.1, 0.9], [0.8, 0.5]])
    weights = np.exp(log_likelihoods) / np.exp(log_likelihoods).sum()
    assert semantic_belief(log_likelihoods, entailment) == pytest.approx(weights @ [0.9, 0.5])
    assert semantic_belief(log_likelihoods - 1000, entailment) == pytest.approx(weights @ [0.9, 0.5])  # no underflow to 0/0


class EqualMeaning:
    """Entailment is certain between equal texts, and 0.25 from the longer to the shorter text, which is not the other way round."""

    def probabilities(self, pairs):
        return np.array([1.0 if first == second else 0.25 * (len(first) > len(second)) for first, second in pairs], np.float32)


class Sampled:
    """Two samples of fixed likelihoods; the first is the right answer where the passage is the helpful one."""

    def sample(self, request, count):
        texts = {(): ["four", "fo"], ("helpful",): ["two", "four"], ("other",): ["four", "four"]}[request.passages]
        assert count == 2
        return [SampledAnswer(text, value) for text, value in zip(texts, (-1.0, -1.0), strict=True)]


def test_seper_orders_by_what_a_passage_adds_to_the_belief():
    """Half of the answers over the helpful passage mean "two", the others entail it by 0.25; "fo" is entailed *by* it."""
    seper = SePerReranker(Sampled(), EqualMeaning(), {"q": ["two"]}, samples=2)
    closed, helpful, other = 0.25, 0.5 * 1 + 0.5 * 0.25, 0.25
    np.testing.assert_allclose(seper.rerank("q", ["other", "helpful"], FIRST_SCORES), [other - closed, helpful - closed])
    with pytest.raises(ArmorError, match="reference answers"):
        seper.rerank("unknown", ["other"], FIRST_SCORES)


def test_gain_is_measured_from_the_passage_that_the_model_writes_itself():
    scores = GainReranker(ByNumber(), lambda messages: "from memory 5").rerank("q", named([7, 2]), FIRST_SCORES)
    np.testing.assert_array_equal(scores, [2, -3])
