"""Pictures of utilities and of the reward model: the UAE paper's Figures 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from armor_ray.evaluation.agreement import AGREEMENT_METRICS
from armor_ray.evaluation.drawing import GREY, grid, legend, save
from armor_ray.evaluation.reward_report import RewardReport, agreement_label, gold_deltas

_GOLD, _OTHER, _DELTA = "#228833", "#EE6677", "#4477AA"
_COLOURS = {"bm25": "#B59A1D", "base": "#4477AA", "cross_encoder": "#AA3377", "priors": "#66CCEE", "reward": "#228833"}
_TITLES = {"pairwise_accuracy": "Pairwise accuracy"}
_BINS = 60


def utility_figure(data: RewardReport, path: Path) -> Path:
    """Figure 3: how utilities and rewards spread over gold and other passages, and their pairwise deltas within a question.

    The reward model is trained for order, so its values are on a scale of their own; what compares is the shape.
    """
    figure, axes = grid(2, 2, height=7.4)
    name = data.kind.replace("_", " ")
    for row, (title, unit, values_QN) in enumerate((("Utility", name, data.utility_QN), ("Reward", "R(q, d)", data.reward_QN))):
        spread, deltas = axes[2 * row], axes[2 * row + 1]
        _spread_panel(spread, values_QN, data.positive_QN, f"{title} of gold and other passages", unit)
        _delta_panel(deltas, gold_deltas(values_QN, data.positive_QN), f"{title}: gold minus other, same question", unit)
    _symlog(axes[0], data.utility_QN)
    kinds = ((_GOLD, "gold passages"), (_OTHER, "other passages of the pool"))
    legend(figure, [Patch(color=colour, alpha=0.6, label=label) for colour, label in kinds])
    return save(figure, path)


def _tail(values_QN: np.ndarray) -> float:
    """(q99 − q75) / (q75 − q25): how heavy the upper tail is, whatever the scale; 1.2 for a Gaussian."""
    q25, q75, q99 = np.nanquantile(values_QN, (0.25, 0.75, 0.99))
    return float((q99 - q75) / max(q75 - q25, 1e-12))


def _spread_panel(axis: Axes, values_QN: np.ndarray, positive_QN: np.ndarray, title: str, unit: str) -> None:
    known_QN = ~np.isnan(values_QN)
    groups = [values_QN[positive_QN & known_QN], values_QN[~positive_QN & known_QN]]
    boxes = axis.boxplot(groups, widths=0.5, patch_artist=True, whis=(1, 99), flierprops={"marker": ".", "markersize": 2, "alpha": 0.4})
    for box, median, colour in zip(boxes["boxes"], boxes["medians"], (_GOLD, _OTHER), strict=True):
        box.set(facecolor=colour, alpha=0.6)
        median.set(color="black", linewidth=1.6)
    labels = [f"{kind}, median {np.median(group):.3g}" for kind, group in zip(("gold", "other"), groups, strict=True)]
    axis.set_xticks([1, 2], labels)
    axis.set_ylabel(unit)
    tail = f"upper tail {_tail(values_QN):.1f} × the middle half"
    axis.text(0.98, 0.97, tail, ha="right", va="top", fontsize=9, transform=axis.transAxes)
    axis.set_title(title, fontsize=10.5, loc="left", fontweight="bold")


def _symlog(axis: Axes, values_QN: np.ndarray) -> None:
    """Linear around zero, logarithmic beyond the middle half, where that saves the picture from its own tail."""
    known = np.abs(values_QN[~np.isnan(values_QN)])
    threshold = float(np.quantile(known, 0.5))
    if threshold > 0 and known.max() > 20 * threshold:
        axis.set_yscale("symlog", linthresh=threshold)
        axis.set_ylim(bottom=min(float(np.nanmin(values_QN)), 0.0))
        axis.set_ylabel(f"{axis.get_ylabel()} (symmetric log)")


def _delta_panel(axis: Axes, deltas: np.ndarray, title: str, unit: str) -> None:
    low, high = np.quantile(deltas, (0.005, 0.995))
    axis.hist(np.clip(deltas, low, high), bins=_BINS, color=_DELTA, alpha=0.6)
    axis.axvline(0, color=GREY, linewidth=1)
    above = float(np.mean((np.sign(deltas) + 1) / 2))
    facts = [f"{len(deltas):,} pairs", f"gold above other: {100 * above:.1f} %", f"median {np.median(deltas):.3g}"]
    facts.append(f"median of |Δ| {np.median(np.abs(deltas)):.3g}")
    axis.text(0.98, 0.97, "\n".join(facts), ha="right", va="top", fontsize=9, transform=axis.transAxes)
    axis.set_xlabel(f"Δ {unit} (the outer 1 % is drawn at the edges)")
    axis.set_ylabel("pairs")
    axis.set_title(title, fontsize=10.5, loc="left", fontweight="bold")


def agreement_figure(rows: Sequence[Mapping[str, str | float]], path: Path) -> Path:
    """Figure 4: how well each method orders a question's pool as the generator's utilities do, one panel a metric.

    Args:
        rows: `method` beside `AGREEMENT_METRICS`; NaN where a metric is not defined.
    """
    figure, axes = grid(1, len(AGREEMENT_METRICS), height=3.4)
    for axis, metric in zip(axes, AGREEMENT_METRICS, strict=True):
        values = [float(row[metric]) for row in rows]
        colours = [_COLOURS.get(str(row["method"]), GREY) for row in rows]
        bars = axis.bar(range(len(rows)), np.nan_to_num(values), color=colours, alpha=0.85)
        axis.bar_label(bars, ["–" if np.isnan(value) else f"{value:.2f}" for value in values], fontsize=9, padding=2)
        axis.set_xticks([])
        axis.set_ylim(0, 1.08)
        axis.set_title(_TITLES.get(metric, metric), fontsize=11, loc="left", fontweight="bold")
    names = [str(row["method"]) for row in rows]
    legend(figure, [Patch(color=_COLOURS.get(name, GREY), alpha=0.85, label=agreement_label(name)) for name in names])
    return save(figure, path)
