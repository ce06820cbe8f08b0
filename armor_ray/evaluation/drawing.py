"""What all pictures share: a canvas without pyplot's global state, a legend below it, PNG files 1,200 pixels wide or more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

GREY = "#555555"
_DPI = 120
_WIDTH = 10.5  # inches; 1,260 pixels


def grid(rows: int, columns: int, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """An empty figure of `height` inches, its panels row by row."""
    # Figure and canvas by hand: pyplot would keep global state and pick a display.
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for axis in axes:
        axis.grid(color="#DDDDDD", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(figure: Figure, handles: Sequence[Artist], columns: int = 7) -> None:
    """One legend for all panels, below them, of at most so many columns."""
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns), frameon=False, columnspacing=1.5)


def save(figure: Figure, path: Path) -> Path:
    """Writes the PNG; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
