"""Paid replies on disk, and the ledger of what they cost: both survive SIGKILL at any moment.

SQLite in WAL mode: a commit is in the kernel's hands when the call returns, so a killed process loses nothing that it was told. What is
kept: fingerprints, reply texts, token counts, money, and the parameters that an endpoint refused. Prompts, keys and headers are not.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from armor_ray.errors import ArmorError
from armor_ray.judges.request import Reply

_BUSY_SECONDS = 30.0

_TABLES = """
CREATE TABLE IF NOT EXISTS replies (
    fingerprint BLOB PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cost REAL NOT NULL, created REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS open_attempts (id INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL, estimate REAL NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (entry TEXT PRIMARY KEY, amount REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dialects (endpoint TEXT PRIMARY KEY, dialect TEXT NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO ledger VALUES ('paid', 0), ('unconfirmed', 0);
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Money over the cache's life.

    Attributes:
        paid: for replies that arrived.
        unconfirmed: upper estimate of attempts whose reply never arrived (time-outs, resets), which the endpoint may bill all the same.
        open: upper estimate of attempts under way, and of those that a killed process left behind.
    """

    paid: float
    unconfirmed: float
    open: float

    @property
    def committed(self) -> float:
        """What a budget must count: everything that may have been or may yet be billed."""
        return self.paid + self.unconfirmed + self.open


class ReplyCache:
    """The file behind one or several clients, of one or several processes on one machine.

    Args:
        path: on a local disk (SQLite's WAL does not work over a network file system); made if missing.

    Raises:
        ArmorError: the file cannot be written or is not such a cache.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The event loop's thread and the one that reads the accounts share the connection; SQLite serialises them.
            self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise ArmorError(f"not a usable cache of replies ({error})", where=str(path), hint="delete it or choose another path") from None

    def get(self, fingerprint: bytes) -> Reply | None:
        """The reply that was paid for, if any."""
        columns = "text, finish_reason, prompt_tokens, completion_tokens"
        row = self._db.execute(f"SELECT {columns} FROM replies WHERE fingerprint = ?", (fingerprint,)).fetchone()
        return replace(Reply(*row), cached=True) if row else None

    def open_attempt(self, fingerprint: bytes, estimate: float, budget: float | None) -> int | None:
        """Reserves the estimated cost of an attempt about to be sent; None when the budget does not allow it.

        Check and reservation are one transaction, so processes that share the file cannot pass the budget together.
        """
        with self._transaction():
            if budget is not None and self.ledger().committed + estimate > budget:
                return None
            return self._db.execute("INSERT INTO open_attempts (fingerprint, estimate) VALUES (?, ?)", (fingerprint, estimate)).lastrowid

    def settle(self, attempt: int, fingerprint: bytes, reply: Reply, cost: float) -> None:
        """Keeps a reply and replaces its attempt's estimate by what it cost."""
        row = (fingerprint, reply.text, reply.finish_reason, reply.prompt_tokens, reply.completion_tokens, cost, time.time())
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._close(attempt, "paid", cost)

    def settle_unusable(self, attempt: int, cost: float) -> None:
        """Records the cost of a reply that is worth nothing (empty, filtered) and is not kept."""
        with self._transaction():
            self._close(attempt, "paid", cost)

    def release(self, attempt: int, *, unconfirmed: bool) -> None:
        """Ends an attempt without a reply: free when the endpoint refused it, else its estimate stays counted as unconfirmed."""
        with self._transaction():
            estimate = self._db.execute("SELECT estimate FROM open_attempts WHERE id = ?", (attempt,)).fetchone()[0]
            self._close(attempt, "unconfirmed", estimate if unconfirmed else 0.0)

    def ledger(self) -> Ledger:
        """What was spent over the cache's life."""
        amounts = dict(self._db.execute("SELECT entry, amount FROM ledger").fetchall())
        reserved = self._db.execute("SELECT coalesce(sum(estimate), 0) FROM open_attempts").fetchone()[0]
        return Ledger(amounts["paid"], amounts["unconfirmed"], reserved)

    def dialect(self, endpoint: str) -> str | None:
        """What `remember_dialect` kept for an endpoint and model."""
        row = self._db.execute("SELECT dialect FROM dialects WHERE endpoint = ?", (endpoint,)).fetchone()
        return row[0] if row else None

    def remember_dialect(self, endpoint: str, dialect: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO dialects VALUES (?, ?)", (endpoint, dialect))

    def close(self) -> None:
        self._db.close()

    def _close(self, attempt: int, entry: str, amount: float) -> None:
        self._db.execute("DELETE FROM open_attempts WHERE id = ?", (attempt,))
        self._db.execute("UPDATE ledger SET amount = amount + ? WHERE entry = ?", (amount, entry))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
