"""What an objective sees of one training step. Shapes: B questions, N pool passages, P in-batch passages, D dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ObjectiveBatch:
    """Questions, their candidate pools and the in-batch passages, as tensors on one device.

    Vectors are l2-normalised. Padded entries may hold anything finite: masks decide what counts.

    Attributes:
        query_BD: adapted query vectors, with a gradient; passage vectors are frozen, or have one too (`objective.towers: shared`).
        base_query_BD: the frozen base encoder's vectors of the same questions.
        pool_BND: vectors of each question's candidates.
        pool_valid_BN: False for padding.
        positive_BN: gold passages of the question.
        negative_BN: candidates allowed as its negatives (`selection.allowed_negatives`).
        log_likelihood_BN: ℓ in nats, combined over answers and length-normalised where asked; anything, even NaN, where not scored.
        scored_BN: False where the generator gave no likelihood.
        extra_PD: distinct passages of other questions (`objective.in_batch`); P = 0 for none.
        extra_negative_BP: those allowed as negatives of each question.
        reward_BN: R of the reward model, None in recipes without one; anything, even NaN, where not `rewarded_BN`.
        rewarded_BN: pool entries that have a reward; None together with `reward_BN`.
        gated_BN: negatives that passed the utility gate; None together with `reward_BN`.
        lexical_BN: BM25 of the pool's passages in [0, 1] (`objective.lexical_weight`); None where no loss reads it.
        lexical_BP: BM25 of the in-batch passages; None together with `lexical_BN`.
    """

    query_BD: Tensor
    base_query_BD: Tensor
    pool_BND: Tensor
    pool_valid_BN: Tensor
    positive_BN: Tensor
    negative_BN: Tensor
    log_likelihood_BN: Tensor
    scored_BN: Tensor
    extra_PD: Tensor
    extra_negative_BP: Tensor
    reward_BN: Tensor | None = None
    rewarded_BN: Tensor | None = None
    gated_BN: Tensor | None = None
    lexical_BN: Tensor | None = None
    lexical_BP: Tensor | None = None

    def __post_init__(self) -> None:
        # A mask of shape [B, 1] would broadcast silently.
        num_questions, num_pool, dim = self.pool_BND.shape
        num_extra = self.extra_PD.shape[0]
        assert self.query_BD.shape == self.base_query_BD.shape == (num_questions, dim)
        for mask in (self.pool_valid_BN, self.positive_BN, self.negative_BN, self.log_likelihood_BN, self.scored_BN):
            assert mask.shape == (num_questions, num_pool)
        assert self.lexical_BP is None or self.lexical_BP.shape == (num_questions, num_extra)
        for optional in (self.reward_BN, self.rewarded_BN, self.gated_BN, self.lexical_BN):
            assert optional is None or optional.shape == (num_questions, num_pool)
        assert self.extra_PD.shape == (num_extra, dim)
        assert self.extra_negative_BP.shape == (num_questions, num_extra)
