"""The reward model: its loss and gradient, what it learns, that a killed run ends as the whole one; and the cross-encoder it is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_cases import WORDS

from armor_ray.config import LoraConfig, RewardConfig
from armor_ray.errors import ArmorError
from armor_ray.evaluation.agreement import agreement
from armor_ray.models.cross_encoder import CrossEncoder
from armor_ray.models.reward_model import RewardModel
from armor_ray.objectives.losses import pairwise_margin
from armor_ray.training.host import LocalHost
from armor_ray.training.reward import RewardResult, RewardTrainer
from armor_ray.training.reward_pairs import RewardPools, RewardTable, draw_pairs
from armor_ray.training.reward_priors import fit_priors
from armor_ray.training.table import PADDING


def start(folder: Path) -> CrossEncoder:
    return CrossEncoder.start(str(folder), 24, seed=0)


def make_reward_table(num_train: int = 24, num_validation: int = 8) -> RewardTable:
    """A passage is useful when it begins with w0; its base score says nothing about that."""
    rng = np.random.default_rng(0)
    texts = [" ".join([("w0" if i % 3 == 0 else "w1"), *rng.choice(WORDS[2:], 4)]) for i in range(30)]
    num = num_train + num_validation
    pool_QN = np.stack([rng.choice(30, 6, replace=False) for _ in range(num)])
    pool_QN[::2, 5] = PADDING
    utility_QN = np.where(pool_QN == PADDING, np.nan, np.where(pool_QN % 3 == 0, 0.8, 0.2) + rng.normal(0, 0.01, pool_QN.shape))
    base_QN = rng.random(pool_QN.shape)
    questions = [" ".join(rng.choice(WORDS[2:], 3)) for _ in range(num)]

    def part(rows: slice) -> RewardPools:
        arrays = (pool_QN, pool_QN % 3 == 0, utility_QN.astype(np.float32), base_QN, np.empty((num, 6, 0), np.float32))
        return RewardPools([f"q{i}" for i in range(num)][rows], questions[rows], *(array[rows] for array in arrays))

    return RewardTable(train=part(slice(num_train)), validation=part(slice(num_train, num)), texts_C=texts, noise_floor=0.1, threshold=0.5)


def make_settings(**values: Any) -> RewardConfig:
    defaults = {"model": "x", "max_length": 24, "lora": None, "epochs": 6, "batch_size": 4, "learning_rate": 3e-3, "pairs": 4}
    return RewardConfig(**{**defaults, **values})


def run(settings: RewardConfig, model: Path, folder: Path, table: RewardTable) -> RewardResult:
    folder.mkdir(exist_ok=True)
    return RewardTrainer(settings, 3, table, start(model), LocalHost(folder)).run()


def test_margin_loss_and_gradient_by_hand() -> None:
    better = torch.tensor([2.0, 0.3, -1.0], dtype=torch.float64, requires_grad=True)
    worse = torch.tensor([0.5, 0.1, 1.0], dtype=torch.float64, requires_grad=True)
    loss = pairwise_margin(better, worse, 1.0)
    torch.testing.assert_close(loss, torch.tensor([0.0, 0.8, 3.0], dtype=torch.float64))
    loss.sum().backward()
    assert better.grad.tolist() == [0.0, -1.0, -1.0]
    assert worse.grad.tolist() == [0.0, 1.0, 1.0]


def test_a_steps_loss_is_the_mean_over_questions_of_their_pairs(tiny_bert: Path, tmp_path: Path) -> None:
    """Every comparison once more from pairs that are encoded one by one."""
    table = make_reward_table()
    trainer = RewardTrainer(make_settings(), 3, table, start(tiny_bert), LocalHost(tmp_path))
    trainer.module.eval()
    questions = np.array([1, 4, 6])
    total = trainer.module(trainer._batch(7, questions, 3)).item()
    plain = []
    for q in questions.tolist():
        pools = table.train
        better, worse = draw_pairs(pools.utility_QN[q], pools.base_QN[q], 0.1, 4, np.random.default_rng([3, 7, q]))
        rewards = [
            trainer.module.model.encoder.score([(pools.questions[q], table.texts_C[pools.pool_QN[q, c]])])[0] for c in (*better, *worse)
        ]
        gaps = np.array(rewards[: len(better)], np.float64) - rewards[len(better) :]
        plain.append(np.maximum(0.0, 1.0 - gaps).mean())
    assert total == pytest.approx(np.mean(plain), abs=1e-5)


def test_gradients_do_not_depend_on_how_many_questions_are_encoded_at_once(tiny_bert: Path, tmp_path: Path) -> None:
    table, found = with_priors(make_reward_table()), []
    for micro_batch in (1, 4):
        settings = make_settings(micro_batch=micro_batch, precision="float32")
        trainer = RewardTrainer(settings, 3, table, start(tiny_bert), LocalHost(tmp_path))
        trainer.module.eval()
        loss = trainer._accumulate(7, np.array([1, 4, 6, 2]))
        found.append([loss, *(weight.grad for weight in trainer._weights)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=8, alpha=16)])
def test_it_learns_the_generators_order_and_survives_saving(tiny_bert: Path, tmp_path: Path, lora: LoraConfig | None) -> None:
    table = make_reward_table()
    result = run(make_settings(lora=lora, epochs=10), tiny_bert, tmp_path / "run", table)
    assert result.validation["pairwise_accuracy"] > 0.9
    result.model.save(tmp_path / "model")
    pairs = [(table.validation.questions[0], text) for text in table.texts_C[:6]]
    loaded = CrossEncoder.load(tmp_path / "model", 24)
    np.testing.assert_allclose(loaded.score(pairs), result.model.encoder.score(pairs), atol=1e-6)


def test_a_killed_run_ends_as_the_uninterrupted_one(tiny_bert: Path, tmp_path: Path) -> None:
    table, settings = make_reward_table(), make_settings(epochs=4)
    whole = run(settings, tiny_bert, tmp_path / "whole", table)
    folder = tmp_path / "killed"
    folder.mkdir()
    victim = RewardTrainer(settings, 3, table, start(tiny_bert), LocalHost(folder))
    victim._train_step, taken = _dies_after(victim._train_step, 12)
    with pytest.raises(KeyboardInterrupt):
        victim.run()
    resumed = RewardTrainer(settings, 3, table, start(tiny_bert), LocalHost(folder))
    assert 0 < resumed.progress.step < 12
    assert len(taken) == 12
    result = resumed.run()
    for (name, a), (_, b) in zip(whole.model.named_parameters(), result.model.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def _dies_after(step: Any, count: int) -> Any:
    taken: list[int] = []

    def counted(number: int) -> None:
        if number == count:
            raise KeyboardInterrupt
        taken.append(number)
        step(number)

    return counted, taken


def test_scores_do_not_depend_on_what_is_scored_together(tiny_bert: Path) -> None:
    model = start(tiny_bert)
    pairs = [(" ".join(WORDS[:n]), " ".join(WORDS[n : 3 * n])) for n in (1, 9, 4, 2, 7)]
    together = model.score(pairs, batch_tokens=40)
    np.testing.assert_allclose(together, [model.score([pair])[0] for pair in pairs], atol=1e-6)
    assert len(model.tokenize([("w1", " ".join(WORDS))])[0]["input_ids"]) == 24


def test_an_encoder_without_a_head_is_no_cross_encoder(tiny_bert: Path) -> None:
    with pytest.raises(ArmorError, match="not a cross-encoder: its weights lack classifier"):
        CrossEncoder.load(tiny_bert, 24)
    with pytest.raises(ArmorError, match="max_length 25 exceeds the model's 24 positions"):
        CrossEncoder.start(str(tiny_bert), 25, seed=0)


def test_utilities_within_the_noise_teach_nothing() -> None:
    table = make_reward_table()
    with pytest.raises(ArmorError, match="no training question has two passages whose utilities differ"):
        replace(table, noise_floor=5.0)


def with_priors(table: RewardTable) -> RewardTable:
    """The first prior orders passages as the utilities do but for noise, the second says nothing."""
    rng = np.random.default_rng(1)

    def part(pools: RewardPools) -> RewardPools:
        informative_QN = np.nan_to_num(pools.utility_QN) * 40 + 7 + rng.normal(0, 20, pools.pool_QN.shape)
        prior_QNF = np.stack([informative_QN, rng.random(pools.pool_QN.shape)], axis=-1).astype(np.float32)
        return replace(pools, prior_QNF=prior_QNF)

    return replace(table, train=part(table.train), validation=part(table.validation), priors=("bm25", "base"))


def test_priors_start_at_the_logistic_fit_of_their_scores() -> None:
    """Against Newton's method on the same pairs."""
    table = with_priors(make_reward_table())
    priors = fit_priors(table, seed=5)
    assert priors is not None
    pools = table.train
    known = pools.prior_QNF[~np.isnan(pools.utility_QN)].astype(np.float64)
    gaps = []
    for q in range(len(pools)):
        utilities = pools.utility_QN[q]
        for i, j in itertools.product(range(6), repeat=2):
            if utilities[i] - utilities[j] > table.noise_floor:
                gaps.append((pools.prior_QNF[q, i].astype(np.float64) - pools.prior_QNF[q, j]) / known.std(axis=0))
    gap_MF, weight_F = np.array(gaps), np.zeros(2)
    for _ in range(50):
        wrong_M = 1 / (1 + np.exp(gap_MF @ weight_F))
        gradient = -(wrong_M[:, None] * gap_MF).mean(axis=0) + 2e-4 * weight_F
        hessian = (gap_MF.T * (wrong_M * (1 - wrong_M))) @ gap_MF / len(gap_MF) + 2e-4 * np.eye(2)
        weight_F -= np.linalg.solve(hessian, gradient)
    assert priors.names == ("bm25", "base")
    np.testing.assert_allclose(priors.weight_F.tolist(), weight_F, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(priors.mean_F.tolist(), known.mean(axis=0), rtol=1e-6)


def test_a_reward_model_with_priors_adds_them_learns_on_top_and_survives_saving(tiny_bert: Path, tmp_path: Path) -> None:
    table = with_priors(make_reward_table())
    result = run(make_settings(), tiny_bert, tmp_path / "run", table)
    alone = agreement(table.validation.prior_QNF[..., 0], table.validation.utility_QN, table.noise_floor, table.threshold)
    assert result.validation["pairwise_accuracy"] > alone["pairwise_accuracy"]
    result.model.save(tmp_path / "model")
    pairs = [(table.validation.questions[0], text) for text in table.texts_C[:6]]
    scores = np.arange(12, dtype=np.float32).reshape(6, 2)
    facts = result.model.priors.facts()
    expected = result.model.encoder.score(pairs) + sum(
        facts[name]["weight"] * (scores[:, f] - facts[name]["mean"]) / facts[name]["std"] for f, name in enumerate(("bm25", "base"))
    )
    np.testing.assert_allclose(RewardModel.load(tmp_path / "model", 24).score(pairs, scores, 4096), expected, atol=1e-5)
    with pytest.raises(ArmorError, match="trained to correct retrieval scores"):
        CrossEncoder.load(tmp_path / "model", 24)
    (tmp_path / "model" / "priors.json").write_text('{"base": {"weight": 1.0}}', encoding="utf-8")
    with pytest.raises(ArmorError, match="damaged"):
        RewardModel.load(tmp_path / "model", 24)
