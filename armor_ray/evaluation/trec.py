"""Runs and judgements in the formats that other tools read: six-column TREC runs, BEIR's tab-separated qrels.

Ids are percent-encoded where they hold white space or `%`: columns are separated by white space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import numpy as np

from armor_ray.errors import ArmorError

_N = TypeVar("_N", int, float)

_UNSAFE = re.compile(r"[\s%]")
_QRELS_HEADER = "query-id\tcorpus-id\tscore"


def write_run(path: Path, example_ids: Sequence[str], rows_QK: np.ndarray, scores_QK: np.ndarray, tag: str) -> Path:
    """Writes `question Q0 passage rank score tag`, ranks from 1 in the given order.

    Args:
        rows_QK: passage rows, best first.
        scores_QK: never rising along a row; nine digits keep fp32 exactly.
        tag: the method's name.
    """
    with path.open("w", encoding="utf-8") as file:
        for example_id, rows, scores in zip(example_ids, rows_QK.tolist(), scores_QK.tolist(), strict=True):
            for rank, (row, score) in enumerate(zip(rows, scores, strict=True), start=1):
                file.write(f"{_encode(example_id)} Q0 {row} {rank} {score:.9g} {_encode(tag)}\n")
    return path


def read_run(path: Path) -> dict[str, list[tuple[str, float]]]:
    """Question id → `(passage id, score)` by rank.

    Raises:
        ArmorError: a line without six columns, or with a rank or score that is not a number.
    """
    ranked: dict[str, list[tuple[int, str, float]]] = {}
    for where, line in _lines(path):
        columns = line.split()
        if len(columns) != 6:
            raise ArmorError(f"{len(columns)} columns in a TREC run", where=where, hint="expected: question Q0 passage rank score tag")
        rank, score = _number(int, columns[3], where), _number(float, columns[4], where)
        ranked.setdefault(unquote(columns[0]), []).append((rank, unquote(columns[2]), score))
    return {question: [(passage, score) for _, passage, score in sorted(found)] for question, found in ranked.items()}


def write_qrels(path: Path, example_ids: Sequence[str], gold: Sequence[np.ndarray]) -> Path:
    """Writes BEIR's `query-id, corpus-id, score` with a header; every gold passage scores 1."""
    with path.open("w", encoding="utf-8") as file:
        file.write(_QRELS_HEADER + "\n")
        for example_id, rows in zip(example_ids, gold, strict=True):
            file.writelines(f"{_encode(example_id)}\t{row}\t1\n" for row in rows.tolist())
    return path


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Question id → passage id → grade.

    Raises:
        ArmorError: no header, or a line that is not `question, passage, grade`.
    """
    lines = _lines(path)
    if next(lines, ("", ""))[1] != _QRELS_HEADER:
        raise ArmorError("no BEIR header", where=f"{path}:1", hint="expected: query-id, corpus-id, score with tabs between")
    qrels: dict[str, dict[str, int]] = {}
    for where, line in lines:
        columns = line.split("\t")
        if len(columns) != 3:
            raise ArmorError(f"{len(columns)} columns in qrels", where=where, hint="expected three with tabs between")
        qrels.setdefault(unquote(columns[0]), {})[unquote(columns[1])] = _number(int, columns[2], where)
    return qrels


def _encode(text: str) -> str:
    return _UNSAFE.sub(lambda found: quote(found.group(), safe=""), text)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path}:{number}", line.rstrip("\n")


def _number(kind: type[_N], text: str, where: str) -> _N:
    try:
        return kind(text)
    except ValueError:
        raise ArmorError(f"'{text}' is not a number", where=where) from None
