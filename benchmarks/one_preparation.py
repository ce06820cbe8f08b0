"""The process that (f) measures: `python -m benchmarks.one_preparation WORKSPACE FOLDER`. It imports no more than the stage does."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil
import ray

from armor_ray.config import load_config
from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context
from armor_ray.stages.plans import PLANS
from armor_ray.stages.prepare import run_all
from armor_ray.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Preparation:
    """One run of the stage: what it made, its seconds, and the driver's peak resident memory in bytes."""

    documents: int
    passages: int
    cpu: float
    wall: float
    peak: int

    @property
    def rate(self) -> float:
        """Documents a CPU-second."""
        return self.documents / self.cpu


@click.command()
@click.argument("workspace")
@click.argument("folder")
def main(workspace: str, folder: str) -> None:
    """Prepares the data set in FOLDER and prints what it took."""
    config = load_config(None, [f"data.path={folder}", f"workspace={workspace}", "data.group_by=source"])
    context = Context(config, Workspace(workspace), say=lambda _: None)
    connect(context.workspace)
    cpu, wall = _cpu_seconds(), time.perf_counter()
    run_all(context, PLANS["prepare"](context))
    cpu, wall = _cpu_seconds() - cpu, time.perf_counter() - wall
    peak = _peak_memory()
    notes = context.workspace.require("passages").details
    ray.shutdown()
    click.echo(json.dumps(asdict(Preparation(notes["documents"], notes["passages"], cpu, wall, peak))))


def _peak_memory() -> int:
    """Bytes of this process alone: the kernel's other counter, ru_maxrss, begins with the peak of the process that started this one."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) * 1024


def _cpu_seconds() -> float:
    """Of this process and all below it, which Ray's are; processes that ended are counted by whoever waited for them."""
    process = psutil.Process()
    return sum(sum(each.cpu_times()[:4]) for each in (process, *process.children(recursive=True)))


if __name__ == "__main__":
    main()
