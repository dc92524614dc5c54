"""Segments are sealed at their limits and rewritten smaller, and nobody who reads them can tell."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import zstandard

from dsh_actors.adapters.storage import sealing
from dsh_actors.adapters.storage.frames import FrameFile
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, SessionCorrupt, StorageError, StorageFull
from tests.adapters.storage.samples import OWNER, Ticking, disk, header, notes, segment, turn, whole_log

S1 = SessionId("s1")


def turns(count: int) -> list[list[Event]]:
    return [turn(number * 9, number + 1) for number in range(count)]


def written(storage: SegmentStorage, batches: list[list[Event]]) -> Path:
    """Store the batches; returns the directory of the segments."""
    writer = storage.create(header())
    for batch in batches:
        writer.append(batch)
    writer.close()
    return Path(storage.path(S1), "log")


def names(log: Path) -> list[str]:
    return sorted(os.listdir(log))


def frame_sizes(path: Path) -> list[int]:
    """The content sizes of all frames but the header's."""
    frames = FrameFile(str(path))
    sizes = [frames.content_size(start) for start, _end in frames.whole_frames(0)]
    frames.close()
    return sizes[1:]


def test_a_segment_is_sealed_at_so_many_events(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=18)
    batches = turns(7)
    log = written(storage, batches)
    assert names(log) == [f"{seq:012d}.jsonl.zst" for seq in (0, 18, 36, 54)]
    events = [event for batch in batches for event in batch]
    assert list(storage.read(S1)) == events
    for seq in range(len(events) + 1):
        assert list(storage.read(S1, seq)) == events[seq:]


def test_a_segment_is_sealed_at_so_many_bytes(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_bytes=20_000)
    batches = [notes(number, 1, os.urandom(3000).hex()) for number in range(20)]
    log = written(storage, batches)
    sizes = [(log / name).stat().st_size for name in names(log)]
    assert len(sizes) == 3
    assert all(20_000 <= size < 24_000 for size in sizes[:-1])
    assert list(storage.read(S1)) == [event for batch in batches for event in batch]


def test_each_segment_names_the_one_before_it_and_the_digest_of_its_lines(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=9)
    log = written(storage, turns(3))
    previous = None
    for path in sorted(log.iterdir()):
        with path.open("rb") as file:
            text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        head, _, records = text.partition(b"\n")
        assert json.loads(head)["prev"] == previous
        assert ("header" in json.loads(head)) == (previous is None)
        previous = {"segment": path.name, "records_sha256": hashlib.sha256(records).hexdigest()}


def test_rewriting_keeps_every_line_and_takes_less_room(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=450)
    batches = turns(120)
    log = written(storage, batches)
    lines, before = whole_log(storage), {name: (log / name).stat().st_size for name in names(log)}
    assert len(before) == 3
    storage.rewrite_sealed(S1)
    after = {name: (log / name).stat().st_size for name in names(log)}
    assert whole_log(storage) == lines
    assert after.keys() == before.keys()
    *sealed, last = sorted(after)
    assert all(after[name] < before[name] / 2 for name in sealed) and after[last] == before[last]
    events = [event for batch in batches for event in batch]
    for seq in (0, 1, 449, 450, 451, 899, 900, 1000, 1079, 1080):
        assert list(storage.read(S1, seq)) == events[seq:]
    writer = storage.open(S1)
    assert list(writer.replay()) == events
    assert not writer.needs_rewrite
    writer.append(turn(1080, 121))
    writer.close()
    assert list(storage.read(S1, 1080)) == turn(1080, 121)


def test_a_rewritten_segment_has_a_frame_for_each_quarter_mebibyte(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=200)
    long_line = notes(150, 1, "x" * 600_000)
    log = written(
        storage,
        [notes(n, 1, "word " * 1000) for n in range(150)]
        + [long_line, *(notes(n, 1, "word " * 1000) for n in range(151, 230))],
    )
    storage.rewrite_sealed(S1)
    *full, last = frame_sizes(log / "000000000000.jsonl.zst")
    assert len(full) == 3
    assert all(sealing.PACKED_TEXT <= size < sealing.PACKED_TEXT + 6000 for size in full if size < 600_000)
    assert [size for size in full if size >= 600_000] != [] and last < sealing.PACKED_TEXT
    assert [event.seq for event in storage.read(S1)] == list(range(230))


def test_what_a_killed_process_did_not_rewrite_is_rewritten_by_the_next(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=90)
    log = written(storage, turns(40))
    sealing.rewrite(storage.path(S1), names(log)[0])
    packed = [len(frame_sizes(log / name)) == 1 for name in names(log)]
    assert packed == [True, False, False, False]
    (log / ".draft-1-left").write_bytes(b"half")
    writer = storage.open(S1)
    assert not writer.needs_rewrite, "nothing is known before the log was read"
    assert writer.next_seq == 360
    assert writer.needs_rewrite
    writer.compact()
    assert not writer.needs_rewrite
    writer.append(turn(360, 41))
    assert writer.needs_rewrite, "the append sealed another segment"
    writer.compact()
    writer.close()
    assert [len(frame_sizes(log / name)) == 1 for name in names(log)] == [True] * 5
    assert ".draft-1-left" not in names(log)
    assert [event.seq for event in storage.read(S1)] == list(range(369))


