"""The table of hosted agents, in one SQLite file of the home: a sleeping agent is a row of it, no more.

Native code. One process at a time has it; the kernel lock beside it ends with that process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from dsh_actors.adapters.storage.lock import SessionLock, this_process
from dsh_actors.adapters.storage.sqlite_file import Layout, SqliteFile
from dsh_actors.core.text import clean_text
from dsh_actors.errors import SessionBusy, StorageError

__all__ = ["AgentRow", "Change", "Registry"]

LAYOUT = Layout(
    application_id=0x44534841,
    version=1,
    statements=(
        "CREATE TABLE agents (id TEXT PRIMARY KEY, state TEXT NOT NULL, parent TEXT, cwd TEXT NOT NULL,"
        " model TEXT NOT NULL, title TEXT, turn INTEGER NOT NULL, next_turn INTEGER NOT NULL,"
        " next_step INTEGER NOT NULL, tokens INTEGER NOT NULL, cost REAL, currency TEXT,"
        " created INTEGER NOT NULL, updated INTEGER NOT NULL, error TEXT, last_end TEXT,"
        " base TEXT NOT NULL, run_from INTEGER, run_ms INTEGER NOT NULL, options TEXT NOT NULL)"
        " STRICT, WITHOUT ROWID",
    ),
)


@dataclass(slots=True)
class AgentRow:
    """What is known of an agent whether it is live or not.

    ``last_end`` is the JSON text of the last ``run.end``. ``base`` is what the limits count from,
    the members of a `LimitBase` as a JSON list. ``run_from`` is the event that a run which is not over began
    with, None where nothing is owed; ``run_ms`` is what that run had taken when it was last looked at.
    """

    id: str
    state: str
    parent: str | None
    cwd: str
    model: str
    title: str | None
    turn: int
    next_turn: int
    next_step: int
    tokens: int
    cost: float | None
    currency: str | None
    created: int
    updated: int
    error: str | None
    last_end: str | None
    base: str
    run_from: int | None
    run_ms: int


_SMALL_CACHE = "PRAGMA cache_size = -256"
"""In KiB: rows are looked up one by one, and the system keeps the file in memory anyway."""

_MAX_INTEGER = 2**63 - 1
_COLUMNS = tuple(each.name for each in fields(AgentRow))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM agents"
_MARKS = ", ".join("?" * (len(_COLUMNS) + 1))
_INSERT = f"INSERT INTO agents ({', '.join(_COLUMNS)}, options) VALUES ({_MARKS})"
_UPDATE = f"UPDATE agents SET {', '.join(f'{name} = ?' for name in _COLUMNS[1:])} WHERE id = ?"
_LIST = (
    "SELECT id, state, parent, cwd, model, title, turn, NULL, NULL, next_turn, next_step, tokens, cost,"
    " currency, created, updated, 0, error, last_end FROM agents"
)


@dataclass(frozen=True, slots=True)
class Change:
    """One row as it shall be. ``options``: it is new. ``values`` None: it goes."""

    id: str
    values: tuple[Any, ...] | None
    options: str | None = None

    @staticmethod
    def of(row: AgentRow, options: str | None = None) -> Change:
        return Change(row.id, tuple(_storable(getattr(row, name)) for name in _COLUMNS), options)


def _storable(value: Any) -> Any:
    """What the table can hold: one value that it cannot would keep every other row from being written.

    Names of directories may be no UTF-8, and a provider may count what it likes.
    """
    if isinstance(value, str):
        return clean_text(value)
    return max(-_MAX_INTEGER, min(value, _MAX_INTEGER)) if isinstance(value, int) else value


class Registry:
    """The table below ``home``. `open` it first, `close` it last."""

    def __init__(self, home: str) -> None:
        self._directory = os.path.join(home, "daemon")
        # Two connections are kept: one that writes and one that reads.
        self._file = SqliteFile(os.path.join(self._directory, "agents.sqlite3"), LAYOUT, max_idle=2)
        self._lock: SessionLock | None = None

    def open(self) -> None:
        """Take the table. Raises `SessionBusy` naming the process that has it, `StorageError`."""
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot create {self._directory}: {error.strerror}") from error
        path = os.path.join(self._directory, "lock")
        try:
            self._lock = SessionLock.acquire(path, this_process(), f"the daemon of {self._directory}")
        except SessionBusy as error:
            error.hint = "one daemon serves a home; talk to that one, or set DSH_HOME"
            raise
        self._file.hold()

    def close(self) -> None:
        """Nothing happens where it is not open."""
        lock, self._lock = self._lock, None
        if lock is not None:
            self._file.let_go()
            lock.release()

    def write(self, changes: Iterable[Change]) -> None:
        """All or nothing, durable on return. Raises `StorageFull` or `StorageError`."""
        if self._lock is None:  # another process may have it by now
            raise StorageError("the table of agents is closed")
        with self._file.writing() as database:
            database.execute(_SMALL_CACHE)
            for change in changes:
                if change.values is None:
                    database.execute("DELETE FROM agents WHERE id = ?", (change.id,))
                elif change.options is not None:
                    database.execute(_INSERT, (*change.values, change.options))
                else:
                    database.execute(_UPDATE, (*change.values[1:], change.id))

    def settle(self) -> None:
        """After a start: what was idle is asleep."""
        with self._file.writing() as database:
            database.execute("UPDATE agents SET state = 'asleep' WHERE state = 'idle'")

    def read(self, agent_id: str) -> AgentRow | None:
        found = self._query(f"{_SELECT} WHERE id = ?", (agent_id,))
        return AgentRow(*found[0]) if found else None

    def options(self, agent_id: str) -> str | None:
        found = self._query("SELECT options FROM agents WHERE id = ?", (agent_id,))
        return str(found[0][0]) if found else None

    def owed(self) -> list[str]:
        """The agents with a run that is not over, oldest first."""
        query = "SELECT id FROM agents WHERE state = 'running' AND run_from IS NOT NULL ORDER BY created, id"
        return [name for (name,) in self._query(query)]

    def page(self, after: str, limit: int) -> list[tuple[Any, ...]]:
        """Rows in the order of ids, from behind ``after`` on, with the members of an `AgentInfo`."""
        return self._query(f"{_LIST} WHERE id > ? ORDER BY id LIMIT ?", (after, limit))

    def counts(self) -> dict[str, int]:
        """How many agents are in each state that any is in."""
        return dict(self._query("SELECT state, COUNT(*) FROM agents GROUP BY state"))

    def _query(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._file.reading() as database:
            if database is None:
                return []
            database.execute(_SMALL_CACHE)
            database.text_factory = str  # a call of ours for each text would be half of a long list's time
            return database.execute(text, values).fetchall()
