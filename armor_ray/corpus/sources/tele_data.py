"""Tele-Data: telecom documents of four kinds, as record files.

    id        str, such as `standard_12`; unique
    category  str: arxiv, standard, wiki or web
    content   str, the document
    metadata  str, a Python or JSON literal whose keys vary by category (Title, File_name, Url, ...), or an object

The set has millions of documents: `documents` streams them and holds only their ids.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document
from armor_ray.corpus.sources.fields import Fields
from armor_ray.corpus.sources.files import data_path
from armor_ray.corpus.sources.row_files import record_files, rows
from armor_ray.corpus.streams import survey

_TITLES = ("Title", "title", "File_name", "file_name", "Url", "url")
_LONGEST_METADATA = 20_000  # a longer literal is no metadata; parsing it could exhaust the parser's stack


def files(path: Path) -> list[Path]:
    """The file itself, or all record files below the folder."""
    return record_files(path)


def read(config: DataConfig) -> Corpus:
    """All documents, without questions: what the documents-only pipeline begins with."""
    dropped: Counter[str] = Counter()
    paths = files(data_path(config))
    found, _ = survey(documents(paths, dropped), partial(documents, [path.absolute() for path in paths], Counter()), wanted=())
    return Corpus(found, [], whole_documents=False, notes=dict(dropped))


def documents(paths: list[Path], dropped: Counter[str]) -> Iterator[Document]:
    """The documents of these files in their order.

    Args:
        paths: record files.
        dropped: counts blank documents and repeated ids, of which the first stays.

    Raises:
        ArmorError: the first faulty record, with its place.
    """
    seen: set[str] = set()
    for row in (row for path in paths for row in rows(path)):
        doc_id, text = row.identifier("id"), row.optional_text("content")
        if doc_id in seen:
            dropped["repeated_documents_dropped"] += 1
        elif not text.strip():
            dropped["empty_documents_dropped"] += 1
        else:
            seen.add(doc_id)
            yield Document(doc_id, _title(row), text, doc_id, row.optional_text("category"))


def _title(row: Fields) -> str:
    """The document's title, file or address; empty where the metadata has none or cannot be read: nothing depends on it."""
    value = row.value("metadata")
    metadata = _literal(value) if isinstance(value, str) else value
    if not isinstance(metadata, dict):
        return ""
    titles = (metadata.get(name) for name in _TITLES)
    title = next((title for title in titles if isinstance(title, str)), "")
    return title.encode("utf-8", "replace").decode("utf-8").strip()


def _literal(text: str) -> Any:
    if len(text) > _LONGEST_METADATA:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
