"""`python -m benchmarks --data FOLDER`: measures, prints a table, writes `summary.json`, `report.md` and `ratios.png`."""

from __future__ import annotations

import os
import tempfile
from functools import cached_property
from pathlib import Path

import click

from armor_ray.cli import OneLineErrors, say
from armor_ray.errors import ArmorError
from benchmarks import embedding, ray_overhead, scoring, sweep, training_step
from benchmarks.inputs import SCALES, Inputs, load_inputs
from benchmarks.measure import one_thread
from benchmarks.report import Outcome, draw, print_table, write_page, write_summary

BENCHMARKS = "abcde"


class Session:
    """One run: inputs and races that several benchmarks need are made once, when first needed."""

    def __init__(self, data: Path, scale: str, folder: Path) -> None:
        self._data = data
        self._scale = SCALES[scale]
        self._folder = folder

    @cached_property
    def inputs(self) -> Inputs:
        return load_inputs(self._data)

    @cached_property
    def scoring(self) -> scoring.Scoring:
        return scoring.measure(self.inputs, self._scale)

    @cached_property
    def steps(self) -> training_step.Steps:
        return training_step.measure(self.inputs, self._scale, self._folder)

    def run(self, name: str) -> Outcome:
        """Runs the benchmark of this letter."""
        if name == "a":
            return scoring.outcome(self.scoring)
        if name == "b":
            return embedding.run(self.inputs, self._scale)
        if name == "c":
            return training_step.outcome(self.steps)
        if name == "d":
            return sweep.run(self.inputs, self.scoring, self.steps)
        return ray_overhead.run(self._data, self._scale, self._folder / "workspace")


@click.group(cls=OneLineErrors, invoke_without_command=True)
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Folder with telequad/ and teleqna/ as published.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/bench"), show_default=True, help="Folder for the results.")
@click.option("--only", default=",".join(BENCHMARKS), show_default=True, help="Letters of the benchmarks to run.")
@click.option("--scale", type=click.Choice(list(SCALES)), default="full", show_default=True, help="How much of the data to take.")
def main(data: Path, out: Path, only: str, scale: str) -> None:
    """Measure ARMOR's speed-ups on this machine's CPU, one thread a side."""
    names = _letters(only)
    one_thread()
    out.mkdir(parents=True, exist_ok=True)
    load = f"1-minute load {os.getloadavg()[0]:.1f} at the start"
    conditions = f"scale {scale}; one thread a side on the CPU; CPU time, medians of interleaved repeats; {load}"
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="armor-bench-") as folder:
        session = Session(data, scale, Path(folder))
        for name in names:
            say(f"benchmark ({name}) ...")
            outcomes.append(session.run(name))
            # After each, so that a later one's failure loses nothing.
            summary = _write(out, outcomes, conditions)
    print_table(outcomes, conditions)
    say(f"report: {out / 'report.md'}, figure: {out / 'ratios.png'}")
    say(str(summary))


def _letters(only: str) -> list[str]:
    names = sorted({name.strip() for name in only.split(",")})
    unknown = [name for name in names if name not in BENCHMARKS or not name]
    if unknown:
        raise ArmorError(f"no benchmark {unknown[0]!r}", where="--only", hint=f"known: {', '.join(BENCHMARKS)}")
    return names


def _write(out: Path, outcomes: list[Outcome], conditions: str) -> Path:
    rows = [row for outcome in outcomes for row in outcome.rows]
    write_page(out / "report.md", outcomes, conditions)
    draw(out / "ratios.png", rows, conditions)
    return write_summary(out / "summary.json", rows)


if __name__ == "__main__":
    main()
