"""NewsQA, the file `combined-newsqa-data-v1.json` that its authors' scripts make.

    data[]       storyId str, text str, type str, questions list
    questions[]  q str, consensus {s int, e int} | {noAnswer true} | {badQuestion true}, isQuestionBad, isAnswerAbsent number, ...

A story is a document. The span on which the annotators agreed is the answer; the rest of their votes is not read.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair, Span
from armor_ray.corpus.sources.fields import Fields, UniqueIds
from armor_ray.corpus.sources.files import data_path, decode_json, member, read_bytes
from armor_ray.corpus.sources.squad import one_line

PUBLISHED_NAME = "combined-newsqa-data-v1.json"


def files(path: Path) -> list[Path]:
    """The combined file, or the folder that holds it."""
    return [member(path, PUBLISHED_NAME)]


def read(config: DataConfig) -> Corpus:
    """Reads all stories. Questions without an agreed span (bad, unanswerable, disputed) are dropped and counted by kind."""
    (path,) = files(data_path(config))
    root = Fields(decode_json(read_bytes(path), str(path)), f"{path}:")
    documents: list[Document] = []
    pairs: list[QAPair] = []
    dropped: Counter[str] = Counter()
    ids = UniqueIds()
    for story in root.records("data"):
        document = _document(story)
        ids.add(document.doc_id, story.where)
        documents.append(document)
        for number, question in enumerate(story.records("questions")):
            pair = _pair(question, number, document, dropped)
            pairs += [pair] if pair else []
    return Corpus(documents, pairs, whole_documents=False, notes=dict(dropped))


def _document(story: Fields) -> Document:
    story_id = story.text("storyId")
    return Document(story_id, "", story.text("text"), story_id, "news")


def _pair(question: Fields, number: int, document: Document, dropped: Counter[str]) -> QAPair | None:
    text = question.optional_text("q").strip()
    agreed = question.record("consensus") if question.has("consensus") else None
    if not text or agreed is None or not agreed.has("s"):
        dropped[_reason(text, agreed)] += 1
        return None
    span = _span(agreed, document)
    return QAPair(
        example_id=f"{document.doc_id}#{number}",
        question=text,
        answers=(one_line(document.text[span.start : span.end]),),
        doc_id=document.doc_id,
        spans=(span,),
        positive_ids=(),
        domain="",
        where=question.where,
    )


def _reason(text: str, agreed: Fields | None) -> str:
    if not text:
        return "empty_questions_dropped"
    if agreed is not None and agreed.has("noAnswer"):
        return "unanswerable_questions_dropped"
    return "bad_questions_dropped" if agreed is not None and agreed.has("badQuestion") else "disputed_questions_dropped"


def _span(agreed: Fields, document: Document) -> Span:
    """The agreed characters without surrounding blanks; the published ends reach up to one character past the story's."""
    start, end = agreed.integer("s"), min(agreed.integer("e"), len(document.text))
    found = document.text[start:end] if 0 <= start < end else ""
    if not found.strip():
        given = agreed.integer("e")
        raise agreed.fault(f"span [{start}, {given}) holds no text of a story of {len(document.text)} characters", "correct s and e")
    return Span(document.doc_id, start + len(found) - len(found.lstrip()), end - (len(found) - len(found.rstrip())))
