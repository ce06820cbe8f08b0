"""SQuAD 1.1 and 2.0, and whatever shares their form: JSON `data[].paragraphs[].{context, qas[]}` with answer offsets, or flat records.

    paragraph   context str, qas list
    qa          id str, question str, answers list of {text str, answer_start int}, is_impossible bool (2.0; absent: false)
    flat record id, title, context, question, answers {text: list, answer_start: list} (Hugging Face; no answers: unanswerable)

Every paragraph is a document. Its source, the unit that must not straddle splits, is the title before the last `#`: the specification
of a TeleQuAD clause, the article of a SQuAD paragraph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair, Span
from armor_ray.corpus.sources.fields import Fields, UniqueIds
from armor_ray.corpus.sources.files import data_path, decode_json, read_bytes
from armor_ray.corpus.sources.row_files import record_files, rows

UNANSWERABLE = "unanswerable_questions_dropped"


def files(path: Path) -> list[Path]:
    """The file itself, or every record file of the folder: the splits as published are united and split anew."""
    return record_files(path)


def read(config: DataConfig) -> Corpus:
    """Reads SQuAD as published or as Hugging Face stores it; unanswerable questions are left out and counted."""
    found = files(data_path(config))
    if found[0].suffix == ".json":
        return read_nested(found)
    return _read_flat(row for path in found for row in rows(path))


def read_nested(paths: Iterable[Path]) -> Corpus:
    """Reads nested files into one corpus.

    Raises:
        ArmorError: the first fault, with its place.
    """
    documents: list[Document] = []
    pairs: list[QAPair] = []
    document_ids, question_ids = UniqueIds(), UniqueIds()
    dropped: Counter[str] = Counter({UNANSWERABLE: 0})
    for document, paragraph in (found for path in paths for found in _paragraphs(path)):
        document_ids.add(document.doc_id, paragraph.where)
        documents.append(document)
        for question in paragraph.records("qas"):
            question_ids.add(question.text("id"), question.where)
            if question.flag("is_impossible", default=False):
                dropped[UNANSWERABLE] += 1
            else:
                pairs.append(_pair(question, document))
    return Corpus(documents, pairs, whole_documents=False, notes=dict(dropped))


def _paragraphs(path: Path) -> Iterator[tuple[Document, Fields]]:
    root = Fields(decode_json(read_bytes(path), str(path)), f"{path}:")
    for entry in root.records("data"):
        title = entry.text("title")
        source = title.rsplit("#", 1)[0]
        name = entry.text("docid") if entry.has("docid") else title
        paragraphs = entry.records("paragraphs")
        for number, paragraph in enumerate(paragraphs):
            doc_id = name if len(paragraphs) == 1 else f"{name}/{number}"
            doc_type = "specification" if source != title else "article"
            yield Document(doc_id, title, paragraph.text("context"), source, doc_type), paragraph


def _read_flat(records: Iterable[Fields]) -> Corpus:
    documents: dict[tuple[str, str], Document] = {}
    paragraphs: Counter[str] = Counter()
    pairs: list[QAPair] = []
    ids = UniqueIds()
    dropped: Counter[str] = Counter({UNANSWERABLE: 0})
    for row in records:
        title, context = row.text("title"), row.text("context")
        if (title, context) not in documents:
            documents[title, context] = Document(f"{title}/{paragraphs[title]}", title, context, title, "article")
            paragraphs[title] += 1
        ids.add(row.text("id"), row.where)
        if row.records("answers"):
            pairs.append(_pair(row, documents[title, context]))
        else:
            dropped[UNANSWERABLE] += 1
    return Corpus(list(documents.values()), pairs, whole_documents=False, notes=dict(dropped))


def _pair(question: Fields, document: Document) -> QAPair:
    answers: dict[str, str] = {}
    spans: list[Span] = []
    for answer in question.records("answers"):
        text = one_line(answer.optional_text("text"))
        if text:  # some annotators left theirs blank
            answers.setdefault(text.casefold(), text)
            spans.append(_span(answer, document))
    if not spans:
        raise question.fault("question without positives: it has no answer", "mark it is_impossible or remove it")
    return QAPair(
        example_id=question.text("id"),
        question=one_line(question.text("question")),
        answers=tuple(answers.values()),
        doc_id=document.doc_id,
        spans=tuple(dict.fromkeys(spans)),
        positive_ids=(),
        domain=document.domain,
        where=question.where,
    )


def _span(answer: Fields, document: Document) -> Span:
    """The answer's characters without surrounding blanks, which might reach into the next passage."""
    text, start = answer.text("text"), answer.integer("answer_start")
    end = start + len(text)
    if not 0 <= start < end <= len(document.text):
        raise answer.fault(f"span [{start}, {end}) lies outside its context of {len(document.text)} characters", "correct answer_start")
    found = document.text[start:end]
    if one_line(found) != one_line(text):
        raise answer.fault(f"the context has '{one_line(found)[:40]}' at answer_start, not the answer", "correct answer_start")
    left, right = len(found) - len(found.lstrip()), len(found) - len(found.rstrip())
    return Span(document.doc_id, start + left, end - right)


def one_line(text: str) -> str:
    """Published text is broken by stray tabs and newlines; runs of blanks become one space (offsets index the original)."""
    return " ".join(text.split())
