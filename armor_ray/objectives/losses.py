"""The losses of METHODS §2 and §4 as pure functions of scores and vectors; no model, no Ray.

Each but the weight anchor returns one value per question, [B]; callers average over questions, so equal DDP shards add up to the whole
batch. Everything is computed in log space, on fp32 or fp64 inputs (`widen`). A question to which a loss does not apply (nothing scored,
no positive, no negative) gets 0 and a zero gradient, never NaN. Shapes: B questions, N pool passages, M passages (pool and in-batch),
D dimensions; τ is a scalar > 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from armor_ray.objectives.temperature import SOFTPLUS_THRESHOLD

# Stands for log 0. Finite: the gradient of a logsumexp over nothing but -inf is NaN; the masks would drop it, but every step would fail
# under torch's anomaly detection.
_LOG_ZERO = -1e30


def rag_nll(scores_BN: Tensor, log_likelihood_BN: Tensor, mask_BN: Tensor, tau: Tensor) -> Tensor:
    """RAG likelihood, −log Σ_i softmax_i(s_i/τ_r)·exp(ℓ_i) (ARMOR §3.1).

    Args:
        scores_BN: retrieval scores s.
        log_likelihood_BN: ℓ in nats; ignored, even if NaN, outside the mask.
        mask_BN: the passages that the softmax runs over.
        tau: τ_r.
    """
    log_prior_BN = _masked_log_softmax(scores_BN / tau, mask_BN)
    joint_BN = (log_prior_BN + log_likelihood_BN).masked_fill(~mask_BN, _LOG_ZERO)
    return -joint_BN.logsumexp(dim=-1).masked_fill(~mask_BN.any(dim=-1), 0.0)


def info_nce(scores_BM: Tensor, positive_BM: Tensor, negative_BM: Tensor, tau: Tensor) -> Tensor:
    """InfoNCE, −log e^(s⁺/τ_c) / (e^(s⁺/τ_c) + Σ⁻ e^(s⁻/τ_c)) (ARMOR §2.3, §3.1).

    Several positives are contrasted one at a time against the same negatives (never against each other) and averaged.

    Args:
        scores_BM: scores of pool and in-batch passages.
        positive_BM, negative_BM: disjoint masks.
        tau: τ_c.
    """
    logits_BM = scores_BM / tau
    negatives_B1 = logits_BM.masked_fill(~negative_BM, _LOG_ZERO).logsumexp(dim=-1, keepdim=True)
    loss_BM = F.softplus(negatives_B1 - logits_BM, threshold=SOFTPLUS_THRESHOLD).masked_fill(~positive_BM, 0.0)
    return loss_BM.sum(dim=-1) / positive_BM.sum(dim=-1).clamp(min=1)


def query_distillation(query_BD: Tensor, base_query_BD: Tensor) -> Tensor:
    """Drift from the frozen base query encoder, 1 − cos(q, q0), in [0, 2] (ARMOR §3.3)."""
    return 1.0 - F.cosine_similarity(query_BD, base_query_BD, dim=-1)


def kl_to_teacher(student_scores_BN: Tensor, teacher_logits_BN: Tensor, mask_BN: Tensor, student_tau: Tensor) -> Tensor:
    """KL(softmax(teacher logits) ‖ softmax(s/τ)) over the masked passages, in nats, ≥ 0 (UAE: L_UAE).

    Args:
        student_scores_BN: the trained retriever's scores s.
        teacher_logits_BN: constants; ignored, even if NaN, outside the mask.
        mask_BN: the passages that both distributions run over.
        student_tau: τ of the student.
    """
    teacher_BN = _masked_log_softmax(teacher_logits_BN.detach(), mask_BN)
    student_BN = _masked_log_softmax(student_scores_BN / student_tau, mask_BN)
    return (teacher_BN.exp() * (teacher_BN - student_BN)).masked_fill(~mask_BN, 0.0).sum(dim=-1)


def replug_kl(scores_BN: Tensor, log_likelihood_BN: Tensor, mask_BN: Tensor, tau: Tensor, beta: float) -> Tensor:
    """REPLUG, KL(softmax(ℓ/β) ‖ softmax(s/τ)) (METHODS §4).

    Args:
        scores_BN: retrieval scores s.
        log_likelihood_BN: ℓ in nats.
        mask_BN: the passages that both distributions run over.
        tau: τ of the retrieval softmax.
        beta: β > 0; small values trust the best passage alone.
    """
    return kl_to_teacher(scores_BN, log_likelihood_BN / beta, mask_BN, tau)


def rank_distillation(scores_BN: Tensor, base_scores_BN: Tensor, mask_BN: Tensor, tau: Tensor) -> Tensor:
    """KL(softmax(s0/τ) ‖ softmax(s/τ)) from the base encoder's scores s0; 0 at the base (METHODS §4).

    No gradient reaches τ: a higher one would lower this term without bringing any ranking closer to the base.
    """
    fixed_tau = tau.detach()
    return kl_to_teacher(scores_BN, base_scores_BN / fixed_tau, mask_BN, fixed_tau)


def pairwise_margin(better_M: Tensor, worse_M: Tensor, margin: float) -> Tensor:
    """Margin ranking loss of the reward model, max(0, δ − (R(q, d_i) − R(q, d_j))) for U_i > U_j (UAE, Eq. 2).

    Args:
        better_M: R(q, d_i) of M pairs, the passage of higher utility.
        worse_M: R(q, d_j).
        margin: δ > 0.

    Returns:
        One value a pair, [M].
    """
    return F.relu(margin - (better_M - worse_M))


def uae_kl(scores_BN: Tensor, reward_BN: Tensor, mask_BN: Tensor, tau: Tensor, beta: float) -> Tensor:
    """L_UAE = KL(π* ‖ π_φ), π* = softmax(λ·R) with λ = 1/β, π_φ = softmax(s/τ), both over {gold} ∪ negatives (UAE, Eq. 3 to 5).

    Args:
        scores_BN: retrieval scores s.
        reward_BN: R; ignored, even if NaN, outside the mask.
        mask_BN: {gold} ∪ negatives; a single passage gives 0.
        tau: τ of the student.
        beta: β > 0, the teacher's temperature 1/λ.
    """
    return kl_to_teacher(scores_BN, reward_BN / beta, mask_BN, tau)


def weight_anchor(weights: Iterable[Tensor], base_weights: Iterable[Tensor]) -> Tensor:
    """Mean squared distance of all trained weights, taken together, to their base values; a scalar (METHODS §4).

    Args:
        weights: trained parameters, at least one; gradients flow into them.
        base_weights: their values in the base encoder, in the same order.
    """
    pairs = list(zip(weights, base_weights, strict=True))
    squares = [(widen(weight) - widen(base.detach())).square().sum() for weight, base in pairs]
    return torch.stack(squares).sum() / sum(weight.numel() for weight, _ in pairs)


def widen(tensor: Tensor) -> Tensor:
    """Half-precision tensors as fp32; all others as they are."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _masked_log_softmax(logits_BN: Tensor, mask_BN: Tensor) -> Tensor:
    """log softmax over the masked entries; elsewhere about -1e30, and 0 gradient."""
    return logits_BN.masked_fill(~mask_BN, _LOG_ZERO).log_softmax(dim=-1)
