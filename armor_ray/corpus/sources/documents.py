"""A plain folder of `.txt`, `.md`, `.html` and `.pdf` files, each a document, with an optional `qa.jsonl` of questions about them.

A document's id is its path below the folder, its source the folder it lies in (itself, at the top). Questions have the fields of the
product's own format (see `rows`); their `doc_id` is that path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document
from armor_ray.corpus.sources.files import data_path, read_bytes
from armor_ray.corpus.sources.parsers import PARSERS, parse
from armor_ray.corpus.sources.row_files import json_lines
from armor_ray.corpus.sources.rows import named_documents, pairs_from_rows
from armor_ray.corpus.streams import survey
from armor_ray.errors import ArmorError

_QUESTIONS = "qa.jsonl"


def files(path: Path) -> list[Path]:
    """All documents below the folder in the order of their names, and qa.jsonl if it is there. Hidden files and folders are skipped.

    Raises:
        ArmorError: not a folder, or one without documents.
    """
    if not path.is_dir():
        raise ArmorError("not a folder", where=str(path), hint="data.path is the folder that holds the documents")
    found = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in PARSERS and file.is_file() and not _hidden(file, path)]
    if not found:
        raise ArmorError("no documents", where=str(path), hint=f"the folder needs files named {', '.join(sorted(PARSERS))}")
    questions = path / _QUESTIONS
    return [*found, questions] if questions.is_file() else found


def read(config: DataConfig) -> Corpus:
    """Reads all documents of the folder, and its questions; files without any text are dropped and counted."""
    folder = data_path(config)
    paths = files(folder)
    dropped: Counter[str] = Counter()
    questions = list(json_lines(paths[-1])) if paths[-1].name == _QUESTIONS else []
    again = partial(documents, folder.absolute(), [path.absolute() for path in paths], Counter())
    found, known = survey(documents(folder, paths, dropped), again, named_documents(questions))
    return Corpus(found, pairs_from_rows(questions, known), whole_documents=False, notes=dict(dropped))


def documents(folder: Path, paths: list[Path], dropped: Counter[str]) -> Iterator[Document]:
    """The documents of these files of the folder, one at a time.

    Raises:
        ArmorError: the first file that cannot be read or parsed.
    """
    for path in (path for path in paths if path.name != _QUESTIONS):
        name = path.relative_to(folder)
        title, text = parse(read_bytes(path), path)
        if text.strip():
            source = name.parent if name.parent.parts else name
            title = title or _printable(Path(path.stem))
            yield Document(_printable(name), title, text, _printable(source), path.suffix.lower().lstrip("."))
        else:
            dropped["documents_without_text_dropped"] += 1


def _printable(name: Path) -> str:
    """A path as text; bytes of a file name that are not UTF-8 are escaped."""
    return name.as_posix().encode("utf-8", "backslashreplace").decode("utf-8")


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
