"""The curated data set on disk: a folder in the product's own record format, beside a record of what was dropped and how all was judged.

It is written as it comes about, so that neither the documents nor the verdicts on them have to fit into memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.corpus.records import Document, Span
from armor_ray.curation.curated import CuratedPair, Dropped
from armor_ray.curation.judging import Judged

VERDICTS = pa.schema(
    [
        ("step", pa.string()),  # the judge's name
        ("id", pa.string()),  # of the document or question
        ("start", pa.int64()),  # of the judged passage in the question's document; null where the whole thing was judged
        ("end", pa.int64()),
        ("judge", pa.string()),  # the model's name, "keywords" or "lexical"
        ("keep", pa.bool_()),
        ("score_name", pa.string()),  # one row a score; null where judging failed
        ("score", pa.float64()),
        ("failure", pa.string()),
    ]
)
_ROWS_A_BATCH = 16_384
_NAMES = {"documents": "corpus.jsonl", "questions": "qa.jsonl", "dropped": "dropped.jsonl"}


class CuratedFiles:
    """The data set while it grows: corpus.jsonl, qa.jsonl, dropped.jsonl and verdicts.parquet. Only counts are in memory.

    A context manager; the files are whole when it has been left.

    Args:
        folder: an empty one.

    Attributes:
        rows: written so far: `documents`, `questions`, `dropped`.
        dropped: counts by "step/reason".
    """

    def __init__(self, folder: Path) -> None:
        self.rows = dict.fromkeys(_NAMES, 0)
        self.dropped: Counter[str] = Counter()
        self._folder = folder
        with ExitStack() as stack:
            self._verdicts = stack.enter_context(pq.ParquetWriter(folder / "verdicts.parquet", VERDICTS))
            self._files = {name: stack.enter_context((folder / file).open("w", encoding="utf-8")) for name, file in _NAMES.items()}
            self._stack = stack.pop_all()

    def __enter__(self) -> CuratedFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add_document(self, document: Document) -> None:
        """Appends one that will be searched."""
        self._write("documents", _document_row(document))

    def documents(self) -> Iterator[Document]:
        """Those that were added, read back one by one."""
        self._files["documents"].flush()
        with (self._folder / _NAMES["documents"]).open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                yield Document(doc_id=row.pop("id"), **row)

    def add_pair(self, curated: CuratedPair) -> None:
        """Appends a kept question."""
        self._write("questions", _pair_row(curated))

    def drop(self, dropped: Iterable[Dropped]) -> None:
        """Notes what did not pass."""
        for item in dropped:
            self.dropped[f"{item.step}/{item.reason}"] += 1
            self._write("dropped", _dropped_row(item))

    def record(self, judged: Sequence[Judged]) -> None:
        """Appends verdicts."""
        for start in range(0, len(judged), _ROWS_A_BATCH):
            rows = [row for item in judged[start : start + _ROWS_A_BATCH] for row in _verdict_rows(item)]
            self._verdicts.write_table(pa.Table.from_pylist(rows, schema=VERDICTS))

    def _write(self, name: str, row: dict[str, Any]) -> None:
        self._files[name].write(json.dumps(row, ensure_ascii=False) + "\n")
        self.rows[name] += 1


def _document_row(document: Document) -> dict[str, Any]:
    fields = asdict(document)
    return {"id": fields.pop("doc_id"), **fields}


def _pair_row(curated: CuratedPair) -> dict[str, Any]:
    pair = curated.pair
    gold: dict[str, Any] = {"evidence": list(map(_span_row, pair.spans))} if pair.spans else {"positive_ids": list(pair.positive_ids)}
    return {
        "id": pair.example_id,
        "question": pair.question,
        "answers": list(pair.answers),
        "doc_id": pair.doc_id,
        **gold,
        "domain": pair.domain,
        "metadata": {"scores": dict(curated.scores), "support": list(curated.support)},
    }


def _span_row(span: Span) -> dict[str, int]:
    return {"start": span.start, "end": span.end}


def _dropped_row(dropped: Dropped) -> dict[str, Any]:
    return {**asdict(dropped), "scores": dict(dropped.scores)}


def _verdict_rows(judged: Judged) -> list[dict[str, Any]]:
    verdict, subject = judged.verdict, judged.subject
    row = {
        "step": judged.step,
        "id": subject.id,
        "start": subject.start,
        "end": subject.end,
        "judge": verdict.judge,
        "keep": verdict.keep,
        "failure": str(verdict.failure) if verdict.failure is not None else None,
    }
    scores: list[tuple[str | None, float | None]] = [*verdict.scores.items()] or [(None, None)]
    return [{**row, "score_name": name, "score": score} for name, score in scores]
