"""Losses against the closed forms of METHODS §2, and their behaviour where a question has nothing to learn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from armor_ray.objectives import allowed_negatives, combine_answers, losses
from armor_ray.objectives.selection import pick_negatives, top_mask


def close(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-10)


def grad(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def mask(*values: int) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.bool)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def unit_vectors(seed: int, count: int, dim: int = 5) -> torch.Tensor:
    vectors = torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return vectors / vectors.norm(dim=-1, keepdim=True)


class TestClosedForms:
    """Two passages, margin Δ, unit vectors (ARMOR §3.2)."""

    @pytest.mark.parametrize("tau", [0.01, 0.05, 1.0, 10.0])
    @pytest.mark.parametrize("seed", range(4))
    def test_info_nce(self, seed, tau):
        query, positive, negative = unit_vectors(seed, 3)
        query.requires_grad_()
        margin = float(query.detach() @ (positive - negative))
        tau_c = scalar(tau)
        scores = (torch.stack([positive, negative]) @ query).unsqueeze(0)
        loss = losses.info_nce(scores, mask(1, 0), mask(0, 1), tau_c).sum()
        loss.backward()
        expected = -(1 / tau) * sigmoid(-margin / tau) * (positive - negative)
        close(loss.item(), float(np.logaddexp(0, -margin / tau)))
        close(grad(query), expected)
        close(grad(tau_c).item(), margin / tau**2 * sigmoid(-margin / tau))

    @pytest.mark.parametrize("tau", [0.05, 1.0, 10.0])
    @pytest.mark.parametrize(("a1", "a2"), [(0.9, 0.1), (0.02, 0.7), (0.5, 0.5), (1.0, 1e-30)])
    def test_rag_with_two_passages(self, a1, a2, tau):
        margin, tau_r = scalar(0.13), scalar(tau)
        scores = torch.stack([margin + 0.4, scalar(0.4)]).unsqueeze(0)
        loss = losses.rag_nll(scores, row(math.log(a1), math.log(a2)), mask(1, 1), tau_r).sum()
        loss.backward()
        p1 = sigmoid(0.13 / tau)
        p2 = 1 - p1
        mixture = p1 * a1 + p2 * a2
        slope = -(a1 - a2) * p1 * p2 / (tau * mixture)
        close(loss.item(), -math.log(mixture))
        close(grad(margin).item(), slope)
        close(grad(tau_r).item(), -slope * 0.13 / tau)

    def test_rag_stays_exact_where_every_probability_underflows(self):
        """exp(-2000) is 0 in fp64: only log space keeps the answer's 2,000 nats and a gradient."""
        scores = row(0.3, 0.1).requires_grad_()
        loss = losses.rag_nll(scores, row(-2000.0, -2001.0), mask(1, 1), scalar(1.0)).sum()
        loss.backward()
        p1, p2 = sigmoid(0.2), sigmoid(-0.2)
        mixture = p1 + p2 * math.exp(-1)
        close(loss.item(), 2000.0 - math.log(mixture))
        close(grad(scores)[0, 0].item(), -p1 * p2 * (1 - math.exp(-1)) / mixture)

    def test_replug(self):
        scores = row(0.2, 0.5, -0.1).requires_grad_()
        loss = losses.replug_kl(scores, row(-3.0, -8.0, -2.0), mask(1, 1, 1), scalar(0.25), 2.0).sum()
        loss.backward()
        teacher = np.exp([-1.5, -4.0, -1.0]) / np.exp([-1.5, -4.0, -1.0]).sum()
        student = np.exp([0.8, 2.0, -0.4]) / np.exp([0.8, 2.0, -0.4]).sum()
        close(loss.item(), float((teacher * np.log(teacher / student)).sum()))
        close(grad(scores)[0].numpy(), (student - teacher) / 0.25)

    def test_query_distillation(self):
        query, base = torch.tensor([[3.0, 4.0]], dtype=torch.float64, requires_grad=True), row(1.0, 0.0)
        loss = losses.query_distillation(query, base).sum()
        loss.backward()
        close(loss.item(), 1 - 0.6)
        close(grad(query), row(-0.128, 0.096))  # −(q0 − cos·q/|q|)/|q|

    def test_query_distillation_runs_from_0_at_the_base_to_2_opposite(self):
        base = unit_vectors(0, 3)
        close(losses.query_distillation(base, base), torch.zeros(3, dtype=torch.float64))
        close(losses.query_distillation(-base, base), torch.full((3,), 2.0, dtype=torch.float64))


