"""Transfer between data sets: the table and the picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image

from armor_ray.evaluation.summary import Row
from armor_ray.evaluation.tables import ABOVE, BELOW
from armor_ray.evaluation.transfer import transfer_figure, transfer_table

METRICS = ("R@1", "MAP")
ROWS = [
    row
    for dataset, gain in (("qasper", 0.1), ("squad", -0.1))
    for metric in METRICS
    for row in (
        Row(dataset, "base", metric, 0.5, 0.45, 0.55, 90),
        Row(dataset, "uae", metric, 0.5 + gain, 0.45 + gain, 0.55 + gain, 90),
        Row(dataset, "uae", f"{metric} vs base", gain, gain - 0.05, gain + 0.05, 90),
    )
]


def test_every_data_set_has_its_own_best_and_marks() -> None:
    table = transfer_table(ROWS, METRICS, "qasper")
    assert table.header == ["Data set", "Method", "Recall@1", "MAP"]
    shown = [(row[0].value, row[1].value, row[2].value, row[2].best, row[2].mark) for row in table.rows]
    assert shown == [
        ("qasper (trained on)", "Base", "0.500", False, ""),
        ("qasper (trained on)", "UAE", "0.600", True, ABOVE),
        ("squad", "Base", "0.500", True, ""),
        ("squad", "UAE", "0.400", False, BELOW),
    ]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    assert matplotlib.image.imread(transfer_figure(ROWS, tmp_path / "t.png", METRICS, "qasper")).shape[1] >= 1200
