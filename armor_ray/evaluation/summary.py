"""`summary.json`: every number of a report as rows `{dataset, method, metric, value, low, high, n}`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.evaluation.significance import bootstrap_mean, paired_bootstrap

_VERSUS = " vs "


@dataclass(frozen=True, slots=True)
class Row:
    """One number with its 95 % interval.

    Attributes:
        method: `base`, a recipe's name, `armor/interpolated`, `bm25`, `bm25+base`, …
        metric: `R@1`, `MRR@10`, `F1`, …; with a suffix ` vs base` (or another method) the value is a paired difference to it.
        n: questions.
    """

    dataset: str
    method: str
    metric: str
    value: float
    low: float
    high: float
    n: int

    @property
    def reference(self) -> str | None:
        """The method that a difference is taken to; None for a plain value."""
        return self.metric.partition(_VERSUS)[2] or None

    @property
    def significant(self) -> bool:
        """Whether a difference's interval excludes 0."""
        return self.reference is not None and (self.low > 0 or self.high < 0)


def metric_rows(
    dataset: str,
    method: str,
    values: Mapping[str, np.ndarray],
    reference: tuple[str, Mapping[str, np.ndarray]] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Row]:
    """A row per metric and, given a reference, one more per metric with the paired difference (`R@1 vs base`).

    Args:
        values: metric → [Q], or [S, Q] for S training seeds.
        reference: name and the same metrics of the method compared with, on the same questions; None for that method itself.
    """
    rows = []
    for metric, value in values.items():
        interval = bootstrap_mean(value, resamples, seed)
        n = int(np.shape(value)[-1])
        rows.append(Row(dataset, method, metric, interval.value, interval.low, interval.high, n))
        if reference is not None:
            name, others = reference
            paired = paired_bootstrap(value, others[metric], resamples, seed)
            rows.append(Row(dataset, method, f"{metric}{_VERSUS}{name}", paired.difference, paired.low, paired.high, n))
    return rows


def write_summary(path: Path, rows: Sequence[Row]) -> Path:
    """Writes a JSON list; a value that is not finite is a bug and raises ValueError, since JSON has no word for it."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def read_summary(path: Path) -> list[Row]:
    """Reads what `write_summary` wrote.

    Raises:
        ArmorError: no such file, or not a list of such rows.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArmorError("no such summary", where=str(path), hint="run the evaluate stage") from None
    except json.JSONDecodeError as error:
        raise ArmorError(f"not valid JSON ({error.msg})", where=f"{path}:{error.lineno}") from None
    names = {field.name for field in fields(Row)}
    if not isinstance(found, list) or any(not isinstance(row, dict) or row.keys() != names for row in found):
        raise ArmorError(f"not a list of rows with {', '.join(sorted(names))}", where=str(path))
    return [Row(**row) for row in found]
