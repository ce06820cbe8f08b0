"""One run at a time on a workspace: a lock that names its owner and outlives nobody."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.fs as pafs

from armor_ray.atomic import is_running
from armor_ray.errors import ArmorError


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds a lock."""

    pid: int
    host: str
    since: str

    @classmethod
    def this(cls) -> Owner:
        return cls(os.getpid(), socket.gethostname(), datetime.now().astimezone().isoformat(timespec="seconds"))

    @classmethod
    def parse(cls, data: str) -> Owner | None:
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None

    @property
    def is_dead(self) -> bool:
        """Whether it certainly runs no more; of other machines nobody knows."""
        return self.host == socket.gethostname() and not is_running(self.pid)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} since {self.since}"


@contextlib.contextmanager
def folder_lock(path: Path, where: str) -> Iterator[None]:
    """Holds `flock` on a file; the kernel drops it when its owner dies.

    Raises:
        ArmorError: another process holds it, or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ArmorError(f"cannot write to the workspace ({error.strerror})", where=where, hint="choose another workspace") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise _held(Owner.parse(handle.read()), where, "wait for it or stop it") from None
        handle.truncate(0)
        handle.write(json.dumps(asdict(Owner.this())))
        handle.flush()
        yield


@contextlib.contextmanager
def object_lock(fs: pafs.FileSystem, path: str, where: str) -> Iterator[None]:
    """Holds an object that names its owner, since object stores have no locks.

    A dead owner's lock is taken over where it ran on this machine. Two runs that start at the same moment may both find no lock; each
    looks again after writing, and only the last writer goes on.

    Raises:
        ArmorError: another process holds it.
    """
    hint = f"if that run is dead, delete {path}"
    found = _read(fs, path)
    holder = Owner.parse(found) if found is not None else None
    if found is not None and not (holder is not None and holder.is_dead):
        raise _held(holder, where, hint)
    mine = json.dumps(asdict(Owner.this()))
    with fs.open_output_stream(path) as stream:
        stream.write(mine.encode())
    now = _read(fs, path)
    if now != mine:
        raise _held(Owner.parse(now or ""), where, hint)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            fs.delete_file(path)


def _read(fs: pafs.FileSystem, path: str) -> str | None:
    try:
        with fs.open_input_stream(path) as stream:
            return stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return None


def _held(owner: Owner | None, where: str, hint: str) -> ArmorError:
    return ArmorError(f"another run holds this workspace ({owner or 'owner unknown'})", where=where, hint=hint)
