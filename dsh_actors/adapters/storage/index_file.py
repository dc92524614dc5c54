"""The file of the index: made when it is wanted, thrown away when it is not ours or damaged.

Whatever goes wrong with it, its users go on without it. They wait for nobody: a busy index is as
good as none. Native code.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Sequence
from typing import Any

from dsh_actors.adapters.storage.layout import close_descriptor
from dsh_actors.adapters.storage.sqlite_file import Layout, connect, create_file, is_blank, lay_out
from dsh_actors.errors import SessionError

__all__ = ["LAYOUT", "IndexFile", "OpenIndex"]

LAYOUT = Layout(
    application_id=0x44534849,
    version=3,
    statements=(
        "CREATE TABLE sessions (key TEXT PRIMARY KEY, revision TEXT NOT NULL, id TEXT NOT NULL, cwd TEXT,"
        " title TEXT, created INTEGER NOT NULL, updated INTEGER NOT NULL, turns INTEGER NOT NULL,"
        " status TEXT NOT NULL, parent TEXT, crc INTEGER NOT NULL) STRICT",
        "CREATE TABLE projections (key TEXT PRIMARY KEY, identity TEXT NOT NULL, revision TEXT,"
        " next_seq INTEGER NOT NULL,"
        " fold TEXT NOT NULL, turns INTEGER NOT NULL, steps INTEGER NOT NULL, tool_calls INTEGER NOT NULL,"
        " retries INTEGER NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL,"
        " cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL, reasoning INTEGER NOT NULL) STRICT",
        "CREATE TABLE documents (document INTEGER PRIMARY KEY, key TEXT NOT NULL, seq INTEGER NOT NULL,"
        " type TEXT NOT NULL, time INTEGER NOT NULL) STRICT",
        "CREATE INDEX documents_by_key ON documents (key, seq)",
        "CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'unicode61')",
    ),
)

BUSY_S = 0.02
"""How long a writer waits for another: rows that stay stale cost less than waiting."""

_HARMLESS = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
    }
)


class IndexFile:
    """The index at ``path``. Its lock file keeps a damaged one from being removed while others use it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self) -> OpenIndex | None:
        """The index, made anew where it was damaged or foreign. None where it cannot be used now."""
        for _ in range(2):
            guard = self._guard(fcntl.LOCK_SH)
            if guard is None:
                return None
            found = OpenIndex(self, guard)
            if found.start():
                return found
            found.close()
            if not found.is_damaged:
                return None
        return None

    def discard(self) -> None:
        """Remove it, unless somebody has it open."""
        guard = self._guard(fcntl.LOCK_EX)
        if guard is None:
            return
        try:
            for suffix in ("-wal", "-shm", "-journal", ""):
                if os.path.lexists(self.path + suffix):
                    os.unlink(self.path + suffix)
        except OSError:
            return  # a directory that is read-only: it stays, and is not used
        finally:
            close_descriptor(guard)

    def _guard(self, mode: int) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            guard = os.open(f"{self.path}.lock", flags, 0o600)
        except OSError:
            return None  # no home yet, or a read-only one
        try:
            fcntl.flock(guard, mode | fcntl.LOCK_NB)
        except OSError:
            close_descriptor(guard)
            return None
        return guard


class OpenIndex:
    """A connection to the index whose failures are answers: nothing found, nothing written."""

    def __init__(self, file: IndexFile, guard: int) -> None:
        self._file = file
        self._guard = guard
        self._database: sqlite3.Connection | None = None
        self.is_damaged = False

    def start(self) -> bool:
        """Open the file. Whether it can be used; if not, `is_damaged` tells whether to throw it away."""
        path = self._file.path
        try:
            if not os.path.lexists(path):
                create_file(path)
            elif not stat.S_ISREG(os.lstat(path).st_mode):
                return False
            self._database = connect(path, BUSY_S)
            self._database.execute("PRAGMA synchronous = NORMAL")
            self.is_damaged = not _is_ready(self._database)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._note(error)
            return False
        except (SessionError, OSError):
            return False  # the place allows nothing more
        return not self.is_damaged

    def close(self) -> None:
        """Throws the file away if it turned out to be damaged."""
        if self._database is not None:
            self._database.close()
        close_descriptor(self._guard)
        if self.is_damaged:
            self._file.discard()

    def fetch(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows; none where the index fails."""
        if self._database is None or self.is_damaged:
            return []
        try:
            return self._database.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._note(error)
            return []

    def write(self, change: Callable[[sqlite3.Connection], None]) -> bool:
        """Make a change as one transaction. Whether it was made: not if others write just now."""
        database = self._database
        if database is None or self.is_damaged:
            return False
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                change(database)
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._note(error)
            return False
        except (UnicodeEncodeError, OverflowError):
            return False  # a name that is no text, a number that no column holds
        return True

    def _note(self, error: Exception) -> None:
        if isinstance(error, UnicodeDecodeError):
            self.is_damaged = True  # the library's message quotes a name that is no text
            return
        # Without a code it is the Python module that refuses: values, not the file, are wrong then.
        code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_BUSY)
        self.is_damaged = self.is_damaged or code & 0xFF not in _HARMLESS


def _is_ready(database: sqlite3.Connection) -> bool:
    """Whether it is our index; a blank file is made one first. Raises `sqlite3.Error`."""
    if is_blank(database):
        database.execute("PRAGMA journal_mode = WAL").fetchall()
        lay_out(database, LAYOUT)
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    return (application, version) == (LAYOUT.application_id, LAYOUT.version)
