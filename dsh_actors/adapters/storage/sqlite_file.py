"""One SQLite database file: who may use it, what must be in it, and its errors as ours.

Native code. A connection belongs to one thread at a time; several connections may be open at once.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from dsh_actors.adapters.storage.layout import close_descriptor, fsync_directory, storage_error
from dsh_actors.errors import (
    SessionBusy,
    SessionCorrupt,
    SessionError,
    SessionUnsupported,
    StorageError,
    StorageFull,
    is_disk_full,
)

__all__ = [
    "Layout",
    "SqliteFile",
    "connect",
    "create_file",
    "database_error",
    "is_blank",
    "lay_out",
    "require_layout",
]

_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_NO_PLACE = _FULL | {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR}
_MAX_IDLE = 4
_PROBED = 256 * 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """What a database must be: its marks in the file's header, and the statements that made it."""

    application_id: int
    version: int
    statements: tuple[str, ...]


class SqliteFile:
    """A database whose loss is not forgiven: every commit is on the disk, damage is reported.

    Connections are kept open while the file is `held`, as closing the last one costs a clean-up.
    """

    def __init__(
        self, path: str, layout: Layout, busy_timeout_s: float = 5.0, max_idle: int = _MAX_IDLE
    ) -> None:
        self.path = path
        self._layout = layout
        self._busy_timeout_s = busy_timeout_s
        self._max_idle = max_idle
        self._idle: list[sqlite3.Connection] = []
        self._holders: list[None] = []  # as many as hold it; threads add and take away in one step

    def hold(self) -> None:
        """Somebody is going to write now and then; `let_go` undoes it."""
        self._holders.append(None)

    def let_go(self) -> None:
        self._holders.pop()
        while self._idle and not self._holders:
            self._idle.pop().close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection; None while there is no database. Errors leave as `database_error` makes them."""
        with self._translated("read"):
            database = self._take(is_new=False)
            try:
                yield database
            except BaseException:
                _drop(database)
                raise
            self._give_back(database)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, made durable at the end; nothing of it stays when anything fails."""
        with self._translated("write"):
            database = self._take(is_new=True)
            assert database is not None, "it was created"
            try:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            except SessionError:
                # Refused by us: the connection is sound.
                database.execute("ROLLBACK")
                self._give_back(database)
                raise
            except BaseException:
                _drop(database)
                raise
            self._give_back(database)

    def give_back_room(self) -> None:
        """Let the file system have the pages of what was removed."""
        with self.reading() as database:
            if database is not None:
                # A row without columns a page: only a script goes on to the last of them.
                database.executescript("PRAGMA incremental_vacuum")

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise database_error(error, action, self.path) from error
        except UnicodeDecodeError as error:
            # The library quotes damaged names in its messages, and Python cannot read those.
            raise SessionCorrupt(f"{self.path} is damaged: its schema is no text") from error

    def _take(self, *, is_new: bool) -> sqlite3.Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return self._open(is_new)

    def _give_back(self, database: sqlite3.Connection | None) -> None:
        if database is None:
            return
        is_shared = not isinstance(database, _StillConnection)
        if is_shared and self._holders and len(self._idle) < self._max_idle:
            self._idle.append(database)
        else:
            database.close()

    def _open(self, is_new: bool) -> sqlite3.Connection | None:
        if not _require_safe(self.path):
            if not is_new:
                return None
            create_file(self.path)
        try:
            return self._open_as(sqlite3.Connection, is_new)
        except sqlite3.Error as error:
            if is_new or not _is_still(self.path, error):
                raise
            # Nobody can write to it, as the disk is full or read-only.
            return self._open_as(_StillConnection, is_new)

    def _open_as(self, kind: type[sqlite3.Connection], is_new: bool) -> sqlite3.Connection | None:
        database = connect(self.path, self._busy_timeout_s, kind)
        try:
            if kind is not _StillConnection:
                _require_setting(database, "synchronous", "FULL", 2, self.path)
            if is_new:
                if is_blank(database):
                    # Both are properties of the file. Freed pages go back to the file system when asked.
                    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                    _require_setting(database, "journal_mode", "WAL", "wal", self.path)
                    lay_out(database, self._layout)
            elif is_blank(database):
                # Made by somebody who did not come further.
                database.close()
                return None
            require_layout(database, self._layout, self.path)
        except BaseException:
            database.close()
            raise
        return database


class _StillConnection(sqlite3.Connection):
    """Reads the file as it is and takes no lock. Used once: the disk may have room a moment later."""


def _is_still(path: str, error: sqlite3.Error) -> bool:
    """Whether the file is whole by itself, and all that failed is what readers keep beside it for writers."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _NO_PLACE:
        return False
    try:
        return os.path.getsize(f"{path}-wal") == 0
    except FileNotFoundError:
        return True
    except OSError:
        return False


def connect(
    path: str, busy_timeout_s: float, kind: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open an existing file, without looking at it yet. Raises `sqlite3.Error`."""
    mode = "mode=ro&immutable=1" if kind is _StillConnection else "mode=rw"
    database = sqlite3.connect(
        f"file:{quote(path)}?{mode}",
        uri=True,
        factory=kind,
        timeout=busy_timeout_s,
        isolation_level=None,
        # Which native thread comes next does not matter; they come one after another.
        check_same_thread=False,
    )
    # What is damaged must come as far as the checks that tell so.
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA mmap_size = 0")
    except BaseException:
        database.close()
        raise
    return database


