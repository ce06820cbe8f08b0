"""(e) What Ray Data adds to the embedding of 10,000 passages: the `embed` stage's own path against a plain loop over the same actor.

One actor against one loop, so that both have the same single thread. Time runs from the actor's first call, so starting it and loading
the model do not count, until the stage has consumed the last block and taken the actor down.

The machine may be busy with other work, so wall times of two runs, minutes apart, cannot be compared. What Ray adds shows in two factors
that can: within *one* run, all of its wall time over the wall time inside the actor's calls (scheduling, transfer, waiting); and between
runs, the CPU time of the calls (slower, perhaps, for living in a Ray worker). Both together give each pass's seconds on an idle core.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from armor_ray.config import Config, EncoderConfig, load_config
from armor_ray.corpus.prepare import prepare
from armor_ray.models.hardware import choose_device, choose_dtype
from armor_ray.stages import embed
from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context
from armor_ray.workspace import Draft, Workspace
from benchmarks.inputs import CONFIGS, Scale
from benchmarks.report import Outcome, Row

_MOST = 1.10
_CALLS = "calls"


class TimedEmbedActor(embed.EmbedActor):
    """The stage's actor, which also notes when each of its calls began and ended and how much CPU time it took."""

    def __init__(self, config: EncoderConfig, workspace_uri: str, blocks: str, retriever: str | None = None) -> None:
        super().__init__(config, workspace_uri, blocks, retriever)
        self._folder = Path(self._workspace.path(f"{blocks}-{_CALLS}"))
        self._folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        start, cpu = time.time(), time.process_time()
        result = super().__call__(batch)
        call = {"start": start, "cpu": time.process_time() - cpu, "end": time.time()}
        (self._folder / f"{int(batch['start'][0])}.json").write_text(json.dumps(call), encoding="utf-8")
        return result


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the corpus: wall seconds since the first call began, and wall and CPU seconds inside the calls."""

    wall: float
    inside_wall: float
    inside_cpu: float

    @property
    def unloaded(self) -> float:
        """Seconds that the pass would take if the process had its core to itself."""
        return self.inside_cpu * self.wall / self.inside_wall


def run(data: Path, scale: Scale, folder: Path) -> Outcome:
    """Races the stage against the loop, `scale.repeats` times each.

    Raises:
        RuntimeError: the two do not store the same vectors.
        ArmorError: the data set is not there or damaged.
    """
    context = make_context(data, folder, scale.ray_passages)
    connect(context.workspace)
    passes: dict[str, list[Pass]] = {"loop": [], "ray": []}
    for turn in range(scale.repeats):
        for name, work in (("loop", plain_loop), ("ray", through_ray))[:: 1 if turn % 2 == 0 else -1]:
            passes[name].append(_measure(context, f"blocks/{name}-{turn}", work, scale.ray_passages))
    ray.shutdown()
    _require_equal_blocks(context.workspace, scale.ray_passages)
    return _outcome(passes, scale.ray_passages)


def make_context(data: Path, folder: Path, num_passages: int) -> Context:
    """A workspace with so many passages: TeleQnA's, from the beginning again where they do not suffice."""
    overrides = [f"data.path={data / 'teleqna'}", f"workspace={folder}", "resources.embed_actors=1"]
    # The faster the model, the more an overhead shows: bf16 where the CPU has it.
    fast = "bfloat16" if choose_dtype("auto", choose_device()).itemsize == 2 else "float32"
    config: Config = load_config(CONFIGS / "teleqna.yaml", [*overrides, f"encoder.embed_dtype={fast}"])
    table = prepare(config.data, config.seed).passages
    table = table.take(pa.array(np.arange(num_passages) % len(table)))
    workspace = Workspace(config.workspace)

    def write(draft: Draft) -> None:
        pq.write_table(table, draft.path / "passages.parquet")
        draft.rows["passages"] = num_passages

    workspace.publish("passages", stage="prepare", fingerprint="benchmark", inputs={}, config={}, write=write)
    return Context(config, workspace)


def through_ray(context: Context, blocks: str, num_passages: int) -> None:
    """The stage's Ray Data pipeline."""
    with mock.patch.object(embed, "EmbedActor", TimedEmbedActor):
        embed.embed_missing(context, blocks)


def plain_loop(context: Context, blocks: str, num_passages: int) -> None:
    """The same blocks, one after the other, in this process."""
    actor = TimedEmbedActor(context.config.encoder, context.workspace.uri, blocks)
    size = embed.block_rows(num_passages)
    for start in range(0, num_passages, size):
        actor({"start": np.array([start]), "stop": np.array([min(start + size, num_passages)])})


def _measure(context: Context, blocks: str, work: Callable[[Context, str, int], None], num_passages: int) -> Pass:
    work(context, blocks, num_passages)
    end = time.time()
    calls: list[dict[str, Any]] = [json.loads(path.read_text()) for path in Path(context.workspace.path(f"{blocks}-{_CALLS}")).iterdir()]
    return Pass(
        wall=end - min(call["start"] for call in calls),
        inside_wall=sum(call["end"] - call["start"] for call in calls),
        inside_cpu=sum(call["cpu"] for call in calls),
    )


def _require_equal_blocks(workspace: Workspace, num_passages: int) -> None:
    for start in range(0, num_passages, embed.block_rows(num_passages)):
        loop, through = (embed._load_block(workspace, f"blocks/{name}-0/{embed.block_name(start)}")[0] for name in ("loop", "ray"))
        if not np.allclose(loop, through, atol=1e-3):
            raise RuntimeError(f"the race is void: the vectors from row {start} differ")


def _outcome(passes: dict[str, list[Pass]], num_passages: int) -> Outcome:
    ours, theirs = (statistics.median(each.unloaded for each in passes[name]) for name in ("ray", "loop"))
    name = f"(e) embedding {num_passages:,}: Ray Data as a multiple of a loop (lower is better)"
    outside = statistics.median(each.wall / each.inside_wall for each in passes["ray"])
    cpus = [statistics.median(each.inside_cpu for each in passes[name]) for name in ("ray", "loop")]
    walls = [statistics.median(each.wall for each in passes[name]) for name in ("ray", "loop")]
    notes = [
        f"(e) wall time of the Ray pass over that inside its calls: {outside:.3f}",
        f"(e) CPU time inside the calls: Ray {cpus[0]:.1f} s, loop {cpus[1]:.1f} s",
        f"(e) plain wall times, which other load on the machine distorts: Ray {walls[0]:.1f} s, loop {walls[1]:.1f} s",
    ]
    return Outcome([Row(name, ours, theirs, "s", ours / theirs, _MOST, at_most=True)], notes)
