"""Summary rows as tables and as a sentence: what both report formats print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from armor_ray.evaluation.figures import Trial
from armor_ray.evaluation.labels import BASE, is_adapted, method_label, metric_label
from armor_ray.evaluation.summary import Row

ABOVE, BELOW = "▲", "▼"


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, the small print under it, whether it is its column's best, and its significance mark."""

    value: str
    note: str = ""
    best: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Header and rows of one width; the first cell of a row is its label."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def results_table(rows: Sequence[Row], metrics: Sequence[str], keep: Callable[[str], bool], reference: str) -> Table | None:
    """Methods by metrics: mean, 95 % interval, a mark where the paired difference to `reference` is significant; None without rows.

    Args:
        rows: of one data set; methods appear in their order.
        metrics: the columns, in order; columns that no kept method has are left out.
        keep: which methods belong here.
        reference: of the marks.
    """
    kept = {(row.method, row.metric): row for row in rows if keep(row.method)}
    columns = [metric for metric in metrics if any(metric == found for _, found in kept)]
    methods = list(dict.fromkeys(method for method, metric in kept if metric in columns))
    if not methods:
        return None
    best = {metric: max(row.value for (_, found), row in kept.items() if found == metric) for metric in columns}

    def cell(method: str, metric: str) -> Cell:
        row = kept.get((method, metric))
        if row is None:
            return Cell("–")
        mark = _mark(kept.get((method, f"{metric} vs {reference}")))
        return Cell(f"{row.value:.3f}", f"{row.low:.3f} to {row.high:.3f}", row.value == best[metric], mark)

    lines = [[Cell(method_label(method)), *(cell(method, metric) for metric in columns)] for method in methods]
    return Table(["Method", *map(metric_label, columns)], lines)


def differences_table(rows: Sequence[Row], metrics: Sequence[str], keep: Callable[[str], bool], reference: str) -> Table | None:
    """The paired differences to `reference` behind the marks, in points (hundredths), with their intervals; None without rows."""
    kept = {
        (row.method, row.metric.removesuffix(f" vs {reference}")): row for row in rows if row.reference == reference and keep(row.method)
    }
    columns = [metric for metric in metrics if any(metric == found for _, found in kept)]
    methods = list(dict.fromkeys(method for method, metric in kept if metric in columns))
    if not methods:
        return None

    def cell(method: str, metric: str) -> Cell:
        row = kept.get((method, metric))
        if row is None:
            return Cell("–")
        return Cell(f"{100 * row.value:+.1f}", f"{100 * row.low:+.1f} to {100 * row.high:+.1f}", mark=_mark(row))

    lines = [[Cell(method_label(method)), *(cell(method, metric) for metric in columns)] for method in methods]
    return Table(["Method", *map(metric_label, columns)], lines)


def latency_table(rows: Sequence[Row], latency: str, ratio: str) -> Table | None:
    """Methods by the two metrics, milliseconds and multiples of the base, with their intervals; None without rows."""
    kept = {(row.method, row.metric): row for row in rows if row.metric in (latency, ratio)}
    methods = list(dict.fromkeys(method for method, _ in kept))
    if not methods:
        return None

    def cell(method: str, metric: str, unit: str) -> Cell:
        row = kept[method, metric]
        return Cell(f"{_three_digits(row.value)}{unit}", f"{_three_digits(row.low)} to {_three_digits(row.high)}")

    lines = [[Cell(method_label(method)), cell(method, latency, " ms"), cell(method, ratio, " ×")] for method in methods]
    return Table(["Method", "Median latency", "Relative to Base"], lines)


def sweep_table(trials: Sequence[Trial], metric: str) -> Table:
    """All trials, best first."""
    ordered = sorted(trials, key=lambda trial: -trial.value)
    header = [f"Validation {metric_label(metric)}", *trials[0].parameters, "Epochs"]
    return Table(header, [_trial_cells(trial, best=trial.value == ordered[0].value) for trial in ordered])


def headline(rows: Sequence[Row], metric: str) -> str:
    """Best adapted encoder against the base in plain words, with the paired interval; says so when there is nothing to compare."""
    values = {(row.method, row.metric): row for row in rows}
    adapted = [row for row in rows if row.metric == metric and is_adapted(row.method)]
    base = values.get((BASE, metric))
    if base is None or not adapted:
        return "No adapted encoder was compared with the base encoder in this run."
    best = max(adapted, key=lambda row: row.value)
    difference = values[best.method, f"{metric} vs {BASE}"]
    share = f"{100 * best.value:.1f} % of {best.n:,} test questions, against {100 * base.value:.1f} % with the base encoder"
    interval = f"{100 * difference.value:+.1f} points, 95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
    return f"{method_label(best.method)} finds {_found(metric)} for {share}: {interval}, {_verdict(difference)}. {_choice(len(adapted))}"


def _found(metric: str) -> str:
    depth = metric.removeprefix("R@")
    return "a gold passage at rank 1" if depth == "1" else f"a gold passage among the top {depth}"


def _verdict(difference: Row) -> str:
    if not difference.significant:
        return "which could be chance"
    return "a significant gain" if difference.value > 0 else "a significant loss"


def _choice(count: int) -> str:
    return "It is the only adapted encoder here." if count == 1 else f"It is the best of {count} adapted encoders on these questions."


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _mark(difference: Row | None) -> str:
    if difference is None or not difference.significant:
        return ""
    return ABOVE if difference.value > 0 else BELOW


def _trial_cells(trial: Trial, best: bool) -> list[Cell]:
    return [Cell(f"{trial.value:.3f}", best=best), *(Cell(f"{value:g}") for value in trial.parameters.values()), Cell(str(trial.epochs))]
