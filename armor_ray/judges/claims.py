"""Who is asking what: keeps processes that share a cache from paying for the same request at the same time.

Each fingerprint is one byte of an (empty) lock file. The kernel drops a dead process's locks, so nothing is left to clean after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path

_POLL_SECONDS = 0.05


class Claims:
    """Locks of a cache's lock file, one byte per fingerprint.

    Locks of an open file description (Linux), not of the process: two caches of one process exclude each other too, and closing one
    does not drop the other's.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @contextlib.asynccontextmanager
    async def hold(self, fingerprint: bytes) -> AsyncIterator[None]:
        """Waits until nobody else asks for `fingerprint`, then keeps others waiting."""
        # 62 bits fit a file offset; two fingerprints that share them only wait for each other.
        offset = int.from_bytes(fingerprint[:8], "big") >> 2
        while not self._try_lock(offset):
            await asyncio.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            self._call(fcntl.F_UNLCK, offset)

    def close(self) -> None:
        os.close(self._descriptor)

    def _try_lock(self, offset: int) -> bool:
        try:
            self._call(fcntl.F_WRLCK, offset)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _call(self, kind: int, offset: int) -> None:
        # struct flock of 64-bit Linux: type, whence, start, length, pid (0 for these locks).
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, offset, 1, 0))
