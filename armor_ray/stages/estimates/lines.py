"""One line of an estimate, and what computing costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from armor_ray.models.size import ModelSize

GPU_HOURS, CPU_HOURS = "GPU-h", "CPU-h"
OUT_OF_REACH = "unknown: the model's size is out of reach, in no folder, cache or hub"


@dataclass(frozen=True, slots=True)
class Line:
    """One amount with what it rests on.

    Attributes:
        stage: that it belongs to.
        what: is counted.
        amount: None where it cannot be known here; the assumption says why.
        unit: of the amount; empty for plain counts.
        assumption: what was measured, and what was assumed.
    """

    stage: str
    what: str
    amount: float | None
    unit: str
    assumption: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Arithmetic that one device sustains.

    Attributes:
        gpu: operations a second of one GPU.
        cpu: operations a second of one CPU core.
    """

    gpu: float
    cpu: float

    def hours(self, stage: str, size: ModelSize | None, tokens: float, passes: int = 1) -> Iterator[Line]:
        """Hours of one GPU, or else of one core, for so many tokens.

        Args:
            stage: that it belongs to.
            size: of the model that reads them.
            tokens: read.
            passes: forward passes that each token costs; 3 when training, as the backward pass takes two.
        """
        for unit, rate, device in ((GPU_HOURS, self.gpu, "one GPU"), (CPU_HOURS, self.cpu, "one core")):
            if size is None:
                yield Line(stage, f"time of {device}", None, unit, OUT_OF_REACH)
                continue
            operations = 2 * passes * size.body * tokens
            each = f"{2 * passes} operations a token and parameter ({size.body / 1e6:,.0f} M without vocabulary)"
            yield Line(stage, f"time of {device}", operations / rate / 3600, unit, f"{each}; {rate / 1e9:,g} GFLOPS")
