"""Retrieval and answer metrics against hand-computed values and pytrec_eval; TREC files there and back."""

from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval

from armor_ray.errors import ArmorError
from armor_ray.evaluation import answers, trec
from armor_ray.evaluation.metrics import gold_ranks, retrieval_metrics


def test_retrieval_metrics_by_hand():
    rows = np.array([[4, 7, 1, 9], [0, 1, 2, 3], [8, 5, 6, 2]])
    gold = [np.array([4, 1]), np.array([3]), np.array([11])]
    values = retrieval_metrics(rows, gold, [1, 3])
    assert list(values) == ["R@1", "R@3", "MRR@10", "nDCG@10", "MAP"]
    np.testing.assert_array_equal(values["R@1"], [1, 0, 0])
    np.testing.assert_array_equal(values["R@3"], [1, 0, 0])  # a share of questions: one of two gold passages at rank 1 is a hit
    np.testing.assert_allclose(values["MRR@10"], [1, 1 / 4, 0])
    np.testing.assert_allclose(values["MAP"], [(1 + 2 / 3) / 2, 1 / 4, 0])
    np.testing.assert_allclose(values["nDCG@10"], [(1 + 1 / 2) / (1 + 1 / np.log2(3)), 1 / np.log2(5), 0])
    np.testing.assert_array_equal(gold_ranks(rows, gold), [1, 4, 0])


def test_retrieval_metrics_agree_with_pytrec_eval():
    generator = np.random.default_rng(0)
    rows = np.stack([generator.permutation(60)[:20] for _ in range(50)])
    gold = [generator.choice(60, generator.integers(1, 4), replace=False) for _ in range(50)]
    ours = retrieval_metrics(rows, gold, [1, 5, 10])
    run = {str(q): {str(row): float(-rank) for rank, row in enumerate(found)} for q, found in enumerate(rows.tolist())}
    qrels = {str(q): {str(row): 1 for row in wanted.tolist()} for q, wanted in enumerate(gold)}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"success_1,5,10", "ndcg_cut_10", "map", "recip_rank"}).evaluate(run)
    for name, other in {"R@1": "success_1", "R@5": "success_5", "R@10": "success_10", "nDCG@10": "ndcg_cut_10", "MAP": "map"}.items():
        np.testing.assert_allclose(ours[name], [theirs[str(q)][other] for q in range(50)], atol=1e-9)
    reciprocal = np.array([theirs[str(q)]["recip_rank"] for q in range(50)])
    np.testing.assert_allclose(ours["MRR@10"], np.where(reciprocal >= 1 / 10, reciprocal, 0))


@pytest.mark.parametrize(
    ("gold", "ks", "words"),
    [
        ([np.array([1])], [1], "2 rankings for 1"),
        ([np.array([1]), np.array([])], [1], "no gold passage"),
        ([np.array([1])] * 2, [9], "R@9"),
    ],
)
def test_rankings_that_cannot_be_measured(gold, ks, words):
    with pytest.raises(ArmorError, match=words):
        retrieval_metrics(np.zeros((2, 3), np.int64), gold, ks)


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1", "rouge"),
    [
        ("The 5G-NR!", "5gnr", 1, 1, 0),
        ("beam beam hopping", "beam hopping pattern", 0, 2 / 3, 2 / 3),
        ("hopping beam", "beam hopping", 0, 1, 1 / 2),
        ("", "20 ms", 0, 0, 0),
        ("", "the", 1, 1, 0),
    ],
)
def test_answer_metrics_by_hand(prediction, answer, exact, f1, rouge):
    """Row 2: the doubled word counts once; row 3: order matters to ROUGE-L alone; row 5: nothing remains on either side."""
    assert answers.exact_match(prediction, answer) == exact
    assert answers.token_f1(prediction, answer) == pytest.approx(f1)
    assert answers.rouge_l(prediction, answer) == pytest.approx(rouge)


def test_the_best_reference_answer_counts():
    values = answers.answer_metrics(["20 ms", "none"], [["ten", "20 ms"], ["two beams"]])
    assert {name: value.tolist() for name, value in values.items()} == {"EM": [1, 0], "F1": [1, 0], "ROUGE-L": [1, 0]}


def test_runs_and_qrels_come_back(tmp_path):
    ids, rows = ["q 1", "50%20"], np.array([[3, 1], [2, 0]])
    scores = np.array([[1 / 3, 0.25], [0.5, -0.125]], np.float32)
    text = trec.write_run(tmp_path / "a.run", ids, rows, scores, "armor/interpolated").read_text()
    assert text.splitlines()[0] == "q%201 Q0 3 1 0.333333343 armor/interpolated"
    run = trec.read_run(tmp_path / "a.run")
    assert list(run) == ids
    assert [[passage for passage, _ in run[name]] for name in ids] == [["3", "1"], ["2", "0"]]
    np.testing.assert_array_equal(np.float32([[score for _, score in run[name]] for name in ids]), scores)
    trec.write_qrels(tmp_path / "test.tsv", ids, [np.array([3]), np.array([0, 2])])
    assert trec.read_qrels(tmp_path / "test.tsv") == {"q 1": {"3": 1}, "50%20": {"0": 1, "2": 1}}


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (trec.read_run, "q Q0 3 1 0.5 tag\nq Q0 3\n", r"file:2: 3 columns"),
        (trec.read_run, "q Q0 3 one 0.5 tag\n", r"file:1: 'one' is not a number"),
        (trec.read_qrels, "q\t3\t1\n", r"file:1: no BEIR header"),
        (trec.read_qrels, "query-id\tcorpus-id\tscore\nq\t3\tnan\n", r"file:2: 'nan' is not a number"),
    ],
)
def test_malformed_files_name_the_line(tmp_path, read, text, words):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ArmorError, match=words):
        read(tmp_path / "file")
