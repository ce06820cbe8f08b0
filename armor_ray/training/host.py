"""What the training loop needs from whoever runs it: a place in a process group, and somewhere to report and resume.

`LocalHost` is one process without Ray, for debugging and tests; `stages/train_worker.py` has the Ray Train one. Both run the same loop.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from armor_ray.training.table import QuestionPools


class Host(Protocol):
    """The loop's view of its surroundings. With more than one rank, torch's default process group connects them."""

    rank: int
    world_size: int
    device: torch.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients averaged over ranks, for its `forward` to be called."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        ...

    def report(self, metrics: dict[str, float], checkpoint: Path) -> None:
        """Hands over metrics and, from rank 0, a folder to resume from, gone after the call. Every rank calls it equally often."""
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
        self._folder = folder

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    def broadcast(self, value: Any) -> Any:
        return value

    def report(self, metrics: dict[str, float], checkpoint: Path) -> None:
        self.reports.append(metrics)
        older = self._checkpoints()
        unfinished = self._folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(checkpoint, unfinished)
        # Named only once it is whole: a run killed in between resumes from the one before.
        unfinished.rename(self._folder / f"checkpoint-{int(metrics['step']):09d}")
        for folder in older:
            shutil.rmtree(folder)

    @contextlib.contextmanager
    def resume_from(self) -> Iterator[Path | None]:
        yield max(self._checkpoints(), default=None)

    def _checkpoints(self) -> list[Path]:
        return list(self._folder.glob("checkpoint-*"))


def average_over_ranks(values: Tensor, host: Host) -> Tensor:
    """The mean of every rank's `values`, on every rank. Every rank calls it with the same shape."""
    if host.world_size == 1:
        return values
    total = values.clone()
    torch.distributed.all_reduce(total)
    return total / host.world_size
