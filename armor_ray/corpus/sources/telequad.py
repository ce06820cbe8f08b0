"""TeleQuAD's extractive set, and any SQuAD file: JSON `data[].paragraphs[].{context, qas[]}` with answer offsets.

Every paragraph is a document. Its source, the unit that must not straddle splits, is the title before the last `#`: the
specification of a TeleQuAD clause, the article of a SQuAD paragraph. (TeleQuAD's own `source` field mixes clauses and addresses.)
"""

from __future__ import annotations

from collections.abc import Iterator

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair, Span
from armor_ray.corpus.sources.fields import Fields, UniqueIds
from armor_ray.corpus.sources.files import data_path, decode_json, member, read_bytes

PUBLISHED_NAME = "TeleQuAD-v4-full.json"


def read(config: DataConfig) -> Corpus:
    """Reads the published file, or the folder that holds it; unanswerable questions are left out and counted."""
    path = member(data_path(config), PUBLISHED_NAME)
    root = Fields(decode_json(read_bytes(path), str(path)), f"{path}:")
    documents: list[Document] = []
    pairs: list[QAPair] = []
    document_ids, question_ids = UniqueIds(), UniqueIds()
    num_questions = 0
    for document, paragraph in _paragraphs(root):
        document_ids.add(document.doc_id, paragraph.where)
        documents.append(document)
        for question in paragraph.records("qas"):
            num_questions += 1
            question_ids.add(question.text("id"), question.where)
            if not question.flag("is_impossible", default=False):
                pairs.append(_pair(question, document))
    return Corpus(documents, pairs, whole_documents=False, notes={"unanswerable_questions_dropped": num_questions - len(pairs)})


def _paragraphs(root: Fields) -> Iterator[tuple[Document, Fields]]:
    for entry in root.records("data"):
        title = entry.text("title")
        source = title.rsplit("#", 1)[0]
        name = entry.text("docid") if entry.has("docid") else title
        paragraphs = entry.records("paragraphs")
        for number, paragraph in enumerate(paragraphs):
            doc_id = name if len(paragraphs) == 1 else f"{name}/{number}"
            doc_type = "specification" if source != title else "article"
            yield Document(doc_id, title, paragraph.text("context"), source, doc_type), paragraph


def _pair(question: Fields, document: Document) -> QAPair:
    answers: dict[str, str] = {}
    spans: list[Span] = []
    for answer in question.records("answers"):
        text = _one_line(answer.optional_text("text"))
        if text:  # some annotators left theirs blank
            answers.setdefault(text.casefold(), text)
            spans.append(_span(answer, document))
    if not spans:
        raise question.fault("question without positives: it has no answer", "mark it is_impossible or remove it")
    return QAPair(
        example_id=question.text("id"),
        question=_one_line(question.text("question")),
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
    if _one_line(found) != _one_line(text):
        raise answer.fault(f"the context has '{_one_line(found)[:40]}' at answer_start, not the answer", "correct answer_start")
    left, right = len(found) - len(found.lstrip()), len(found) - len(found.rstrip())
    return Span(document.doc_id, start + left, end - right)


def _one_line(text: str) -> str:
    """Published text is broken by stray tabs and newlines; runs of blanks become one space (offsets index the original)."""
    return " ".join(text.split())
