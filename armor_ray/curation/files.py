"""The curated data set on disk: a folder in the product's own record format, beside a record of what was dropped and how all was judged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.corpus.records import Document, Span
from armor_ray.curation.curated import Curated, CuratedPair, Dropped
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


def write_curated(curated: Curated, judged: Sequence[Judged], folder: Path) -> dict[str, int]:
    """Writes corpus.jsonl, qa.jsonl, dropped.jsonl and verdicts.parquet; the rows of the first three, by name."""
    _write_verdicts(judged, folder / "verdicts.parquet")
    return {
        "documents": _write_lines(map(_document_row, curated.documents), folder / "corpus.jsonl"),
        "questions": _write_lines(map(_pair_row, curated.pairs), folder / "qa.jsonl"),
        "dropped": _write_lines(map(_dropped_row, curated.dropped), folder / "dropped.jsonl"),
    }


def _write_lines(rows: Iterable[dict[str, Any]], path: Path) -> int:
    with path.open("w", encoding="utf-8") as file:
        return sum(1 for row in rows if file.write(json.dumps(row, ensure_ascii=False) + "\n"))


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


def _write_verdicts(judged: Sequence[Judged], path: Path) -> None:
    with pq.ParquetWriter(path, VERDICTS) as file:
        for start in range(0, max(1, len(judged)), _ROWS_A_BATCH):
            rows = [row for item in judged[start : start + _ROWS_A_BATCH] for row in _verdict_rows(item)]
            file.write_table(pa.Table.from_pylist(rows, schema=VERDICTS))


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
