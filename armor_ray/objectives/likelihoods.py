"""One log-likelihood per (question, passage) from those of its reference answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def combine_answers(log_likelihood: Sequence[float], tokens: Sequence[int], normalised: bool) -> float:
    """log of the mean over reference answers of p(y | x, d), or of p(y | x, d)^(1/|y|) when length-normalised.

    Args:
        log_likelihood: ℓ(y, x, d) of each scored answer, nats, summed over its tokens; finite; at least one.
        tokens: |y| of each, ≥ 1.
        normalised: divide each ℓ by its |y| first (`objective.length_normalised`).

    Raises:
        ValueError: no answers, unequal lengths, an answer without tokens, or a value that is not finite.
    """
    nats = np.asarray(log_likelihood, dtype=np.float64)
    counts = np.asarray(tokens, dtype=np.int64)
    if nats.size == 0 or nats.shape != counts.shape or counts.min() < 1 or not np.isfinite(nats).all():
        raise ValueError(f"not answer log-likelihoods: {nats.tolist()} nats over {counts.tolist()} tokens")
    if normalised:
        nats = nats / counts
    return float(np.logaddexp.reduce(nats) - np.log(nats.size))
