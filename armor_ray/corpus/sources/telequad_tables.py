"""TeleQuAD's tabular set: `data[].questions[].{id, question, answer, context, document_name, table_name, question_type}`, all strings.

A context is the text around a table with the table itself; equal contexts are one document, whose source is its specification's file.
"""

from __future__ import annotations

from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.alignment import verbatim_spans
from armor_ray.corpus.records import Corpus, Document, QAPair
from armor_ray.corpus.sources.fields import Fields, UniqueIds
from armor_ray.corpus.sources.files import data_path, decode_json, member, read_bytes
from armor_ray.corpus.sources.squad import one_line

PUBLISHED_NAME = "TeleQuAD-v1-full-Tabular.json"


def files(path: Path) -> list[Path]:
    """The published file, or the folder that holds it."""
    return [member(path, PUBLISHED_NAME)]


def read(config: DataConfig) -> Corpus:
    """Reads the published file. Positive is every place of a verbatim answer; of an answer that is worked out, the whole context."""
    (path,) = files(data_path(config))
    root = Fields(decode_json(read_bytes(path), str(path)), f"{path}:")
    documents: dict[str, Document] = {}
    pairs = []
    ids = UniqueIds()
    for row in (question for entry in root.records("data") for question in entry.records("questions")):
        ids.add(row.text("id"), row.where)
        pairs.append(_pair(row, _document(row, documents)))
    return Corpus(list(documents.values()), pairs, whole_documents=False, notes={"same_contexts_merged": len(pairs) - len(documents)})


def _document(row: Fields, documents: dict[str, Document]) -> Document:
    text, file = row.text("context"), row.text("document_name")
    if text not in documents:
        documents[text] = Document(f"{file}/{len(documents)}", row.optional_text("table_name"), text, file, "specification")
    return documents[text]


def _pair(row: Fields, document: Document) -> QAPair:
    answer = one_line(row.text("answer"))
    spans = verbatim_spans(document.doc_id, document.text, [answer])
    return QAPair(
        example_id=row.text("id"),
        question=one_line(row.text("question")),
        answers=(answer,),
        doc_id=document.doc_id,
        spans=spans,
        positive_ids=() if spans else (document.doc_id,),
        domain=row.optional_text("question_type"),
        where=row.where,
    )
