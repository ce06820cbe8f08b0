"""Optimizers and the learning rate: two parameter groups with their own rates and decay (METHODS §2)."""

from __future__ import annotations

import torch
from torch import nn

from armor_ray.config import RewardConfig, TrainingConfig

ENCODER = "encoder"
TEMPERATURES = "temperatures"


def make_optimizers(encoder: nn.Module, temperatures: list[nn.Parameter], config: TrainingConfig) -> dict[str, torch.optim.Optimizer]:
    """AdamW for the trainable encoder weights and, where temperatures are learned, a second one without weight decay for them."""
    weights = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    optimizers: dict[str, torch.optim.Optimizer] = {
        ENCODER: torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)
    }
    if temperatures:
        optimizers[TEMPERATURES] = torch.optim.AdamW(temperatures, lr=config.temperature_learning_rate, weight_decay=0.0)
    return optimizers


def learning_rate(step: int, total_steps: int, config: TrainingConfig | RewardConfig) -> float:
    """The model's rate at 0-based `step`: linear warm-up, then constant, or linear down to 0 just after the last step."""
    warmup = max(1, round(config.warmup_fraction * total_steps))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "constant":
        return config.learning_rate
    return config.learning_rate * (total_steps - step) / (total_steps - warmup)
