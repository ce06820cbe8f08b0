"""Feedback as training examples: one line of `qa.jsonl` each, on disk before the request is answered."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import uuid
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from armor_ray.errors import ArmorError
from armor_ray.serving.passages import Extent


class FeedbackLog:
    """A file that any number of processes of one machine append to; lines never mix, and none is half-written.

    Raises:
        ArmorError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
            _sync_folder(path.parent)
        except OSError as error:
            hint = "name a writable file in feedback_file"
            raise ArmorError(f"feedback cannot be written ({error.strerror})", where=str(path), hint=hint) from None

    def append(self, record: dict[str, Any]) -> None:
        """Returns when the line is on disk.

        Raises:
            OSError: it is not; the file is as it was.
        """
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        with self._path.open("r+b", buffering=0) as file:  # nothing is left in a buffer when the disk is full
            fcntl.flock(file, fcntl.LOCK_EX)
            end = _whole_lines(file)
            file.truncate(end)
            try:
                file.seek(end)
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def example(question: str, extent: Extent, answer: str | None, encoder: str | None) -> dict[str, Any]:
    """A training example of `qa.jsonl` whose evidence is one passage.

    Args:
        answer: None: the passage's text stands in, and the metadata say so.
        encoder: version of the encoder that had found the passage, for the metadata.
    """
    facts = {
        "origin": "feedback",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "encoder": encoder,
        "answered": answer is not None,
    }
    return {
        "id": f"feedback-{uuid.uuid4().hex}",
        "question": question,
        "answers": [extent.text if answer is None else answer],
        "doc_id": extent.doc_id,
        "evidence": [{"start": extent.start, "end": extent.end}],
        "metadata": facts,
    }


def _whole_lines(file: FileIO) -> int:
    """Where the last whole line ends: what a killed process left behind it was never acknowledged."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
