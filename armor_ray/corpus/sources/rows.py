"""The product's own record format, shared by the JSON Lines and Parquet readers.

Documents: `id, title?, text, source?, doc_type?, domain?`. Questions: `id?, question, answers` (or `answer`)`, doc_id?,
evidence?, positive_ids?, domain?`, where evidence is a list of `{start, end}` character offsets into the document `doc_id` and
positive_ids names whole documents. BEIR's `_id` and `metadata` are accepted; any other field is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from armor_ray.corpus.alignment import verbatim_spans
from armor_ray.corpus.records import Corpus, Document, QAPair, Span, question_id
from armor_ray.corpus.sources.fields import Fields, UniqueDigests, UniqueIds
from armor_ray.corpus.streams import survey

DOCUMENT_FIELDS = frozenset({"id", "_id", "title", "text", "source", "doc_type", "domain", "metadata"})
QUESTION_FIELDS = frozenset({"id", "_id", "question", "answers", "answer", "doc_id", "evidence", "positive_ids", "domain", "metadata"})


Rows = Callable[[], Iterable[Fields]]
"""Opens a file of records; picklable, so that a Ray task can open it too."""


def corpus_from_rows(documents: Iterable[Fields], read_again: Rows, questions: Iterable[Fields]) -> Corpus:
    """Builds a corpus of documents that are to be cut into passages; many of them are streamed (see `streams`).

    Args:
        documents: the records of the documents.
        read_again: opens them again, by an absolute path.
        questions: the records of the questions, which stay in memory.

    Raises:
        ArmorError: the first faulty record, with its place.
    """
    asked = list(questions)
    found, known = survey(_checked(documents, read_again), partial(_documents, read_again), named_documents(asked))
    return Corpus(found, pairs_from_rows(asked, known), whole_documents=False)


def _documents(rows: Rows) -> Iterator[Document]:
    return map(_document, rows())


def _checked(rows: Iterable[Fields], read_again: Rows) -> Iterator[Document]:
    """The documents, whose ids must be unique."""
    ids = UniqueDigests(lambda name: next(row.where for row in read_again() if row.text(_id_field(row)) == name))
    for row in rows:
        document = _document(row)
        ids.add(document.doc_id, row.where)
        yield document


def named_documents(questions: Iterable[Fields]) -> set[str]:
    """Every document id that a question may mean; what is wrong with one is said when it is read."""
    values = [row.value(name) for row in questions for name in ("doc_id", "positive_ids")]
    return {name for value in values for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)}


def _document(row: Fields) -> Document:
    row.refuse_unknown(DOCUMENT_FIELDS)
    return Document(
        doc_id=row.text(_id_field(row)),
        title=row.optional_text("title"),
        text=row.text("text"),
        source=row.optional_text("source"),
        doc_type=row.optional_text("doc_type"),
        domain=row.optional_text("domain"),
    )


def pairs_from_rows(rows: Iterable[Fields], documents: Mapping[str, Document]) -> list[QAPair]:
    """Questions in the product's own format about documents that are read already, by id.

    Raises:
        ArmorError: the first faulty record, with its place.
    """
    ids = UniqueIds()
    pairs = []
    for row in rows:
        row.refuse_unknown(QUESTION_FIELDS)
        question = row.text("question").strip()
        if row.has(_id_field(row)):
            example_id = row.text(_id_field(row))
            ids.add(example_id, row.where)
        else:
            # Not the line number: the same question keeps its id when lines move.
            example_id = question_id(question)
        pairs.append(_pair(row, example_id, question, documents))
    return pairs


def _pair(row: Fields, example_id: str, question: str, documents: Mapping[str, Document]) -> QAPair:
    answers = _answers(row)
    document = _known(row, row.text("doc_id"), documents) if row.has("doc_id") else None
    spans = _evidence(row, document)
    positive_ids = tuple(_known(row, name, documents).doc_id for name in row.texts("positive_ids"))
    if document is not None and not spans and not positive_ids:
        spans = verbatim_spans(document.doc_id, document.text, answers)
    if not spans and not positive_ids:
        raise row.fault("question without positives", "give evidence, positive_ids, or a doc_id whose text holds an answer verbatim")
    home = document or documents[positive_ids[0]]
    return QAPair(
        example_id=example_id,
        question=question,
        answers=answers,
        doc_id=home.doc_id,
        spans=spans,
        positive_ids=positive_ids,
        domain=row.optional_text("domain") or home.domain,
        where=row.where,
    )


def _id_field(row: Fields) -> str:
    return "_id" if row.has("_id") and not row.has("id") else "id"


def _answers(row: Fields) -> tuple[str, ...]:
    if row.has("answer") and row.has("answers"):
        raise row.fault("fields 'answer' and 'answers' are both given", "keep one")
    answers = [row.text("answer")] if row.has("answer") else row.texts("answers")
    if not answers:
        raise row.fault("question without answers", "add them under 'answers'")
    return tuple(answer.strip() for answer in answers)


def _known(row: Fields, doc_id: str, documents: Mapping[str, Document]) -> Document:
    if doc_id not in documents:
        raise row.fault(f"unknown document id '{doc_id}'", "correct it or add the document to the corpus")
    return documents[doc_id]


def _evidence(row: Fields, document: Document | None) -> tuple[Span, ...]:
    entries = row.records("evidence") if row.has("evidence") else []
    if entries and document is None:
        raise row.fault("evidence without 'doc_id'", "name the document that the offsets index")
    spans = []
    for entry in entries:
        assert document is not None
        start, end = entry.integer("start"), entry.integer("end")
        if not 0 <= start < end <= len(document.text):
            raise entry.fault(
                f"span [{start}, {end}) lies outside document '{document.doc_id}' of {len(document.text)} characters",
                "offsets are characters, 0 <= start < end <= length",
            )
        spans.append(Span(document.doc_id, start, end))
    return tuple(spans)
