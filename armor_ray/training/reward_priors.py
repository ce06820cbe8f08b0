"""Where the reward model's priors start: at the linear mix of retrieval scores that orders the training pools best.

Shape legend: Q questions, N pool columns, F priors, M pairs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import softplus

from armor_ray.models.reward_model import Priors
from armor_ray.training.reward_pairs import RewardTable, draw_pairs

_PAIRS_A_QUESTION = 32
_MAX_ITERATIONS = 100


def fit_priors(table: RewardTable, seed: int) -> Priors | None:
    """The logistic fit of "better above worse" over up to 32 pairs a training question; None for a table without priors.

    It is convex, so the result depends on the pairs alone. A score that is the same everywhere gets weight 0.
    """
    if not table.priors:
        return None
    pools = table.train
    known_PF = pools.prior_QNF[~np.isnan(pools.utility_QN)].astype(np.float64)
    mean_F, std_F = known_PF.mean(axis=0), known_PF.std(axis=0)
    std_F[std_F == 0] = 1.0
    gap_MF = torch.from_numpy(_gaps(table, seed) / std_F)
    weight_F = torch.zeros(len(table.priors), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight_F], max_iter=_MAX_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        # The tiny penalty keeps the weights finite where a score orders every pair right.
        value = softplus(-(gap_MF @ weight_F)).mean() + 1e-4 * weight_F.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return Priors(table.priors, mean_F.tolist(), std_F.tolist(), weight_F.detach().tolist())


def _gaps(table: RewardTable, seed: int) -> np.ndarray:
    """Scores of the better passage less those of the worse, [M, F]."""
    pools, gaps = table.train, []
    for question in pools.with_pairs(table.noise_floor).tolist():
        random = np.random.default_rng([seed, question])
        better, worse = draw_pairs(pools.utility_QN[question], pools.base_QN[question], table.noise_floor, _PAIRS_A_QUESTION, random)
        gaps.append(pools.prior_QNF[question][better].astype(np.float64) - pools.prior_QNF[question][worse])
    return np.concatenate(gaps)
