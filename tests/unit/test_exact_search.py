"""The exact search against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from armor_ray.retrieval.exact import exact_top_k


def by_sorting(queries, passages, k):
    scores = queries @ passages.T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, 1), rows


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
@pytest.mark.parametrize("k", [1, 10, 200])
def test_equals_a_stable_sort_whatever_the_block_with_ties_to_the_lower_row(block, k):
    # Small integers: products are exact, and ties are everywhere, within blocks and across them.
    rng = np.random.default_rng(0)
    queries, passages = (rng.integers(-1, 2, (n, 4)).astype(np.float32) for n in (5, 200))
    scores, rows = exact_top_k(queries, passages, k, block)
    expected_scores, expected_rows = by_sorting(queries, passages, k)
    assert (rows == expected_rows).all()
    assert (scores == expected_scores).all()
    assert rows.dtype == np.int64
    assert scores.dtype == np.float32


def test_many_queries_and_half_precision_passages(recwarn):
    rng = np.random.default_rng(1)
    queries, passages = rng.normal(size=(2500, 8)).astype(np.float32), rng.normal(size=(90, 8)).astype(np.float16)
    passages.setflags(write=False)
    scores, rows = exact_top_k(queries, passages, 3, block=40)
    expected_scores, expected_rows = by_sorting(queries, passages.astype(np.float32), 3)
    assert (rows == expected_rows).all()
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)
    assert not recwarn.list


def test_reads_a_read_only_map_without_warning(tmp_path, recwarn):
    np.save(tmp_path / "vectors.npy", np.eye(4, dtype=np.float32))
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    assert exact_top_k(np.eye(4, dtype=np.float32)[2:], mapped, 1)[1].tolist() == [[2], [3]]
    assert not recwarn.list
