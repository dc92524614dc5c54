"""Reading what is left of a damaged session in the database."""

from __future__ import annotations

import os
import sqlite3
import zlib
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.sqlite import SqliteStorage
from dsh_actors.adapters.storage.sqlite_rows import encode_header
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.core.salvage import Damage
from dsh_actors.errors import SessionCorrupt, SessionNotFound, SessionUnsupported
from tests.adapters.storage.samples import OWNER, Ticking, header, turn

S1 = SessionId("s1")
BATCHES = [turn(0), turn(9, 2), turn(18, 3)]


@pytest.fixture
def storage(tmp_path: Path) -> SqliteStorage:
    os.chmod(tmp_path, 0o700)
    storage = SqliteStorage(str(tmp_path / "sessions.sqlite3"), OWNER, Ticking())
    writer = storage.create(header())
    for batch in BATCHES:
        writer.append(batch)
    writer.close()
    return storage


def spoil(storage: SqliteStorage, *statements: str) -> None:
    with sqlite3.connect(storage.path(S1)) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def read(storage: SqliteStorage) -> tuple[list[Event], list[Damage]]:
    items = list(storage.damaged(S1).items())
    events = [item for item in items if isinstance(item, Event)]
    return events, [item for item in items if isinstance(item, Damage)]


def test_a_whole_session_is_read_whole(storage: SqliteStorage) -> None:
    assert read(storage) == ([event for batch in BATCHES for event in batch], [])
    assert storage.damaged(S1).header() == header()
    with pytest.raises(SessionNotFound):
        storage.damaged(SessionId("s2"))


def test_a_damaged_batch_costs_itself_and_is_named(storage: SqliteStorage) -> None:
    spoil(storage, "UPDATE batches SET data = CAST(data || 'x' AS BLOB) WHERE first_seq = 9")
    events, damages = read(storage)
    assert events == [*BATCHES[0], *BATCHES[2]]
    (damage,) = damages
    assert damage.place == f"{storage.path(S1)}, events from 9"
    assert damage.size > 100 and "checksum" in damage.reason


@pytest.mark.parametrize("missing", [0, 9])
def test_what_follows_a_missing_batch_is_read(storage: SqliteStorage, missing: int) -> None:
    spoil(storage, f"DELETE FROM batches WHERE first_seq = {missing}")
    events, damages = read(storage)
    assert events == [event for batch in BATCHES if batch[0].seq != missing for event in batch]
    assert damages == [], "the numbers tell it"


def test_a_missing_end_is_told(storage: SqliteStorage) -> None:
    spoil(storage, "DELETE FROM batches WHERE first_seq = 18")
    events, (damage,) = read(storage)
    assert events == [*BATCHES[0], *BATCHES[1]]
    assert "events from 18" in damage.place and "up to 26" in damage.reason


def test_a_lost_header_is_made_from_what_stands_beside_it(storage: SqliteStorage) -> None:
    spoil(storage, "UPDATE sessions SET header = 'no header'")
    made = storage.damaged(S1).header()
    assert (made.id, made.created_at, made.cwd) == (S1, BATCHES[0][0].time, "/srv/shop")
    assert storage.damaged(S1).header("/srv/other").cwd == "/srv/other"
    spoil(storage, "DELETE FROM batches")
    with pytest.raises(SessionCorrupt, match=r"sessions\.sqlite3"):
        storage.damaged(S1).header()


def test_the_header_of_a_newer_format_is_not_replaced(storage: SqliteStorage) -> None:
    newer = encode_header(header()).replace('"version":0', '"version":99')
    crc = zlib.crc32(newer.encode())
    spoil(storage, f"UPDATE sessions SET header = '{newer}', header_crc = {crc}")
    with pytest.raises(SessionUnsupported):
        storage.damaged(S1).header()
