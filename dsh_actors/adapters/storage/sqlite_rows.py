"""What stands in the tables of the session database: batches of packed lines, each with its checksum.

Nothing is ever changed in place but a session's own row, so readers need no long transaction.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard

from dsh_actors.adapters.storage.frames import compress_frame
from dsh_actors.adapters.storage.sqlite_file import Layout
from dsh_actors.core.codec import decode_line, encode_batch
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused, SessionCorrupt
from dsh_actors.ports import Checkpoint

__all__ = [
    "LAYOUT",
    "PackedBatch",
    "SessionRow",
    "batch_lines",
    "encode_header",
    "find_row",
    "has_key",
    "insert_batches",
    "insert_checkpoint",
    "insert_session",
    "newest_checkpoint",
    "newest_rows",
    "pack",
    "pack_checkpoint",
    "remove_session",
    "reserve_key",
    "stored_events",
    "stored_size",
]

LAYOUT = Layout(
    application_id=0x44534841,
    version=1,
    statements=(
        "CREATE TABLE sessions (key INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,"
        " cwd TEXT, header TEXT NOT NULL, header_crc INTEGER NOT NULL, next_seq INTEGER NOT NULL,"
        " updated INTEGER NOT NULL) STRICT",
        "CREATE INDEX sessions_by_change ON sessions (updated, name)",
        "CREATE TABLE batches (session INTEGER NOT NULL, first_seq INTEGER NOT NULL,"
        " next_seq INTEGER NOT NULL, is_packed INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL,"
        " PRIMARY KEY (session, first_seq)) STRICT",
        "CREATE TABLE checkpoints (session INTEGER NOT NULL, next_seq INTEGER NOT NULL,"
        " crc INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (session, next_seq)) STRICT",
    ),
)
"""The checksums are there because SQLite has none of its own: a flipped bit would be read as it is."""

COMPRESS_ABOVE = 4096
MAX_BATCH_EVENTS = 1024
KEPT_CHECKPOINTS = 2

_COLUMNS = (
    "key, name, cwd, header, header_crc, next_seq, updated,"
    " (SELECT max(next_seq) FROM batches WHERE session = sessions.key)"
)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as its row tells it. ``name`` is the escaped id; ``updated`` is ms since the epoch.

    ``tail`` is where its batches end, seen at the same moment.
    """

    key: int
    name: str
    cwd: str | None
    raw_header: str
    header_crc: int
    next_seq: int
    updated: int
    tail: int | None

    def require_whole(self, path: str) -> None:
        """Raises `SessionCorrupt` where the row and the batches disagree about the end."""
        if self.tail != self.next_seq:
            raise _damage(path, self, self.next_seq, f"the batches end at {self.tail}")

    def header(self, path: str) -> SessionHeader:
        """Raises `SessionCorrupt` naming the file, or `SessionUnsupported`."""
        try:
            if zlib.crc32(self.raw_header.encode()) != self.header_crc:
                raise EventRefused("its checksum is wrong")
            return SessionHeader.from_json(json.loads(self.raw_header))
        except (ValueError, EventRefused) as error:
            raise SessionCorrupt(f"{path} is damaged: header of session {self.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Events from ``first_seq`` to below ``next_seq`` as lines, compressed if ``is_packed``."""

    first_seq: int
    next_seq: int
    is_packed: bool
    data: bytes

    @property
    def crc(self) -> int:
        """Over the numbers too: a batch in a wrong place is as bad as a wrong batch."""
        return zlib.crc32(self.data, zlib.crc32(f"{self.first_seq}:{self.next_seq}".encode()))

    def lines(self) -> list[bytes]:
        """Without their newlines. Raises `EventRefused`."""
        try:
            lines = zstandard.ZstdDecompressor().decompress(self.data) if self.is_packed else self.data
        except zstandard.ZstdError as error:
            raise EventRefused(str(error)) from error
        if not lines.endswith(b"\n"):
            raise EventRefused("the last line has no end")
        return lines[:-1].split(b"\n")


def encode_header(header: SessionHeader) -> str:
    """Raises `EventRefused` for text that is not valid Unicode."""
    text = json.dumps(header.to_json(), ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EventRefused(f"session header: not valid Unicode: {error}") from error
    return text


def find_row(database: sqlite3.Connection, name: str) -> SessionRow | None:
    """The row of the session with this escaped id."""
    row = database.execute(f"SELECT {_COLUMNS} FROM sessions WHERE name = ?", (name,)).fetchone()
    return None if row is None else _session_row(row)


def _session_row(row: tuple[Any, ...]) -> SessionRow:
    found = SessionRow(*row)
    numbers = (found.key, found.header_crc, found.next_seq, found.updated)
    if type(found.name) is not str or type(found.raw_header) is not str:
        raise sqlite3.DatabaseError("a session has a name or a header of the wrong type")
    if any(type(number) is not int for number in numbers):
        raise sqlite3.DatabaseError(f"session {found.name} has numbers of the wrong type")
    return found


def newest_rows(database: sqlite3.Connection, cwd: str | None, limit: int | None) -> list[SessionRow]:
    """All sessions, or those of ``cwd``, the last changed first, at most ``limit``."""
    where = "" if cwd is None else " WHERE cwd = ?"
    query = f"SELECT {_COLUMNS} FROM sessions{where} ORDER BY updated DESC, name DESC LIMIT ?"
    values = (-1 if limit is None else limit,) if cwd is None else (cwd, -1 if limit is None else limit)
    return [_session_row(row) for row in database.execute(query, values)]


def pack(events: Sequence[Event]) -> list[PackedBatch]:
    """The batches to store. Raises `EventRefused` for data without a JSON form."""
    return [_pack(events[i : i + MAX_BATCH_EVENTS]) for i in range(0, len(events), MAX_BATCH_EVENTS)]


def _pack(events: Sequence[Event]) -> PackedBatch:
    lines = encode_batch(events)
    frame = compress_frame(lines) if len(lines) > COMPRESS_ABOVE else lines
    is_packed = len(frame) < len(lines)
    return PackedBatch(events[0].seq, events[-1].seq + 1, is_packed, frame if is_packed else lines)


def insert_session(database: sqlite3.Connection, values: tuple[Any, ...]) -> int:
    """Store a session's row; its key, a new one if the first of the ``values`` is None."""
    key = database.execute(
        "INSERT INTO sessions (key, name, cwd, header, header_crc, next_seq, updated)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        values,
    ).lastrowid
    assert key is not None, "a row was inserted"
    return key


def reserve_key(database: sqlite3.Connection) -> int:
    """A key that no session gets by itself: those that were in use once are never given again."""
    key = insert_session(database, (None, ".", None, "", 0, 0, 0))
    database.execute("DELETE FROM sessions WHERE key = ?", (key,))
    return key


def has_key(database: sqlite3.Connection, key: int) -> bool:
    return database.execute("SELECT 1 FROM sessions WHERE key = ?", (key,)).fetchone() is not None


def remove_session(database: sqlite3.Connection, key: int) -> None:
    """Remove all that is stored for ``key``."""
    for place in ("batches WHERE session", "checkpoints WHERE session", "sessions WHERE key"):
        database.execute(f"DELETE FROM {place} = ?", (key,))


def insert_batches(database: sqlite3.Connection, key: int, batches: Sequence[PackedBatch]) -> None:
    database.executemany(
        "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
        [(key, b.first_seq, b.next_seq, b.is_packed, b.crc, b.data) for b in batches],
    )


def batch_lines(
    database: sqlite3.Connection, row: SessionRow, from_seq: int, path: str
) -> Iterator[tuple[int, list[bytes]]]:
    """(first seq, lines without newlines) of each batch from the one that holds ``from_seq`` on.

    Ends at what ``row`` says is stored, whatever is appended meanwhile. Raises `SessionCorrupt`.
    """
    query = "SELECT first_seq, next_seq, is_packed, data, crc FROM batches WHERE session = ? AND first_seq"
    found = database.execute(f"{query} <= ? ORDER BY first_seq DESC LIMIT 1", (row.key, from_seq)).fetchone()
    due = 0 if found is None else found[0]
    while due < row.next_seq:
        # Each batch is fetched on its own: an open statement would keep the log of changes from ending.
        found = found or database.execute(f"{query} = ?", (row.key, due)).fetchone()
        if found is None:
            raise _damage(path, row, due, "the events are missing")
        batch, crc = PackedBatch(*found[:4]), found[4]
        if batch.next_seq <= batch.first_seq or batch.crc != crc:
            raise _damage(path, row, due, "the checksum is wrong")
        if batch.next_seq > from_seq:
            try:
                yield batch.first_seq, batch.lines()
            except EventRefused as error:
                raise _damage(path, row, due, error.message) from error
        due, found = batch.next_seq, None
    if due != row.next_seq:
        raise _damage(path, row, due, f"the events should end at {row.next_seq}")


def stored_events(database: sqlite3.Connection, row: SessionRow, from_seq: int, path: str) -> Iterator[Event]:
    """The events from ``from_seq`` on. Raises `SessionCorrupt` with the place, `SessionUnsupported`."""
    for first_seq, lines in batch_lines(database, row, from_seq, path):
        due = first_seq
        for line in lines:
            try:
                events = decode_line(line)
                if events[0].seq != due:
                    raise EventRefused(f"event {events[0].seq} stands where event {due} is due")
            except EventRefused as error:
                raise _damage(path, row, due, error.message) from error
            due += len(events)
            for event in events:
                event.require_known()
                if event.seq >= from_seq:
                    yield event


def stored_size(database: sqlite3.Connection, key: int) -> int:
    """Bytes of a session's batches and checkpoints."""
    query = "SELECT total(length(data)) FROM {} WHERE session = ?"
    sizes = (
        database.execute(query.format(table), (key,)).fetchone()[0] for table in ("batches", "checkpoints")
    )
    return sum(map(int, sizes))


def pack_checkpoint(checkpoint: Checkpoint) -> bytes:
    """For `insert_checkpoint`. Raises `EventRefused` for a state without a JSON form."""
    try:
        text = json.dumps(checkpoint.state, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return compress_frame(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise EventRefused(f"checkpoint {checkpoint.next_seq} has no JSON form: {error}") from error


def insert_checkpoint(database: sqlite3.Connection, key: int, next_seq: int, frame: bytes) -> None:
    """Keep it and the newest of those before it."""
    row = (key, next_seq, zlib.crc32(frame), frame)
    database.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", row)
    database.execute(
        "DELETE FROM checkpoints WHERE session = ? AND next_seq NOT IN (SELECT next_seq FROM checkpoints"
        " WHERE session = ? ORDER BY next_seq DESC LIMIT ?)",
        (key, key, KEPT_CHECKPOINTS),
    )


def newest_checkpoint(database: sqlite3.Connection, row: SessionRow) -> Checkpoint | None:
    """The newest that is whole and speaks of events that are stored."""
    query = "SELECT next_seq, crc, data FROM checkpoints WHERE session = ? AND next_seq <= ?"
    for next_seq, crc, data in database.execute(
        f"{query} ORDER BY next_seq DESC", (row.key, row.next_seq)
    ).fetchall():
        state = _state(data) if zlib.crc32(data) == crc else None
        if state is not None:
            return Checkpoint(next_seq, state)
    return None


def _state(data: bytes) -> JsonObject | None:
    try:
        state = json.loads(zstandard.ZstdDecompressor().decompress(data))
    except (ValueError, RecursionError, zstandard.ZstdError):
        return None  # of no use; the events are all there
    return state if isinstance(state, dict) else None


def _damage(path: str, row: SessionRow, seq: int, reason: str) -> SessionCorrupt:
    return SessionCorrupt(
        f"{path} is damaged: session {row.name} at event {seq}: {reason}",
        hint="the file was left as it is; put back a copy of it, or start a new session",
    )
