"""Writes that fail leave what was there; writers that are stale write nothing; kills lose nothing."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest

from dsh_actors.adapters.storage import segments
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, SessionExists, StorageError, StorageFull
from tests.adapters.storage.samples import child, disk, header, notes, run_child, segment, stored, turn

S1 = SessionId("s1")


class Failing:
    """Stands in for a call of ``os``: fails with ``code`` once ``after`` bytes or calls went through."""

    def __init__(self, call: Callable[..., Any], code: int, after: int) -> None:
        self.call = call
        self.code = code
        self.left = after

    def write(self, descriptor: int, data: Any) -> Any:
        if self.left <= 0:
            raise OSError(self.code, os.strerror(self.code))
        written = self.call(descriptor, data[: self.left])
        self.left -= written
        return written

    def sync(self, descriptor: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.code, os.strerror(self.code))
        return self.call(descriptor)


@pytest.mark.parametrize("after", [0, 1, 40, 100])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EFBIG, StorageFull),
        (errno.EIO, StorageError),
    ],
)
def test_a_failed_append_leaves_the_old_bytes_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StorageError], after: int
) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    writer.append(turn(0))
    path = Path(segment(storage))
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", Failing(os.write, code, after).write)
        with pytest.raises(error) as caught:
            writer.append(turn(9, 2))
        assert type(caught.value) is error and str(path) in caught.value.message
        assert path.read_bytes() == before
        assert writer.next_seq == 9
    writer.append(turn(9, 2))
    assert list(storage.read(S1)) == [*turn(0), *turn(9, 2)]


def test_an_append_whose_sync_fails_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    writer.append(turn(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", Failing(os.fdatasync, errno.EIO, 0).sync)
        with pytest.raises(StorageError):
            writer.append(turn(9, 2))
        assert list(storage.read(S1)) == turn(0)
    writer.append(turn(9, 2))
    assert list(storage.read(S1)) == [*turn(0), *turn(9, 2)]


def test_an_append_that_cannot_be_taken_back_at_once_is_taken_back_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    writer.append(turn(0))
    before = os.path.getsize(segment(storage))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", Failing(os.write, errno.ENOSPC, 30).write)
        patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with pytest.raises(StorageError):
            writer.append(turn(9, 2))
        with pytest.raises(StorageError):
            writer.append(turn(9, 2))
    assert os.path.getsize(segment(storage)) == before + 30
    writer.append(turn(9, 2))
    assert list(storage.read(S1)) == [*turn(0), *turn(9, 2)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("failing", ["write", "fsync", "rename", "mkdir"])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_session_that_cannot_be_created_leaves_nothing_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failing: str, after: int
) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)], "neighbour")
    writer = storage.create(header())

    def fail(*arguments: Any, **_: Any) -> Any:
        nonlocal after
        after -= 1
        if after < 0:
            raise OSError(code, os.strerror(code))
        return original(*arguments)

    original = getattr(os, failing)
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, Failing(os.write, code, after).write if failing == "write" else fail)
        try:
            writer.append(turn(0))
            assert failing != "write" and after >= 0, "the failure went unnoticed"
        except StorageError as error:
            assert isinstance(error, StorageFull) == (code == errno.ENOSPC)
            assert sorted(path.name for path in tmp_path.glob("*/*")) == ["neighbour"]
            assert sorted(path.name for path in tmp_path.glob("*/.*")) == []
    if writer.next_seq == 0:
        writer.append(turn(0))
    assert list(storage.read(S1)) == turn(0)


WRITE_UNTIL_FULL = """
import resource, signal, sys
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event
from dsh_actors.errors import StorageFull
import os
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
w = SegmentStorage(sys.argv[1], "limited", lambda: 0).open("s1")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
done = w.next_seq
try:
    while True:
        w.append([Event("run/note", done, 0, {"text": os.urandom(1000).hex()}, ignorable=True)])
        done += 1
except StorageFull as error:
    print(done, error.code)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
