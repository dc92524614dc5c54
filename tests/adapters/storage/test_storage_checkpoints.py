"""A checkpoint is used when it fits the log, whatever happened to the segments since; else it is not."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dsh_actors.adapters.storage.frames import compress_frame
from dsh_actors.adapters.storage.storage import SegmentStorage, SegmentWriter
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import EventRefused, SessionCorrupt, SessionError, StorageError, StorageFull
from dsh_actors.ports import Checkpoint
from tests.adapters.storage.samples import disk, header, notes, turn

S1 = SessionId("s1")


def saved(storage: SegmentStorage, turns: int = 6, every: int = 2, session_id: str = "s1") -> Path:
    """A session of so many turns of 9 events with a checkpoint after each ``every``; its directory."""
    writer = storage.create(header(session_id))
    for number in range(1, turns + 1):
        writer.append(turn(number * 9 - 9, number))
        if number % every == 0:
            writer.save_checkpoint(Checkpoint(number * 9, {"turns": number}))
    writer.close()
    return Path(storage.path(SessionId(session_id)))


def reopened(storage: SegmentStorage) -> tuple[int, list[Event], int]:
    """Where the checkpoint is, what is replayed behind it, and where the log ends."""
    writer = storage.open(S1)
    checkpoint = writer.checkpoint()
    next_seq = 0 if checkpoint is None else checkpoint.next_seq
    assert checkpoint is None or checkpoint.state == {"turns": next_seq // 9}
    events = list(writer.replay(next_seq))
    end = writer.next_seq
    writer.close()
    return next_seq, events, end


def checkpoint_names(directory: Path) -> list[str]:
    folder = directory / "checkpoints"
    return sorted(os.listdir(folder)) if folder.exists() else []


def row_of(path: Path) -> dict[str, Any]:
    row = json.loads(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
    assert isinstance(row, dict)
    return row


def test_the_file_says_what_it_is_of_and_two_are_kept(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=18)
    directory = saved(storage, turns=8)
    assert checkpoint_names(directory) == ["000000000054.json.zst", "000000000072.json.zst"]
    row = row_of(directory / "checkpoints" / "000000000072.json.zst")
    digest = row.pop("record_sha256")
    size = (directory / "log" / "000000000054.jsonl.zst").stat().st_size
    assert row == {
        "type": "checkpoint",
        "format": 1,
        "session": "s1",
        "next_seq": 72,
        "segment": "000000000054.jsonl.zst",
        "offset": size,
        "state": {"turns": 8},
    }
    assert len(digest) == 64


@pytest.mark.parametrize("segment_events", [9, 18, 4096])
@pytest.mark.parametrize("is_rewritten", [False, True])
def test_only_what_follows_the_checkpoint_is_replayed(
    tmp_path: Path, segment_events: int, is_rewritten: bool
) -> None:
    storage = disk(tmp_path, segment_events=segment_events)
    saved(storage, turns=7)
    if is_rewritten:
        storage.rewrite_sealed(S1)
    assert reopened(storage) == (54, turn(54, 7), 63)


def test_a_checkpoint_survives_that_its_own_segment_is_sealed_and_rewritten(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=63)
    writer = storage.create(header())
    for number in range(1, 12):
        writer.append(turn(number * 9 - 9, number))
        if number == 4:
            writer.save_checkpoint(Checkpoint(36, {"turns": 4}))
    writer.compact()
    writer.close()
    later = [event for number in range(5, 12) for event in turn(number * 9 - 9, number)]
    assert reopened(storage) == (36, later, 99)
    assert list(storage.read(S1, 36)) == later


def test_a_checkpoint_may_stand_inside_a_batch_or_a_packed_run(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    events = [event for number in range(3) for event in turn(number * 9, number + 1)]
    writer = storage.create(header())
    writer.append(events)
    for seq in (*range(1, 28), 5):
        writer.save_checkpoint(Checkpoint(seq, {"seq": seq}))
        assert storage.checkpoint(S1) == Checkpoint(seq, {"seq": seq})
        assert list(writer.replay(seq)) == events[seq:]
    writer.close()


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def doubled(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def made_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def changed(**members: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        line = json.dumps({**row_of(path), **members}).encode()
        path.write_bytes(compress_frame(line + b"\n"))

    return change


BAD = {
    "damaged": damaged,
    "cut": cut,
    "emptied": emptied,
    "doubled": doubled,
    "linked": linked,
    "a directory": made_a_directory,
    "of another session": changed(session="s2"),
    "newer": changed(format=2),
    "of no format": changed(format=None),
    "of another place": changed(next_seq=45),
    "after another record": changed(record_sha256="0" * 64),
    "without a state": changed(state=None),
    "no checkpoint": changed(type="segment"),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD.keys())
def test_the_next_older_checkpoint_is_used_and_then_the_whole_log(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    storage = disk(tmp_path, segment_events=18)
    directory = saved(storage, turns=7)
    older, newer = (directory / "checkpoints" / name for name in checkpoint_names(directory))
    spoil(newer)
    events = [event for number in range(7) for event in turn(number * 9, number + 1)]
    assert reopened(storage) == (36, events[36:], 63)
    spoil(older)
    assert reopened(storage) == (0, events, 63)
    assert storage.checkpoint(S1) is None


@pytest.mark.parametrize("offset", [0, 1, 10**9, -5])
def test_a_wrong_offset_or_segment_costs_time_only(tmp_path: Path, offset: int) -> None:
    storage = disk(tmp_path, segment_events=18)
    directory = saved(storage, turns=7)
    newest = directory / "checkpoints" / checkpoint_names(directory)[-1]
    changed(offset=offset)(newest)
    assert reopened(storage) == (54, turn(54, 7), 63)
    changed(segment="000000000000.jsonl.zst")(newest)
    assert reopened(storage) == (54, turn(54, 7), 63)
    changed(segment=7, offset=0)(newest)
    assert reopened(storage) == (54, turn(54, 7), 63)


def test_without_checkpoints_everything_is_as_it_was(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=18)
    directory = saved(storage, turns=7)
    for name in checkpoint_names(directory):
        (directory / "checkpoints" / name).unlink()
    (directory / "checkpoints").rmdir()
    events = [event for number in range(7) for event in turn(number * 9, number + 1)]
    assert reopened(storage) == (0, events, 63)
    assert list(storage.read(S1)) == events


def test_a_checkpoint_from_a_future_that_the_log_lost_is_not_used_and_goes_away(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=18)
    directory = saved(storage, turns=6)
    (directory / "log" / "000000000036.jsonl.zst").unlink()
    events = [event for number in range(4) for event in turn(number * 9, number + 1)]
    assert reopened(storage) == (36, [], 36)
    writer = storage.open(S1)
    assert list(writer.replay()) == events
    writer.append(notes(36, 20))
    assert storage.checkpoint(S1) == Checkpoint(36, {"turns": 4}), "event 53 is another one now"
    writer.save_checkpoint(Checkpoint(45, {}))
    writer.close()
    assert checkpoint_names(directory) == ["000000000036.json.zst", "000000000045.json.zst"]


def test_a_torn_tail_behind_a_checkpoint_is_cut_as_ever(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=18)
    directory = saved(storage, turns=7)
    path = directory / "log" / "000000000054.jsonl.zst"
    whole = path.read_bytes()
    second = whole.index(b"\x28\xb5\x2f\xfd", 1)
    path.write_bytes(whole[: second + 30])
    assert reopened(storage) == (54, [], 54)
    assert path.read_bytes() == whole[:second]
    writer = storage.open(S1)
    assert writer.checkpoint() == Checkpoint(54, {"turns": 6})
    assert list(writer.replay(54)) == []
    writer.append(turn(54, 7))
    writer.close()
    assert list(storage.read(S1, 54)) == turn(54, 7)


def test_damage_in_what_follows_the_checkpoint_is_refused_with_its_place(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=18)
    directory = saved(storage, turns=7)
    path = directory / "log" / "000000000054.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    writer = storage.open(S1)
    assert writer.checkpoint() is not None
    with pytest.raises(SessionCorrupt, match="000000000054"):
        list(writer.replay(54))
    writer.close()


def test_events_that_are_not_stored_have_no_checkpoint(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    with pytest.raises(SessionError):
        writer.save_checkpoint(Checkpoint(1, {}))
    writer.append(turn(0))
    for next_seq in (0, -1, 10):
        with pytest.raises(SessionError):
            writer.save_checkpoint(Checkpoint(next_seq, {}))
    assert checkpoint_names(Path(storage.path(S1))) == []


@pytest.mark.parametrize("value", [{1}, float("nan"), "\ud800"])
def test_a_state_without_a_json_form_is_refused(tmp_path: Path, value: object) -> None:
    storage = disk(tmp_path)
    directory = saved(storage)
    writer = storage.open(S1)
    assert writer.next_seq == 54
    before = checkpoint_names(directory)
    with pytest.raises(EventRefused):
        writer.save_checkpoint(Checkpoint(54, {"value": value}))
    assert checkpoint_names(directory) == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("failing", ["mkdir", "open", "write", "fsync", "rename", "unlink"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_checkpoint_that_cannot_be_saved_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failing: str, is_first: bool
) -> None:
    storage = disk(tmp_path)
    writer: SegmentWriter = storage.create(header())
    writer.append(turn(0))
    directory = Path(storage.path(S1))
    if not is_first:
        for seq in (3, 5, 7):
            writer.save_checkpoint(Checkpoint(seq, {}))
    before, known = checkpoint_names(directory), storage.checkpoint(S1)

    def fail(*_arguments: object, **_keywords: object) -> object:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        try:
            writer.save_checkpoint(Checkpoint(9, {"new": True}))
            assert (failing, is_first) in (("unlink", True), ("mkdir", False)), "the failure went unnoticed"
            known = Checkpoint(9, {"new": True})
        except StorageError as error:
            assert isinstance(error, StorageFull) == (code != errno.EIO)
            assert str(directory) in error.message
            if failing != "unlink":  # then it is stored, and an older one could not be removed
                assert checkpoint_names(directory) == before
            else:
                known = Checkpoint(9, {"new": True})
    assert storage.checkpoint(S1) == known
    writer.save_checkpoint(Checkpoint(9, {"new": True}))
    writer.append(turn(9, 2))
    writer.close()
    assert storage.checkpoint(S1) == Checkpoint(9, {"new": True})
    assert list(storage.read(S1)) == [*turn(0), *turn(9, 2)]


def test_a_checkpoint_does_not_date_the_session(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    writer.append(turn(0))
    updated = next(storage.list()).updated
    writer.save_checkpoint(Checkpoint(9, {}))
    writer.close()
    assert next(storage.list()).updated == updated
