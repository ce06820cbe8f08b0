"""The report's pictures: PNG files 1,200 pixels wide or more, readable in print and by the colour-blind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from armor_ray.evaluation.drawing import GREY, grid, legend, save
from armor_ray.evaluation.labels import BASE, INTERPOLATED, line_style, method_label, method_style, metric_label
from armor_ray.evaluation.summary import Row

History = Sequence[Mapping[str, float]]

_MOST_POINTS = 100


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting of a sweep: dotted key → value, its best validation metric in [0, 1], and the epochs it was given."""

    parameters: Mapping[str, float]
    value: float
    epochs: int


# -- training ------------------------------------------------------------------------------------------------------------------


def training_figure(histories: Mapping[str, History], path: Path, metric: str = "R@3") -> Path:
    """Learned temperatures, query distillation loss and validation recall over training steps (the ARMOR paper's Figure 2).

    Args:
        histories: method → rows by step. Training rows hold `step`, `tau_rag`, `tau_infonce`, `query_distillation` or, in recipes
            that do not train on it, `drift`; validation rows hold `step` and `validation_<metric>`.
        metric: the validation metric shown.
    """
    figure, axes = grid(2, 2, height=7.2)
    _temperature_panel(axes[0], histories, "tau_rag", r"RAG temperature $\tau_r$")
    _temperature_panel(axes[1], histories, "tau_infonce", r"InfoNCE temperature $\tau_c$")
    _distillation_panel(axes[2], histories)
    for method, history in histories.items():
        steps, values = _series(history, f"validation_{metric}")
        _line(axes[3], method, steps, values, marked=True)
    _decorate(axes[3], f"Validation {metric_label(metric)}", "share of questions")
    _shared_legend(figure, list(histories))
    return save(figure, path)


def _temperature_panel(axis: Axes, histories: Mapping[str, History], key: str, title: str) -> None:
    for method, history in histories.items():
        steps, values = _series(history, key)
        if len(values) and np.ptp(values) > 0:
            _line(axis, method, steps, values)
    _decorate(axis, title, "temperature (cosine units)")
    if not axis.lines:
        axis.text(0.5, 0.5, "no recipe here learns it", ha="center", va="center", color=GREY, transform=axis.transAxes)
        axis.set_yticks([])


def _distillation_panel(axis: Axes, histories: Mapping[str, History]) -> None:
    width = 1
    for method, history in histories.items():
        steps, values = _series(history, "query_distillation")
        if not len(values):
            steps, values = _series(history, "drift")
        width = max(width, math.ceil(len(values) / _MOST_POINTS))
        _line(axis, method, *_averaged(steps, values, width))
    _decorate(axis, "Query distillation loss" + (f", means of {width} steps" if width > 1 else ""), "1 − cos to the base query")
    axis.set_ylim(bottom=0)


def _series(history: History, key: str) -> tuple[np.ndarray, np.ndarray]:
    rows = [row for row in history if key in row and math.isfinite(row[key])]
    return np.array([row["step"] for row in rows]), np.array([row[key] for row in rows])


