"""What a passage is worth to the generator (UAE §2.1, METHODS §3), and which passages that makes negatives. Numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

UtilityKind = Literal["inverse_perplexity", "perplexity_reduction", "log_ratio"]

NEEDS_CLOSED_BOOK: frozenset[str] = frozenset({"perplexity_reduction", "log_ratio"})


def utility(kind: UtilityKind, log_likelihood: Sequence[float], tokens: Sequence[int], closed_book: Sequence[float] | None = None) -> float:
    """U(q, d, A_q): the mean over reference answers a of U(q, d, a), for ℓ = log p(a | q, d) and ℓ₀ = log p(a | q) in nats.

    - `inverse_perplexity`: exp(ℓ/|a|), in (0, 1] (UAE, Eq. 1).
    - `perplexity_reduction`: exp(−ℓ₀/|a|) − exp(−ℓ/|a|), any sign; the scale of UAE's figures.
    - `log_ratio`: (ℓ − ℓ₀)/|a|, any sign.

    Args:
        log_likelihood: ℓ of each answer, summed over its tokens; at least one.
        tokens: |a| of each, ≥ 1.
        closed_book: ℓ₀ of each; read by the two last kinds only.

    Raises:
        ValueError: no answers, unequal lengths, an answer without tokens, a value that is not finite, or a missing closed-book pass.
    """
    nats, counts = np.asarray(log_likelihood, np.float64), np.asarray(tokens, np.int64)
    if nats.size == 0 or nats.shape != counts.shape or counts.min() < 1 or not np.isfinite(nats).all():
        raise ValueError(f"not answer log-likelihoods: {nats.tolist()} nats over {counts.tolist()} tokens")
    if kind == "inverse_perplexity":
        return float(np.exp(nats / counts).mean())
    if closed_book is None or len(closed_book) != nats.size or not np.isfinite(closed_book).all():
        raise ValueError(f"utility kind {kind} needs the closed-book log-likelihood of every answer")
    without = np.asarray(closed_book, np.float64)
    if kind == "perplexity_reduction":
        return float((np.exp(-without / counts) - np.exp(-nats / counts)).mean())
    return float(((nats - without) / counts).mean())


def gated_negatives(rewards_N: np.ndarray, positive_N: np.ndarray, retrieved_N: np.ndarray, margin: float) -> np.ndarray:
    """The utility gate (UAE §2.2): d⁻ is a negative when it is in the base top-k and R(q, d⁺) − R(q, d⁻) > δ.

    Where a question has several gold passages, d⁺ is the best-rewarded of them: a gold passage that holds only part of the evidence
    does not close the gate for the others.

    Args:
        rewards_N: R of one question's pool; NaN where a passage has none, which is never a negative.
        positive_N: its gold passages.
        retrieved_N: those in the base top-k.
        margin: δ ≥ 0.

    Returns:
        bool [N]; nothing where no gold passage has a reward.
    """
    gold = rewards_N[positive_N & ~np.isnan(rewards_N)]
    if not len(gold):
        return np.zeros(len(rewards_N), bool)
    with np.errstate(invalid="ignore"):
        return retrieved_N & ~positive_N & (gold.max() - rewards_N > margin)
