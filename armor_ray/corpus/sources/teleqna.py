"""TeleQnA as retrieval: a question must find its explanation among all explanations.

The published archive is encrypted against training-data contamination. It is decrypted in memory and never written. A copy that was
decrypted already (`.txt` or `.json`) is read as it is:

    object of questions by key, each {question str, "option 1".."option 5" str, answer "option N: text", explanation str, category str}
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from pathlib import Path

import pyzipper

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Corpus, Document, QAPair
from armor_ray.corpus.sources.fields import Fields
from armor_ray.corpus.sources.files import data_path, decode_json, member, read_bytes
from armor_ray.errors import ArmorError

PUBLISHED_NAME = "TeleQnA.zip"
PLAIN_NAME = "TeleQnA.txt"
PUBLISHED_PASSWORD = "teleqnadataset"

_TAG = re.compile(r"\s*\[[^\[\]]*\]\s*$")
_LABEL = re.compile(r"(option \d+)\s*:\s*(\S.*)", re.DOTALL)
_OPTION = re.compile(r"option \d+")
# 26 published rows have this heading where their question should be.
_LOST_QUESTION = "Research Papers"


def files(path: Path) -> list[Path]:
    """The archive, a decrypted copy of it, or the folder that holds either."""
    plain = path / PLAIN_NAME
    return [plain if plain.is_file() and not (path / PUBLISHED_NAME).is_file() else member(path, PUBLISHED_NAME)]


def read(config: DataConfig) -> Corpus:
    """Reads the published archive or its plain text.

    Each distinct explanation is one document and one passage. The question loses a trailing tag such as `[3GPP Release 17]`; its
    answer is the text of the correct option; the category is its domain.
    """
    table = _rows(config)
    documents: dict[str, Document] = {}
    pairs = []
    for key, row in table.items():
        document = _document(row, key, documents)
        if row.text("question").strip() != _LOST_QUESTION:
            pairs.append(_pair(row, key, document))
    notes = {"same_explanations_merged": len(table) - len(documents), "lost_questions_dropped": len(table) - len(pairs)}
    return Corpus(list(documents.values()), pairs, whole_documents=True, notes=notes)


def read_options(config: DataConfig) -> dict[str, tuple[str, ...]]:
    """The options of every question, by its id, in the order of their numbers."""
    return {key: tuple(_options(row)) for key, row in _rows(config).items()}


def _options(row: Fields) -> list[str]:
    texts = (row.optional_text(name) for name in sorted(row.names()) if _OPTION.fullmatch(name))
    return [text for text in texts if text.strip()]


def _rows(config: DataConfig) -> dict[str, Fields]:
    """The records by key."""
    (path,) = files(data_path(config))
    raw, where = _plain(path, config.password)
    table = decode_json(raw, where)
    if not isinstance(table, dict):
        raise ArmorError("not an object of questions", where=where, hint="give the archive as published")
    return {key: Fields(record, f"{where}: {key}") for key, record in table.items()}


def _plain(path: Path, password: str | None) -> tuple[bytes, str]:
    """The text and its name."""
    raw = read_bytes(path)
    if path.suffix in {".txt", ".json"}:
        if password is not None:
            raise ArmorError("a plain file has no password", where="data.password", hint="remove it")
        return raw, str(path)
    name, raw = _decrypt(raw, str(path), PUBLISHED_PASSWORD if password is None else password)
    return raw, f"{path}/{name}"


def _decrypt(archive: bytes, where: str, password: str) -> tuple[str, bytes]:
    try:
        with pyzipper.AESZipFile(io.BytesIO(archive)) as members:
            names = members.namelist()
            if len(names) != 1:
                raise ArmorError(f"the archive holds {len(names)} files, not one", where=where, hint="give the archive as published")
            return names[0], members.read(names[0], pwd=password.encode())
    except RuntimeError:  # what pyzipper raises for a missing or wrong password
        raise ArmorError("wrong or missing password", where=where, hint="set data.password to the one in TeleQnA's README") from None
    except (pyzipper.BadZipFile, zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, OSError, struct.error) as error:
        raise ArmorError(f"corrupt archive ({error})", where=where, hint="fetch it again") from None


def _document(row: Fields, key: str, documents: dict[str, Document]) -> Document:
    text = row.text("explanation").strip()
    if text not in documents:
        documents[text] = Document(key, "", text, "TeleQnA", "explanation", row.text("category"))
    return documents[text]


def _pair(row: Fields, key: str, document: Document) -> QAPair:
    return QAPair(
        example_id=key,
        question=_TAG.sub("", row.text("question")).strip(),
        answers=(_answer(row),),
        doc_id=document.doc_id,
        spans=(),
        positive_ids=(document.doc_id,),
        domain=row.text("category"),
        where=row.where,
    )


def _answer(row: Fields) -> str:
    """The text behind `option N:`. A bare number or letter is refused: whether it counts from 0 or 1 would be a guess.

    Where label and option text differ (5 published rows, the label's number being wrong in some) the label's own text counts.
    """
    match = _LABEL.fullmatch(row.text("answer").strip())
    if match is None or not row.has(match[1]):
        raise row.fault("field 'answer' does not name one of the options", "write it as 'option N: text'")
    return match[2]
