"""Tele-Eval: telecom questions whose ids name the Tele-Data documents that they were written from.

    Statement  str, the question
    Answer     str
    id         str, the `id` of a Tele-Data document

`data.path` is a folder with record files named or filed under `tele-eval*` and `tele-data*`, in any letter case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair, question_id
from armor_ray.corpus.sources import tele_data
from armor_ray.corpus.sources.fields import Fields
from armor_ray.corpus.sources.files import data_path
from armor_ray.corpus.sources.row_files import record_files, rows
from armor_ray.errors import ArmorError


def files(path: Path) -> list[Path]:
    """The question files and the document files."""
    return [*_part(path, "tele-eval"), *_part(path, "tele-data")]


def read(config: DataConfig) -> Corpus:
    """Reads the questions and streams Tele-Data for their documents; only these stay in memory.

    All of its document counts as a question's evidence until a judge or lexical alignment narrows it. Blank questions and answers and
    questions without their document are dropped and counted.
    """
    path = data_path(config)
    dropped: Counter[str] = Counter()
    questions = list(_questions(_part(path, "tele-eval"), dropped))
    wanted = {row.identifier(row.first("id", "ID")) for row in questions}
    found = {document.doc_id: document for document in tele_data.documents(_part(path, "tele-data"), dropped) if document.doc_id in wanted}
    pairs = []
    for row in questions:
        document = found.get(row.identifier(row.first("id", "ID")))
        if document is None:
            dropped["questions_without_document_dropped"] += 1
        else:
            pairs.append(_pair(row, document))
    return Corpus(list(found.values()), pairs, whole_documents=False, notes=dict(dropped))


def _part(path: Path, name: str) -> list[Path]:
    members = record_files(path)
    found = [file for file in members if any(part.lower().startswith(name) for part in file.relative_to(path).parts)]
    if not path.is_dir() or not found:
        raise ArmorError(f"no {name}* record file", where=str(path), hint="data.path is a folder with tele-eval* and tele-data* files")
    return found


def _questions(paths: list[Path], dropped: Counter[str]) -> Iterator[Fields]:
    for row in (row for path in paths for row in rows(path)):
        question, answer = row.optional_text(row.first("Statement", "statement")), row.optional_text(row.first("Answer", "answer"))
        if question.strip() and answer.strip():
            yield row
        else:
            dropped["empty_questions_dropped"] += 1


def _pair(row: Fields, document: Document) -> QAPair:
    question = row.text(row.first("Statement", "statement")).strip()
    return QAPair(
        example_id=f"{document.doc_id}/{question_id(question)}",
        question=question,
        answers=(row.text(row.first("Answer", "answer")).strip(),),
        doc_id=document.doc_id,
        spans=(),
        positive_ids=(document.doc_id,),
        domain=document.domain,
        where=row.where,
    )
