"""Sessions in one database: what only this back end has to get right."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.adapters.storage import sqlite_file
from dsh_actors.adapters.storage.sqlite import SqliteStorage, SqliteWriter
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import (
    EventRefused,
    HarnessError,
    SessionBusy,
    SessionCorrupt,
    SessionExists,
    SessionNotFound,
    SessionUnsupported,
    StorageError,
    StorageFull,
)
from dsh_actors.ports import Checkpoint
from tests.adapters.storage.samples import OWNER, Ticking, child, disk, header, notes, run_child, turn

S1 = SessionId("s1")

HOLDER = """
import sys
from dsh_actors.adapters.storage.sqlite import SqliteStorage
from tests.adapters.storage.samples import OWNER, Ticking, turn
writer = SqliteStorage(sys.argv[1], OWNER, Ticking()).open("s1")
writer.append(turn(9, 2))
print("held", flush=True)
sys.stdin.read()
"""

TRANSACTION = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
database.execute("COMMIT")
"""

CREATOR = """
import sys
from dsh_actors.adapters.storage.sqlite import SqliteStorage
from dsh_actors.errors import SessionExists
from tests.adapters.storage.samples import OWNER, Ticking, header, turn
writer = SqliteStorage(sys.argv[1], OWNER, Ticking()).create(header())
print("ready", flush=True)
sys.stdin.readline()
try:
    writer.append(turn(0))
    print("won", flush=True)
    sys.stdin.readline()
except SessionExists:
    print("lost", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "home" / "sessions.sqlite3")


@pytest.fixture
def storage(path: str) -> SqliteStorage:
    os.mkdir(os.path.dirname(path), 0o700)
    return SqliteStorage(path, OWNER, Ticking())


def stored(storage: SqliteStorage, *batches: list[Event], session_id: str = "s1") -> None:
    writer = storage.create(header(session_id))
    for batch in batches:
        writer.append(batch)
    writer.close()


def tampered(path: str, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def count(path: str, query: str) -> int:
    database = sqlite3.connect(path)
    try:
        found: int = database.execute(query).fetchone()[0]
        return found
    finally:
        database.close()


def test_nothing_is_on_disk_before_the_first_append_and_the_file_is_the_users_alone(
    storage: SqliteStorage, path: str
) -> None:
    writer = storage.create(header())
    with pytest.raises(SessionNotFound):
        storage.header(S1)
    assert os.listdir(os.path.dirname(path)) == []
    writer.append(turn(0))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(f"{path}-wal").st_mode) == 0o600
    writer.close()
    assert sorted(os.listdir(os.path.dirname(path))) == ["sessions.locks", "sessions.sqlite3"]


def test_a_long_run_of_chunks_is_one_small_row_and_comes_back_exactly(
    storage: SqliteStorage, path: str
) -> None:
    events = turn(0, chunks=400)
    stored(storage, events)
    assert list(storage.read(S1)) == events
    assert count(path, "SELECT count(*) FROM batches") == 1
    assert count(path, "SELECT length(data) FROM batches") < 4096
    for seq in (0, 5, 200, 404, 405):
        assert list(storage.read(S1, seq)) == events[seq:]


def test_a_huge_append_becomes_batches_that_are_found_by_their_first_number(
    storage: SqliteStorage, path: str
) -> None:
    events = notes(0, 2500)
    stored(storage, events)
    assert count(path, "SELECT count(*) FROM batches") == 3
    assert list(storage.read(S1, 2047)) == events[2047:]


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 12), max_size=6), text=st.text(max_size=300), reopen=st.booleans())
def test_every_partition_of_a_log_reads_as_the_segments_read_it(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], text: str, reopen: bool
) -> None:
    home = tmp_path_factory.mktemp("both")
    text = text.encode("utf-8", "replace").decode()
    log = [*turn(0, chunks=7, prompt=text), *notes(12, 3, text * 20), *turn(15, 2)]
    both = [SqliteStorage(str(home / "s.sqlite3"), OWNER, Ticking()), disk(home / "sessions")]
    for storage in both:
        writer = storage.create(header())
        rest = list(log)
        for cut in [*cuts, len(log)]:
            writer.append(rest[:cut])
            rest = rest[cut:]
            if reopen:
                writer.close()
                writer = storage.open(S1)
        writer.close()
    assert [list(one.read(S1)) for one in both] == [log, log]


def test_a_stale_writer_is_refused_and_the_tail_of_the_other_stays(storage: SqliteStorage, path: str) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    os.unlink(os.path.join(os.path.dirname(path), "sessions.locks", "s1"))
    other = SqliteStorage(path, OWNER, Ticking()).open(S1)
    other.append(turn(9, 2))
    with pytest.raises(SessionBusy, match="stale"):
        writer.append(notes(9, 1))
    assert list(storage.read(S1)) == [*turn(0), *turn(9, 2)]


def test_a_live_holder_is_named_and_a_killed_one_blocks_nobody(storage: SqliteStorage, path: str) -> None:
    stored(storage, turn(0))
    holder = child(HOLDER, path)
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(SessionBusy, match="testhost"):
        storage.open(S1)
    with pytest.raises(SessionBusy, match="testhost"):
        storage.delete(S1)
    assert [one.status for one in storage.list()] == ["live"]
    assert len(list(storage.read(S1))) == 18
    holder.kill()
    holder.communicate()
    writer = storage.open(S1)
    assert writer.next_seq == 18
    writer.append(turn(18, 3))
    writer.close()


def test_of_two_processes_that_make_the_same_session_one_wins(storage: SqliteStorage, path: str) -> None:
    racers = [child(CREATOR, path) for _ in range(2)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    results = sorted(racer.stdout.readline() for racer in racers if racer.stdout)
    for racer in racers:
        racer.communicate()
    assert results == ["lost\n", "won\n"]
    assert list(storage.read(S1)) == turn(0)


def test_a_writer_waits_for_another_programs_transaction_and_gives_up_in_time(
    storage: SqliteStorage, path: str
) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    writer.close()
    holder = child(TRANSACTION, path)
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == "locked\n"
    impatient = SqliteStorage(path, OWNER, Ticking())
    impatient._file = sqlite_file.SqliteFile(path, impatient._file._layout, busy_timeout_s=0.05)
    writer = impatient.open(S1)
    with pytest.raises(SessionBusy, match=r"sessions\.sqlite3"):
        writer.append(turn(9, 2))
    assert list(storage.read(S1)) == turn(0)
    holder.communicate("done\n")
    writer.append(turn(9, 2))
    assert list(storage.read(S1)) == [*turn(0), *turn(9, 2)]
    writer.close()


def test_a_full_disk_is_named_and_nothing_half_written_stays(storage: SqliteStorage, path: str) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    with storage._file.reading() as database:
        assert database is not None
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    noise = os.urandom(40_000).hex()
    with pytest.raises(StorageFull, match=r"sessions\.sqlite3"):
        writer.append(notes(9, 1, noise))
    assert list(storage.read(S1)) == turn(0)
    writer.append(notes(9, 1, noise))  # the connection that was limited is gone: there is room again
    assert list(storage.read(S1)) == [*turn(0), *notes(9, 1, noise)]
    writer.close()


def test_a_full_disk_at_the_first_append_leaves_no_session(storage: SqliteStorage, path: str) -> None:
    stored(storage, turn(0), session_id="other")
    keeper = storage.open(SessionId("other"))
    with storage._file.reading() as database:
        assert database is not None
        database.execute("PRAGMA max_page_count = 1").fetchall()
    writer = storage.create(header())
    with pytest.raises(StorageFull):
        writer.append(notes(0, 1, os.urandom(40_000).hex()))
    assert [one.id for one in storage.list()] == ["other"]
    assert os.listdir(os.path.join(os.path.dirname(path), "sessions.locks")) == ["other"]
    writer.append(turn(0))
    writer.close()
    keeper.close()
    assert list(storage.read(S1)) == turn(0)


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("UPDATE batches SET data = CAST(data || 'x' AS BLOB) WHERE first_seq = 9", "checksum"),
        ("UPDATE batches SET next_seq = 10 WHERE first_seq = 0", "checksum"),
        ("UPDATE batches SET first_seq = 1 WHERE first_seq = 0", "missing"),
        ("DELETE FROM batches WHERE first_seq = 0", "missing"),
        ("DELETE FROM batches WHERE first_seq = 9", "end"),
        ("UPDATE sessions SET next_seq = 9", "end"),
        ("UPDATE sessions SET header = replace(header, 'shop', 'ship')", "checksum"),
    ],
)
def test_damage_is_refused_with_the_file_and_never_stops_the_list(
    storage: SqliteStorage, path: str, statement: str, place: str
) -> None:
    stored(storage, turn(0), turn(9, 2))
    stored(storage, turn(0), session_id="healthy")
    tampered(path, f"{statement} AND session = 1" if "WHERE" in statement else f"{statement} WHERE rowid = 1")

    def read_all() -> object:
        writer = storage.open(S1)
        try:
            return list(writer.replay())
        finally:
            writer.close()

    with pytest.raises(SessionCorrupt, match=place) as caught:
        read_all()
    assert path in caught.value.message
    assert {one.id: one.status for one in storage.list()} == {"s1": "corrupt", "healthy": "ok"}
    assert list(storage.read(SessionId("healthy"))) == turn(0)


def _garbage(path: str) -> None:
    Path(path).write_bytes(b"not a database at all, but long enough to be looked at" * 40)


def _foreign(path: str) -> None:
    os.unlink(path)
    tampered(path, "CREATE TABLE other (x)", "PRAGMA application_id = 7")
    os.chmod(path, 0o600)


def _unmarked(path: str) -> None:
    os.unlink(path)
    tampered(path, "CREATE TABLE sessions (x)")
    os.chmod(path, 0o600)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_garbage, SessionCorrupt),
        (_foreign, SessionCorrupt),
        (_unmarked, SessionCorrupt),
        (lambda path: tampered(path, "PRAGMA user_version = 2"), SessionUnsupported),
        (lambda path: tampered(path, "ALTER TABLE batches ADD COLUMN extra TEXT"), SessionCorrupt),
        (lambda path: tampered(path, "DROP TABLE checkpoints"), SessionCorrupt),
        (lambda path: os.chmod(path, 0o622), StorageError),
        (lambda path: os.chmod(os.path.dirname(path), 0o777), StorageError),
    ],
)
def test_a_file_that_is_not_ours_is_refused_by_name_and_left_as_it_is(
    storage: SqliteStorage, path: str, spoil: Callable[[str], None], error: type[HarnessError]
) -> None:
    stored(storage, turn(0))
    spoil(path)
    before = Path(path).read_bytes()
    for act in (
        lambda: storage.open(S1),
        lambda: list(storage.read(S1)),
        lambda: list(storage.list()),
        lambda: storage.create(header("s2")),
    ):
        with pytest.raises(error) as caught:
            act()
        assert os.path.dirname(path) in caught.value.message
    assert Path(path).read_bytes() == before


def test_a_link_in_the_place_of_the_database_is_refused(storage: SqliteStorage, path: str) -> None:
    stored(storage, turn(0))
    os.rename(path, f"{path}.moved")
    os.symlink(f"{path}.moved", path)
    with pytest.raises(StorageError, match="regular"):
        storage.open(S1)


def test_an_empty_file_is_filled_and_counts_as_no_sessions_before(storage: SqliteStorage, path: str) -> None:
    Path(path).touch(0o600)
    assert list(storage.list()) == []
    with pytest.raises(SessionNotFound):
        storage.open(S1)
    stored(storage, turn(0))
    assert list(storage.read(S1)) == turn(0)


def test_the_newest_usable_checkpoint_is_given_and_two_are_kept(storage: SqliteStorage, path: str) -> None:
    writer = storage.create(header())
    assert writer.checkpoint() is None
    for number in range(3):
        writer.append(turn(9 * number, number + 1))
        writer.save_checkpoint(Checkpoint(9 * (number + 1), {"turn": number + 1, "text": "wörd"}))
    with pytest.raises(StorageError, match="ahead"):
        writer.save_checkpoint(Checkpoint(28, {}))
    for value in ({1}, float("nan"), "\ud800"):
        with pytest.raises(EventRefused):
            writer.save_checkpoint(Checkpoint(27, {"value": value}))
    assert writer.checkpoint() == storage.checkpoint(S1) == Checkpoint(27, {"turn": 3, "text": "wörd"})
    assert [event.seq for event in writer.replay(18)] == list(range(18, 27))
    writer.close()
    assert count(path, "SELECT count(*) FROM checkpoints") == 2
    tampered(path, "UPDATE checkpoints SET data = x'00' WHERE next_seq = 27")
    assert storage.checkpoint(S1) == Checkpoint(18, {"turn": 2, "text": "wörd"})
    tampered(path, "DELETE FROM checkpoints")
    assert storage.checkpoint(S1) is None
    assert len(list(storage.open(S1).replay())) == 27


def test_the_revision_moves_with_each_append_and_is_never_used_again(storage: SqliteStorage) -> None:
    writer = storage.create(header())
    seen = []
    for number in range(2):
        writer.append(turn(9 * number, number + 1))
        seen.append(storage.revision(S1))
    writer.append([])
    assert storage.revision(S1) == seen[-1]
    writer.close()
    storage.delete(S1)
    stored(storage, turn(0))
    seen.append(storage.revision(S1))
    assert len(set(seen)) == 3


def test_a_deleted_session_is_gone_whole_and_its_id_is_free(storage: SqliteStorage, path: str) -> None:
    stored(storage, notes(0, 1, os.urandom(100_000).hex()))
    stored(storage, turn(0), session_id="other")
    size = os.path.getsize(path)
    assert storage.delete(S1) > 50_000
    assert os.path.getsize(path) < size
    with pytest.raises(SessionNotFound):
        storage.delete(S1)
    assert os.listdir(os.path.join(os.path.dirname(path), "sessions.locks")) == ["other"]
    assert count(path, "SELECT count(*) FROM batches") == 1
    stored(storage, turn(0))
    assert list(storage.read(S1)) == turn(0)


def test_a_reader_goes_on_undisturbed_while_more_is_written(storage: SqliteStorage) -> None:
    writer = storage.create(header())
    writer.append(notes(0, 1100))
    reading = storage.read(S1)
    first = next(reading)
    writer.append(notes(1100, 5))
    assert [first, *reading] == notes(0, 1100)
    writer.close()


def test_an_id_that_is_no_text_and_one_that_is_very_long_are_kept_apart(storage: SqliteStorage) -> None:
    for session_id in ("a/b", "a~b", "x" * 300, "x" * 301):
        stored(storage, turn(0), session_id=session_id)
    assert {one.id for one in storage.list()} == {"a/b", "a~b", "x" * 300, "x" * 301}


def test_the_newest_sessions_of_a_directory_leave_out_helpers_and_damaged_ones(
    storage: SqliteStorage, path: str
) -> None:
    for name in ("old", "new", "bad"):
        stored(storage, turn(0), session_id=name)
    stored(storage, turn(0), session_id="elsewhere")
    tampered(
        path,
        "UPDATE sessions SET cwd = '/other' WHERE name = 'elsewhere'",
        "UPDATE sessions SET header = '{}' WHERE name = 'bad'",
    )
    live = storage.open(SessionId("new"))
    assert storage.newest("/srv/shop") == [("new", True), ("old", False)]
    live.close()
    assert storage.newest("/srv/shop", 1) == [("new", False)]


def test_no_file_stays_open_when_nobody_writes(storage: SqliteStorage, path: str) -> None:
    def is_open() -> bool:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return any(os.path.realpath(link) == os.path.realpath(path) for link in links if os.path.exists(link))

    writers: list[SqliteWriter] = [storage.create(header(f"s{n}")) for n in range(3)]
    for writer in writers:
        writer.append(turn(0))
    assert is_open()
    for writer in writers:
        writer.close()
    assert list(storage.read(SessionId("s1")))
    assert not is_open()


def test_of_two_storages_that_want_the_same_new_id_the_second_is_told(
    storage: SqliteStorage, path: str
) -> None:
    first, second = storage.create(header()), SqliteStorage(path, OWNER, Ticking()).create(header())
    first.append(turn(0))
    with pytest.raises(SessionExists):
        second.append(turn(0))
    first.close()
    with pytest.raises(SessionExists):
        second.append(turn(0))
    assert list(storage.read(S1)) == turn(0)


def test_a_flipped_bit_is_harmless_or_refused_but_never_read_as_something_else(
    storage: SqliteStorage, path: str, long_form: bool
) -> None:
    events = [*turn(0), *notes(9, 1, "x" * 900)]
    stored(storage, events)
    whole = Path(path).read_bytes()
    outcomes = set()
    for position in range(0, len(whole), 1 if long_form else 97):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        Path(path).write_bytes(flipped)
        for leftover in (f"{path}-wal", f"{path}-shm", f"{path}-journal"):
            Path(leftover).unlink(missing_ok=True)
        try:
            found = list(SqliteStorage(path, OWNER, Ticking()).read(S1))
        except HarnessError as error:
            outcomes.add(type(error).__name__)
            continue
        assert found == events, position
        outcomes.add("right")
    assert {"right", "SessionCorrupt"} <= outcomes


def test_a_database_is_read_where_nothing_can_be_put_beside_it(
    storage: SqliteStorage, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(storage, turn(0))
    parent = os.path.dirname(path)
    connect = sqlite3.connect

    def no_place(address: str, **options: Any) -> sqlite3.Connection:
        if "immutable" not in address:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        return connect(address, **options)

    writer = storage.open(S1)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", no_place)
        reader = SqliteStorage(path, OWNER, Ticking())
        # The writer has the file open: what it wrote may still be beside it, so nothing is guessed.
        Path(f"{path}-wal").write_bytes(b"x" * 32)
        with pytest.raises(StorageError, match="unable to open"):
            list(reader.read(S1))
        os.truncate(f"{path}-wal", 0)
        assert list(reader.read(S1)) == turn(0)
        assert [one.status for one in reader.list()] == ["live"]
    writer.append(turn(9, 2))
    writer.close()
    assert list(storage.read(S1)) == [*turn(0), *turn(9, 2)]
    assert sorted(os.listdir(parent)) == ["sessions.locks", "sessions.sqlite3"]


SMALL_FILES = """
import os, resource, signal, sys
from dsh_actors.adapters.storage.sqlite import SqliteStorage
from dsh_actors.errors import StorageFull
from tests.adapters.storage.samples import OWNER, Ticking, header, notes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = SqliteStorage(sys.argv[1], OWNER, Ticking()).create(header())
writer.append(notes(0, 1))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
noise = os.urandom(200_000).hex()
try:
    writer.append(notes(1, 1, noise))
    print("stored")
