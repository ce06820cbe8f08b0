"""Benchmark rows: `summary.json`, a table on the terminal, a Markdown page and a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from rich.console import Console
from rich.table import Table

_MET, _MISSED = "#228833", "#CC3311"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison.

    Attributes:
        ours, theirs: what each side took (or reached), in `unit`.
        ratio: how many times better ours is, or, where `at_most`, ours as a multiple of theirs.
        target: what `ratio` must reach, or, where `at_most`, must not exceed.
    """

    name: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    target: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    @property
    def bound(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.target:.4g}"


def speed_up(name: str, ours: float, theirs: float, unit: str, target: float) -> Row:
    """A row of times: ratio = theirs / ours."""
    return Row(name, ours, theirs, unit, theirs / ours, target)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one benchmark found: its rows, and remarks on how they came about."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def write_summary(path: Path, rows: Sequence[Row]) -> Path:
    """Writes a JSON list of `{name, ours, theirs, unit, ratio, target}`; a number that is not finite is a bug (ValueError)."""
    content = [{name: value for name, value in asdict(row).items() if name != "at_most"} for row in rows]
    path.write_text(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def write_page(path: Path, outcomes: Sequence[Outcome], conditions: str) -> Path:
    """Writes table and remarks as Markdown."""
    lines = ["# Benchmarks", "", conditions, "", "| what | ours | theirs | unit | ratio | target | met |", "|---|---|---|---|---|---|---|"]
    for row in (row for outcome in outcomes for row in outcome.rows):
        cells = (row.name, f"{row.ours:.4g}", f"{row.theirs:.4g}", row.unit, f"{row.ratio:.4g}", row.bound, "yes" if row.met else "no")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {note}" for outcome in outcomes for note in outcome.notes)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def print_table(outcomes: Sequence[Outcome], conditions: str) -> None:
    """Prints table and remarks."""
    console = Console()
    table = Table(title="benchmarks", caption=conditions)
    for column in ("what", "ours", "theirs", "unit", "ratio", "target"):
        table.add_column(column, justify="right" if column in {"ours", "theirs", "ratio", "target"} else "left", overflow="fold")
    for row in (row for outcome in outcomes for row in outcome.rows):
        colour = "green" if row.met else "red"
        ratio = f"[{colour}]{row.ratio:.4g}{'' if row.met else ' missed'}[/]"
        table.add_row(row.name, f"{row.ours:.4g}", f"{row.theirs:.4g}", row.unit, ratio, row.bound)
    console.print(table)
    for note in (note for outcome in outcomes for note in outcome.notes):
        console.print(f"- {note}", markup=False, highlight=False)


def draw(path: Path, rows: Sequence[Row], conditions: str) -> Path:
    """Draws every ratio as a bar beside its target, on a logarithmic axis; a bar to the left of 1 is a loss."""
    # Figure and canvas by hand: pyplot would keep global state and pick a display.
    figure = Figure(figsize=(11, 1.7 + 0.5 * len(rows)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for place, row in enumerate(rows):
        _draw_row(axis, place, row)
    axis.set_yticks(range(len(rows)), [row.name for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    values = [value for row in rows for value in (row.ratio, row.target, 1.0)]
    axis.set_xscale("log")
    axis.set_xlim(min(values) / 1.5, max(values) * 5)
    # Under the whole figure: the axis has no room for it beside labels as long as these.
    figure.supxlabel("ratio; black: its target, the arrow to the allowed side; green met, red missed", fontsize=9)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="x", color="#DDDDDD", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.axvline(1, color="#555555", linewidth=1)
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(conditions, fontsize=9, color="#555555")
    figure.savefig(path)
    return path


def _draw_row(axis: Axes, place: int, row: Row) -> None:
    axis.barh(place, row.ratio - 1, left=1, height=0.55, color=_MET if row.met else _MISSED)
    axis.plot([row.target] * 2, [place - 0.38, place + 0.38], color="black", linewidth=2)
    axis.plot(row.target, place - 0.38, marker="<" if row.at_most else ">", color="black", markersize=5)
    axis.text(max(row.ratio, row.target, 1) * 1.06, place, f"{_digits(row.ratio)}  ({row.bound})", va="center", fontsize=9)


def _digits(ratio: float) -> str:
    return f"{ratio:.{max(0, 2 - math.floor(math.log10(ratio)))}f}"
