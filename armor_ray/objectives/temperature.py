"""Softmax temperatures: fixed, or learned through an unconstrained scalar α (ARMOR §3.1; METHODS §2)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from armor_ray.errors import ArmorError

TemperatureForm = Literal["fixed", "softplus", "sigmoid"]

# A start on the edge of the range would need an infinite α. The released code's curves (τ < 9 after about 930 Adam steps of 0.01,
# 5.5 after about 1,140) put its own start this far inside.
_EDGE = 1e-5

# torch's softplus turns linear above its threshold; at the default 20 that is an error of 2e-9.
SOFTPLUS_THRESHOLD = 40.0


class Temperature(nn.Module):
    """One positive scalar τ, by which scores are divided before a softmax.

    - `fixed`: τ = start; no parameter.
    - `softplus`: τ = τ_min + softplus(α), in (τ_min, ∞): the paper.
    - `sigmoid`: τ = τ_min + (τ_max − τ_min)·sigmoid(α), in (τ_min, τ_max): the authors' code.

    Args:
        form: one of the above.
        start: first value of τ, > 0; a learned τ starts within its range, an edge being moved inside by 1e-5 (of the range's width
            for `sigmoid`).
        tau_min: floor of a learned τ, > 0.
        tau_max: ceiling, read by `sigmoid` only.

    Raises:
        ArmorError: a start outside the range, or an empty range.
    """

    value: Tensor  # the buffer of a fixed temperature

    def __init__(self, form: TemperatureForm, start: float, tau_min: float, tau_max: float) -> None:
        super().__init__()
        self.form = form
        self.tau_min = tau_min
        self.tau_max = tau_max
        _require_range(form, start, tau_min, tau_max)
        self.alpha: nn.Parameter | None = None
        if form == "fixed":
            self.register_buffer("value", torch.tensor(start))
        else:
            self.alpha = nn.Parameter(torch.tensor(self._alpha_of(start)))

    def forward(self) -> Tensor:
        """The current τ, a scalar tensor; differentiable in α when learned."""
        if self.alpha is None:
            return self.value
        if self.form == "softplus":
            return self.tau_min + F.softplus(self.alpha, threshold=SOFTPLUS_THRESHOLD)
        return self.tau_min + (self.tau_max - self.tau_min) * torch.sigmoid(self.alpha)

    def _alpha_of(self, tau: float) -> float:
        if self.form == "softplus":
            offset = max(tau - self.tau_min, _EDGE)
            return offset + math.log(-math.expm1(-offset))
        share = min(max((tau - self.tau_min) / (self.tau_max - self.tau_min), _EDGE), 1 - _EDGE)
        return math.log(share) - math.log1p(-share)


def _require_range(form: TemperatureForm, start: float, tau_min: float, tau_max: float) -> None:
    ceiling = tau_max if form == "sigmoid" else math.inf
    floor = 0.0 if form == "fixed" else tau_min
    if form != "fixed" and not 0 < floor < ceiling:
        raise ArmorError(f"the temperature range [{tau_min}, {ceiling}] is empty or not positive", where="objective.tau_min")
    if not floor <= start <= ceiling or not 0 < start < math.inf:
        raise ArmorError(
            f"a temperature cannot start at {start}, outside [{floor}, {ceiling}]", where="objective.tau_start", hint="set it within"
        )
