"""Files and folders that appear whole or not at all on a local disk, and what to do with what a killed process left half-written."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from pathlib import Path

DRAFT, OLD, PART = ".draft-", ".old-", ".part-"

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_DISK_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}
_NO_SPACE_BYTES = 1 << 20


def new_draft(target: Path) -> Path:
    """An empty folder beside `target`, to be filled and then installed; its name tells whose it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{DRAFT}{target.name}-{os.getpid()}-"))
    folder.chmod(0o755)  # mkdtemp made it private
    return folder


def install(draft: Path, target: Path) -> None:
    """Moves a finished folder to `target` in one step: at every moment the old folder or the new one is there, whole.

    What stood at `target` is deleted. Where the file system cannot exchange two folders (NFS), there are two steps; a kill between
    them leaves the old folder aside, and `clean_leftovers` puts it back.
    """
    try:
        draft.rename(target)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchange(draft, target):
        shutil.rmtree(draft, ignore_errors=True)
        return
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{OLD}{target.name}-{os.getpid()}-"))
    target.rename(aside)
    draft.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two paths atomically; False where kernel or file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV):
        return False
    raise OSError(code, os.strerror(code), str(second))


def write_file(target: Path, data: bytes) -> None:
    """Writes one file so that readers see the old content or the new."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f"{PART}{target.name}-{os.getpid()}-")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def clean_leftovers(root: Path) -> None:
    """Removes drafts and parts of processes that are gone, and puts back what one of them had set aside to replace."""
    for parent, folders, files in os.walk(root):
        for name in [*folders, *files]:
            if name.startswith((DRAFT, OLD, PART)) and not _has_living_owner(name):
                _clean(Path(parent, name))
        folders[:] = [name for name in folders if not name.startswith(".")]


def _clean(path: Path) -> None:
    target = path.parent / path.name.removeprefix(OLD).rsplit("-", 2)[0]
    if path.name.startswith(OLD) and not target.exists() and any(path.iterdir()):
        path.rename(target)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _has_living_owner(name: str) -> bool:
    parts = name.rsplit("-", 2)
    return len(parts) == 3 and parts[1].isdigit() and is_running(int(parts[1]))


def is_running(pid: int) -> bool:
    """Whether this machine has a process of that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def disk_fault(error: BaseException, folder: Path) -> str | None:
    """The disk's reason for a failed write, in words; None when it was something else.

    Libraries report a full disk in their own ways (numpy as OSError without a number, safetensors and FAISS in words only, some not at
    all), so a write that failed on a disk without free space counts as one.
    """
    if isinstance(error, OSError) and error.errno in _DISK_FAULTS:
        return os.strerror(error.errno)
    no_space = os.strerror(errno.ENOSPC)
    if no_space in str(error):
        return no_space
    with contextlib.suppress(OSError):
        if shutil.disk_usage(folder).free < _NO_SPACE_BYTES:
            return no_space
    return None
