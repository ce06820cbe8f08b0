"""Batches: which questions, which passages, and what may be a negative of what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_cases import load_tiny, make_table

from armor_ray.errors import ArmorError
from armor_ray.retrieval.lexical import Bm25
from armor_ray.training.batches import Batcher, BatchPlan
from armor_ray.training.table import PADDING, QuestionPools, TrainingTable, pad_pools
from armor_ray.training.validation import Validator


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_tiny(tiny_bert)


@pytest.fixture(scope="module")
def table(encoder):
    return make_table(encoder)


class TestBatchPlan:
    def test_an_epoch_is_whole_batches_of_distinct_questions_in_an_order_of_its_own(self):
        plan = BatchPlan(11, 4, seed=5)
        assert plan.steps_per_epoch == 2
        epochs = [np.concatenate([plan.batch(2 * epoch + step)[0] for step in range(2)]) for epoch in range(3)]
        assert all(len(set(order.tolist())) == 8 and order.max() < 11 for order in epochs)
        assert len({tuple(order) for order in epochs}) == 3
        assert (BatchPlan(11, 4, seed=5).batch(5)[0] == plan.batch(5)[0]).all()
        assert (BatchPlan(11, 4, seed=6).batch(5)[0] != plan.batch(5)[0]).any()

    def test_ranks_share_the_batch_and_take_equally_many_steps(self):
        whole = BatchPlan(11, 4, seed=5)
        ranks = [BatchPlan(11, 4, seed=5, rank=rank, world_size=2) for rank in range(2)]
        assert {plan.steps_per_epoch for plan in ranks} == {2}
        for step in range(4):
            everyone, shares = whole.batch(step)[0], [plan.batch(step) for plan in ranks]
            assert all((seen == everyone).all() for seen, _ in shares)
            assert np.concatenate([mine for _, mine in shares]).tolist() == everyone.tolist()

    @pytest.mark.parametrize(("questions", "batch", "ranks"), [(11, 4, 3), (3, 4, 1), (3, 0, 1)])
    def test_batches_that_cannot_be_made_are_refused(self, questions, batch, ranks):
        with pytest.raises(ArmorError, match="batch"):
            BatchPlan(questions, batch, 0, 0, ranks)


@pytest.mark.parametrize("in_batch", ["none", "positives", "pools"])
def test_every_mask_and_vector_equals_a_plain_reading_of_the_rules(in_batch, table, encoder):
    everyone, mine = np.array([3, 0, 9, 12]), np.array([9, 12])
    pools = table.train
    inputs = Batcher(table, pools, in_batch, encoder).build(everyone, mine)
    got = {name: value.numpy() for name, value in inputs.frozen.items()}

    assert torch.equal(inputs.input_ids_BL, encoder.pad(encoder.tokenize([pools.questions[i] for i in mine], "query"))[0])
    expected_extra = sorted(
        {
            "none": set(),
            "positives": {int(row) for i in everyone for row in pools.positives[i]},
            "pools": {int(row) for i in everyone for row in pools.pool_QN[i] if row != PADDING},
        }[in_batch]
    )
    np.testing.assert_array_equal(got["extra_PD"], table.passages_CD[expected_extra])

    def near(row, gold):
        return any(table.document_C[row] == table.document_C[g] or table.text_C[row] == table.text_C[g] for g in gold)

    for b, i in enumerate(mine):
        gold, pool = set(pools.positives[i].tolist()), pools.pool_QN[i].tolist()
        np.testing.assert_array_equal(got["base_query_BD"][b], pools.base_query_QD[i])
        for n, row in enumerate(pool):
            if row == PADDING:
                masks = [got[f"{mask}_BN"][b] for mask in ("pool_valid", "positive", "negative", "scored")]
                assert not any(mask[n:].any() for mask in masks)
                continue
            assert got["pool_valid_BN"][b, n]
            np.testing.assert_array_equal(got["pool_BND"][b, n], table.passages_CD[row])
            assert got["positive_BN"][b, n] == (row in gold)
            assert got["negative_BN"][b, n] == (not near(row, gold))
            assert got["scored_BN"][b, n] == pools.scored_QN[i, n]
            assert got["log_likelihood_BN"][b, n] == pools.log_likelihood_QN[i, n]
        for p, row in enumerate(expected_extra):
            assert got["extra_negative_BP"][b, p] == (not near(row, gold) and row not in pool)


def test_gold_neighbours_copies_and_other_questions_positives(encoder):
    # Passages: 0, 1 of document A; 2 copies the text of 0 in document B; 3 of document B; 4 of document C.
    vectors = np.eye(5, 32, dtype=np.float32)
    pools = QuestionPools(
        example_ids=["a", "b"],
        questions=["w1", "w2"],
        positives=[np.array([0]), np.array([3, 0])],
        base_query_QD=vectors[:2],
        pool_QN=pad_pools([np.array([0, 1, 2, 4]), np.array([3])]),
        log_likelihood_QN=np.zeros((2, 4), np.float32),
        scored_QN=np.ones((2, 4), bool),
    )
    table = TrainingTable(pools, pools, vectors, np.array([0, 0, 1, 1, 2]), np.array([7, 8, 7, 9, 5]))
    both = np.array([0, 1])
    frozen = Batcher(table, pools, "pools", encoder).build(both, both).frozen
    assert frozen["negative_BN"].tolist() == [[False, False, False, True], [False] * 4]
    # In-batch rows 0 1 2 3 4: of question a, 3 is another's positive and in none of its documents; 4 stands in its pool already.
    # Of question b, whose positives lie in both documents, only 4 is left.
    assert frozen["extra_negative_BP"].tolist() == [[False, False, False, True, False], [False, False, False, False, True]]


def test_bm25_of_every_passage_is_scaled_over_the_whole_corpus(table, encoder):
    bm25 = Bm25(table.texts_C)
    lexical = replace(table, lexical=bm25)
    everyone, mine = np.array([3, 0, 9, 12]), np.array([9, 12])
    got = Batcher(lexical, table.train, "pools", encoder, lexical=True).build(everyone, mine).frozen
    rows_P = np.unique(table.train.pool_QN[everyone])
    for b, i in enumerate(mine):
        scores_C = bm25.score_matrix([table.train.questions[i]])[0]
        scaled_C = (scores_C - scores_C.min()) / (scores_C.max() - scores_C.min())
        valid_N = got["pool_valid_BN"][b].numpy()
        pool_N = table.train.pool_QN[i][: len(valid_N)]
        np.testing.assert_allclose(got["lexical_BN"][b].numpy()[valid_N], scaled_C[pool_N[valid_N]], rtol=1e-6)
        np.testing.assert_allclose(got["lexical_BP"][b].numpy(), scaled_C[rows_P[rows_P != PADDING]], rtol=1e-6)
    assert "lexical_BN" not in Batcher(lexical, table.train, "pools", encoder).build(everyone, mine).frozen


def test_validation_recall_counts_bm25_as_the_losses_do(table, encoder):
    class Blind:
        """All its vectors are alike, so BM25 alone ranks."""

        def encode(self, texts, side):
            return np.zeros((len(texts), table.passages_CD.shape[1]), np.float32)

    lexical = replace(table, lexical=Bm25(table.texts_C))
    _, rows_QK = lexical.lexical.search(table.validation.questions, 16)
    for k, recall in Validator(lexical, lexical_weight=0.5).recall(Blind()).items():
        hits = [np.isin(gold, rows[: int(k[2:])]).any() for gold, rows in zip(table.validation.positives, rows_QK, strict=True)]
        assert recall == pytest.approx(np.mean(hits)), k
    dense, fused = Validator(lexical).recall(encoder), Validator(lexical, lexical_weight=1e-9).recall(encoder)
    assert dense == fused


def test_columns_that_pad_every_question_are_dropped(table, encoder):
    pools = table.train.with_own_pools()
    pools.pool_QN = np.pad(pools.pool_QN, ((0, 0), (0, 9)), constant_values=PADDING)
    pools.scored_QN = np.pad(pools.scored_QN, ((0, 0), (0, 9)))
    pools.log_likelihood_QN = np.pad(pools.log_likelihood_QN, ((0, 0), (0, 9)))
    mine = np.array([0, 1, 2])
    wide, narrow = (Batcher(table, p, "none", encoder).build(mine, mine).frozen for p in (pools, table.train))
    used = int((table.train.pool_QN[mine] != PADDING).sum(1).max())
    for name, value in wide.items():
        assert value.shape == (narrow[name][:, :used] if name.endswith(("BN", "BND")) else narrow[name]).shape


class TestTable:
    def test_a_question_without_positives_is_named(self, table):
        pools = table.train.with_own_pools()
        pools.positives = [*pools.positives[:2], np.empty(0, np.int64), *pools.positives[3:]]
        with pytest.raises(ArmorError, match="q2: question without positives"):
            TrainingTable(pools, table.validation, table.passages_CD, table.document_C, table.text_C)

    def test_vectors_of_another_corpus(self, table):
        with pytest.raises(ArmorError, match="23 vectors but 24 passages"):
            TrainingTable(table.train, table.validation, table.passages_CD[1:], table.document_C, table.text_C)

    @pytest.mark.parametrize("split", ["train", "validation"])
    def test_an_empty_split(self, table, split):
        empty = QuestionPools([], [], [], *(np.empty((0, 1)) for _ in range(4)))
        splits = {"train": table.train, "validation": table.validation, split: empty}
        with pytest.raises(ArmorError, match=f"no {'training' if split == 'train' else split} questions"):
            TrainingTable(**splits, passages_CD=table.passages_CD, document_C=table.document_C, text_C=table.text_C)