except StorageFull as error:
    print(error.message, error.hint)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append(notes(1, 1, noise))
writer.close()
"""


def test_a_limit_on_the_sizes_of_files_counts_as_a_full_disk(storage: SqliteStorage, path: str) -> None:
    output = run_child(SMALL_FILES, path)
    assert path in output and "make room" in output
    assert [event.seq for event in storage.read(S1)] == [0, 1]
    assert sorted(os.listdir(os.path.dirname(path))) == ["sessions.locks", "sessions.sqlite3"]


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EDQUOT, StorageFull), (errno.EFBIG, StorageFull), (errno.EIO, StorageError)]
)
def test_what_the_library_calls_a_disk_error_is_looked_into(
    storage: SqliteStorage, path: str, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", refuse)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    assert type(sqlite_file.database_error(error, "write", path)) is kind
    assert os.listdir(os.path.dirname(path)) == []


def test_listing_opens_the_database_once(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        stored(storage, turn(0), session_id=f"s{number}")
    opened: list[str] = []
    connect = sqlite_file.connect

    def counted(path: str, *rest: Any) -> sqlite3.Connection:
        opened.append(path)
        return connect(path, *rest)

    monkeypatch.setattr(sqlite_file, "connect", counted)
    assert [one.status for one in storage.list()] == ["ok"] * 5
    assert len(opened) == 1
    assert storage.size(S1) > 100 and len(opened) == 2, "it was closed with the end of the list"
