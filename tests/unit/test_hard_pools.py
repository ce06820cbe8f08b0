"""Hard pools: their making, and every kind of stage confined to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armor_ray.errors import ArmorError
from armor_ray.retrieval.fusion import ReciprocalRankFusion
from armor_ray.retrieval.pools import PoolSearch, hard_pools
from armor_ray.retrieval.rerankers.composition import Reranked

POOLS = np.array([[4, 2, 0], [1, 3, 5]])
QUESTIONS = ["same", "same"]  # of different gold passages, so of different pools


class Matrix:
    """Scores that are there already: row i of the matrix for the i-th question of a block."""

    def __init__(self, scores_C: list[float]) -> None:
        self._scores_C = np.array(scores_C, np.float32)

    def score_matrix(self, questions: list[str]) -> np.ndarray:
        return np.tile(self._scores_C, (len(questions), 1))

    def search(self, questions: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("the corpus is not searched")


def test_gold_passages_replace_the_last_of_the_base() -> None:
    ranking = np.array([[9, 8, 7, 6, 5], [9, 8, 7, 6, 5], [9, 8, 7, 6, 5]])
    gold = [np.array([8]), np.array([1, 2]), np.array([1, 7])]
    pools = hard_pools(ranking, gold, 3)
    assert pools.tolist() == [[9, 8, 7], [9, 1, 2], [9, 1, 7]]
    with pytest.raises(ArmorError, match="a question has 2 gold passages, a pool holds 1"):
        hard_pools(ranking, gold, 1)


@given(st.permutations(range(12)), st.sets(st.integers(0, 11), min_size=1, max_size=5), st.integers(5, 10))
def test_a_pool_is_full_holds_all_gold_and_the_base_order(ranking: list[int], gold: set[int], size: int) -> None:
    [pool] = hard_pools(np.array([ranking]), [np.array(sorted(gold))], size).tolist()
    assert len(set(pool)) == size
    assert gold <= set(pool)
    others = [row for row in ranking if row not in gold]
    assert [row for row in pool if row not in gold] == others[: size - len(gold)]


def test_a_stage_orders_its_pool_and_ties_go_to_the_lower_row() -> None:
    scores, rows = PoolSearch(Matrix([1, 9, 3, 1, 1, 7]), QUESTIONS, POOLS).search(QUESTIONS, 3)
    assert rows.tolist() == [[2, 0, 4], [1, 5, 3]]
    assert scores.tolist() == [[3, 1, 1], [9, 7, 1]]


def test_fusions_and_rerankers_stay_in_the_pool() -> None:
    first = PoolSearch(Matrix([1, 9, 3, 1, 1, 7]), QUESTIONS, POOLS)
    second = PoolSearch(Matrix([5, 4, 3, 2, 1, 0]), QUESTIONS, POOLS)
    _, rows = ReciprocalRankFusion([first, second], 3).search(QUESTIONS, 3)
    assert [set(row) for row in rows.tolist()] == [{0, 2, 4}, {1, 3, 5}]

    class Backwards:
        def rerank(self, question: str, passages: list[str], scores: np.ndarray) -> np.ndarray:
            return np.array([int(text) for text in passages], np.float32)

    _, rows = Reranked(first, Backwards(), str, 3, depth=2).search(QUESTIONS, 3)
    assert rows.tolist() == [[2, 0, 4], [5, 1, 3]]
    with pytest.raises(ArmorError, match="k is 4, a pool holds 3"):
        first.search(QUESTIONS, 4)
