"""The mutable state of a training run, and its checkpoint: what a killed run needs to end as the uninterrupted one.

No random state is stored: data order and dropout are functions of (seed, epoch, step).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.objectives.recipes import Objective
from armor_ray.training.table import QuestionPools

_FILE = "state.pt"


class RetrieverStep(nn.Module):
    """Encoder and objective as one module, so that DDP sees every parameter and its `forward` hooks always run."""

    def __init__(self, encoder: BiEncoder, objective: Objective) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective

    def forward(self, build_batch: Any, regularised: bool) -> Any:
        """Builds the batch (query texts are encoded inside) and returns the objective's loss terms."""
        return self.objective(build_batch(self._encode), regularised=regularised)

    def _encode(self, questions: list[str]) -> torch.Tensor:
        return self.encoder(*self.encoder.pad(self.encoder.tokenize(questions, "query")))


@dataclass(slots=True)
class Progress:
    """How far the run is, and the best it has seen."""

    step: int = 0
    best_metric: float = -1.0
    best_step: int = 0
    stale_evaluations: int = 0
    stopped: bool = False
    best_weights: dict[str, torch.Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)


def trainable_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the parameters that training changes (all of them, or the adapters)."""
    return {name: p.detach().cpu().clone() for name, p in module.named_parameters() if p.requires_grad}


def load_weights(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Sets parameters by name, in place; every name must exist."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            parameters[name].copy_(value)


def save_checkpoint(
    folder: Path,
    step_module: RetrieverStep,
    optimizers: dict[str, torch.optim.Optimizer],
    progress: Progress,
    pools: dict[str, QuestionPools],
) -> None:
    """Writes one checkpoint folder. `pools` are stored only when refresh extends them."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "weights": trainable_weights(step_module),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
        "best_weights": progress.best_weights,
    }
    torch.save(state, folder / _FILE)
    numbers = {name: getattr(progress, name) for name in Progress.__dataclass_fields__ if name != "best_weights"}
    (folder / "progress.json").write_text(json.dumps(numbers), encoding="utf-8")
    for name, pool in pools.items():
        np.savez(folder / f"pools-{name}.npz", pool=pool.pool_QN, log_likelihood=pool.log_likelihood_QN, scored=pool.scored_QN)


def load_checkpoint(
    folder: Path,
    step_module: RetrieverStep,
    optimizers: dict[str, torch.optim.Optimizer],
    pools: dict[str, QuestionPools],
) -> Progress:
    """Restores what `save_checkpoint` wrote, in place.

    Raises:
        ArmorError: the checkpoint is corrupt or of another configuration.
    """
    try:
        state = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
        load_weights(step_module, state["weights"])
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        progress = Progress(**json.loads((folder / "progress.json").read_text(encoding="utf-8")), best_weights=state["best_weights"])
        for name, pool in pools.items():
            with np.load(folder / f"pools-{name}.npz", allow_pickle=False) as arrays:
                pool.pool_QN = arrays["pool"]
                pool.log_likelihood_QN = arrays["log_likelihood"]
                pool.scored_QN = arrays["scored"]
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0][:120]
        raise ArmorError(f"cannot resume from the checkpoint ({reason})", where=str(folder), hint="rerun with --force train") from None
    return progress
