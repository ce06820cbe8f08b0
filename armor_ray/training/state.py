"""The mutable state of a training run, and its checkpoint: what a killed run needs to end as the uninterrupted one.

No random state is stored: data order and dropout are functions of (seed, epoch, step, rank).
"""

from __future__ import annotations

import json
import pickle
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.objectives.batch import ObjectiveBatch
from armor_ray.objectives.losses import weight_anchor
from armor_ray.objectives.recipes import LossTerms, Objective
from armor_ray.training.batches import StepInputs
from armor_ray.training.table import QuestionPools

_TENSORS = "state.pt"
_PROGRESS = "progress.json"
_POOLS = "pools.npz"
_POOL_FIELDS = ("pool_QN", "log_likelihood_QN", "scored_QN")


class RetrieverStep(nn.Module):
    """Encoder and objective as one module, so that DDP sees every parameter and its `forward` hooks always run.

    Build it when the encoder is on its device and at its base weights: the weight anchor holds on to those. Adapters are anchored to
    their start.
    """

    def __init__(self, encoder: BiEncoder, objective: Objective) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self._anchor_weight = objective.config.weight_anchor
        self._base_weights = [p.detach().clone() for p in self._anchored()] if self._anchor_weight else []

    def forward(self, inputs: StepInputs, regularised: bool) -> LossTerms:
        """Loss of one batch; `regularised` False leaves out everything that holds the encoder near its base."""
        return self._anchored_loss(self.objective(self.batch(inputs), regularised), regularised)

    def loss(self, inputs: StepInputs, vectors_TD: Tensor, regularised: bool) -> LossTerms:
        """The same from vectors that are there already, in the order of `text_chunks`."""
        num_questions = len(inputs.input_ids_BL)
        batch = self._assemble(inputs, vectors_TD[:num_questions], vectors_TD[num_questions:])
        return self._anchored_loss(self.objective(batch, regularised), regularised)

    def _anchored_loss(self, terms: LossTerms, regularised: bool) -> LossTerms:
        if not (regularised and self._anchor_weight):
            return terms
        anchor = weight_anchor(self._anchored(), self._base_weights)
        return replace(terms, total=terms.total + self._anchor_weight * anchor, terms={**terms.terms, "weight_anchor": anchor.detach()})

    def batch(self, inputs: StepInputs) -> ObjectiveBatch:
        """Encodes the questions, and with shared towers the passages, and sets the frozen vectors beside them."""
        query_BD = self.encoder(inputs.input_ids_BL, inputs.attention_mask_BL)
        passages = inputs.passages
        return self._assemble(inputs, query_BD, None if passages is None else self.encoder(*self.encoder.pad(passages.tokens)))

    def _assemble(self, inputs: StepInputs, query_BD: Tensor, passage_UD: Tensor | None) -> ObjectiveBatch:
        """All vectors in the precision of the questions'."""
        frozen = {name: value.to(query_BD.dtype) if value.is_floating_point() else value for name, value in inputs.frozen.items()}
        if inputs.passages is not None and passage_UD is not None:
            frozen |= {"pool_BND": passage_UD[inputs.passages.pool_BN], "extra_PD": passage_UD[inputs.passages.extra_P]}
        return ObjectiveBatch(query_BD=query_BD, **frozen)

    def text_chunks(self, inputs: StepInputs, size: int) -> list[tuple[Tensor, Tensor]]:
        """All that a step encodes, questions first, as (token ids, attention mask) of at most `size` texts each."""
        questions = zip(inputs.input_ids_BL.split(size), inputs.attention_mask_BL.split(size), strict=True)
        passages = inputs.passages.tokens if inputs.passages is not None else []
        return [*questions, *(self.encoder.pad(passages[start : start + size]) for start in range(0, len(passages), size))]

    def _anchored(self) -> list[nn.Parameter]:
        return [p for p in self.encoder.parameters() if p.requires_grad]


@dataclass(slots=True)
class Progress:
    """How far the run is, and the best it has seen; the same on every rank.

    Attributes:
        step: optimizer steps taken.
        best_step, best_metric: the best evaluation after at least one step, by the configured metric.
        stale_evaluations: evaluations since then.
        best_weights: trainable parameters at `best_step`, on the CPU.
        history: a row of numbers per step and per evaluation.
    """

    step: int = 0
    best_step: int = 0
    best_metric: float = -1.0
    stale_evaluations: int = 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)

    def observe(self, metric: float, module: nn.Module) -> None:
        """Takes note of an evaluation of `module` at the current step; an equal metric is no improvement."""
        if metric > self.best_metric:
            self.best_metric, self.best_step, self.stale_evaluations = metric, self.step, 0
            self.best_weights = trainable_weights(module)
        else:
            self.stale_evaluations += 1


def trainable_weights(module: nn.Module) -> dict[str, Tensor]:
    """Copies, on the CPU, of the parameters that training changes (all of them, or the adapters; and the temperatures)."""
    return {name: p.detach().to("cpu", copy=True) for name, p in module.named_parameters() if p.requires_grad}


def load_weights(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Sets the trainable parameters, in place; `weights` names exactly these."""
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if parameters.keys() != weights.keys():
        raise ValueError("it holds other trainable parameters")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def save_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizers: dict[str, torch.optim.Optimizer],
    progress: Progress,
    pools: QuestionPools | None,
) -> None:
    """Writes one checkpoint into an existing folder; `pools` are given when refresh extends them."""
    # One tensor saved under two names is stored once.
    current = progress.best_weights if progress.step == progress.best_step else trainable_weights(module)
    states = {name: optimizer.state_dict() for name, optimizer in optimizers.items()}
    torch.save({"weights": current, "optimizers": states, "best_weights": progress.best_weights}, folder / _TENSORS)
    numbers = {name: getattr(progress, name) for name in Progress.__slots__ if name != "best_weights"}
    (folder / _PROGRESS).write_text(json.dumps(numbers), encoding="utf-8")
    if pools is not None:
        np.savez(folder / _POOLS, **{name: getattr(pools, name) for name in _POOL_FIELDS})


def load_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizers: dict[str, torch.optim.Optimizer],
    pools: QuestionPools | None,
) -> Progress:
    """Restores what `save_checkpoint` wrote, in place.

    Raises:
        ArmorError: the checkpoint is damaged or of another configuration.
    """
    try:
        state = torch.load(folder / _TENSORS, map_location="cpu", weights_only=True)
        load_weights(module, state["weights"])
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        numbers = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        progress = Progress(**numbers, best_weights=state["best_weights"])
        if pools is not None:
            with np.load(folder / _POOLS, allow_pickle=False) as arrays:
                for name in _POOL_FIELDS:
                    setattr(pools, name, arrays[name])
    except (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ArmorError(f"cannot resume from the checkpoint ({reason})", where=str(folder), hint="rerun with --force train") from None
    return progress