def _averaged(steps: np.ndarray, values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    starts = np.arange(0, len(values), width)
    sizes = np.diff(np.append(starts, len(values)))
    return (np.add.reduceat(steps, starts) / sizes, np.add.reduceat(values, starts) / sizes) if len(values) else (steps, values)


def _line(axis: Axes, method: str, steps: np.ndarray, values: np.ndarray, marked: bool = False) -> None:
    colour, marker = method_style(method)
    strong = method.startswith("armor")
    axis.plot(
        steps,
        values,
        color=colour,
        linestyle=line_style(method),
        marker=marker if marked else None,
        markersize=5,
        linewidth=2.4 if strong else 1.5,
        zorder=3 if strong else 2,
    )


def _decorate(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title, fontsize=11, loc="left", fontweight="bold")
    axis.set_ylabel(unit)
    axis.set_xlabel("training step")


# -- results -------------------------------------------------------------------------------------------------------------------


def recall_figure(rows: Sequence[Row], path: Path, metrics: Sequence[str] = ("R@1", "R@3", "R@5", "R@16"), reference: str = BASE) -> Path:
    """Each method's recall with its 95 % interval, one panel per cut-off, the reference as a line through all of them.

    A marker is filled when the paired difference to the reference is significant: overlapping intervals do not tell.

    Args:
        rows: values and ` vs <reference>` differences; methods appear in their order.
        metrics: the panels; every method needs all of them.
        reference: the method that the line and the filling stand for.
    """
    values = {(row.method, row.metric): row for row in rows}
    methods = list(dict.fromkeys(row.method for row in rows if row.metric in metrics))
    figure, axes = grid(1, len(metrics), height=1.6 + 0.34 * len(methods), sharey=True)
    for axis, metric in zip(axes, metrics, strict=True):
        if (reference, metric) in values:
            axis.axvline(values[reference, metric].value, color=GREY, linestyle="--", linewidth=1)
        for place, method in enumerate(methods):
            difference = values.get((method, f"{metric} vs {reference}"))
            _interval(axis, place, values[method, metric], filled=difference is not None and difference.significant)
        axis.set_title(metric_label(metric), fontsize=11, loc="left", fontweight="bold")
        axis.set_xlabel("share of questions")
        axis.margins(x=0.08)
    axes[0].set_yticks(range(len(methods)), [method_label(method) for method in methods])
    axes[0].set_ylim(len(methods) - 0.5, -0.5)
    _reference_legend(figure, method_label(reference))
    return save(figure, path)


def _interval(axis: Axes, place: int, row: Row, filled: bool) -> None:
    colour, marker = method_style(row.method)
    axis.plot([row.low, row.high], [place, place], color=colour, linewidth=2, solid_capstyle="round", alpha=0.55)
    axis.plot(
        row.value, place, marker=marker, markersize=8, color=colour, markerfacecolor=colour if filled else "white", markeredgewidth=1.6
    )


def _reference_legend(figure: Figure, name: str) -> None:
    style: dict[str, Any] = {"color": GREY, "marker": "o", "markersize": 8}
    handles = [
        Line2D([], [], color=GREY, linestyle="--", label=name),
        Line2D([], [], linestyle="", label=f"differs significantly from {name} (paired)", **style),
        Line2D([], [], linestyle="", markerfacecolor="white", label="does not", **style),
        Line2D([], [], color=GREY, linewidth=2, alpha=0.55, label="95 % interval of the mean"),
    ]
    legend(figure, handles)


# -- sweep and interpolation ---------------------------------------------------------------------------------------------------


def sweep_figure(trials: Sequence[Trial], path: Path, metric: str = "R@3") -> Path:
    """Validation metric against every swept parameter: a dot per trial, a line through the means, the best trial ringed.

    Args:
        trials: all with the same parameters, at least one trial and one parameter.
        metric: the name of `Trial.value`.
    """
    names = list(trials[0].parameters)
    figure, axes = grid(1, len(names), height=4.2, sharey=True)
    best = max(trials, key=lambda trial: trial.value)
    for axis, name in zip(axes, names, strict=True):
        settings = sorted({trial.parameters[name] for trial in trials})
        means = [np.mean([trial.value for trial in trials if trial.parameters[name] == setting]) for setting in settings]
        axis.plot(settings, means, color="#4477AA", linewidth=2)
        axis.plot([t.parameters[name] for t in trials], [t.value for t in trials], "o", color="#4477AA", alpha=0.6, markersize=6)
        axis.plot(best.parameters[name], best.value, "o", markersize=13, markerfacecolor="none", color="#CC3311", markeredgewidth=2)
        _parameter_axis(axis, name, settings)
    axes[0].set_ylabel(f"validation {metric_label(metric)}")
    legend(
        figure,
        [
            Line2D([], [], color="#4477AA", marker="o", linestyle="", alpha=0.6, label="trial"),
            Line2D([], [], color="#4477AA", linewidth=2, label="mean of the trials at that value"),
            Line2D([], [], color="#CC3311", marker="o", linestyle="", markersize=11, markerfacecolor="none", label="best trial"),
        ],
    )
    return save(figure, path)


def _parameter_axis(axis: Axes, name: str, settings: Sequence[float]) -> None:
    if settings[0] > 0 and settings[-1] / settings[0] > 9:
        axis.set_xscale("log")
    axis.set_xticks(settings, [f"{setting:g}" for setting in settings])
    axis.minorticks_off()
    axis.set_xlabel(name)


def interpolation_figure(curves: Mapping[str, History], path: Path, metric: str = "R@3", chosen: Mapping[str, float] | None = None) -> Path:
    """Validation recall of weights (1−α)·base + α·adapted against α, one line per method, the chosen α ringed.

    Args:
        curves: method → points with `alpha` and the metric in [0, 1], by rising α.
        chosen: method → the α taken.
    """
    figure, axes = grid(1, 1, height=4.6)
    for method, points in curves.items():
        colour, marker = method_style(method)
        recall = {point["alpha"]: point[metric] for point in points}
        style: dict[str, Any] = {"color": colour, "linestyle": line_style(method), "marker": marker, "markersize": 5, "linewidth": 2}
        axes[0].plot(list(recall), list(recall.values()), **style)
        alpha = (chosen or {}).get(method)
        if alpha is not None:
            axes[0].plot(alpha, recall[alpha], "o", markersize=14, markerfacecolor="none", color=colour, markeredgewidth=1.8)
    axes[0].set_xlabel("α  (0: base encoder, 1: adapted encoder; a ring marks the chosen α)")
    axes[0].set_ylabel(f"validation {metric_label(metric)}")
    _shared_legend(figure, [method.removesuffix(INTERPOLATED) for method in curves])
    return save(figure, path)


def _shared_legend(figure: Figure, methods: Sequence[str]) -> None:
    handles = []
    for method in methods:
        colour, marker = method_style(method)
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle=line_style(method), linewidth=2, label=method_label(method)))
    legend(figure, handles)
