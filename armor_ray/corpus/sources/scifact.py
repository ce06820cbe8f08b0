"""SciFact: scientific claims and the abstracts that support or refute them.

    corpus.jsonl    doc_id int, title str, abstract list of str (sentences)
    claims_*.jsonl  id int, claim str, evidence object: doc_id -> list of {sentences list of int, label str}

An abstract is a document; the evidence sentences are the positives, the label is the answer. (The BEIR edition of SciFact is read by
`data.format: beir`.)
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair, Span
from armor_ray.corpus.sources.fields import Fields, UniqueIds
from armor_ray.corpus.sources.files import data_path, member
from armor_ray.corpus.sources.row_files import json_lines
from armor_ray.errors import ArmorError

_ANSWERS = {"SUPPORT": "supported", "CONTRADICT": "refuted"}


def files(path: Path) -> list[Path]:
    """corpus.jsonl and every claims file of the folder."""
    claims = sorted(path.glob("claims_*.jsonl"))
    if not claims:
        raise ArmorError("no claims_*.jsonl", where=str(path), hint="data.path is the folder with corpus.jsonl and claims_train.jsonl")
    return [member(path, "corpus.jsonl"), *claims]


def read(config: DataConfig) -> Corpus:
    """Reads abstracts and claims; claims without evidence (undecided ones, and all of the test file) are dropped and counted."""
    corpus, *claims = files(data_path(config))
    documents: dict[str, Document] = {}
    sentences: dict[str, list[Span]] = {}
    document_ids, claim_ids = UniqueIds(), UniqueIds()
    for row in json_lines(corpus):
        document, spans = _document(row)
        document_ids.add(document.doc_id, row.where)
        documents[document.doc_id], sentences[document.doc_id] = document, spans
    pairs: list[QAPair] = []
    dropped: Counter[str] = Counter()
    for row in (row for path in claims for row in json_lines(path)):
        claim_ids.add(row.identifier("id"), row.where)
        if row.has("evidence") and row.record("evidence").names():
            pairs.append(_pair(row, sentences))
        else:
            dropped["claims_without_evidence_dropped"] += 1
    return Corpus(list(documents.values()), pairs, whole_documents=False, notes=dict(dropped))


def _document(row: Fields) -> tuple[Document, list[Span]]:
    doc_id, title = row.identifier("doc_id"), row.optional_text("title").strip()
    text = title
    spans = []
    for sentence in row.texts("abstract"):
        text += "\n" if text else ""
        spans.append(Span(doc_id, len(text), len(text) + len(sentence.rstrip())))
        text += sentence.rstrip()
    if not text:
        raise row.fault("neither title nor abstract", "fill one or remove the record")
    return Document(doc_id, title, text, doc_id, "abstract"), spans


def _pair(row: Fields, sentences: dict[str, list[Span]]) -> QAPair:
    evidence = row.record("evidence")
    spans: dict[Span, None] = {}
    answers: dict[str, None] = {}
    for doc_id in evidence.names():
        if doc_id not in sentences:
            raise evidence.fault(f"unknown document id '{doc_id}'", "correct it or add the document to the corpus")
        for entry in evidence.records(doc_id):
            spans |= dict.fromkeys(_sentences(entry, sentences[doc_id]))
            answers[_answer(entry)] = None
    if not spans:
        raise row.fault("claim without positives: its evidence names no sentence", "correct it or empty the evidence")
    claim = row.text("claim").strip()
    return QAPair(row.identifier("id"), claim, tuple(answers), next(iter(spans)).doc_id, tuple(spans), (), "", row.where)


def _sentences(entry: Fields, spans: list[Span]) -> list[Span]:
    numbers = entry.integers("sentences")
    if any(not 0 <= number < len(spans) for number in numbers):
        raise entry.fault(f"sentences {numbers} of an abstract of {len(spans)}", "sentences count from 0")
    return [spans[number] for number in numbers]


def _answer(entry: Fields) -> str:
    label = entry.text("label").strip().upper()
    if label not in _ANSWERS:
        raise entry.fault(f"label '{label}' is neither SUPPORT nor CONTRADICT", "correct it")
    return _ANSWERS[label]
