"""`candidates.refresh`: what is retrieved, what is scored, and what a checkpoint keeps of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_cases import PairTable, load_tiny, make_config, make_table, train, weights_of

from armor_ray.errors import ArmorError
from armor_ray.objectives.selection import top_mask
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.training.host import LocalHost
from armor_ray.training.loop import Trainer
from armor_ray.training.refresh import extend_pools
from armor_ray.training.table import PADDING


@pytest.fixture
def encoder(tiny_bert):
    return load_tiny(tiny_bert)


@pytest.fixture
def table(encoder):
    return make_table(encoder)


def config_for(refresh, **training):
    return make_config(training={"learning_rate": 5e-3, **training}, candidates={"refresh": refresh}, objective={"recipe": "armor"})


def pairs_of(pools):
    return {(i, int(row)) for i, pool in enumerate(pools.pool_QN) for row in pool if row != PADDING}


@pytest.mark.parametrize("refresh", ["step", "epoch"])
def test_only_unseen_pairs_are_scored_and_only_once_and_the_table_stays(refresh, encoder, table, tmp_path):
    before = pairs_of(table.train)
    score = PairTable()
    trainer = Trainer(config_for(refresh), table, encoder, LocalHost(tmp_path), score)
    trainer.run()
    pools = trainer._train.pools
    assert score.calls
    assert len(set(score.calls)) == len(score.calls)
    assert not before & set(score.calls)
    assert pairs_of(table.train) == before
    assert pairs_of(pools) == before | set(score.calls)
    for question, row in score.calls:
        column = int(np.flatnonzero(pools.pool_QN[question] == row)[0])
        value = score.value(question, row)
        assert pools.scored_QN[question, column] == (value is not None)
        assert value is None or pools.log_likelihood_QN[question, column] == pytest.approx(value)


def test_step_gives_the_rag_softmax_the_corpus_top_k_of_the_current_encoder(encoder, table, tmp_path):
    table.train.scored_QN[:] = table.train.pool_QN != PADDING
    trainer = Trainer(config_for("step"), table, encoder, LocalHost(tmp_path), PairTable(failures=False))
    steps = []

    def look(_, arguments):
        batch = arguments[0]
        scores_BN = (batch.pool_BND @ batch.query_BD.unsqueeze(-1)).squeeze(-1).detach()
        chosen_BN = top_mask(scores_BN, batch.pool_valid_BN & batch.scored_BN, 4)
        exact_BK, _ = exact_top_k(batch.query_BD.detach().numpy(), table.passages_CD, 4)
        got_BK = scores_BN.masked_fill(~chosen_BN, -9).topk(4, dim=1).values
        np.testing.assert_allclose(got_BK, exact_BK, atol=1e-6)
        steps.append(got_BK)

    trainer.module.objective.register_forward_pre_hook(look)
    trainer.run()
    assert len(steps) == 6


def test_epoch_refreshes_between_epochs_only(encoder, table, tmp_path):
    score = PairTable()
    calls_at = []
    train(
        config_for("epoch", epochs=3),
        tmp_path,
        encoder,
        table,
        score=score,
        sink=lambda row: calls_at.append((row["step"], score.num_calls)),
    )
    assert dict(calls_at)[2.0] == 0
    # After epochs 1 and 2, each time in one call for all questions; after the last one nothing would use it.
    assert calls_at[-1] == (9.0, 2)


@pytest.mark.parametrize("refresh", ["step", "epoch"])
def test_a_resumed_run_has_the_pools_and_weights_of_the_uninterrupted_one(refresh, tiny_bert, table, tmp_path):
    config = config_for(refresh, epochs=3, dropout=True)
    whole = Trainer(config, table, load_tiny(tiny_bert), LocalHost(tmp_path / "whole"), PairTable())
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    expected = whole.run()

    def sink(row):
        if row["step"] == 5 and "loss" in row:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trainer(config, table, load_tiny(tiny_bert), LocalHost(tmp_path / "cut"), PairTable(), sink).run()
    score = PairTable()
    resumed = Trainer(config, table, load_tiny(tiny_bert), LocalHost(tmp_path / "cut"), score)
    at_checkpoint = pairs_of(resumed._train.pools)
    assert at_checkpoint > pairs_of(table.train)
    result = resumed.run()
    assert not at_checkpoint & set(score.calls)
    for name in ("pool_QN", "log_likelihood_QN", "scored_QN"):
        np.testing.assert_array_equal(getattr(resumed._train.pools, name), getattr(whole._train.pools, name))
    assert result.progress.history == expected.progress.history
    assert all(torch.equal(weight, weights_of(expected.encoder)[name]) for name, weight in weights_of(result.encoder).items())


def test_refresh_without_a_scorer_is_refused(encoder, table, tmp_path):
    with pytest.raises(ArmorError, match=r"candidates\.refresh 'step' needs a generator that scores"):
        Trainer(config_for("step"), table, encoder, LocalHost(tmp_path))


def test_extending_by_hand(table):
    pools = table.train.with_own_pools()
    pools.pool_QN = np.array([[5, PADDING], [7, 8]] + [[1, 2]] * 12)
    pools.log_likelihood_QN = np.full((14, 2), -1.0, np.float32)
    pools.scored_QN = pools.pool_QN != PADDING
    extend_pools(pools, [1, 0, 0], [3, 4, 6], [-2.0, None, -0.5])
    assert [row[row != PADDING].tolist() for row in pools.pool_QN[:3]] == [[5, 4, 6], [7, 8, 3], [1, 2]]
    assert pools.scored_QN[:2, :3].tolist() == [[True, False, True], [True, True, True]]
    assert pools.log_likelihood_QN[:2, :3].tolist() == [[-1.0, 0.0, -0.5], [-1.0, -1.0, -2.0]]
    assert not pools.scored_QN[:, 3:].any()
    extend_pools(pools, [], [], [])
