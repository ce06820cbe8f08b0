"""Weight-space interpolation η(α) = (1-α)·η_base + α·η_adapted, with α chosen on validation (METHODS §7; in neither paper)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.training.validation import Validator


@dataclass(frozen=True, slots=True)
class Interpolation:
    """The chosen α, its encoder, and per α of the grid, ascending, a row {"alpha": α, "R@k": …} of validation recall."""

    alpha: float
    encoder: BiEncoder
    curve: list[dict[str, float]]


def interpolate(base: BiEncoder, adapted: BiEncoder, alpha: float) -> BiEncoder:
    """A new encoder with weights (1-α)·base + α·adapted; α = 0 is exactly the base, α = 1 the adapted encoder.

    Args:
        base, adapted: of the same architecture, adapters merged.
        alpha: in [0, 1].
    """
    origin = dict(base.body.named_parameters())
    if origin.keys() != dict(adapted.body.named_parameters()).keys():
        raise ArmorError("base and adapted encoder have different layers", where="training.interpolate")
    mixed = BiEncoder(copy.deepcopy(adapted.body), adapted.tokenizer, adapted.identity).eval()
    with torch.no_grad():
        for name, weight in mixed.body.named_parameters():
            weight.lerp_(origin[name].to(weight.device), 1.0 - alpha)
    return mixed


def best_interpolation(base: BiEncoder, adapted: BiEncoder, grid: Sequence[float], validator: Validator, metric: str) -> Interpolation:
    """Tries every α and keeps the best by `metric`; among equals the one nearest the base, which drifts least."""
    curve = [{"alpha": alpha, **validator.recall(interpolate(base, adapted, alpha))} for alpha in sorted(set(grid))]
    alpha = max(curve, key=lambda point: (point[metric], -point["alpha"]))["alpha"]
    return Interpolation(alpha, interpolate(base, adapted, alpha), curve)
