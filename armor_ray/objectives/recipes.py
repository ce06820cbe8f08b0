"""Recipes as data (METHODS §4): each is a sum of weighted terms, with fixed or learned temperatures.

A new objective is one function (a term) plus one line in `RECIPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from armor_ray.config import ObjectiveConfig
from armor_ray.objectives import losses
from armor_ray.objectives.batch import ObjectiveBatch
from armor_ray.objectives.selection import pick_negatives, top_mask
from armor_ray.objectives.temperature import Temperature, TemperatureForm


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Outcome of one step.

    Attributes:
        total: weighted sum of the terms, averaged over the questions; differentiable.
        terms: unweighted mean of each active term, detached.
        skipped: per term, the number of questions to which it did not apply (their share of the mean is 0), detached.
        temperatures: current τ of "rag" and "infonce", and of "kl" in recipes with a reward model, detached.
        drift: mean 1 − cos(q, q0), whatever its weight, detached.
    """

    total: Tensor
    terms: dict[str, Tensor]
    skipped: dict[str, Tensor]
    temperatures: dict[str, Tensor]
    drift: Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """What terms read: the batch in at least fp32, current scores s = cos + μ·b (`objective.lexical_weight`), settings and temperatures."""

    batch: ObjectiveBatch
    scores_BN: Tensor
    config: ObjectiveConfig
    top_k: int
    tau: Mapping[str, Tensor]
    gated: bool

    def extra_scores_BP(self) -> Tensor:
        """Scores of the in-batch passages."""
        return _beside_bm25(self.batch.query_BD @ self.batch.extra_PD.T, self.batch.lexical_BP, self.config)

    def base_scores_BN(self) -> Tensor:
        """The base encoder's scores of the pool."""
        return _beside_bm25(_pool_scores(self.batch.base_query_BD, self.batch.pool_BND), self.batch.lexical_BN, self.config)

    def negative_BN(self) -> Tensor:
        """Pool passages that may be negatives: what passed the utility gate, or in recipes without one, what is no kin of a gold one."""
        if not self.gated:
            return self.batch.negative_BN
        assert self.batch.gated_BN is not None, "the recipe's table holds gated negatives"
        return self.batch.gated_BN

    def picked_negatives_BN(self) -> Tensor:
        """The negatives of the pool that a contrastive term takes."""
        batch, config = self.batch, self.config
        return pick_negatives(
            self.scores_BN,
            batch.pool_valid_BN,
            self.negative_BN(),
            count=config.negatives,
            order=config.negative_order,
            top_k=self.top_k,
        )

    def retrieved_BN(self) -> Tensor:
        """The top-k by current scores among the scored passages of the pool (Remark 2 of the paper)."""
        return top_mask(self.scores_BN, self.batch.pool_valid_BN & self.batch.scored_BN, self.top_k)


@dataclass(frozen=True, slots=True)
class _Term:
    """Per-question losses [B], and the questions that the term applies to [B]."""

    loss_B: Tensor
    applies_B: Tensor


def rag(step: _Step) -> _Term:
    """L_RAG at τ_r over the current top-k."""
    mask_BN = step.retrieved_BN()
    loss_B = losses.rag_nll(step.scores_BN, step.batch.log_likelihood_BN, mask_BN, step.tau["rag"])
    return _Term(loss_B, mask_BN.any(dim=-1))


def infonce(step: _Step) -> _Term:
    """L_InfoNCE at τ_c: positives of the pool against retrieved and in-batch negatives."""
    batch, config = step.batch, step.config
    positive_BN = batch.positive_BN & batch.pool_valid_BN
    if config.multi_positive == "best":
        positive_BN = top_mask(step.scores_BN, positive_BN, 1)
    retrieved_BN = step.picked_negatives_BN()
    scores_BM = torch.cat([step.scores_BN, step.extra_scores_BP()], dim=-1)
    positive_BM = torch.cat([positive_BN, torch.zeros_like(batch.extra_negative_BP)], dim=-1)
    negative_BM = torch.cat([retrieved_BN, batch.extra_negative_BP], dim=-1)
    loss_B = losses.info_nce(scores_BM, positive_BM, negative_BM, step.tau["infonce"])
    return _Term(loss_B, positive_BM.any(dim=-1) & negative_BM.any(dim=-1))