w.append([Event("run/note", done, 0, {"text": "there is room again"}, ignorable=True)])
"""


def test_a_file_size_limit_stops_the_writer_and_loses_nothing(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)])
    done = run_child(WRITE_UNTIL_FULL, tmp_path)
    count, code = done.split()
    assert code == "STORAGE_FULL" and int(count) > 12
    events = list(storage.read(S1))
    assert [event.seq for event in events] == list(range(int(count) + 1))
    assert events[-1].data == {"text": "there is room again"}
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def replaced(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)


@pytest.mark.parametrize("change", [longer, shorter, replaced])
def test_a_stale_writer_is_refused_and_writes_nothing(tmp_path: Path, change: Callable[[Path], None]) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    writer.append(turn(0))
    path = Path(segment(storage))
    change(path)
    before = path.read_bytes()
    with pytest.raises(SessionBusy, match="stale writer"):
        writer.append(turn(9, 2))
    assert path.read_bytes() == before


def test_two_writers_with_the_same_belief_do_not_both_append(tmp_path: Path) -> None:
    """The lock is lost on purpose: what is left is compare-and-swap."""
    storage = disk(tmp_path)
    first = storage.create(header())
    first.append(turn(0))
    os.unlink(os.path.join(storage.path(S1), "lock"))
    second = storage.open(S1)
    assert second.next_seq == 9
    second.append(notes(9, 1, "second"))
    with pytest.raises(SessionBusy, match="stale writer"):
        first.append(notes(9, 1, "first"))
    assert list(storage.read(S1)) == [*turn(0), *notes(9, 1, "second")]


def test_the_loser_of_a_race_to_create_an_id_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    one, two = disk(tmp_path), disk(tmp_path)
    winner, loser = one.create(header()), two.create(header())
    elsewhere = disk(tmp_path).create(header(cwd="/another/directory"))
    winner.append(turn(0))
    for writer in (loser, elsewhere):
        with pytest.raises(SessionExists):
            writer.append(notes(0, 1))
    winner.append(turn(9, 2))
    assert list(one.read(S1)) == [*turn(0), *turn(9, 2)]
    assert [path.name for path in tmp_path.glob("*/*")] == ["s1"]


RACER = """
import sys
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event
from dsh_actors.errors import SessionBusy
storage = SegmentStorage(sys.argv[1], sys.argv[2], lambda: 0)
wins = 0
sys.stdin.readline()
while wins < 20:
    try:
        writer = storage.open("s1")
    except SessionBusy:
        continue
    seq = writer.next_seq
    writer.append([Event("run/note", seq + i, 0, {"by": sys.argv[2]}, ignorable=True) for i in range(3)])
    writer.close()
    wins += 1
"""


def test_processes_that_race_to_append_take_turns(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)])
    racers = [child(RACER, tmp_path, name) for name in ("a", "b")]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate()
        assert racer.returncode == 0
    events = list(storage.read(S1))
    assert [event.seq for event in events] == list(range(9 + 2 * 20 * 3))
    writers = [event.data["by"] for event in events[9:]]
    assert writers[::3] == writers[1::3] == writers[2::3]
    assert sorted(writers) == ["a"] * 60 + ["b"] * 60


ENDLESS = """
import os, sys
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event
w = SegmentStorage(sys.argv[1], "victim", lambda: 0).open("s1")
seq = w.next_seq
while True:
    texts = [os.urandom(30000).hex() for _ in range(4)]
    w.append([Event("run/note", seq + i, 0, {"text": t}, ignorable=True) for i, t in enumerate(texts)])
    seq += 4
    os.write(1, b"%d\\n" % seq)
