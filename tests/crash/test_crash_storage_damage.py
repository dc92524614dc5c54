"""Every bit of a small session is flipped once and every byte cut off: right events, or a refusal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dsh_actors.core.events import Event
from dsh_actors.errors import SessionCorrupt, SessionUnsupported
from dsh_actors.ports import Checkpoint
from tests.crash.storage_scenarios import BATCH, S1, events, live, storage_at


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _descriptor: None)


def session(root: Path) -> Path:
    """Four segments, three of them rewritten, two checkpoints, and events behind them."""
    for _durable in live(str(root), 7):
        continue
    return Path(storage_at(str(root)).path(S1))


def opened(root: Path) -> tuple[Checkpoint | None, list[Event]]:
    """What an opener gets: a checkpoint and what follows it, as a reader sees it."""
    storage = storage_at(str(root))
    storage.header(S1)
    checkpoint = storage.checkpoint(S1)
    return checkpoint, list(storage.read(S1, 0 if checkpoint is None else checkpoint.next_seq))


def outcome(root: Path, log: Path) -> str:
    """``refused`` with a place, or ``right``: all events, whichever checkpoint was usable."""
    try:
        everything = list(storage_at(str(root)).read(S1))
        assert everything == events(0, 7 * BATCH), "wrong or lost events were read"
        is_refused = False
    except (SessionCorrupt, SessionUnsupported) as error:
        assert str(log) in error.message or isinstance(error, SessionUnsupported)
        is_refused = True
    try:
        checkpoint, later = opened(root)
    except (SessionCorrupt, SessionUnsupported):
        assert is_refused, "opening needs more than reading"
        return "refused"
    if checkpoint is not None:
        assert checkpoint == Checkpoint(checkpoint.next_seq, {"count": checkpoint.next_seq})
    first = 0 if checkpoint is None else checkpoint.next_seq
    assert later == events(first, 7 * BATCH - first)
    return "refused" if is_refused else "right"


def test_no_flipped_bit_of_a_session_makes_it_open_wrong(tmp_path: Path, long_form: bool) -> None:
    directory = session(tmp_path)
    step = 1 if long_form else 23  # coprime to 8: all bit positions come up
    counts, harmless = {"right": 0, "refused": 0}, 0
    for path in sorted([*directory.glob("log/*"), *directory.glob("checkpoints/*")]):
        whole = path.read_bytes()
        for bit in range(0, len(whole) * 8, step):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            result = outcome(tmp_path, directory / "log")
            counts[result] += 1
            if path.parent.name == "checkpoints":
                assert result == "right", (path.name, bit)
            elif result == "right":
                harmless += 1
        path.write_bytes(whole)
    assert min(counts.values()) > 20
    # One bit in a frame's header and the padding of its tables mean nothing: the same events are read.
    assert harmless < counts["refused"] / 20


def test_a_session_cut_at_any_byte_of_its_last_segment_keeps_its_whole_batches(tmp_path: Path) -> None:
    root = tmp_path / "whole"
    directory = session(root)
    path = sorted(directory.glob("log/*"))[-1]
    whole = path.read_bytes()
    header_end = whole.index(b"\x28\xb5\x2f\xfd", 1)
    assert len(events(0, 7 * BATCH)) == 35 and path.name.startswith("000000000030")
    for cut in range(0, len(whole)):
        damaged = tmp_path / "cut"
        shutil.copytree(root, damaged)
        Path(damaged, path.relative_to(root)).write_bytes(whole[:cut])
        if cut < header_end:
            assert_refused(damaged)
        else:
            seen = list(storage_at(str(damaged)).read(S1))
            # All of the batch can be there once only its checksum is missing.
            assert seen == events(0, len(seen)) and len(seen) in (30, 35)
            *_, last = live(str(damaged), 2)
            assert last == len(seen) + 2 * BATCH
            assert list(storage_at(str(damaged)).read(S1)) == events(0, last)
        shutil.rmtree(damaged)


def assert_refused(root: Path) -> None:
    try:
        list(storage_at(str(root)).read(S1))
    except SessionCorrupt as error:
        assert "000000000030" in error.message
        return
    raise AssertionError("half a header was taken for a segment")


def test_a_checkpoint_cut_anywhere_is_passed_over(tmp_path: Path) -> None:
    directory = session(tmp_path)
    path = sorted(directory.glob("checkpoints/*"))[-1]
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        checkpoint, later = opened(tmp_path)
        assert checkpoint == Checkpoint(20, {"count": 20}) and later == events(20, 15)
