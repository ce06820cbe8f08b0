"""Quality against latency, one point a method (the UAE paper's Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from armor_ray.evaluation.drawing import GREY, grid, legend, save
from armor_ray.evaluation.labels import BASE, BM25, FUSION_PREFIX, is_fused, method_label, method_style, metric_label
from armor_ray.evaluation.latency import LATENCY
from armor_ray.evaluation.summary import Row

_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # under a name, where the line passes
_MOST_NAMES = 8
_REFERENCES = (BASE, BM25, FUSION_PREFIX + BASE)
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
    front = _front(list(points.values()))
    axis.plot(*zip(*front, strict=True), color=GREY, linestyle="--", linewidth=1, zorder=1, drawstyle="steps-post")
    for method, (latency, quality) in points.items():
        axis.plot(latency, quality, **_mark(method))
    axis.margins(x=0.32, y=0.2)  # room for the names
    axis.set_xlabel("median latency of one question, end to end, in ms (log)")
    axis.set_ylabel(f"{metric_label(metric)}, whole corpus")
    few = len(points) <= _MOST_NAMES
    _label(figure, axis, {method: point for method, point in points.items() if few or method in _REFERENCES or point in front})
    if not few:
        legend(figure, _handles(methods), columns=5)
    return save(figure, path)


def _mark(method: str) -> dict[str, Any]:
    """A recipe's colour and shape: hollow where it was swept or interpolated, ringed where it is fused with BM25."""
    colour, marker = method_style(method)
    ring = "black" if is_fused(method) else colour
    return {"marker": marker, "color": colour, "mfc": "white" if "/" in method else colour, "mec": ring, "markersize": 10, "linestyle": ""}


def _handles(methods: Sequence[str]) -> list[Line2D]:
    """What the marks mean, where too many methods crowd together to be named one by one."""
    plain = [method for method in methods if not is_fused(method) and "/" not in method and method not in _REFERENCES]
    handles = [Line2D([], [], **_mark(method), label=method_label(method)) for method in plain]
    grey: dict[str, Any] = {"marker": "o", "markersize": 10, "linestyle": "", "color": GREY}
    handles.append(Line2D([], [], **grey, mfc="white", mec=GREY, label="hollow: swept or interpolated"))
    return [*handles, Line2D([], [], **grey, mfc=GREY, mec="black", label="ringed: with BM25")]


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
