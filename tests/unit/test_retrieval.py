"""Dense, lexical and fused retrieval against exact search and hand-computed scores."""

from __future__ import annotations

import math
from pathlib import Path

import faiss
import numpy as np
import pytest

from armor_ray.config import IndexConfig
from armor_ray.errors import ArmorError
from armor_ray.retrieval import dense, fusion, index_file, ranking
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.retrieval.lexical import Bm25


@pytest.fixture(scope="module")
def clustered() -> tuple[np.ndarray, np.ndarray]:
    """5,500 passages in 50 clusters and 64 queries near them, unit vectors."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(50, 24))
    passages = centres[generator.integers(0, 50, 5500)] + 0.6 * generator.normal(size=(5500, 24))
    queries = passages[:64] + 0.2 * generator.normal(size=(64, 24))
    return tuple((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32) for rows in (passages, queries))  # type: ignore[return-value]


@pytest.mark.parametrize(("kind", "kept"), [("flat", 1.0), ("ivf", 0.95), ("hnsw", 0.95)])
def test_every_index_kind_finds_the_exact_neighbours(clustered, kind, kept):
    """Forbids a lost metric (L2 in the factory), unset nprobe, and ids that are not rows."""
    passages, queries = clustered
    exact_scores, exact_rows = exact_top_k(queries, passages, 16)
    scores, rows = dense.search(dense.build_index(passages, IndexConfig(kind=kind)), queries, 16)
    recall = np.mean([np.isin(exact, found).mean() for exact, found in zip(exact_rows, rows, strict=True)])
    assert recall >= kept
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", queries, passages[rows]), atol=1e-6)
    assert scores.dtype == np.float32
    assert rows.dtype == np.int64
    if kind == "flat":
        np.testing.assert_array_equal(rows, exact_rows)
        np.testing.assert_allclose(scores, exact_scores, atol=1e-6)


def test_index_kind_survives_the_file_and_small_corpora_stay_flat(clustered, tmp_path):
    passages, _ = clustered
    index = dense.build_index(passages, IndexConfig(kind="ivf", nprobe=7))
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    stored = faiss.read_index(str(tmp_path / "index.faiss"))
    assert stored.nprobe == 7
    assert stored.metric_type == faiss.METRIC_INNER_PRODUCT
    assert stored.nlist == 5500 // 39  # 4·√5500 = 297 lists would leave fewer than 39 points each
    assert isinstance(dense.build_index(passages[:4999], IndexConfig(kind="ivf")), faiss.IndexFlatIP)


def test_a_graph_is_searched_as_widely_as_asked_for_from_its_file_too(clustered, tmp_path):
    passages, queries = clustered
    _, exact_rows = exact_top_k(queries, passages, 16)
    recall = {}
    for width in (16, 512):
        index = dense.build_index(passages, IndexConfig(kind="hnsw", hnsw_m=4, hnsw_ef_search=width))
        faiss.write_index(index, str(tmp_path / "index.faiss"))
        _, rows = dense.search(faiss.read_index(str(tmp_path / "index.faiss")), queries, 16)
        recall[width] = np.mean([np.isin(exact, found).mean() for exact, found in zip(exact_rows, rows, strict=True)])
    assert recall[16] < 0.95 < recall[512]


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_opened_index_is_mapped_and_finds_the_same(clustered, kind, tmp_path):
    """Forbids flags that FAISS accepts and ignores: a flat index would then be read into every process."""
    passages, queries = clustered
    index = dense.build_index(passages, IndexConfig(kind=kind))
    index_file.save_index(index, tmp_path, {"encoder": "e"})
    opened = index_file.open_index(tmp_path, "e")
    assert str(tmp_path / index_file.FILE) in Path("/proc/self/maps").read_text()
    for found, expected in zip(dense.search(opened, queries, 16), dense.search(index, queries, 16), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_memory_map_in_blocks_gives_the_same_index(clustered, tmp_path, monkeypatch):
    passages, queries = clustered
    np.save(tmp_path / "part.npy", passages)
    monkeypatch.setattr(dense, "_BLOCK", 1000)
    index = dense.build_index(np.load(tmp_path / "part.npy", mmap_mode="r"), IndexConfig())
    np.testing.assert_array_equal(dense.search(index, queries, 5)[1], exact_top_k(queries, passages, 5)[1])


def test_ivf_never_answers_with_missing_passages(clustered):
    """One probed list of ~40 passages cannot hold 500: FAISS pads with -1, which would read the last passage."""
    passages, queries = clustered
    _, rows = dense.search(dense.build_index(passages, IndexConfig(kind="ivf", nprobe=1)), queries, 500)
    np.testing.assert_array_equal(rows, exact_top_k(queries, passages, 500)[1])


def test_equal_scores_are_ordered_by_row():
    passages = np.tile(np.eye(4, dtype=np.float32), (3, 1))
    _, rows = dense.search(dense.build_index(passages, IndexConfig()), np.eye(4, dtype=np.float32), 3)
    np.testing.assert_array_equal(rows, np.arange(4)[:, None] + [0, 4, 8])


@pytest.mark.parametrize(
    ("queries", "k", "words"),
    [
        (np.ones((2, 3)), 5, "holds 4 passages"),
        (np.ones((2, 3)), 0, "between 1 and 4"),
        (np.ones((2, 8)), 2, "dimension 3"),
        (np.ones(3), 2, "dimension"),
    ],
)
def test_a_search_that_cannot_be_answered_is_one_line(queries, k, words):
    index = dense.build_index(np.ones((4, 3), np.float32), IndexConfig())
    with pytest.raises(ArmorError, match=words):
        dense.search(index, queries, k)


def test_no_queries_give_no_results():
    index = dense.build_index(np.ones((4, 3), np.float32), IndexConfig())
    scores, rows = dense.search(index, np.empty((0, 3)), 2)
    assert scores.shape == rows.shape == (0, 2)


@pytest.mark.parametrize(
    ("vectors", "config", "words"),
    [
        (np.ones((0, 3)), IndexConfig(), "at least 2 passages"),
        (np.ones((1, 3)), IndexConfig(), "at least 2 passages"),
        (np.array([[1.0, 0.0], [0.0, 1.0], [math.nan, 0.0]]), IndexConfig(), "passage 2 is not finite"),
        (np.ones((9, 3)), IndexConfig(kind="ivf", nlist=10, flat_below=0), "10 lists for 9 passages"),
    ],
)
def test_a_corpus_that_cannot_be_indexed_is_one_line(vectors, config, words):
    with pytest.raises(ArmorError, match=words):
        dense.build_index(vectors, config)


TEXTS = ["Radar waveform design for sensing.", "The satellite beam hops.", "Radar echo, radar clutter.", "The satellite beam hops."]


def test_bm25_is_lucenes_formula():
    """idf = ln(1 + (N - n + ½)/(n + ½)), tf part tf/(k1·(1 - b + b·l/mean l) + tf): by hand for 'radar clutter'."""
    lengths = np.array([4, 3, 4, 3])  # 'for' and 'the' are stop words
    idf = {word: math.log(1 + (4 - n + 0.5) / (n + 0.5)) for word, n in {"radar": 2, "clutter": 1}.items()}
    norm = 1.5 * (1 - 0.75 + 0.75 * lengths / lengths.mean())
    expected = [idf["radar"] / (norm[0] + 1), 0, idf["radar"] * 2 / (norm[2] + 2) + idf["clutter"] / (norm[2] + 1), 0]
    matrix = Bm25(TEXTS).score_matrix(["Radar clutter?"])
    np.testing.assert_allclose(matrix, [expected], rtol=1e-5)
    assert matrix.dtype == np.float32


def test_bm25_ties_and_unknown_words_follow_the_row_order():
    index = Bm25(TEXTS)
    scores, rows = index.search(["satellite beam", "zzz unknown", "", "the of"], 3)
    np.testing.assert_array_equal(rows, [[1, 3, 0], [0, 1, 2], [0, 1, 2], [0, 1, 2]])
    assert scores[0, 0] == scores[0, 1] > scores[0, 2] == 0
    assert not scores[1:].any()
    assert index.search([], 3)[1].shape == (0, 3)


def test_bm25_refuses_what_it_cannot_rank():
    with pytest.raises(ArmorError, match="none of 2 passages"):
        Bm25(["the", "of"])
    with pytest.raises(ArmorError, match="k is 5"):
        Bm25(TEXTS).search(["radar"], 5)


def test_top_k_equals_a_stable_sort_among_many_ties():
    scores = np.random.default_rng(0).integers(0, 5, (20, 300)).astype(np.float32)
    found, columns = ranking.top_k(scores, 37)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :37]
    np.testing.assert_array_equal(columns, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(scores, expected, 1))


def test_convex_fusion_by_hand():
    lexical = np.array([[0.0, 10.0, 5.0], [0.0, 0.0, 0.0]])
    dense_scores = np.array([[0.2, 0.4, 0.8], [-1.0, 0.0, 1.0]])
    fused = fusion.convex(dense_scores, lexical, 0.25)
    np.testing.assert_allclose(fused, [[0.0, 0.25 / 3 + 0.75, 0.25 + 0.375], [0.0, 0.125, 0.25]], atol=1e-6)


def test_best_weight_is_the_one_with_the_best_recall():
    """Passage 1 is gold: first only when neither side decides alone."""
    dense_scores, lexical = np.array([[1.0, 0.8, 0.0, 0.0]]), np.array([[0.0, 0.8, 1.0, 0.0]])
    weight, curve = fusion.best_weight([(dense_scores, lexical)], [np.array([1])], [0.0, 0.4, 0.5, 0.6, 1.0], k=1)
    assert curve == {0.0: 0.0, 0.4: 1.0, 0.5: 1.0, 0.6: 1.0, 1.0: 0.0}
    assert weight == 0.5


def test_fusion_recall_agrees_with_the_ranking_it_stands_for():
    generator = np.random.default_rng(1)
    dense_scores, lexical = generator.integers(0, 4, (2, 40, 30)).astype(np.float32)
    gold = [generator.choice(30, 2, replace=False) for _ in range(40)]
    blocks = [(dense_scores[start : start + 7], lexical[start : start + 7]) for start in range(0, 40, 7)]
    _, curve = fusion.best_weight(iter(blocks), gold, [0.3], k=5)
    _, rows = ranking.top_k(fusion.convex(dense_scores, lexical, 0.3), 5)
    assert curve[0.3] == pytest.approx(np.mean([np.isin(found, wanted).any() for found, wanted in zip(rows, gold, strict=True)]))


def test_reciprocal_rank_by_hand():
    scores, rows = fusion.reciprocal_rank([np.array([[7, 3, 5]]), np.array([[3, 9]])], k=60)
    np.testing.assert_array_equal(rows, [[3, 7, 9]])  # 3: 1/62 + 1/61; 7: 1/61; 9: 1/62 (5 comes fourth, 1/63)
    np.testing.assert_allclose(scores, [[1 / 62 + 1 / 61, 1 / 61, 1 / 62]], rtol=1e-6)


@pytest.mark.parametrize(("lexical", "weight", "words"), [(np.ones((2, 4)), 0.5, "shape"), (np.ones((2, 3)), 1.5, "weight is 1.5")])
def test_fusion_refuses_what_does_not_fit(lexical, weight, words):
    with pytest.raises(ArmorError, match=words):
        fusion.convex(np.ones((2, 3)), lexical, weight)


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_search_among_some_passages_misses_none_of_them(clustered, kind, tmp_path):
    """Forbids filtering what an approximate search happened to find."""
    passages, queries = clustered
    index_file.save_index(dense.build_index(passages, IndexConfig(kind=kind, nprobe=1)), tmp_path, {"encoder": "e"})
    index = index_file.open_index(tmp_path, "e")
    exact = queries @ passages.T
    np.testing.assert_allclose(dense.score_all(index, queries), exact, atol=1e-5)
    few = np.zeros(len(passages), bool)
    few[::500] = True
    for allowed, rows_allowed in ((few, np.flatnonzero(few)), (range(2000, 2500), np.arange(2000, 2500))):
        scores, rows = dense.search_within(index, queries, 9, allowed)
        expected = rows_allowed[np.argsort(-exact[:, rows_allowed], axis=1, kind="stable")[:, :9]]
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_allclose(scores, np.take_along_axis(exact, expected, 1), atol=1e-5)
    assert dense.search_within(index, queries, 16, few)[1].shape == (64, 11)  # all that there are
    assert dense.search_within(index, queries, 16, np.zeros(len(passages), bool))[1].shape == (64, 0)
