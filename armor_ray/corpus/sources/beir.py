"""Any BEIR folder.

    corpus.jsonl       _id, title (may be empty), text, metadata
    queries.jsonl      _id, text, metadata
    qrels/<split>.tsv  query-id, corpus-id, score, tab-separated with a header; a score above 0 is a positive

Documents are finished passages and are not cut. BEIR has no answers; `metadata.answers` (list of strings) or `metadata.answer` gives
them where a set is to be scored by a generator. The published splits are united and split anew.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair
from armor_ray.corpus.sources.fields import Fields, UniqueDigests, UniqueIds
from armor_ray.corpus.sources.files import data_path, member, read_bytes
from armor_ray.corpus.sources.row_files import json_lines
from armor_ray.corpus.streams import survey
from armor_ray.errors import ArmorError


def files(path: Path) -> list[Path]:
    """corpus.jsonl, queries.jsonl and all qrels of the folder."""
    qrels = sorted(path.glob("qrels/*.tsv"))
    if not qrels:
        raise ArmorError("no qrels/*.tsv", where=str(path), hint="data.path is a folder with corpus.jsonl, queries.jsonl and qrels/")
    return [member(path, "corpus.jsonl"), member(path, "queries.jsonl"), *qrels]


def read(config: DataConfig) -> Corpus:
    """Reads documents, queries and judgements. Blank documents (BEIR has some), queries without a judged positive, and judgements of
    unknown ids are dropped and counted."""
    corpus, queries, *qrels = files(data_path(config))
    dropped: Counter[str] = Counter()
    positives = [found for path in qrels for found in _positives(path)]
    again = partial(_documents, corpus.absolute(), Counter())
    documents, known = survey(_checked(corpus, dropped), again, {doc_id for _, doc_id in positives})
    judged: dict[str, dict[str, None]] = defaultdict(dict)
    for query_id, doc_id in positives:
        if doc_id in known:
            judged[query_id][doc_id] = None
        else:
            dropped["judgements_of_unknown_documents"] += 1
    pairs: list[QAPair] = []
    ids = UniqueIds()
    for row in json_lines(queries):
        ids.add(row.identifier("_id"), row.where)
        if row.identifier("_id") in judged:
            pairs.append(_pair(row, tuple(judged[row.identifier("_id")])))
        else:
            dropped["queries_without_positives_dropped"] += 1
    return Corpus(documents, pairs, whole_documents=True, notes=dict(dropped))


def _checked(path: Path, dropped: Counter[str]) -> Iterator[Document]:
    """The documents, whose ids must be unique, blank ones' too."""
    ids = UniqueDigests(lambda name: next(row.where for row in json_lines(path) if row.identifier("_id") == name))
    return _documents(path, dropped, ids)


def _documents(path: Path, dropped: Counter[str], ids: UniqueDigests | None = None) -> Iterator[Document]:
    for row in json_lines(path):
        doc_id, title, text = row.identifier("_id"), row.optional_text("title"), row.optional_text("text")
        if ids is not None:
            ids.add(doc_id, row.where)
        if text.strip():
            yield Document(doc_id, title, text, doc_id, "")
        else:
            dropped["empty_documents_dropped"] += 1


def _positives(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = read_bytes(path).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ArmorError("invalid UTF-8", where=str(path), hint="save the file as UTF-8") from None
    for number, line in enumerate(lines, start=1):
        cells = line.rstrip("\r").split("\t")
        if line.strip() and not (number == 1 and cells[0] == "query-id"):
            yield from _positive(cells, f"{path}:{number}")


def _positive(cells: list[str], where: str) -> list[tuple[str, str]]:
    try:
        query_id, doc_id, score = cells
        return [(query_id, doc_id)] if float(score) > 0 else []
    except ValueError:
        raise ArmorError("not 'query-id, corpus-id, score' separated by tabs", where=where, hint="correct this line") from None


def _pair(row: Fields, positive_ids: tuple[str, ...]) -> QAPair:
    return QAPair(row.identifier("_id"), row.text("text").strip(), _answers(row), positive_ids[0], (), positive_ids, "", row.where)


def _answers(row: Fields) -> tuple[str, ...]:
    if not row.has("metadata"):
        return ()
    metadata = row.record("metadata")
    answers = [metadata.text("answer")] if metadata.has("answer") else metadata.texts("answers")
    return tuple(answer.strip() for answer in answers)
