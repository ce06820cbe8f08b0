"""The reward model R_ψ (UAE §2.1): a cross-encoder, and where `reward.priors` asks for them, retrieval scores that it corrects.

A cross-encoder that starts without any notion of relevance needs far more questions than a domain has before it orders passages as
well as BM25. With priors it learns only what they do not tell: R(q, d) = CE(q, d) + Σ_j w_j · (s_j(q, d) − μ_j)/σ_j.
Shape legend: P pairs, F priors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from armor_ray.errors import ArmorError
from armor_ray.models.cross_encoder import PRIORS_FILE, CrossEncoder, Pair


class Priors(nn.Module):
    """A weighted sum of standardised retrieval scores.

    Args:
        names: of the F scores, in the order of their columns.
        mean, std: [F] of each over the pairs that the weights were fitted on; std > 0.
        weight: [F].
    """

    mean_F: Tensor
    std_F: Tensor

    def __init__(self, names: Sequence[str], mean: Sequence[float], std: Sequence[float], weight: Sequence[float]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.register_buffer("mean_F", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std_F", torch.tensor(std, dtype=torch.float32))
        self.weight_F = nn.Parameter(torch.tensor(weight, dtype=torch.float32))

    def forward(self, score_PF: Tensor) -> Tensor:
        """fp32 [P], also under autocast (whose matrix products would be in bf16)."""
        return ((score_PF - self.mean_F) / self.std_F * self.weight_F).sum(dim=-1)

    def facts(self) -> dict[str, dict[str, float]]:
        """Weight, mean and standard deviation by name."""
        columns = zip(self.names, self.weight_F.tolist(), self.mean_F.tolist(), self.std_F.tolist(), strict=True)
        return {name: {"weight": weight, "mean": mean, "std": std} for name, weight, mean, std in columns}


class RewardModel(nn.Module):
    """Cross-encoder and priors; `forward` keeps the gradient, `score` does not."""

    def __init__(self, encoder: CrossEncoder, priors: Priors | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.priors = priors

    @classmethod
    def load(cls, folder: str | Path, max_length: int) -> RewardModel:
        """Loads what `save` wrote, or any cross-encoder by folder or Hugging Face id.

        Raises:
            ArmorError: no such model, or a damaged one.
        """
        encoder = CrossEncoder.load(folder, max_length, with_priors=True)
        path = Path(folder) / PRIORS_FILE
        return cls(encoder, _read_priors(path) if path.is_file() else None).eval()

    def forward(self, inputs: dict[str, Tensor], score_PF: Tensor) -> Tensor:
        """R fp32 [P] of padded pairs; `score_PF` fp32 [P, F] are their priors' scores, F = 0 without priors."""
        reward_P = self.encoder(inputs)
        return reward_P if self.priors is None else reward_P + self.priors(score_PF)

    @torch.inference_mode()
    def score(self, pairs: Sequence[Pair], score_PF: np.ndarray, batch_tokens: int, dtype: torch.dtype = torch.float32) -> np.ndarray:
        """R fp32 [P], in the pairs' order; arguments as of `forward` and `CrossEncoder.score`."""
        reward_P = self.encoder.score(pairs, batch_tokens, dtype)
        if self.priors is None:
            return reward_P
        prior_P: Tensor = self.priors(torch.from_numpy(score_PF).to(self.encoder.device))
        return reward_P + prior_P.cpu().numpy()

    def save(self, folder: str | Path) -> None:
        """Writes the cross-encoder as `CrossEncoder.save` does, and the priors, if any, beside it."""
        self.encoder.save(folder)
        if self.priors is not None:
            (Path(folder) / PRIORS_FILE).write_text(json.dumps(self.priors.facts(), indent=2), encoding="utf-8")


def prior_names(model: str) -> tuple[str, ...]:
    """Names of the scores that a reward model's folder says it corrects; none for other cross-encoders."""
    path = Path(model) / PRIORS_FILE
    return _read_priors(path).names if path.is_file() else ()


def _read_priors(path: Path) -> Priors:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        columns = [[float(values[key]) for values in facts.values()] for key in ("mean", "std", "weight")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ArmorError("damaged", where=str(path), hint="rerun with --force reward") from None
    return Priors(list(facts), *columns)
