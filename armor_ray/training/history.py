"""Where training history goes: TensorBoard events while it is made, a table when the run is published."""

from __future__ import annotations

from types import TracebackType

import pyarrow as pa
from torch.utils.tensorboard import SummaryWriter


def history_table(history: list[dict[str, float]]) -> pa.Table:
    """One row a step, one column per key that any row has; null where a row lacks it."""
    keys = sorted({key for row in history for key in row})
    return pa.table({key: [row.get(key) for row in history] for key in keys})


class HistoryWriter:
    """A history sink: one scalar per key and step. Without a folder it writes nothing (ranks above 0, object-store workspaces)."""

    def __init__(self, folder: str | None) -> None:
        self._writer = SummaryWriter(folder) if folder is not None else None

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, row: dict[str, float]) -> None:
        if self._writer is None:
            return
        step = int(row["step"])
        for key, value in row.items():
            if key != "step":
                self._writer.add_scalar(key, value, step)
