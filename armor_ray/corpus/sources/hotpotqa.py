"""HotpotQA: questions over two Wikipedia paragraphs, with supporting sentences.

    _id (or id)       str
    question, answer  str
    supporting_facts  list of [title str, sentence int], or {title: list, sent_id: list} (Hugging Face)
    context           list of [title str, sentences list of str], or {title: list, sentences: list of lists}

A paragraph is a document, named by its title. Every question has its own two, so `data.split_by: question` keeps most of the questions;
by document, those whose paragraphs fall to different splits are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair, Span
from armor_ray.corpus.sources.fields import Fields, UniqueIds
from armor_ray.corpus.sources.files import data_path
from armor_ray.corpus.sources.row_files import record_files, rows


def files(path: Path) -> list[Path]:
    """The file itself, or every record file of the folder."""
    return record_files(path)


def read(config: DataConfig) -> Corpus:
    """Reads all questions and the paragraphs around them. Supporting facts that name no sentence (some published ones) are left out and
    counted; questions that keep none are dropped."""
    documents: dict[tuple[str, str], Document] = {}
    versions: Counter[str] = Counter()
    pairs: list[QAPair] = []
    dropped: Counter[str] = Counter()
    ids = UniqueIds()
    for row in (row for path in files(data_path(config)) for row in rows(path)):
        ids.add(_id(row), row.where)
        places: dict[tuple[str, int], Span] = {}
        for title, sentences in _context(row):
            text = "".join(sentences)
            if text.strip():
                if (title, text) not in documents:
                    # Paragraphs of one title may differ between the published files.
                    doc_id = title if not versions[title] else f"{title}#{versions[title]}"
                    documents[title, text] = Document(doc_id, title, text, title, "article")
                    versions[title] += 1
                places |= _places(title, sentences, documents[title, text].doc_id)
        pair = _pair(row, places, dropped)
        pairs += [pair] if pair else []
    return Corpus(list(documents.values()), pairs, whole_documents=False, notes=dict(dropped))


def _id(row: Fields) -> str:
    return row.text(row.first("_id", "id"))


def _places(title: str, sentences: list[str], doc_id: str) -> dict[tuple[str, int], Span]:
    places: dict[tuple[str, int], Span] = {}
    start = 0
    for number, sentence in enumerate(sentences):
        if sentence.strip():
            places[title, number] = Span(doc_id, start + len(sentence) - len(sentence.lstrip()), start + len(sentence.rstrip()))
        start += len(sentence)
    return places


def _pair(row: Fields, places: dict[tuple[str, int], Span], dropped: Counter[str]) -> QAPair | None:
    question, answer = row.optional_text("question").strip(), row.optional_text("answer").strip()
    if not question or not answer:
        dropped["empty_questions_dropped"] += 1
        return None
    facts = list(_facts(row))
    spans = tuple(dict.fromkeys(places[fact] for fact in facts if fact in places))
    dropped["supporting_facts_without_sentence"] += sum(fact not in places for fact in facts)
    if not spans:
        dropped["questions_without_evidence_dropped"] += 1
        return None
    return QAPair(_id(row), question, (answer,), spans[0].doc_id, spans, (), "", row.where)


def _context(row: Fields) -> Iterator[tuple[str, list[str]]]:
    for entry in row.pairs("context", "title", "sentences"):
        yield entry.text("title").strip(), entry.texts("sentences", blanks=True)


def _facts(row: Fields) -> Iterator[tuple[str, int]]:
    for entry in row.pairs("supporting_facts", "title", "sent_id"):
        yield entry.text("title").strip(), entry.integer("sent_id")
