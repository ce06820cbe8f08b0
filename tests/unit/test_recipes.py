"""Every recipe, loss and gradients, against plain Python loops with gradients by hand; and what must not change a loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from armor_ray.config import RECIPES as RECIPE_NAMES
from armor_ray.config import ObjectiveConfig
from armor_ray.objectives import Objective, ObjectiveBatch
from armor_ray.objectives.recipes import RECIPES

TOP_K = 4
FEW_NEGATIVES: dict[str, Any] = {"negatives": 2, "rank_distillation": 0.5, "lexical_weight": 0.3}
SOME_SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "hardest negatives, other weights": {"negatives": 2, "kl_temperature": 2.0, "mix_weight": 0.3, "lambda_q": 2.5},
    "easiest negatives, best positive": {"negatives": 2, "negative_order": "easiest", "multi_positive": "best", "tau_start": 0.4},
    "sigmoid temperatures": {"temperature_form": "sigmoid", "tau_min": 0.1, "tau_max": 3.0, "tau_start": 0.7},
    "rank distillation": {"rank_distillation": 0.7},
    "beside BM25": {"lexical_weight": 0.6, "rank_distillation": 0.7, "negatives": 2},
    "released": {"preset": "released"},
    "learned student, lighter KL": {"student_temperature": "learned", "kl_weight": 0.4, "tau_start": 0.2},
}


def make_batch(seed: int = 0, num_questions: int = 4, num_pool: int = 7, num_extra: int = 3, dim: int = 6) -> ObjectiveBatch:
    """Random unit vectors; 1 or 2 positives, some disallowed, unscored and padded candidates in each pool."""
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> torch.Tensor:
        vectors = rng.normal(size=shape)
        return torch.from_numpy(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))

    shape = (num_questions, num_pool)
    positive = np.zeros(shape, bool)
    positive[:, 0] = True
    positive[::2, 1] = True
    valid = np.arange(num_pool) < rng.integers(5, num_pool + 1, size=(num_questions, 1))
    scored = rng.random(shape) < 0.8
    likelihood = np.where(valid & scored, rng.uniform(-30, -1, shape), np.nan)
    rewards = np.random.default_rng([seed, 1])
    rewarded = rewards.random(shape) < 0.9
    return ObjectiveBatch(
        query_BD=unit(num_questions, dim).requires_grad_(),
        base_query_BD=unit(num_questions, dim),
        pool_BND=unit(*shape, dim),
        pool_valid_BN=torch.from_numpy(valid),
        positive_BN=torch.from_numpy(positive),
        negative_BN=torch.from_numpy(~positive & (rng.random(shape) < 0.8)),
        log_likelihood_BN=torch.from_numpy(likelihood),
        scored_BN=torch.from_numpy(scored),
        extra_PD=unit(num_extra, dim),
        extra_negative_BP=torch.from_numpy(rng.random((num_questions, num_extra)) < 0.6),
        reward_BN=torch.from_numpy(np.where(rewarded, rewards.normal(size=shape), np.nan)),
        rewarded_BN=torch.from_numpy(rewarded),
        gated_BN=torch.from_numpy(~positive & rewarded & (rewards.random(shape) < 0.7)),
        lexical_BN=torch.from_numpy(rewards.random(shape)),
        lexical_BP=torch.from_numpy(rewards.random((num_questions, num_extra))),
    )


def map_batch(batch: ObjectiveBatch, function) -> ObjectiveBatch:
    """The batch with `function(name, tensor)` applied; the query stays the leaf that collects gradients."""
    changed = {f.name: function(f.name, getattr(batch, f.name).detach()) for f in fields(batch)}
    changed["query_BD"] = changed["query_BD"].clone().requires_grad_()
    return ObjectiveBatch(**changed)


def select_questions(batch: ObjectiveBatch, rows) -> ObjectiveBatch:
    return map_batch(batch, lambda name, tensor: tensor if name == "extra_PD" else tensor[rows])


def objective_for(recipe: str, **settings) -> Objective:
    return Objective(ObjectiveConfig(recipe=recipe, **settings), TOP_K).double()


def loss_and_gradients(objective: Objective, batch: ObjectiveBatch, **kwargs):
    batch = map_batch(batch, lambda _, tensor: tensor)
    objective.zero_grad()
    outcome = objective(batch, **kwargs)
    outcome.total.backward()
    assert batch.query_BD.grad is not None
    alphas = [p.grad.item() for p in objective.temperature_parameters() if p.grad is not None]
    return outcome.total.item(), batch.query_BD.grad.numpy(), alphas


@dataclass
class Plain:
    """The recipes once more: one question at a time, numpy float64, gradients derived on paper."""

    config: ObjectiveConfig
    tau_r: float
    tau_c: float
    tau_u: float | None = None

    def softmax(self, logits):
        exps = np.exp(np.array(logits) - max(logits))
        return exps / exps.sum()

    def rag(self, s, ll, retrieved, grad):
        if not retrieved:
            return 0.0, 0.0
        p = self.softmax([s[i] / self.tau_r for i in retrieved])
        joint = [math.log(p_i) + ll[i] for p_i, i in zip(p, retrieved, strict=True)]
        posterior = self.softmax(joint)
        d_logits = p - posterior
        for i, d in zip(retrieved, d_logits, strict=True):
            grad[i] += d / self.tau_r
        loss = -(max(joint) + math.log(sum(math.exp(j - max(joint)) for j in joint)))
        return loss, -sum(d * s[i] for d, i in zip(d_logits, retrieved, strict=True)) / self.tau_r**2

    def infonce(self, s, positives, negatives, grad):
        loss = d_tau = 0.0
        for positive in positives:
            members = [positive, *negatives]
            p = self.softmax([s[i] / self.tau_c for i in members])
            loss -= math.log(p[0]) / len(positives)
            for rank, i in enumerate(members):
                d = (p[rank] - (rank == 0)) / len(positives)
                grad[i] += d / self.tau_c
                d_tau -= d * s[i] / self.tau_c**2
        return loss, d_tau

    def kl(self, s, teacher_logits, members, grad, tau=None):
        """(KL, its gradient in τ)."""
        tau = tau or self.tau_r
        if not members:
            return 0.0, 0.0
        student = self.softmax([s[i] / tau for i in members])
        teacher = self.softmax([teacher_logits[i] for i in members])
        for i, d in zip(members, student - teacher, strict=True):
            grad[i] += d / tau
        d_tau = -sum(d * s[i] for i, d in zip(members, student - teacher, strict=True)) / tau**2
        return sum(t * math.log(t / q) for t, q in zip(teacher, student, strict=True)), d_tau

    def question(self, b: dict, weights: dict[str, float]):
        """Loss, its gradient in q, and in (τ_r, τ_c), of one question."""
        config, q = self.config, b["query_BD"]
        num_pool = len(b["pool_BND"])
        passages = [*b["pool_BND"], *b["extra_PD"]]
        lexical = config.lexical_weight * np.array([*b["lexical_BN"], *b["lexical_BP"]])
        s, base_s = ([float(vector @ d) + extra for d, extra in zip(passages, lexical, strict=True)] for vector in (q, b["base_query_BD"]))
        valid = [i for i in range(num_pool) if b["pool_valid_BN"][i]]
        ranked = sorted(valid, key=lambda i: -s[i])
        retrieved = [i for i in ranked if b["scored_BN"][i]][:TOP_K]
        positives = [i for i in ranked if b["positive_BN"][i]]
        if config.multi_positive == "best":
            positives = positives[:1]
        allowed = "gated_BN" if "uae" in weights else "negative_BN"
        negatives = [i for i in ranked if b[allowed][i]]
        if config.negatives and config.negative_order == "hardest":
            negatives = negatives[: config.negatives]
        elif config.negatives:
            negatives = [i for i in ranked[:TOP_K] if b[allowed][i]][-config.negatives :]
        chosen = [i for i in ranked if (b["positive_BN"][i] or i in negatives) and b["rewarded_BN"][i]]
        negatives = negatives + [num_pool + j for j, allowed in enumerate(b["extra_negative_BP"]) if allowed]

        total, d_q, d_tau = 0.0, np.zeros_like(q), np.zeros(3)
        for name, weight in weights.items():
            grad, d_r, d_c, d_u = np.zeros(len(s)), 0.0, 0.0, 0.0
            if name == "rag":
                loss, d_r = self.rag(s, b["log_likelihood_BN"], retrieved, grad)
            elif name == "infonce":
                loss, d_c = self.infonce(s, positives, negatives, grad)
            elif name == "replug":
                loss, _ = self.kl(s, b["log_likelihood_BN"] / config.kl_temperature, retrieved, grad)
            elif name == "uae":
                loss, d_u = self.kl(s, b["reward_BN"] / config.kl_temperature, chosen, grad, self.tau_u)
            elif name == "rank_distillation":
                loss, _ = self.kl(s, [score / self.tau_r for score in base_s], valid, grad)
            else:
                norm, base = np.linalg.norm(q), b["base_query_BD"] / np.linalg.norm(b["base_query_BD"])
                cosine = float(q @ base) / norm
                loss = 1 - cosine
                d_q -= weight * (base - cosine * q / norm) / norm
            total += weight * loss
            d_q += weight * sum(g * d for g, d in zip(grad, passages, strict=True))
            d_tau += weight * np.array([d_r, d_c, d_u])
        return total, d_q, d_tau

    def batch(self, batch: ObjectiveBatch, weights: dict[str, float]):
        arrays = {f.name: getattr(batch, f.name).detach().numpy() for f in fields(batch)}
        num_questions = len(arrays["query_BD"])
        rows = [{name: a if name == "extra_PD" else a[i] for name, a in arrays.items()} for i in range(num_questions)]
        results = [self.question(r, weights) for r in rows]
        total = sum(r[0] for r in results) / num_questions
        return total, np.array([r[1] for r in results]) / num_questions, sum(r[2] for r in results) / num_questions


def plain_weights(recipe: str, config: ObjectiveConfig) -> dict[str, float]:
    """METHODS §4, written out by hand."""
    mix = config.mix_weight
    table = {
        "rag": {"rag": 1.0},
        "infonce": {"infonce": 1.0},
        "mix": {"rag": mix, "infonce": 1 - mix},
        "static_reg": {"rag": mix, "infonce": 1 - mix, "query_distillation": config.lambda_q},
        "dynamic": {"rag": 1.0, "infonce": 1.0},
        "armor": {"rag": 1.0, "infonce": 1.0, "query_distillation": config.lambda_q},
        "replug": {"replug": 1.0},
        "uae": {"uae": 1.0},
        "armor_uae": {"rag": 1.0, "infonce": 1.0, "uae": config.kl_weight, "query_distillation": config.lambda_q},
    }
    return table[recipe] | ({"rank_distillation": config.rank_distillation} if config.rank_distillation else {})


def test_every_configurable_recipe_exists_and_no_other():
    assert set(RECIPES) == set(RECIPE_NAMES)


@pytest.mark.parametrize("setting", SOME_SETTINGS)
@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_loss_and_gradients_equal_the_plain_implementation(recipe, setting):
    config = ObjectiveConfig(recipe=recipe, **SOME_SETTINGS[setting])
    objective = Objective(config, TOP_K).double()
    plain = Plain(config, *(tau().item() for tau in objective.temperatures.values()))
    for seed in range(5):
        batch = make_batch(seed)
        loss, d_query, d_alpha = loss_and_gradients(objective, batch)
        expected, expected_query, d_tau = plain.batch(batch, plain_weights(recipe, config))
        assert loss == pytest.approx(expected, abs=1e-10)
        np.testing.assert_allclose(d_query, expected_query, atol=1e-10)
        if learned := learned_temperatures(recipe, config):
            np.testing.assert_allclose(d_alpha, d_tau[learned] * slopes(objective), atol=1e-10)
        else:
            assert not objective.temperature_parameters()


def learned_temperatures(recipe: str, config: ObjectiveConfig) -> list[int]:
    """Places in (τ_r, τ_c, τ of the student)."""
    if recipe == "uae":
        return [2] if config.student_temperature == "learned" else []
    return {"dynamic": [0, 1], "armor": [0, 1], "armor_uae": [0, 1, 2]}.get(recipe, [])


def slopes(objective: Objective) -> np.ndarray:
    """dτ/dα of the learned temperatures."""
    config = objective.config
    alphas = np.array([alpha.item() for alpha in objective.temperature_parameters()])
    sigmoid = 1 / (1 + np.exp(-alphas))
    return sigmoid if config.temperature_form == "softplus" else (config.tau_max - config.tau_min) * sigmoid * (1 - sigmoid)


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
class TestInvariances:
    def check(self, recipe, changed, batch, restore=lambda grad: grad):
        objective = objective_for(recipe, **FEW_NEGATIVES)
        loss, grad, alphas = loss_and_gradients(objective, batch)
        other_loss, other_grad, other_alphas = loss_and_gradients(objective, changed)
        assert loss != 0
        assert other_loss == pytest.approx(loss, abs=1e-12)
        np.testing.assert_allclose(restore(other_grad), grad, atol=1e-12)
        np.testing.assert_allclose(other_alphas, alphas, atol=1e-12)

    def test_order_of_the_pool(self, recipe):
        batch = make_batch(1)
        order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
        self.check(recipe, map_batch(batch, lambda n, t: t[:, order] if n.endswith(("_BN", "_BND")) else t), batch)

    def test_order_of_questions_and_in_batch_passages(self, recipe):
        batch = make_batch(2)
        rows, extras = torch.tensor([2, 0, 3, 1]), torch.tensor([2, 0, 1])

        def permute(name, tensor):
            if name == "extra_PD":
                return tensor[extras]
            return tensor[rows][:, extras] if name.endswith("_BP") else tensor[rows]

        self.check(recipe, map_batch(batch, permute), batch, restore=lambda grad: grad[np.argsort(rows.numpy())])

    def test_padding(self, recipe):
        batch = make_batch(3)

        def pad(name, tensor):
            if name == "pool_BND":  # finite rubbish, scored best of all
                return torch.cat([tensor, 10 * batch.query_BD.detach()[:, None].expand(-1, 2, -1)], dim=1)
            if name.endswith("_BN"):
                filler = torch.full((len(tensor), 2), name != "pool_valid_BN").to(tensor.dtype)
                return torch.cat([tensor, filler], dim=1)
            return tensor

        self.check(recipe, map_batch(batch, pad), batch)

    def test_two_equal_shards_average_to_the_whole_batch(self, recipe):
        """What DDP does with its gradients, also where a question has nothing to learn from."""
        batch = make_batch(4)
        batch.scored_BN[0] = False
        batch.negative_BN[1] = False
        batch.extra_negative_BP[1] = batch.gated_BN[1] = False
        objective = objective_for(recipe, **FEW_NEGATIVES)
        whole = loss_and_gradients(objective, batch)
        halves = [loss_and_gradients(objective, select_questions(batch, rows)) for rows in (slice(0, 2), slice(2, 4))]
        assert np.mean([h[0] for h in halves]) == pytest.approx(whole[0], abs=1e-12)
        np.testing.assert_allclose(np.concatenate([h[1] for h in halves]) / 2, whole[1], atol=1e-12)
        np.testing.assert_allclose(np.mean([h[2] for h in halves], axis=0), whole[2], atol=1e-12)


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_questions_with_nothing_to_learn_from_are_counted_and_harmless(recipe):
    batch = make_batch(5)
    batch.scored_BN[0] = False
    batch.negative_BN[1] = batch.extra_negative_BP[1] = batch.gated_BN[1] = False
    batch.rewarded_BN[:] = True
    batch.rewarded_BN[0] = False
    batch.reward_BN[1:] = 0.5
    batch.positive_BN[2] = False
    batch.pool_valid_BN[3] = False
    objective = objective_for(recipe, rank_distillation=1.0)
    loss, grad, alphas = loss_and_gradients(objective, batch)
    assert math.isfinite(loss)
    assert np.isfinite(grad).all()
    assert np.isfinite(alphas).all()
    expected = {"rag": 2, "replug": 2, "infonce": 3, "uae": 3, "query_distillation": 0, "rank_distillation": 1}
    skipped = {name: count.item() for name, count in objective(batch).skipped.items()}
    assert skipped == {name: expected[name] for name in skipped}
    assert set(skipped) == set(plain_weights(recipe, objective.config))


def test_temperature_phase_leaves_regularisers_out():
    batch = make_batch(6)
    armor = objective_for("armor", lambda_q=3.0, rank_distillation=2.0)
    dynamic = objective_for("dynamic")
    for actual, expected in zip(loss_and_gradients(armor, batch, regularised=False), loss_and_gradients(dynamic, batch), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-12)
    assert set(armor(batch, regularised=False).terms) == {"rag", "infonce"}


def test_outcome_reports_terms_temperatures_and_drift():
    outcome = objective_for("armor", lambda_q=2.0)(make_batch(7))
    terms = {name: value.item() for name, value in outcome.terms.items()}
    assert outcome.total.item() == pytest.approx(terms["rag"] + terms["infonce"] + 2 * terms["query_distillation"], abs=1e-12)
    assert outcome.drift.item() == pytest.approx(terms["query_distillation"], abs=1e-12)
    assert {name: tau.item() for name, tau in outcome.temperatures.items()} == pytest.approx({"rag": 0.05, "infonce": 0.05}, rel=1e-6)
    detached = [*outcome.terms.values(), *outcome.temperatures.values(), *outcome.skipped.values(), outcome.drift]
    assert not any(tensor.requires_grad for tensor in detached)


def test_rag_runs_over_the_current_top_k_of_the_scored_pool():
    """An answer found below rank k, or a passage the generator failed on, carries no likelihood."""
    batch = make_batch(8, num_questions=1)
    everything = torch.ones(1, 7, dtype=torch.bool)
    pool_BND = torch.eye(7, 6, dtype=torch.float64).unsqueeze(0)
    query_BD = torch.tensor([[0.6, 0.5, 0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    likelihood = torch.tensor([[-9.0, -9.0, -9.0, -9.0, -9.0, 0.0, 0.0]], dtype=torch.float64)
    batch = replace(
        batch, query_BD=query_BD, pool_BND=pool_BND, pool_valid_BN=everything, scored_BN=everything, log_likelihood_BN=likelihood
    )
    assert objective_for("rag")(batch).total.item() == pytest.approx(9.0)
    scored = everything.clone()
    scored[0, :2] = False  # ranks 3 to 6 move up, among them the helpful one
    assert objective_for("rag")(replace(batch, scored_BN=scored)).total.item() < 9.0 - 1e-6


def released_batch(scores: list[float], num_positives: int) -> ObjectiveBatch:
    """One question whose cosine scores are the given ones; the first passages are its positives."""
    num_pool = len(scores)
    column = torch.tensor(scores, dtype=torch.float64).unsqueeze(-1)
    pool_BND = torch.cat([column, (1 - column**2).sqrt()], dim=-1).unsqueeze(0)
    query_BD = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    everything = torch.ones(1, num_pool, dtype=torch.bool)
    positive_BN = (torch.arange(num_pool) < num_positives).unsqueeze(0)
    likelihood = torch.zeros(1, num_pool, dtype=torch.float64)
    none_PD, none_BP = torch.empty(0, 2, dtype=torch.float64), torch.empty(1, 0, dtype=torch.bool)
    return ObjectiveBatch(query_BD, query_BD, pool_BND, everything, positive_BN, ~positive_BN, likelihood, everything, none_PD, none_BP)


class TestReleasedPreset:
    def objective(self) -> Objective:
        return Objective(ObjectiveConfig(recipe="armor", preset="released"), 16).double()

    def test_temperatures_start_at_10_between_1_and_10(self):
        for temperature in self.objective().temperatures.values():
            assert temperature().item() == pytest.approx(10.0, abs=1e-3)
            assert (temperature.form, temperature.tau_min, temperature.tau_max) == ("sigmoid", 1.0, 10.0)

    def test_info_nce_stays_near_chance_on_cosine_scores(self):
        """REFERENCE.md: 1.37 against ln 4, though the positive leads by 0.2."""
        loss = self.objective()(released_batch([0.8, 0.6, 0.6, 0.6], 1)).terms["infonce"].item()
        assert loss == pytest.approx(math.log(1 + 3 * math.exp(-0.02)), abs=1e-5)
        assert loss == pytest.approx(1.37, abs=0.005)

    def test_contrasts_the_best_positive_with_the_three_lowest_of_the_top_16(self):
        scores = [0.7, 0.9, *np.linspace(0.8, 0.1, 20)]  # 22 in the pool; the last six lie below rank 16
        loss = self.objective()(released_batch(list(map(float, scores)), 2)).terms["infonce"].item()
        lowest = np.sort(scores)[::-1][13:16]
        tau = self.objective().temperatures["infonce"]().item()
        assert loss == pytest.approx(math.log1p(sum(math.exp((s - 0.9) / tau) for s in lowest)), abs=1e-10)


def test_half_precision_vectors_are_computed_in_fp32():
    """bf16 scores near 0.8 are 0.004 apart: at τ = 0.05 that alone would move logits by 0.08."""
    batch = make_batch(9)
    vectors = ("query_BD", "base_query_BD", "pool_BND", "extra_PD")
    half = map_batch(
        batch, lambda name, tensor: tensor.bfloat16() if name in vectors else tensor.float() if tensor.is_floating_point() else tensor
    )
    wide = map_batch(half, lambda name, tensor: tensor.float() if name in vectors else tensor)
    objective = Objective(ObjectiveConfig(recipe="armor", rank_distillation=1.0), TOP_K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = objective(half)
    assert outcome.total.dtype == torch.float32
    assert outcome.total.item() == objective(wide).total.item()
    outcome.total.backward()
    assert half.query_BD.grad is not None
    assert half.query_BD.grad.isfinite().all()
