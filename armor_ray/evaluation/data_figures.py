"""Pictures of a data set: how long its texts are, and how its judges scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from armor_ray.evaluation.data_card import DataCard, Scores
from armor_ray.evaluation.drawing import GREY, grid, legend, save

_BLUE, _KEPT, _DROPPED = "#4477AA", "#228833", "#EE6677"
_BINS = 40
_COLUMNS = 3


def lengths_figure(card: DataCard, path: Path) -> Path:
    """Histograms of passages in characters, of questions and answers in words; the line is the median."""
    figure, axes = grid(1, 3, height=3.4)
    panels = (
        ("Passages", "characters", card.passage_characters),
        ("Questions", "words", card.question_words),
        ("Answers", "words", card.answer_words),
    )
    for axis, (title, unit, lengths) in zip(axes, panels, strict=True):
        _length_panel(axis, title, unit, lengths)
    return save(figure, path)


def _length_panel(axis: Axes, title: str, unit: str, lengths: np.ndarray) -> None:
    # A few very long texts would squeeze all others into one bar.
    highest = float(np.quantile(lengths, 0.995))
    bins = np.linspace(0, max(highest, 1.0), min(_BINS, math.ceil(max(highest, 1.0))) + 1)
    axis.hist(np.minimum(lengths, bins[-1]), bins.tolist(), color=_BLUE, alpha=0.8)
    median = float(np.median(lengths))
    axis.axvline(median, color=GREY, linestyle="--", linewidth=1.2)
    axis.set_title(f"{title}: median {median:,.0f}, longest {lengths.max():,}", fontsize=10.5, loc="left", fontweight="bold")
    axis.set_xlabel(unit)
    axis.set_ylabel("how many")


def scores_figure(scores: Sequence[Scores], path: Path) -> Path:
    """One histogram a judge and score, what was kept on top of what was dropped."""
    rows = math.ceil(len(scores) / _COLUMNS)
    figure, axes = grid(rows, min(_COLUMNS, len(scores)), height=3.0 * rows + 0.4)
    bins = np.linspace(0, 1, 21)
    for axis, found in zip(axes, scores, strict=False):
        axis.hist([found.dropped, found.kept], bins.tolist(), stacked=True, color=[_DROPPED, _KEPT], alpha=0.8)
        axis.set_title(f"{found.judge}: {found.score}".replace("_", " "), fontsize=10.5, loc="left", fontweight="bold")
        axis.set_xlim(0, 1)
        axis.set_ylabel("how many")
    for axis in axes[len(scores) :]:
        axis.set_axis_off()
    legend(figure, [Patch(color=_KEPT, alpha=0.8, label="kept"), Patch(color=_DROPPED, alpha=0.8, label="dropped")])
    return save(figure, path)
