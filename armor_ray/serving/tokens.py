"""Bearer tokens, where they come from, and how often each may be used."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from armor_ray.errors import ArmorError
from armor_ray.serving.arguments import AuthArguments

_CHECK_SECONDS = 1.0
_MIN_CHARACTERS = 16
_logger = logging.getLogger("ray.serve")


class Tokens:
    """The tokens that are accepted now: those of an environment variable, or of a file that is read again when it changes.

    A file that is gone, unreadable or empty accepts nobody: taking a token away must work by taking it away.

    Raises:
        ArmorError: neither source holds a token at start, or one is shorter than 16 characters.
    """

    def __init__(self, arguments: AuthArguments, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = Path(arguments.tokens_file) if arguments.tokens_file else None
        self._clock = clock
        self._checked = clock()
        self._state: tuple[int, int, int] | None = None
        where = arguments.tokens_file or f"${arguments.tokens_env}"
        text = self._read() if self._file else os.environ.get(arguments.tokens_env or "", "")
        if not _listed(text):
            raise ArmorError("no token to accept", where=where, hint="put one a line, each of 16 characters or more")
        if any(len(token) < _MIN_CHARACTERS for token in _listed(text)):
            raise ArmorError(
                f"a token is shorter than {_MIN_CHARACTERS} characters", where=where, hint="make them with `openssl rand -hex 32`"
            )
        self._digests = _digests(text)

    def identify(self, token: str) -> str | None:
        """A name for a token that is accepted, which does not give it away; None for any other."""
        self._refresh()
        given = _digest(token)
        # All are compared, in constant time each: the time taken tells nothing.
        matches = [known for known in self._digests if hmac.compare_digest(known, given)]
        return matches[0][:12] if matches else None

    def _refresh(self) -> None:
        if self._file is None or self._clock() - self._checked < _CHECK_SECONDS:
            return
        self._checked = self._clock()
        if _state(self._file) != self._state:
            self._digests = _digests(self._read())
            _logger.info("tokens were read again: %d are accepted", len(self._digests))

    def _read(self) -> str:
        assert self._file is not None
        self._state = _state(self._file)
        try:
            return self._file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ""


class RateLimit:
    """A token bucket per caller: `per_minute` requests, as many at once, refilled evenly. Counts in one replica."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def wait(self, caller: str) -> float:
        """0 when the request may go on (and is counted), else the seconds until one may."""
        now = self._clock()
        bucket = self._buckets.setdefault(caller, _Bucket(float(self._per_minute), now))
        bucket.left = min(self._per_minute, bucket.left + (now - bucket.since) * self._per_minute / 60)
        bucket.since = now
        if bucket.left < 1:
            return (1 - bucket.left) * 60 / self._per_minute
        bucket.left -= 1
        return 0.0


@dataclass(slots=True)
class _Bucket:
    left: float
    since: float


def require_tokens(host: str | None, arguments: AuthArguments) -> None:
    """Refuses to serve other machines without tokens.

    Args:
        host: address that the proxies listen on.

    Raises:
        ArmorError: it is not loopback, there are no tokens, and nobody said that this is meant.
    """
    if not (arguments.has_tokens or arguments.allow_unauthenticated or _is_loopback(host)):
        hint = "set auth.tokens_env or auth.tokens_file, or auth.allow_unauthenticated: true where something in front checks"
        raise ArmorError(f"listens on {host} and asks nobody for a token", where="http_options.host", hint=hint)


def _is_loopback(host: str | None) -> bool:
    if host in (None, "localhost"):  # None: no proxy listens at all
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _listed(text: str) -> list[str]:
    """One token a line, or several with commas between; lines that begin with # are comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [token.strip() for line in lines for token in line.split(",") if token.strip()]


def _digests(text: str) -> list[str]:
    return [_digest(token) for token in _listed(text) if len(token) >= _MIN_CHARACTERS]


def _digest(token: str) -> str:
    # Digests have one length, so that the comparison does not tell that of the token.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