def create_file(path: str) -> None:
    """An empty file for the user only, unless there is one. Raises `StorageError`."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        close_descriptor(descriptor)
        fsync_directory(os.path.dirname(path))
    except OSError as error:
        raise storage_error(error, "create", path) from error


def is_blank(database: sqlite3.Connection) -> bool:
    """Whether nobody has made anything of the file yet. Raises `sqlite3.Error`."""
    tables: int = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return tables == 0 and _pragma(database, "application_id") == 0 and _pragma(database, "user_version") == 0


def lay_out(database: sqlite3.Connection, layout: Layout) -> None:
    """Make a blank database ours, as one transaction; a process that comes second finds it made.

    Raises `sqlite3.Error`.
    """
    database.execute("BEGIN IMMEDIATE")
    if is_blank(database):
        for statement in layout.statements:
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {layout.application_id}")
        database.execute(f"PRAGMA user_version = {layout.version}")
    database.execute("COMMIT")


def require_layout(database: sqlite3.Connection, layout: Layout, path: str) -> None:
    """Raises `SessionUnsupported` for a newer version, `SessionCorrupt` for any other difference."""
    application = _pragma(database, "application_id")
    version = _pragma(database, "user_version")
    if application != layout.application_id:
        raise SessionCorrupt(f"{path} is another program's database", hint="move it away, or set DSH_HOME")
    if version > layout.version:
        message = f"{path} was written by a newer version of dsh (format {version})"
        raise SessionUnsupported(message, hint="upgrade dsh to read it")
    query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%' ORDER BY rowid"
    rows = database.execute(query).fetchall()
    if version < layout.version or tuple(sql for (sql,) in rows) != layout.statements:
        raise SessionCorrupt(f"{path} has been altered: its tables are not those of dsh")


def database_error(error: sqlite3.Error, action: str, path: str) -> SessionError:
    """``error`` as one clear line that names the file."""
    # Errors of the Python module itself, such as a closed connection, have no code.
    extended: int = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code in _FULL or extended in _FULL or (code == sqlite3.SQLITE_IOERR and not _has_room(path)):
        return StorageFull(f"cannot {action} {path}: {error}", hint="make room, then resume the session")
    if code in _BUSY:
        return SessionBusy(f"cannot {action} {path}: {error}", hint="another program is using it; try again")
    if code in _CORRUPT or type(error) is sqlite3.DatabaseError:
        return SessionCorrupt(
            f"{path} is damaged: {error}", hint="the file was left as it is; put back a copy of it"
        )
    return StorageError(f"cannot {action} {path}: {error}")


def _has_room(path: str) -> bool:
    """Whether a file as large as the database's can grow. The library says of a quota, or of a limit on the
    sizes of files, only that something is wrong with the disk.
    """
    sizes = [os.path.getsize(name) for name in (path, f"{path}-wal") if os.path.exists(name)]
    probe = f"{path}.probe-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.unlink(probe)
            return os.pwrite(descriptor, bytes(_PROBED), max(sizes, default=0)) == _PROBED
        finally:
            close_descriptor(descriptor)
    except OSError as error:
        return not is_disk_full(error)


def _drop(database: sqlite3.Connection | None) -> None:
    """Close, which takes back an open transaction."""
    if database is not None:
        database.close()


def _require_safe(path: str) -> bool:
    """Whether the file is there. Raises `StorageError` where others could change it or put another there."""
    parent = os.path.dirname(path)
    try:
        place = os.stat(parent)
        file = os.lstat(path)
    except FileNotFoundError:
        file = None
        if not os.path.isdir(parent):
            return False
    except OSError as error:
        raise storage_error(error, "read", path) from error
    if place.st_uid != os.geteuid() or place.st_mode & 0o022:
        raise StorageError(
            f"others may change {parent}, so sessions in a database are not safe there",
            hint=f"run: chmod go-w {parent}",
        )
    if file is None:
        return False
    if not stat.S_ISREG(file.st_mode):
        raise StorageError(f"{path} is no regular file")
    if file.st_uid != os.geteuid() or file.st_mode & 0o022:
        raise StorageError(f"others may change {path}", hint=f"run: chmod 600 {path}")
    return True


def _pragma(database: sqlite3.Connection, name: str) -> int:
    value: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _require_setting(database: sqlite3.Connection, name: str, value: str, due: object, path: str) -> None:
    database.execute(f"PRAGMA {name} = {value}").fetchall()
    found = database.execute(f"PRAGMA {name}").fetchone()[0]
    if found != due:
        raise StorageError(f"{path} does not work with {name} = {value}: it stays {found}")
