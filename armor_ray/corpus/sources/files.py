"""Opening and decoding input files; what cannot be read is an ArmorError with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from armor_ray.config import DataConfig
from armor_ray.corpus.sources.hub import PREFIX, fetch_dataset
from armor_ray.errors import ArmorError


def data_path(config: DataConfig) -> Path:
    """`data.path` as an existing file or folder; a Hugging Face data set (`hf://`) is fetched first."""
    if config.path is None:
        raise ArmorError("not set", where="data.path", hint=f"format '{config.format}' reads a file or folder: give its path")
    if config.path.startswith(PREFIX):
        return fetch_dataset(config.path)
    path = Path(config.path).expanduser()
    if not path.exists():
        raise ArmorError("no such file or folder", where=str(path), hint="correct data.path")
    return path


def member(path: Path, name: str) -> Path:
    """The file `name` in a folder; a path that is a file already is returned as it is."""
    if not path.is_dir():
        return path
    if not (path / name).is_file():
        raise ArmorError("missing file", where=str(path / name), hint="correct data.path or add the file")
    return path / name


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArmorError(f"cannot be read ({error.strerror})", where=str(path), hint="check the file and its permissions") from None


def decode_json(raw: bytes, where: str, first_line: int = 1) -> Any:
    """Parses UTF-8 JSON (with or without a byte order mark).

    Args:
        raw: one whole JSON value.
        where: the file's name for errors.
        first_line: the line of the file that `raw` starts on.
    """
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = first_line + raw.count(b"\n", 0, error.start)
        raise ArmorError("invalid UTF-8", where=f"{where}:{line}", hint="save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise ArmorError(f"malformed JSON ({error.msg}, column {error.colno})", where=f"{where}:{line}", hint="correct this line") from None
    except (ValueError, RecursionError):  # absurdly long numbers and absurdly deep nesting
        raise ArmorError("malformed JSON", where=f"{where}:{first_line}", hint="correct this record") from None
