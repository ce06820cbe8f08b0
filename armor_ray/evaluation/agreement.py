"""How well scores order a question's pool as the generator's utilities do (UAE, Figure 4). Shape legend: Q questions, N pool columns."""

from __future__ import annotations

import numpy as np

AGREEMENT_METRICS = ("pairwise_accuracy", "nDCG@1", "nDCG@5", "Recall@5")


def agreement(scores_QN: np.ndarray, utility_QN: np.ndarray, noise_floor: float, threshold: float) -> dict[str, float]:
    """Means over questions, each in [0, 1]; NaN where no question has what a metric needs.

    - `pairwise_accuracy`: share of a question's pairs with U_i − U_j > noise floor that have s_i > s_j; equal scores count half.
    - `nDCG@k`: gains are utilities, those below 0 (a passage that harms) being 0; discount 1/log2(1 + rank).
    - `Recall@5`: share of the passages with U ≥ threshold that are among the five best-scored.

    Args:
        scores_QN: what orders the pool; finite where a utility is.
        utility_QN: NaN for padding and for pairs without one, which take no part.
        noise_floor: ≥ 0.
        threshold: see `stages.utility`.
    """
    found: dict[str, list[float]] = {metric: [] for metric in AGREEMENT_METRICS}
    for scores, utilities in zip(scores_QN, utility_QN, strict=True):
        known = ~np.isnan(utilities)
        for metric, value in _question(scores[known], utilities[known], noise_floor, threshold).items():
            found[metric].append(value)
    return {metric: float(np.mean(values)) if values else float("nan") for metric, values in found.items()}


def gold_accuracy(scores_QN: np.ndarray, positive_QN: np.ndarray, known_QN: np.ndarray) -> float:
    """Share of (gold, other) pairs of a pool in which the gold passage scores higher, over all questions (UAE, Figure 3); ties half.

    Args:
        positive_QN, known_QN: gold passages; entries that take part.
    """
    shares = []
    for scores, gold, known in zip(scores_QN, positive_QN, known_QN, strict=True):
        gaps = scores[gold & known][:, None] - scores[~gold & known][None, :]
        shares.append((np.sign(gaps.ravel()) + 1) / 2)
    return float(np.concatenate(shares).mean())


def _question(scores: np.ndarray, utilities: np.ndarray, noise_floor: float, threshold: float) -> dict[str, float]:
    values = {}
    better, worse = np.nonzero(utilities[:, None] - utilities[None, :] > noise_floor)
    if len(better):
        values["pairwise_accuracy"] = float(np.mean((np.sign(scores[better] - scores[worse]) + 1) / 2))
    order, gains = np.argsort(-scores, kind="stable"), np.maximum(utilities, 0.0)
    for k in (1, 5):
        best = _dcg(np.sort(gains)[::-1], k)
        if best > 0:
            values[f"nDCG@{k}"] = _dcg(gains[order], k) / best
    relevant = utilities >= threshold
    if relevant.any():
        values["Recall@5"] = float(relevant[order[:5]].sum() / relevant.sum())
    return values


def _dcg(gains: np.ndarray, k: int) -> float:
    top = gains[:k]
    return float((top / np.log2(np.arange(len(top)) + 2)).sum())
