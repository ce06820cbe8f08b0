"""What the training loop needs from whoever runs it: a place in a process group, and somewhere to report and resume.

`LocalHost` is one process without Ray, for debugging and tests; `stages/trials.py` has the Ray Train one. Both run the same loop.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from armor_ray.training.table import QuestionPools


class Host(Protocol):
    """The loop's view of its surroundings."""

    rank: int
    world_size: int
    device: torch.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients averaged over ranks in `forward`."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        ...

    def report(self, metrics: dict[str, float], checkpoint: Path) -> None:
        """Hands over metrics and, from rank 0, a folder to resume from. Every rank calls it equally often."""
        ...

    def resume_from(self) -> contextlib.AbstractContextManager[Path | None]:
        """The newest reported checkpoint folder, or None at a fresh start."""
        ...


class PairScorer(Protocol):
    """Scores (question, passage) pairs that no pool held before, for `candidates.refresh`."""

    def __call__(self, pools: QuestionPools, questions: list[int], rows: list[int]) -> list[float | None]:
        """Combined log-likelihood in nats per pair; None where the pair could not be scored."""
        ...


class LocalHost:
    """One process, no Ray. Checkpoints go to `folder`; a second run with the same folder resumes."""

    rank = 0
    world_size = 1

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.reports: list[dict[str, float]] = []
        self._checkpoint = folder / "checkpoint"

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    def broadcast(self, value: Any) -> Any:
        return value

    def report(self, metrics: dict[str, float], checkpoint: Path) -> None:
        self.reports.append(metrics)
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        shutil.copytree(checkpoint, self._checkpoint)

    @contextlib.contextmanager
    def resume_from(self) -> Iterator[Path | None]:
        yield self._checkpoint if self._checkpoint.exists() else None
