"""QASPER: questions about scientific papers, with evidence paragraphs.

    published file  object of papers by id; on Hugging Face records with `id`
    paper           title str, abstract str, full_text list of {section_name str or null, paragraphs list of str},
                    figures_and_tables list of {caption str, file str}, qas list
    qa              question str, question_id str, answers list of {answer}
    answer          unanswerable bool, extractive_spans list of str, yes_no bool or null, free_form_answer str, evidence list of str

A paper is a document: title, abstract, sections and captions, a paragraph apart each, so that evidence has exact offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair, Span
from armor_ray.corpus.sources.fields import Fields, UniqueIds
from armor_ray.corpus.sources.files import data_path, decode_json, read_bytes
from armor_ray.corpus.sources.row_files import record_files, rows
from armor_ray.errors import ArmorError

_CAPTION = "FLOAT SELECTED: "


def files(path: Path) -> list[Path]:
    """The file itself, or every record file of the folder: the splits as published are united and split anew."""
    return record_files(path)


def read(config: DataConfig) -> Corpus:
    """Reads all papers. Questions that every annotator found unanswerable, or without evidence in the text, are dropped and counted."""
    documents: list[Document] = []
    pairs: list[QAPair] = []
    dropped: Counter[str] = Counter()
    papers, questions = UniqueIds(), UniqueIds()
    for paper_id, paper in (found for path in files(data_path(config)) for found in _papers(path)):
        papers.add(paper_id, paper.where)
        document, places = _document(paper_id, paper)
        if not document.text.strip():
            dropped["empty_documents_dropped"] += 1
            continue
        documents.append(document)
        for question in paper.records("qas"):
            questions.add(question.text("question_id"), question.where)
            pair = _pair(question, document, places, dropped)
            pairs += [pair] if pair else []
    return Corpus(documents, pairs, whole_documents=False, notes=dict(dropped))


def _papers(path: Path) -> Iterator[tuple[str, Fields]]:
    if path.suffix != ".json":
        yield from ((row.identifier("id"), row) for row in rows(path))
        return
    table = decode_json(read_bytes(path), str(path))
    if not isinstance(table, dict):
        raise ArmorError("not an object of papers", where=str(path), hint="give the file as published")
    root = Fields(table, str(path))
    yield from ((name, Fields(root.value(name), f"{path}: {name}")) for name in root.names())


def _document(paper_id: str, paper: Fields) -> tuple[Document, dict[str, Span]]:
    """The paper's text and the place of each of its paragraphs."""
    places: dict[str, Span] = {}
    text = ""
    for paragraph in _paragraphs(paper):
        start = len(text) + 2 if text else 0
        places.setdefault(_key(paragraph), Span(paper_id, start, start + len(paragraph)))
        text = f"{text}\n\n{paragraph}" if text else paragraph
    return Document(paper_id, paper.optional_text("title"), text, paper_id, "paper"), places


def _paragraphs(paper: Fields) -> Iterator[str]:
    parts = [paper.optional_text("title"), paper.optional_text("abstract")]
    for section in paper.records("full_text"):
        parts += [section.optional_text("section_name"), *section.texts("paragraphs", blanks=True)]
    if paper.has("figures_and_tables"):
        parts += [figure.optional_text("caption") for figure in paper.records("figures_and_tables")]
    return (part.strip() for part in parts if part.strip())


def _pair(question: Fields, document: Document, places: dict[str, Span], dropped: Counter[str]) -> QAPair | None:
    answers: dict[str, str] = {}
    spans: dict[Span, None] = {}
    for entry in question.records("answers"):
        answer = entry.record("answer") if entry.has("answer") else entry
        text = _answer(answer)
        if text:
            answers.setdefault(text.casefold(), text)
            spans |= dict.fromkeys(_evidence(answer, places))
    if not answers or not spans:
        dropped["unanswerable_questions_dropped" if not answers else "questions_without_evidence_dropped"] += 1
        return None
    return QAPair(
        example_id=question.text("question_id"),
        question=question.text("question").strip(),
        answers=tuple(answers.values()),
        doc_id=document.doc_id,
        spans=tuple(spans),
        positive_ids=(),
        domain="",
        where=question.where,
    )


def _answer(answer: Fields) -> str:
    """One annotator's answer, by the authors' own order of its kinds; empty when unanswerable."""
    if answer.flag("unanswerable", default=False):
        return ""
    extracts = [extract.strip() for extract in answer.texts("extractive_spans", blanks=True) if extract.strip()]
    if extracts:
        return ", ".join(extracts)
    free = answer.optional_text("free_form_answer").strip()
    if free:
        return free
    return ("Yes" if answer.flag("yes_no", default=False) else "No") if answer.has("yes_no") else ""


def _evidence(answer: Fields, places: dict[str, Span]) -> list[Span]:
    keys = (_key(text.removeprefix(_CAPTION)) for text in answer.texts("evidence", blanks=True))
    return [places[key] for key in keys if key in places]


def _key(paragraph: str) -> str:
    return " ".join(paragraph.split())