"""


def test_what_was_durable_survives_a_kill_and_the_session_goes_on(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)])
    known: list[Event] = turn(0)
    for round_number in range(5):
        victim = child(ENDLESS, tmp_path)
        assert victim.stdout is not None
        for _ in range(round_number + 1):
            durable = int(victim.stdout.readline())
        victim.send_signal(signal.SIGKILL)
        durable = max([durable, *map(int, victim.communicate()[0].split())])
        writer = storage.open(S1)
        events = list(writer.replay())
        assert len(events) >= durable and events[: len(known)] == known
        writer.append(notes(writer.next_seq, 1, "resumed"))
        writer.close()
        known = [*events, *notes(len(events), 1, "resumed")]
        assert list(storage.read(S1)) == known


def test_an_idle_writer_holds_one_descriptor(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    writers = [storage.create(header(f"s{number}")) for number in range(10)]
    assert open_below(tmp_path) == []
    for writer in writers:
        writer.append(turn(0))
        assert writer.next_seq == 9
    assert len(open_below(tmp_path)) == 10
    for writer in writers:
        writer.close()
    assert open_below(tmp_path) == []


def test_sessions_are_written_at_the_same_time_from_native_threads(tmp_path: Path) -> None:
    storage = disk(tmp_path)

    def write_one(name: str) -> None:
        writer = storage.create(header(name))
        for number in range(20):
            writer.append(turn(number * 9, number + 1))
        writer.close()

    names = [f"s{number}" for number in range(8)]
    pool = gevent.get_hub().threadpool
    for done in [pool.spawn(write_one, name) for name in names]:
        done.get(timeout=30)
    for name in names:
        assert [event.seq for event in storage.read(SessionId(name))] == list(range(180))
    assert {one.status for one in storage.list()} == {"ok"}


def open_below(root: Path) -> list[str]:
    """What this process has open there; other tests may leave and close descriptors of other things."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [path for path in map(os.path.realpath, links) if path.startswith(str(root))]


def open_segments(root: Path) -> int:
    return sum(path.endswith(".jsonl.zst") for path in open_below(root))


def test_segments_stay_open_for_the_next_append_but_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_MAX_OPEN", 3)
    storage = disk(tmp_path)
    writers = [storage.create(header(f"s{number}")) for number in range(5)]
    for first_seq in (0, 9, 18):
        for writer in writers:
            writer.append(turn(first_seq))
        assert open_segments(tmp_path) <= 3
    assert open_segments(tmp_path) == 3
    for writer in writers:
        writer.close()
    assert open_segments(tmp_path) == 0
    assert all(len(list(storage.read(SessionId(f"s{number}")))) == 27 for number in range(5))


def test_a_failed_append_leaves_no_segment_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    writer.append(turn(0))
    writer.append(turn(9))
    assert open_segments(tmp_path) == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", Failing(os.write, errno.ENOSPC, 30).write)
        with pytest.raises(StorageFull):
            writer.append(turn(18))
    assert open_segments(tmp_path) == 0
    writer.append(turn(18))
    writer.close()
    assert len(list(storage.read(S1))) == 27


def test_a_segment_that_was_replaced_is_found_though_the_old_one_is_still_open(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    writer.append(turn(0))
    writer.append(turn(9))
    assert open_segments(tmp_path) == 1
    path = Path(segment(storage))
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    with pytest.raises(SessionBusy, match="stale writer"):
        writer.append(turn(18))
    writer.close()
    assert list(storage.read(S1)) == [*turn(0), *turn(9)]


def test_the_digest_of_a_sealed_segment_counts_what_is_in_it_and_nothing_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = disk(tmp_path, segment_events=20)
    writer = storage.create(header())
    writer.append(turn(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", Failing(os.fdatasync, errno.EIO, 0).sync)
        with pytest.raises(StorageError):
            writer.append(turn(9, prompt="lost"))
    for first_seq in (9, 18, 27):
        writer.append(turn(first_seq))
    writer.close()
    whole = [event for first_seq in (0, 9, 18, 27) for event in turn(first_seq)]
    assert list(storage.read(S1)) == whole, "the chain of segments holds"
    again = storage.open(S1)
    assert again.next_seq == 36 and again.needs_rewrite
    again.compact()
    again.close()
    assert list(storage.read(S1)) == whole
