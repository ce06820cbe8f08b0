"""Quality against latency, one point a method (the UAE paper's Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from armor_ray.evaluation.drawing import GREY, grid, save
from armor_ray.evaluation.labels import method_label, method_style, metric_label
from armor_ray.evaluation.latency import LATENCY
from armor_ray.evaluation.summary import Row

_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # under a name, where the line passes
_STEP = 3  # points by which a label moves to get out of another's way


def latency_figure(rows: Sequence[Row], path: Path, metric: str) -> Path:
    """Methods that have both a latency and the metric; the line joins those that no other beats in both.

    Args:
        rows: values of the test split, latencies among them.
        metric: the vertical axis.
    """
    values = {(row.method, row.metric): row.value for row in rows}
    methods = [row.method for row in rows if row.metric == LATENCY and (row.method, metric) in values]
    points = {method: (values[method, LATENCY], values[method, metric]) for method in methods}
    figure, axes = grid(1, 1, height=5.2)
    axis = axes[0]
    axis.set_xscale("log")
    axis.plot(*zip(*_front(list(points.values())), strict=True), color=GREY, linestyle="--", linewidth=1, zorder=1, drawstyle="steps-post")
    for method, (latency, quality) in points.items():
        colour, marker = method_style(method)
        axis.plot(latency, quality, marker=marker, markersize=10, color=colour, linestyle="")
    axis.margins(x=0.2, y=0.12)  # room for the names
    axis.set_xlabel("median latency of one question, end to end, in ms (log)")
    axis.set_ylabel(f"{metric_label(metric)}, whole corpus")
    _label(figure, axis, points)
    return save(figure, path)


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that are better than all that are as fast or faster, by rising latency."""
    front: list[tuple[float, float]] = []
    for latency, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or quality > front[-1][1]:
            front.append((latency, quality))
    return front


def _label(figure: Figure, axis: Axes, points: dict[str, tuple[float, float]]) -> None:
    """Names beside their points, moved up where they would cover one another."""
    figure.canvas.draw()
    taken: list[Bbox] = []
    for method, point in sorted(points.items(), key=lambda item: item[1][1]):
        note = axis.annotate(method_label(method), point, (9, -4), textcoords="offset points", fontsize=9, bbox=_PAPER)
        while any(_box(note, figure).overlaps(box) for box in taken):
            note.xyann = (9, note.xyann[1] + _STEP)
        taken.append(_box(note, figure))


def _box(note: Annotation, figure: Figure) -> Bbox:
    return note.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
