"""First stages on hand-made vectors against plain float64 computations, and their fusion."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from armor_ray.errors import ArmorError
from armor_ray.retrieval import fusion
from armor_ray.retrieval.first_stages.late_interaction import MaxSimSearch
from armor_ray.retrieval.first_stages.splade import InvertedIndex
from armor_ray.retrieval.first_stages.vectors import VectorSearch
from armor_ray.retrieval.lexical import Bm25

TEXTS = ["radar waveform design", "satellite beam hopping", "radar echo clutter", "uplink power control"]


def unit(generator: np.random.Generator, count: int, dimension: int = 8) -> np.ndarray:
    vectors = generator.normal(size=(count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def max_sim(question: np.ndarray, passage: np.ndarray) -> float:
    """Token by token in float64."""
    return sum(max(float(q.astype(np.float64) @ p.astype(np.float64)) for p in passage) for q in question)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(1, 6), min_size=1, max_size=9), block=st.integers(1, 20))
def test_max_sim_is_the_plain_double_loop_whatever_the_block(seed, lengths, block):
    generator = np.random.default_rng(seed)
    passages = [unit(generator, length) for length in lengths]
    questions = {name: unit(generator, length) for name, length in (("a", 1), ("b", 5))}
    found = MaxSimSearch(lambda names: [questions[name] for name in names], passages, block).score_matrix(["a", "b"])
    np.testing.assert_allclose(found, [[max_sim(question, passage) for passage in passages] for question in questions.values()], atol=1e-5)


def test_the_inverted_index_is_a_dense_product():
    generator = np.random.default_rng(0)
    passages, questions = (generator.random((count, 40)) * (generator.random((count, 40)) < 0.15) for count in (70, 3))
    index = InvertedIndex(lambda names: csr_array(questions[: len(names)]), csr_array(passages))
    np.testing.assert_allclose(index.score_matrix(["a", "b", "c"]), questions @ passages.T, rtol=1e-5)
    scores, rows = index.search(["a", "b"], 70)
    expected = np.argsort(-(questions[:2] @ passages.T).astype(np.float32), axis=1, kind="stable")
    np.testing.assert_array_equal(rows, expected)
    assert scores.dtype == np.float32


def test_a_ranking_does_not_depend_on_how_many_questions_are_asked_at_once():
    """A test set is ranked in blocks; 130 questions are three of them."""
    stage = Bm25(TEXTS)
    many = [TEXTS[i % 4] for i in range(130)]
    fused = fusion.ConvexFusion(stage, stage, 0.3)
    _, rows = fused.search(many, 3)
    alone = [fused.search([question], 3) for question in TEXTS]
    assert rows.tolist() == [alone[i % 4][1][0].tolist() for i in range(130)]
    assert fused.search([], 3)[1].shape == (0, 3)


def test_vector_search_refuses_more_than_the_corpus():
    with pytest.raises(ArmorError, match="the corpus has 4 passages"):
        VectorSearch(lambda questions: np.eye(4)[: len(questions)], np.eye(4, dtype=np.float32)).search(["a"], 5)


def test_fusion_takes_any_two_first_stages():
    """Word overlap finds the radar passages, the vectors know which of them is meant; only together do they put passage 2 first."""
    vectors = VectorSearch(lambda questions: np.array([[0.0, 0.2, 1.0, 0.9]] * len(questions)), np.eye(4, dtype=np.float32))
    lexical = Bm25(TEXTS)
    tuned = fusion.ConvexFusion.tuned(vectors, lexical, ["radar clutter"], [np.array([2])], [0.0, 0.5, 1.0], k=1)
    assert tuned.weight == 0.5
    np.testing.assert_allclose(
        tuned.score_matrix(["radar"]), fusion.convex(vectors.score_matrix(["radar"]), lexical.score_matrix(["radar"]), 0.5)
    )
    _, rows = fusion.ReciprocalRankFusion([vectors, lexical], depth=4).search(["radar"], 2)
    np.testing.assert_array_equal(rows, [[2, 0]])  # vectors: 2 3 1 0, BM25: 0 2 1 3; 2: 1/61 + 1/62, 0: 1/64 + 1/61