def test_rank_distillation_is_zero_at_the_base_and_leaves_the_temperature_alone():
    base = row(0.9, 0.2, -0.3)
    tau = scalar(0.05)
    at_base = base.clone().requires_grad_()
    loss = losses.rank_distillation(at_base, base, mask(1, 1, 1), tau).sum()
    loss.backward()
    close(loss.item(), 0.0)
    close(grad(at_base), torch.zeros_like(base))
    moved = base + row(0.0, 0.1, 0.0).requires_grad_()
    losses.rank_distillation(moved, base, mask(1, 1, 1), tau).sum().backward()
    assert losses.rank_distillation(moved, base, mask(1, 1, 1), tau).item() > 1e-6
    assert tau.grad is None


def test_weight_anchor_is_the_mean_square_over_all_weights_together():
    weights = [torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([[5.0]], requires_grad=True)]
    base = [torch.tensor([1.0, 1.0, 1.0]), torch.tensor([[2.0]])]
    loss = losses.weight_anchor(weights, base)
    loss.backward()
    assert loss.item() == pytest.approx((0 + 1 + 4 + 9) / 4)
    torch.testing.assert_close(grad(weights[0]), torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(grad(weights[1]), torch.tensor([[1.5]]))
    with pytest.raises(ValueError, match="shorter"):
        losses.weight_anchor(weights, base[:1])


def test_several_positives_are_contrasted_alone_and_averaged():
    loss = losses.info_nce(row(0.9, 0.5, 0.4, 0.1), mask(1, 1, 0, 0), mask(0, 0, 1, 1), scalar(0.5)).item()
    negatives = math.exp(0.8) + math.exp(0.2)
    alone = [-math.log(math.exp(s / 0.5) / (math.exp(s / 0.5) + negatives)) for s in (0.9, 0.5)]
    assert loss == pytest.approx(sum(alone) / 2, abs=1e-12)


def first_against_rest(scores, _, allowed, tau):
    first = torch.arange(scores.shape[-1]) == 0
    return losses.info_nce(scores, allowed & first, allowed & ~first, tau)


LOSSES_ON_POOLS = {
    "rag": losses.rag_nll,
    "replug": lambda scores, nats, allowed, tau: losses.replug_kl(scores, nats, allowed, tau, 1.0),
    "rank": lambda scores, base, allowed, tau: losses.rank_distillation(scores, base, allowed, tau),
    "infonce": first_against_rest,
}


@pytest.mark.parametrize("name", LOSSES_ON_POOLS)
class TestNothingToLearnFrom:
    """0 and zero gradients, never NaN, not even on the way (anomaly detection stops at the first NaN of the backward pass)."""

    def run(self, name, scores, likelihood, allowed):
        scores, tau = scores.requires_grad_(), scalar(0.05)
        with torch.autograd.set_detect_anomaly(True):
            loss = LOSSES_ON_POOLS[name](scores, likelihood, allowed, tau)
            loss.sum().backward()
        return loss.detach(), grad(scores), 0.0 if tau.grad is None else tau.grad.item()

    def test_nothing_allowed(self, name):
        loss, slope, tau_grad = self.run(name, row(0.1, 0.2), row(math.nan, -1.0), mask(0, 0))
        assert loss.tolist() == [0.0]
        assert slope.tolist() == [[0.0, 0.0]]
        assert tau_grad == 0

    def test_one_candidate_moves_nothing(self, name):
        _, slope, tau_grad = self.run(name, row(0.1, 0.2), row(-1.0, math.nan), mask(1, 0))
        close(slope, row(0.0, 0.0))
        assert abs(tau_grad) < 1e-10

    def test_a_masked_entry_equals_an_absent_one(self, name):
        full = self.run(name, row(0.1, 0.7, 0.2), row(-1.0, math.nan, -2.0), mask(1, 0, 1))
        short = self.run(name, row(0.1, 0.2), row(-1.0, -2.0), mask(1, 1))
        close(full[0], short[0])
        close(full[1][:, [0, 2]], short[1])
        assert full[1][0, 1].item() == 0
        assert full[2] == pytest.approx(short[2], abs=1e-10)

    def test_empty_questions_leave_others_alone(self, name):
        scores, likelihood = torch.cat([row(0.1, 0.2), row(0.3, 0.9)]), torch.cat([row(-1.0, -2.0), row(-1.0, -2.0)])
        loss, slope, _ = self.run(name, scores, likelihood, torch.cat([mask(0, 0), mask(1, 1)]))
        alone, alone_slope, _ = self.run(name, row(0.3, 0.9), row(-1.0, -2.0), mask(1, 1))
        close(loss[1:], alone)
        close(slope, torch.cat([row(0.0, 0.0), alone_slope]))


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-500, 0), st.booleans()), min_size=1, max_size=8), st.floats(0.01, 10))
def test_bounds_of_the_losses(entries, tau):
    """−max ℓ ≤ L_RAG ≤ −min ℓ over the mask, and KL ≥ 0."""
    scores, likelihood, allowed = (torch.tensor([column]) for column in zip(*entries, strict=True))
    scores, likelihood = scores.double(), likelihood.double()
    nll = losses.rag_nll(scores, likelihood, allowed, torch.tensor(tau)).item()
    kl = losses.replug_kl(scores, likelihood, allowed, torch.tensor(tau), 1.0).item()
    used = likelihood[allowed]
    assert math.isfinite(kl)
    assert kl >= -1e-9
    if used.numel():
        assert -used.max().item() - 1e-6 <= nll <= -used.min().item() + 1e-6
    else:
        assert nll == kl == 0


