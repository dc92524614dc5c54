"""Finding what is readable in a damaged directory, which stays as it is to the last byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.frames import compress_frame
from dsh_actors.adapters.storage.salvage import DamagedLog
from dsh_actors.adapters.storage.segments import SegmentHeader
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event
from dsh_actors.core.salvage import Damage
from dsh_actors.errors import SessionCorrupt, SessionUnsupported
from tests.adapters.storage.samples import disk, header, stored, turn

BATCHES = [turn(0, 1), turn(9, 2), turn(18, 3)]
LOG = [event for batch in BATCHES for event in batch]


@pytest.fixture
def storage(tmp_path: Path) -> SegmentStorage:
    return disk(tmp_path)


def segment_of(storage: SegmentStorage) -> Path:
    return Path(stored(storage, BATCHES))


def frame_starts(path: Path) -> list[int]:
    data, found, starts = path.read_bytes(), 0, []
    while (found := data.find(b"\x28\xb5\x2f\xfd", found)) >= 0:
        starts.append(found)
        found += 1
    return [*starts, len(data)]


def read(path: Path) -> tuple[list[Event], list[Damage]]:
    log = DamagedLog(str(path.parent.parent))
    items = list(log.items())
    return [i for i in items if isinstance(i, Event)], [i for i in items if isinstance(i, Damage)]


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in directory.rglob("*") if p.is_file()}


def test_a_whole_log_is_read_whole(storage: SegmentStorage) -> None:
    assert read(segment_of(storage)) == (LOG, [])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_flipped_bit_costs_no_more_than_its_frame(storage: SegmentStorage, number: int) -> None:
    path = segment_of(storage)
    starts = frame_starts(path)
    start, end = starts[number], starts[number + 1]
    whole = path.read_bytes()
    others = [event for batch in (*BATCHES[: number - 1], *BATCHES[number:]) for event in batch]
    for position in range(start, end, 5):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        before = snapshot(path.parent.parent)
        events, damages = read(path)
        assert [e for e in events if e in others] == others, position
        # Whole lines of the last write, cut off by the damage, may still be read: then they are right.
        assert [e for e in events if e not in others] == BATCHES[number - 1][: len(events) - len(others)]
        assert damages and damages[0].place == str(path)
        assert (damages[0].offset, damages[0].size) == (start, end - start)
        assert snapshot(path.parent.parent) == before


def test_zeros_in_the_middle_cost_the_frames_they_cover(storage: SegmentStorage) -> None:
    path = segment_of(storage)
    starts = frame_starts(path)
    data = bytearray(path.read_bytes())
    data[starts[1] + 10 : starts[2] + 10] = bytes(starts[2] - starts[1])
    path.write_bytes(data)
    events, damages = read(path)
    assert events == BATCHES[2]
    assert [(d.offset, d.size) for d in damages] == [(starts[1], starts[3] - starts[1])]


def test_the_whole_lines_of_a_write_that_was_cut_off_are_read(storage: SegmentStorage) -> None:
    path = segment_of(storage)
    whole, starts = path.read_bytes(), frame_starts(path)
    seen = set()
    for cut in range(starts[3], len(whole)):
        path.write_bytes(whole[:cut])
        events, damages = read(path)
        assert events == LOG[: len(events)] and len(events) >= 18
        assert [d.is_tail for d in damages] == [True] * (cut > starts[3])
        seen.add(len(events))
    assert len(seen) > 1


def test_a_lost_header_is_made_from_the_name_and_the_first_event(storage: SegmentStorage) -> None:
    path = segment_of(storage)
    data = bytearray(path.read_bytes())
    data[8] ^= 0xFF
    path.write_bytes(data)
    made = DamagedLog(str(path.parent.parent)).header("/srv/other")
    assert (made.id, made.created_at, made.cwd) == ("s1", LOG[0].time, "/srv/other")
    events, damages = read(path)
    assert events == LOG and damages[0].offset == 0


def test_a_kept_header_is_the_one_of_the_session(storage: SegmentStorage) -> None:
    assert DamagedLog(str(segment_of(storage).parent.parent)).header("/x") == header("s1")


def test_later_segments_are_read_though_an_earlier_one_is_gone(storage: SegmentStorage) -> None:
    path = segment_of(storage)
    second = SegmentHeader("s1", 27, (path.name, "0" * 64)).encode()
    more = turn(27, 4)
    later = path.with_name("000000000027.jsonl.zst")
    later.write_bytes(compress_frame(second) + compress_frame(encode_batch(more)))
    assert read(path) == (LOG + more, [])
    os.truncate(path, frame_starts(path)[3] + 9)
    events, damages = read(path)
    assert events == LOG[:18] + more and not damages[0].is_tail
    path.unlink()
    assert read(path)[0] == more


def test_a_newer_format_is_no_damage(storage: SegmentStorage) -> None:
    path = segment_of(storage)
    first = SegmentHeader("s1", 0, None, header("s1")).encode().replace(b'"format":1', b'"format":2')
    path.write_bytes(compress_frame(first))
    with pytest.raises(SessionUnsupported):
        DamagedLog(str(path.parent.parent)).header()


def test_nothing_readable_is_an_error_that_names_the_place(storage: SegmentStorage) -> None:
    path = segment_of(storage)
    path.write_bytes(b"\x00" * 100)
    with pytest.raises(SessionCorrupt, match="log"):
        DamagedLog(str(path.parent.parent)).header()
