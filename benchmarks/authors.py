"""Scoring as others do it, in plain transformers code: what `hf` is measured and checked against.

Both compute the logits of every position over the whole vocabulary and the log-softmax of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from armor_ray.models.generators.packing import Path
from armor_ray.models.hub import resolve_model


def load_plain(model_id: str, dtype: torch.dtype) -> Any:
    """The model as `from_pretrained` gives it."""
    return AutoModelForCausalLM.from_pretrained(resolve_model(model_id), dtype=dtype).eval()


@torch.inference_mode()
def score_one_by_one(model: Any, paths: Sequence[Path]) -> list[float]:
    """log p(answer | prompt) in nats, one sequence a forward pass (the ARMOR authors' way)."""
    totals = []
    for path in paths:
        ids = torch.tensor([_sequence(path)])
        log_p_LV = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        token_log_p = log_p_LV.gather(1, ids[0, 1:, None])[:, 0]
        totals.append(token_log_p[-len(path.answer) :].sum().item())
    return totals


@torch.inference_mode()
def score_padded(model: Any, paths: Sequence[Path], batch_size: int = 16) -> list[float]:
    """The same in right-padded batches, in the given order."""
    totals: list[float] = []
    for start in range(0, len(paths), batch_size):
        batch = paths[start : start + batch_size]
        sequences = [torch.tensor(_sequence(path)) for path in batch]
        ids_BL = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        lengths_B = torch.tensor([len(sequence) for sequence in sequences])
        mask_BL = (torch.arange(ids_BL.shape[1]) < lengths_B[:, None]).long()
        log_p_BLV = model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        token_log_p_BL = log_p_BLV.gather(2, ids_BL[:, 1:, None])[..., 0]
        for row, path, length in zip(token_log_p_BL, batch, lengths_B.tolist(), strict=True):
            totals.append(row[length - 1 - len(path.answer) : length - 1].sum().item())
    return totals


def _sequence(path: Path) -> list[int]:
    return [*path.head, *path.passage, *path.question, *path.answer]