def test_a_segment_whose_lines_changed_is_not_rewritten(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=18)
    log = written(storage, turns(4))
    first = log / names(log)[0]
    other = disk(tmp_path / "other", segment_events=18)
    other_log = written(other, [turn(0, prompt="something else"), *turns(4)[1:]])
    shutil.copy(other_log / first.name, first)
    before = first.read_bytes()
    with pytest.raises(SessionCorrupt, match="not those that were sealed"):
        sealing.rewrite(storage.path(S1), first.name)
    assert first.read_bytes() == before
    assert names(log) == names(other_log)
    with pytest.raises(SessionCorrupt, match="has changed"):
        list(storage.read(S1))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("failing", ["write", "fsync", "link", "rename", "open"])
@pytest.mark.parametrize("after", [0, 1])
def test_sealing_or_rewriting_that_fails_changes_nothing_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failing: str, after: int
) -> None:
    storage = disk(tmp_path, segment_events=18)
    writer = storage.create(header())
    for batch in turns(4):
        writer.append(batch)
    log = Path(storage.path(S1), "log")
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    lines, original, left = whole_log(storage), getattr(os, failing), after

    def fail(*arguments: object, **keywords: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(code, os.strerror(code))
        return original(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        for act in (writer.compact, lambda: writer.append(turn(36, 5))):
            left = after
            try:
                act()
                assert left >= 0, "the failure went unnoticed"
            except StorageError as error:
                assert isinstance(error, StorageFull) == (code == errno.ENOSPC)
                left = 100
                now = {path.name: path.read_bytes() for path in log.iterdir()}
                assert now.keys() == before.keys() and whole_log(storage) == lines
                assert act != writer.compact or not writer.needs_rewrite
            before = {path.name: path.read_bytes() for path in log.iterdir()}
    if writer.next_seq == 36:
        writer.append(turn(36, 5))
    assert writer.needs_rewrite
    writer.compact()
    writer.close()
    assert [event.seq for event in storage.read(S1)] == list(range(45))


def test_a_stale_writer_does_not_add_to_a_segment_that_another_sealed(tmp_path: Path) -> None:
    """The lock is lost on purpose: what is left is compare-and-swap."""
    storage = disk(tmp_path, segment_events=18)
    first = storage.create(header())
    for batch in turns(2):
        first.append(batch)
    os.unlink(os.path.join(storage.path(S1), "lock"))
    second = storage.open(S1)
    assert second.next_seq == 18
    second.append(notes(18, 1, "second"))
    with pytest.raises(SessionBusy, match="stale writer"):
        first.append(notes(18, 1, "first"))
    assert [event.seq for event in storage.read(S1)] == list(range(19))
    assert list(storage.read(S1, 18)) == notes(18, 1, "second")


def test_reading_from_a_number_decodes_no_segment_before_it(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=18)
    log = written(storage, turns(6))
    for name in names(log)[1:-1]:
        path = log / name
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert list(storage.read(S1, 45)) == turn(45, 6)


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=9)
    log = written(storage, turns(4))
    (log / names(log)[1]).unlink()
    with pytest.raises(SessionCorrupt, match=r"000000000009\S* is missing"):
        list(storage.read(S1))
    assert [one.status for one in storage.list()] == ["corrupt"]


def test_an_open_reader_is_not_disturbed_by_a_rewriting(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=90)
    batches = turns(50)
    written(storage, batches)
    reader = storage.read(S1)
    seen = [next(reader) for _ in range(5)]
    storage.rewrite_sealed(S1)
    assert [*seen, *reader] == [event for batch in batches for event in batch]


def test_a_write_in_the_middle_of_being_taken_back_is_no_damage_to_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = SegmentStorage(str(tmp_path), OWNER, Ticking())
    writer = storage.create(header())
    writer.append(turn(0))
    path = Path(segment(storage))
    good = path.read_bytes()
    path.write_bytes(good + b"some bytes that will go away")
    looks = 0
    original = FrameFile.require_torn

    def taken_back(self: FrameFile, start: int) -> None:
        nonlocal looks
        looks += 1
        path.write_bytes(good)
        original(self, start)

    monkeypatch.setattr(FrameFile, "require_torn", taken_back)
    assert list(storage.read(S1)) == turn(0)
    assert looks == 1
    path.write_bytes(good + b"some bytes that will go away")
    assert [one.status for one in storage.list()] == ["live"]


def test_lines_are_stored_as_the_codec_makes_them_in_whatever_segment(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=9)
    batches = turns(3)
    written(storage, batches)
    assert b"\n".join((*whole_log(storage), b"")) == b"".join(map(encode_batch, batches))
