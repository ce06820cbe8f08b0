"""Where training history goes while it is made: TensorBoard events, live."""

from __future__ import annotations

from types import TracebackType

from torch.utils.tensorboard import SummaryWriter


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
