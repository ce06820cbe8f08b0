"""Retrievers on data sets that they were not trained on: table and picture (the UAE paper's Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from armor_ray.evaluation.drawing import GREY, grid, legend, save
from armor_ray.evaluation.labels import BASE, method_label, method_style, metric_label
from armor_ray.evaluation.summary import Row
from armor_ray.evaluation.tables import Cell, Table, results_table


def transfer_metrics(headline: str) -> list[str]:
    """Columns of the table and panels of the picture."""
    return [*dict.fromkeys(["R@1", headline, "MAP"])]


def transfer_table(rows: Sequence[Row], metrics: Sequence[str], trained_on: str) -> Table:
    """Data sets and methods by metrics; marks where a method differs significantly from the base on that data set.

    Args:
        trained_on: the data set that the retrievers saw in training; named as such.
    """
    lines: list[list[Cell]] = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        own = results_table([row for row in rows if row.dataset == dataset], metrics, lambda _: True, BASE)
        assert own is not None, "every data set has been evaluated"
        label = f"{dataset} (trained on)" if dataset == trained_on else dataset
        lines += [[Cell(label), *cells] for cells in own.rows]
    return Table(["Data set", "Method", *map(metric_label, metrics)], lines)


def transfer_figure(rows: Sequence[Row], path: Path, metrics: Sequence[str], trained_on: str) -> Path:
    """One panel a metric, one group of bars a data set; whiskers are 95 % intervals, stars significant differences to the base."""
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    values = {(row.dataset, row.method, row.metric): row for row in rows}
    figure, axes = grid(1, len(metrics), height=4.2)
    labels = [f"{dataset}\n(trained on)" if dataset == trained_on else dataset for dataset in datasets]
    for axis, metric in zip(axes, metrics, strict=True):
        for number, method in enumerate(methods):
            shown = [(i, values[dataset, method, metric]) for i, dataset in enumerate(datasets)]
            marked = [_differs(values.get((dataset, method, f"{metric} vs {BASE}"))) for dataset in datasets]
            _bars(axis, shown, marked, (number - (len(methods) - 1) / 2) * 0.8 / len(methods), 0.8 / len(methods))
        axis.set_xticks(range(len(datasets)), labels)
        axis.set_title(metric_label(metric), fontsize=11, loc="left", fontweight="bold")
        axis.margins(y=0.12)
        axis.set_ylim(bottom=0)
    legend(figure, [Patch(**_fill(method), label=method_label(method)) for method in methods])
    return save(figure, path)


def _bars(axis: Axes, shown: Sequence[tuple[int, Row]], marked: Sequence[bool], offset: float, width: float) -> None:
    places = [place + offset for place, _ in shown]
    found = [row for _, row in shown]
    errors = np.array([[row.value - row.low for row in found], [row.high - row.value for row in found]])
    style: dict[str, Any] = {**_fill(found[0].method), "width": 0.92 * width, "ecolor": GREY, "capsize": 3}
    axis.bar(places, [row.value for row in found], yerr=np.maximum(errors, 0), **style)
    for place, row, is_marked in zip(places, found, marked, strict=True):
        if is_marked:
            axis.annotate("*", (place, row.high), (0, 1), textcoords="offset points", ha="center", fontsize=13)


def _fill(method: str) -> dict[str, Any]:
    """A recipe's colour; its variants share it and are hatched."""
    colour = "#BBBBBB" if method == BASE else method_style(method)[0]
    hatch = "".join(mark for variant, mark in (("/swept", ".."), ("/interpolated", "//")) if variant in method)
    return {"facecolor": colour, "edgecolor": "white", "hatch": hatch}


def _differs(difference: Row | None) -> bool:
    return difference is not None and difference.significant
