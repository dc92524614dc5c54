"""Reading what is left of a damaged session in the database. Nothing is changed, or locked.

A batch is used if its checksum is right. The numbers of the events tell what is missing between them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dsh_actors.adapters.storage.layout import id_of_name
from dsh_actors.adapters.storage.sqlite_file import SqliteFile
from dsh_actors.adapters.storage.sqlite_rows import PackedBatch, SessionRow
from dsh_actors.core.codec import decode_line
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.salvage import Damage
from dsh_actors.errors import EventRefused, SessionCorrupt

__all__ = ["DamagedRows"]


class DamagedRows:
    """The readable events and the damaged places of one session; a place is the database and a batch."""

    def __init__(self, file: SqliteFile, row: SessionRow) -> None:
        self._file = file
        self._row = row

    def header(self, cwd: str | None = None) -> SessionHeader:
        """The session's header; where it is lost, one with the id, the time of the first event and ``cwd``.

        Without a ``cwd`` the one beside the header is used. Raises `SessionUnsupported` for a newer format,
        `SessionCorrupt` if nothing can be read.
        """
        try:
            return self._row.header(self._file.path)
        except SessionCorrupt as error:
            first = next((item for item in self.items() if isinstance(item, Event)), None)
            if first is None:
                hint = "put back a copy of it"
                message = f"nothing of session {self._row.name} in {self._file.path} can be read"
                raise SessionCorrupt(message, hint=hint) from error
            name = SessionId(id_of_name(self._row.name))
            return SessionHeader(name, max(first.time, 0), cwd or self._row.cwd)

    def items(self) -> Iterator[Event | Damage]:
        """Everything in the order of the events. Raises `SessionCorrupt` for a file that is no database."""
        due = 0
        with self._file.reading() as database:
            if database is None:
                return
            for first_seq in self._firsts(database):
                batch = self._batch(database, first_seq)
                if isinstance(batch, Damage):
                    yield batch
                    continue
                yield from self._events(batch)
                due = max(due, batch.next_seq)
        if due < self._row.next_seq:
            yield self._damage(due, 0, f"the events up to {self._row.next_seq - 1} are missing")

    def _firsts(self, database: sqlite3.Connection) -> list[int]:
        query = "SELECT first_seq FROM batches WHERE session = ? ORDER BY first_seq"
        return [first_seq for (first_seq,) in database.execute(query, (self._row.key,)).fetchall()]

    def _batch(self, database: sqlite3.Connection, first_seq: int) -> PackedBatch | Damage:
        query = "SELECT next_seq, is_packed, data, crc FROM batches WHERE session = ? AND first_seq = ?"
        try:
            found = database.execute(query, (self._row.key, first_seq)).fetchone()
        except sqlite3.DatabaseError as error:
            return self._damage(first_seq, 0, f"it cannot be read: {error}")
        if found is None:
            return self._damage(first_seq, 0, "it cannot be found")
        next_seq, is_packed, data, crc = found
        batch = PackedBatch(first_seq, next_seq, bool(is_packed), data)
        if batch.crc != crc:
            return self._damage(first_seq, len(data), "the checksum is wrong")
        return batch

    def _events(self, batch: PackedBatch) -> Iterator[Event | Damage]:
        try:
            lines = batch.lines()
        except EventRefused as error:
            yield self._damage(batch.first_seq, len(batch.data), error.message)
            return
        for line in lines:
            try:
                yield from decode_line(line)
            except EventRefused as error:
                reason = f"a line is no event: {error.message}"
                yield self._damage(batch.first_seq, len(batch.data), reason)

    def _damage(self, first_seq: int, size: int, reason: str) -> Damage:
        return Damage(f"{self._file.path}, events from {first_seq}", 0, size, reason)
