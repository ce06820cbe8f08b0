"""(f) Cutting 10,000 and 100,000 documents: how fast on a core, and how much memory the driver takes.

The documents are TeleQuAD's clauses, each copied as often as needed under ids of their own, with TeleQuAD's questions about the originals.
Each size is prepared by a process of its own, whose peak resident memory counts (`python -m benchmarks.preparing WORKSPACE FOLDER` is that
process). CPU time is that of the driver and of all of Ray's processes from the stage's beginning to its end.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import psutil
import ray

from armor_ray.config import DataConfig, load_config
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources import read_corpus
from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context
from armor_ray.stages.plans import PLANS
from armor_ray.stages.prepare import run_all
from armor_ray.workspace import Workspace
from benchmarks.inputs import Scale
from benchmarks.report import Outcome, Row

_MOST_MEMORY = 1.10
_LEAST_RATE = 0.80
_GROWTH = 10


@dataclass(frozen=True, slots=True)
class Preparation:
    """One run of the stage: what it made, its seconds, and the driver's peak resident memory in bytes."""

    documents: int
    passages: int
    cpu: float
    wall: float
    peak: int

    @property
    def rate(self) -> float:
        """Documents a CPU-second."""
        return self.documents / self.cpu


def run(data: Path, scale: Scale, folder: Path) -> Outcome:
    """Prepares `scale.documents` documents, then ten times as many.

    Raises:
        subprocess.CalledProcessError: a preparation failed; it has said why.
    """
    corpus = read_corpus(DataConfig(format="telequad", path=str(data / "telequad")))
    few, many = (_prepare(corpus, count, folder / str(count)) for count in (scale.documents, _GROWTH * scale.documents))
    memory = f"(f) driver's peak memory at {many.documents:,} documents as a multiple of that at {few.documents:,} (lower is better)"
    rate = f"(f) documents a core and second at {many.documents:,} documents against {few.documents:,}"
    rows = [
        Row(memory, many.peak / 1e6, few.peak / 1e6, "MB", many.peak / few.peak, _MOST_MEMORY, at_most=True),
        Row(rate, many.rate, few.rate, "1/s", many.rate / few.rate, _LEAST_RATE),
    ]
    return Outcome(rows, [_remark(preparation) for preparation in (few, many)])


def _remark(found: Preparation) -> str:
    each = f"{found.passages:,} passages, {found.cpu:.1f} CPU-seconds of all processes, {found.wall:.1f} s"
    return f"(f) {found.documents:,} documents: {each}, driver's peak {found.peak / 1e6:.0f} MB"


def _prepare(corpus: Corpus, count: int, folder: Path) -> Preparation:
    write_copies(corpus, count, folder)
    command = [sys.executable, "-m", "benchmarks.preparing", str(folder / "workspace"), str(folder)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=Path(__file__).parents[1]).stdout
    return Preparation(**json.loads(printed.splitlines()[-1]))


def write_copies(corpus: Corpus, count: int, folder: Path) -> None:
    """A data set of `count` documents in the product's own format: the first are the originals, which the questions are about."""
    folder.mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in _copies(corpus, count))
    with (folder / "qa.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(_question(pair)) + "\n" for pair in corpus.pairs)


def _copies(corpus: Corpus, count: int) -> Iterator[dict[str, Any]]:
    originals = list(corpus.documents)
    for place in range(count):
        copy, number = divmod(place, len(originals))
        document = originals[number]
        name, text = (document.doc_id, document.text) if copy == 0 else (f"{document.doc_id}~{copy}", f"Copy {copy}. {document.text}")
        yield {"id": name, "title": document.title, "text": text, "source": document.source, "doc_type": document.doc_type}


def _question(pair: Any) -> dict[str, Any]:
    evidence = [{"start": span.start, "end": span.end} for span in pair.spans]
    return {"id": pair.example_id, "question": pair.question, "answers": list(pair.answers), "doc_id": pair.doc_id, "evidence": evidence}


@click.command()
@click.argument("workspace")
@click.argument("folder")
def main(workspace: str, folder: str) -> None:
    """Prepares the data set in FOLDER and prints what it took."""
    config = load_config(None, [f"data.path={folder}", f"workspace={workspace}", "data.group_by=source"])
    context = Context(config, Workspace(workspace), say=lambda _: None)
    connect(context.workspace)
    cpu, wall = _cpu_seconds(), time.perf_counter()
    run_all(context, PLANS["prepare"](context))
    cpu, wall = _cpu_seconds() - cpu, time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    notes = context.workspace.require("passages").details
    ray.shutdown()
    click.echo(json.dumps(asdict(Preparation(notes["documents"], notes["passages"], cpu, wall, peak))))


def _cpu_seconds() -> float:
    """Of this process and all below it, which Ray's are; processes that ended are counted by whoever waited for them."""
    process = psutil.Process()
    return sum(sum(each.cpu_times()[:4]) for each in (process, *process.children(recursive=True)))


if __name__ == "__main__":
    main()