def replug(step: _Step) -> _Term:
    """KL from softmax(ℓ/β) to the retrieval softmax over the current top-k."""
    mask_BN = step.retrieved_BN()
    beta = step.config.kl_temperature
    loss_B = losses.replug_kl(step.scores_BN, step.batch.log_likelihood_BN, mask_BN, step.tau["rag"], beta)
    return _Term(loss_B, mask_BN.any(dim=-1))


def uae(step: _Step) -> _Term:
    """L_UAE over {gold} ∪ gated negatives; a question with only one passage there teaches nothing."""
    batch = step.batch
    assert batch.reward_BN is not None, "the recipe's table holds rewards"
    assert batch.rewarded_BN is not None
    mask_BN = (batch.positive_BN | step.picked_negatives_BN()) & batch.pool_valid_BN & batch.rewarded_BN
    loss_B = losses.uae_kl(step.scores_BN, batch.reward_BN, mask_BN, step.tau["kl"], step.config.kl_temperature)
    return _Term(loss_B, mask_BN.sum(dim=-1) > 1)


def query_distillation(step: _Step) -> _Term:
    """L_qdist."""
    loss_B = losses.query_distillation(step.batch.query_BD, step.batch.base_query_BD)
    return _Term(loss_B, torch.ones_like(loss_B, dtype=torch.bool))


def rank_distillation(step: _Step) -> _Term:
    """KL from the base ranking of the whole pool to the adapted one, at τ_r."""
    mask_BN = step.batch.pool_valid_BN
    loss_B = losses.rank_distillation(step.scores_BN, step.base_scores_BN(), mask_BN, step.tau["rag"])
    return _Term(loss_B, mask_BN.any(dim=-1))


TermFunction = Callable[[_Step], _Term]
Weight = Callable[[ObjectiveConfig], float]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Terms with their weights; `regularisers` are left out of the alternating schedule's temperature phase."""

    terms: Mapping[TermFunction, Weight]
    regularisers: Mapping[TermFunction, Weight] = field(default_factory=dict)
    learned: bool = False

    @property
    def needs_rewards(self) -> bool:
        """Whether it learns from the reward model."""
        return uae in self.terms


def _one(_: ObjectiveConfig) -> float:
    return 1.0


def _mix(config: ObjectiveConfig) -> float:
    return config.mix_weight


def _rest(config: ObjectiveConfig) -> float:
    return 1.0 - config.mix_weight


def _lambda_q(config: ObjectiveConfig) -> float:
    return config.lambda_q


def _kl_weight(config: ObjectiveConfig) -> float:
    return config.kl_weight


def _rank_weight(config: ObjectiveConfig) -> float:
    return config.rank_distillation


RECIPES: dict[str, Recipe] = {
    "rag": Recipe({rag: _one}),
    "infonce": Recipe({infonce: _one}),
    "mix": Recipe({rag: _mix, infonce: _rest}),
    "static_reg": Recipe({rag: _mix, infonce: _rest}, {query_distillation: _lambda_q}),
    "dynamic": Recipe({rag: _one, infonce: _one}, learned=True),
    "armor": Recipe({rag: _one, infonce: _one}, {query_distillation: _lambda_q}, learned=True),
    "replug": Recipe({replug: _one}),
    "uae": Recipe({uae: _one}),
    "armor_uae": Recipe({rag: _one, infonce: _one, uae: _kl_weight}, {query_distillation: _lambda_q}, learned=True),
}

