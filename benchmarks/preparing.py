"""(f) Cutting 10,000 and 100,000 documents: how fast on a core, and how much memory the driver takes.

The documents are TeleQuAD's clauses, each copied as often as needed under ids of their own, with TeleQuAD's questions about the originals.
Each size is prepared by a process of its own (`one_preparation`), whose peak resident memory counts. CPU time is that of the driver and of
all of Ray's processes from the stage's beginning to its end, their start included, which is most of what 10,000 documents cost.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, QAPair
from armor_ray.corpus.sources import read_corpus
from benchmarks.inputs import Scale
from benchmarks.one_preparation import Preparation
from benchmarks.report import Outcome, Row

_MOST_MEMORY = 1.25  # the driver remembers 16 bytes of each document's id, and allocators keep some of what passed through
_LEAST_RATE = 0.80
_GROWTH = 10


def run(data: Path, scale: Scale, folder: Path) -> Outcome:
    """Prepares `scale.documents` documents, then ten times as many.

    Raises:
        subprocess.CalledProcessError: a preparation failed; it has said why.
    """
    corpus = read_corpus(DataConfig(format="telequad", path=str(data / "telequad")))
    few, many = (_prepare(corpus, count, folder / str(count)) for count in (scale.documents, _GROWTH * scale.documents))
    memory = f"(f) driver's peak memory at {many.documents:,} documents as a multiple of that at {few.documents:,} (lower is better)"
    rate = f"(f) documents a CPU-second at {many.documents:,} documents against {few.documents:,}"
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
    command = [sys.executable, "-m", "benchmarks.one_preparation", str(folder / "workspace"), str(folder)]
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


def _question(pair: QAPair) -> dict[str, Any]:
    evidence = [{"start": span.start, "end": span.end} for span in pair.spans]
    return {"id": pair.example_id, "question": pair.question, "answers": list(pair.answers), "doc_id": pair.doc_id, "evidence": evidence}