class TestSelection:
    def test_top_mask_takes_the_best_allowed(self):
        assert top_mask(row(0.9, 0.1, 0.5, 0.7), mask(0, 1, 1, 1), 2).tolist() == mask(0, 0, 1, 1).tolist()
        assert top_mask(row(0.9, 0.1), mask(0, 1), 5).tolist() == mask(0, 1).tolist()

    @pytest.mark.parametrize(
        ("count", "order", "expected"),
        [
            (None, "hardest", mask(0, 1, 1, 1, 1, 0)),
            (None, "easiest", mask(0, 1, 1, 1, 1, 0)),
            (2, "hardest", mask(0, 1, 1, 0, 0, 0)),
            (2, "easiest", mask(0, 0, 1, 1, 0, 0)),  # of the current top 4, not of the whole pool
            (9, "easiest", mask(0, 1, 1, 1, 0, 0)),
        ],
    )
    def test_retrieved_negatives(self, count, order, expected):
        scores = row(0.9, 0.8, 0.7, 0.6, 0.5, 0.99)
        valid = mask(1, 1, 1, 1, 1, 0)
        chosen = pick_negatives(scores, valid, mask(0, 1, 1, 1, 1, 1), count=count, order=order, top_k=4)
        assert chosen.tolist() == expected.tolist()

    def test_positives_their_copies_and_their_document_are_never_negatives(self):
        # Passages: our positive; a copy of it in another document; a neighbour in our document; another question's positive; padding -1.
        text, document = torch.tensor([[10, 10, 11, 12]]), torch.tensor([[1, 2, 1, 3]])
        positives = torch.tensor([[10, -1], [12, 10], [-1, -1]])
        documents = torch.tensor([[1, -1], [3, 2], [-1, -1]])
        allowed = allowed_negatives(text, document, positives, documents)
        assert allowed.tolist() == [[False, False, False, True], [False, False, True, False], [True, True, True, True]]


class TestCombineAnswers:
    def test_is_the_log_of_the_mean_probability(self):
        expected = math.log((math.exp(-2.0) + math.exp(-5.0)) / 2)
        assert combine_answers([-2.0, -5.0], [2, 4], normalised=False) == pytest.approx(expected, abs=1e-12)
        normalised = math.log((math.exp(-1.0) + math.exp(-1.25)) / 2)
        assert combine_answers([-2.0, -5.0], [2, 4], normalised=True) == pytest.approx(normalised, abs=1e-12)

    def test_does_not_underflow(self):
        assert combine_answers([-5000.0], [1], normalised=False) == -5000.0
        assert combine_answers([-5000.0, -5000.0], [1, 1], normalised=False) == pytest.approx(-5000.0)

    @pytest.mark.parametrize(("nats", "tokens"), [([], []), ([-1.0], [0]), ([-1.0], [1, 2]), ([math.nan], [1]), ([-math.inf], [1])])
    def test_refuses_what_is_no_likelihood(self, nats, tokens):
        with pytest.raises(ValueError, match="not answer log-likelihoods"):
            combine_answers(nats, tokens, normalised=False)