# The optional regularisers that any recipe takes; the weight anchor needs the model and is the trainer's (`losses.weight_anchor`).
_COMMON_REGULARISERS: Mapping[TermFunction, Weight] = {rank_distillation: _rank_weight}


class Objective(nn.Module):
    """A recipe with its temperatures: batch in, loss out.

    Args:
        config: the `objective` section.
        top_k: passages that the retrieval softmax of RAG and REPLUG runs over (`candidates.top_k`), ≥ 1.
    """

    def __init__(self, config: ObjectiveConfig, top_k: int) -> None:
        super().__init__()
        self.config = config
        self.top_k = top_k
        self.recipe = RECIPES[config.recipe]
        fixed: TemperatureForm = "fixed"
        forms = dict.fromkeys(("rag", "infonce"), config.temperature_form if self.recipe.learned else fixed)
        if self.recipe.needs_rewards:
            forms["kl"] = config.temperature_form if self.recipe.learned or config.student_temperature == "learned" else fixed
        self.temperatures = nn.ModuleDict(
            {name: Temperature(form, config.initial_temperature, config.tau_min, config.tau_max) for name, form in forms.items()}
        )

    def temperature_parameters(self) -> list[nn.Parameter]:
        """The α of the learned temperatures; empty for recipes with fixed ones."""
        return list(self.temperatures.parameters())

    def forward(self, batch: ObjectiveBatch, regularised: bool = True) -> LossTerms:
        """Loss of one batch, in fp32 or better whatever the batch's dtype and any surrounding autocast.

        Args:
            batch: B ≥ 1 questions.
            regularised: False leaves the regularisers out (the temperature phase of the alternating schedule).
        """
        with torch.autocast(batch.query_BD.device.type, enabled=False):
            step = self._step(batch)
            weights = self._weights(regularised)
            terms = {function: function(step) for function in weights}
            means = {function: term.loss_B.mean() for function, term in terms.items()}
            drift = losses.query_distillation(step.batch.query_BD.detach(), step.batch.base_query_BD).mean()
            return LossTerms(
                total=torch.stack([weight * means[function] for function, weight in weights.items()]).sum(),
                terms={function.__name__: mean.detach() for function, mean in means.items()},
                skipped={function.__name__: (~term.applies_B).sum() for function, term in terms.items()},
                temperatures={name: tau.detach() for name, tau in step.tau.items()},
                drift=drift,
            )

    def _step(self, batch: ObjectiveBatch) -> _Step:
        wide = _widen(batch)
        scores_BN = _beside_bm25(_pool_scores(wide.query_BD, wide.pool_BND), wide.lexical_BN, self.config)
        tau = {name: temperature() for name, temperature in self.temperatures.items()}
        return _Step(wide, scores_BN, self.config, self.top_k, tau, self.recipe.needs_rewards)

    def _weights(self, regularised: bool) -> dict[TermFunction, float]:
        chosen = dict(self.recipe.terms)
        if regularised:
            chosen |= {**self.recipe.regularisers, **_COMMON_REGULARISERS}
        weights = {function: weight(self.config) for function, weight in chosen.items()}
        return {function: weight for function, weight in weights.items() if weight}


def _widen(batch: ObjectiveBatch) -> ObjectiveBatch:
    values = {name: getattr(batch, name) for name in ObjectiveBatch.__slots__}
    return ObjectiveBatch(**{name: losses.widen(value) for name, value in values.items() if value is not None})


def _pool_scores(query_BD: Tensor, pool_BND: Tensor) -> Tensor:
    return (pool_BND @ query_BD.unsqueeze(-1)).squeeze(-1)


def _beside_bm25(cosines: Tensor, lexical: Tensor | None, config: ObjectiveConfig) -> Tensor:
    """s = cos + μ·b."""
    if not config.lexical_weight:
        return cosines
    assert lexical is not None, "the training table holds BM25"
    return cosines + config.lexical_weight * lexical
