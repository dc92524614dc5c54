"""Cut-off writes are kept as far as they are whole; damage is refused with its place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard

from dsh_actors.adapters.storage.frames import compress_frame
from dsh_actors.adapters.storage.segments import SegmentHeader
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionCorrupt, SessionUnsupported
from tests.adapters.storage.samples import disk, header, notes, run_child, segment, stored, turn

S1 = SessionId("s1")


def frame_starts(data: bytes) -> list[int]:
    """Magic bytes are no valid UTF-8, so they stand at frame beginnings (and by rare chance elsewhere)."""
    return [i for i in range(len(data)) if data.startswith(b"\x28\xb5\x2f\xfd", i)]


def reopened(storage: SegmentStorage) -> list[Event]:
    """Open for writing, append one event, and read all from disk; the last event is the new one."""
    writer = storage.open(S1)
    events = list(writer.replay())
    writer.append(notes(writer.next_seq, 1, "after the crash"))
    writer.close()
    assert list(storage.read(S1)) == [*events, *notes(len(events), 1, "after the crash")]
    return events


def test_a_log_cut_at_any_byte_of_its_last_two_frames_opens_with_its_whole_batches(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    batches = [turn(0), turn(9, 2), turn(18, 3)]
    path = Path(stored(storage, batches))
    whole = path.read_bytes()
    starts = [*frame_starts(whole), len(whole)]
    assert len(starts) == 5
    for cut in range(starts[2], len(whole)):
        for leftover in path.parent.glob("*.torn*"):
            leftover.unlink()
        path.write_bytes(whole[:cut])
        committed = [e for batch, end in zip(batches, starts[2:], strict=True) if cut >= end for e in batch]
        seen = list(storage.read(S1))
        assert path.read_bytes() == whole[:cut], "a reader writes nothing"
        assert seen == reopened(storage)
        # All of a batch can be rescued once its data is there and only the checksum is not.
        assert seen in (
            committed,
            [*committed, *batches[starts[2:].index(min(s for s in starts if s > cut))]],
        )
        torn = list(path.parent.glob("*.torn*"))
        valid = max(start for start in starts if start <= cut)
        assert [one.read_bytes() for one in torn] == ([whole[valid:cut]] if cut > valid else [])


def test_a_batch_that_misses_only_its_checksum_is_rescued(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0), turn(9, 2)]))
    path.write_bytes(path.read_bytes()[:-2])
    assert reopened(storage) == [*turn(0), *turn(9, 2)]


def test_complete_lines_of_a_large_torn_batch_are_kept(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    batch = notes(9, 40, os.urandom(8000).hex())
    for event in batch:
        event.data["text"] = os.urandom(8000).hex()
    path = Path(stored(storage, [turn(0), batch]))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 10_000])
    events = reopened(storage)
    assert events[:9] == turn(0)
    assert 9 < len(events) < 49 and events[9:] == batch[: len(events) - 9]
    assert (path.parent / f"{path.name}.torn").stat().st_size > 100_000
    assert not list(path.parent.glob(".draft*"))


def test_a_torn_tail_is_cut_once_and_a_second_one_does_not_replace_the_first(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0), turn(9, 2)]))
    whole = path.read_bytes()
    start = frame_starts(whole)[2]
    for cut in (start + 20, start + 30):
        path.write_bytes(whole[:cut])
        writer = storage.open(S1)
        assert list(writer.replay()) == turn(0)
        writer.close()
        assert path.read_bytes() == whole[:start]
    # A crash between keeping the tail and cutting it does not keep it twice.
    path.write_bytes(whole[: start + 30])
    assert storage.open(S1).next_seq == 9
    kept = sorted(path.parent.glob("*.torn*"))
    assert [one.name for one in kept] == [f"{path.name}.torn", f"{path.name}.torn-2"]
    assert [one.read_bytes() for one in kept] == [whole[start : start + 20], whole[start : start + 30]]


def test_zeros_of_a_write_whose_data_never_arrived_are_a_torn_tail(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0)]))
    with path.open("ab") as file:
        file.write(bytes(3000))
    assert reopened(storage) == turn(0)


def test_no_flipped_bit_changes_or_loses_an_event_unnoticed(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    batches = [turn(0), notes(9, 1)]
    path = Path(stored(storage, batches))
    whole = path.read_bytes()
    events = [event for batch in batches for event in batch]
    refused = 0
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert list(storage.read(S1)) == events, (position, bit)
            except SessionCorrupt as error:
                assert str(path) in error.message and "byte" in error.message
                refused += 1
    assert refused > len(whole) * 7


def test_damage_before_the_last_whole_frame_is_refused_with_its_place_and_left_as_it_is(
    tmp_path: Path,
) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0), turn(9, 2), turn(18, 3)]))
    whole = path.read_bytes()
    start = frame_starts(whole)[2]
    for damaged in (
        whole[:start] + bytes(60) + whole[start + 60 :],
        whole[: start + 10] + whole[start + 60 :],
        whole[:start] + b"\x00\x00" + whole[start:],
        whole[: start + 5] + b"\xff\xff\xff" + whole[start + 8 :],
        whole[:start] + b"hello" + whole[start:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(SessionCorrupt, match=f"byte {start}"):
            list(storage.read(S1))
        writer = storage.open(S1)
        with pytest.raises(SessionCorrupt, match=f"byte {start}"):
            writer.append(turn(27, 4))
        writer.close()
        assert path.read_bytes() == damaged
        assert os.listdir(path.parent) == [path.name]
        assert [one.status for one in storage.list()] == ["corrupt"]


def test_a_missing_batch_is_a_gap(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0), turn(9, 2), turn(18, 3)]))
    whole = path.read_bytes()
    _header, _first, second, third = frame_starts(whole)
    path.write_bytes(whole[:second] + whole[third:])
    with pytest.raises(SessionCorrupt, match="event 18 stands where event 9 is due"):
        list(storage.read(S1))


@pytest.mark.parametrize("tail", [b'{"type":"turn/start","se', b"not json\n", b"\n", b"[1]\n"])
def test_a_whole_frame_with_a_broken_line_is_damage(tmp_path: Path, tail: bytes) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0)]))
    with path.open("ab") as file:
        file.write(compress_frame(encode_batch(notes(9, 1)) + tail))
    with pytest.raises(SessionCorrupt):
        list(storage.read(S1))


def rewrite_header(path: Path, **change: object) -> None:
    data = path.read_bytes()
    events_start = frame_starts(data)[1]
    head = json.loads(zstandard.ZstdDecompressor().decompress(data[:events_start]))
    path.write_bytes(compress_frame(json.dumps({**head, **change}).encode() + b"\n") + data[events_start:])


def test_a_newer_format_is_named_as_such_and_not_as_damage(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0)]))
    rewrite_header(path, format=2, anything="else")
    for ask in (storage.header, storage.open, lambda s: list(storage.read(s))):
        with pytest.raises(SessionUnsupported, match="written by a newer version"):
            ask(S1)
    assert [one.status for one in storage.list()] == ["unsupported"]


@pytest.mark.parametrize(
    "change", [{"session": "other"}, {"format": 0}, {"format": "1"}, {"type": "session"}, {"header": None}]
)
def test_a_header_that_is_not_this_session_is_damage(tmp_path: Path, change: dict[str, object]) -> None:
    storage = disk(tmp_path)
    rewrite_header(Path(stored(storage, [turn(0)])), **change)
    with pytest.raises(SessionCorrupt):
        storage.open(S1)
    assert [one.status for one in storage.list()] == ["corrupt"]


def types_seen_by_other_programs(log: Path) -> list[str]:
    """With ``zstd`` and ``jq`` where they are installed, else with what they do: frames in a row, lines."""
    if shutil.which("zstd") and shutil.which("jq"):
        command = ["sh", "-c", 'zstd -dc "$1"/*.zst | jq -r .type', "sh", str(log)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    types = []
    for path in sorted(log.glob("*.zst")):
        with path.open("rb") as file:
            text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        types += [json.loads(line)["type"] for line in text.splitlines()]
    return types


def test_the_log_can_be_read_with_zstd_and_jq_while_it_is_written(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    for number in range(3):
        writer.append(turn(number * 9, number + 1))
        types = types_seen_by_other_programs(Path(storage.path(S1), "log"))
        assert types.count("turn/end") == types.count("text-chunks") == number + 1
        assert types[0] == "segment"
    writer.close()


def second_segment(path: Path, first_seq: int, events: list[Event], sha256: str) -> Path:
    """What sealing will leave behind: another segment that names the one before it."""
    head = SegmentHeader("s1", first_seq, (path.name, sha256)).encode()
    later = path.parent / f"{first_seq:012d}.jsonl.zst"
    later.write_bytes(compress_frame(head) + compress_frame(encode_batch(events)))
    return later


def test_several_segments_are_read_in_order_and_the_last_one_is_appended_to(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0), turn(9, 2)]))
    records = encode_batch(turn(0)) + encode_batch(turn(9, 2))
    later = second_segment(path, 18, turn(18, 3), hashlib.sha256(records).hexdigest())
    before = path.read_bytes()
    events = [*turn(0), *turn(9, 2), *turn(18, 3)]
    assert reopened(storage) == events
    assert path.read_bytes() == before
    for seq in (0, 8, 17, 18, 20, 27, 28):
        assert list(storage.read(S1, seq)) == [*events, *notes(27, 1, "after the crash")][seq:]
    later.write_bytes(later.read_bytes()[:-3])
    assert [event.seq for event in storage.read(S1)][:27] == list(range(27))


def test_a_break_in_the_chain_of_segments_is_damage(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    path = Path(stored(storage, [turn(0), turn(9, 2)]))
    good = hashlib.sha256(encode_batch(turn(0)) + encode_batch(turn(9, 2))).hexdigest()
    later = second_segment(path, 18, turn(18, 3), hashlib.sha256(b"another past").hexdigest())
    with pytest.raises(SessionCorrupt, match="has changed"):
        list(storage.read(S1))
    later.unlink()
    later = second_segment(path, 20, turn(20, 3), good)
    with pytest.raises(SessionCorrupt, match="begin at 20 instead of 18"):
        list(storage.read(S1))
    later.unlink()
    later = second_segment(path, 18, turn(18, 3), good)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SessionCorrupt, match="another segment follows"):
        list(storage.read(S1))
    path.unlink()
    with pytest.raises(SessionCorrupt):
        list(storage.read(S1))
    with pytest.raises(SessionCorrupt):
        storage.open(S1)


def test_a_list_shows_every_session_however_damaged_some_are(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    for number in range(5):
        stored(storage, [turn(0)], f"good-{number}")
    for session_id in ("garbage", "zero", "no-log"):
        stored(storage, [turn(0)], session_id)
    Path(segment(storage, "garbage")).write_bytes(os.urandom(500))
    Path(segment(storage, "zero")).write_bytes(b"")
    shutil.rmtree(Path(segment(storage, "no-log")).parent)
    project = Path(segment(storage, "zero")).parents[2]
    (project / "stray-file").write_text("x")
    (project / ".new-1-abc").mkdir()
    status = {one.id: one.status for one in storage.list()}
    assert status == {
        **{f"good-{number}": "ok" for number in range(5)},
        "garbage": "corrupt",
        "zero": "empty",
        "no-log": "empty",
    }
    for session_id in ("garbage", "zero", "no-log"):
        with pytest.raises(SessionCorrupt):
            storage.open(SessionId(session_id))


def test_a_long_log_is_read_without_holding_it_in_memory(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    writer = storage.create(header())
    text = "word " * 20_000
    for number in range(300):
        writer.append(notes(number, 1, text + str(number)))
    writer.close()
    code = (
        "import sys\n"
        "from dsh_actors.adapters.storage.storage import SegmentStorage\n"
        "s = SegmentStorage(sys.argv[1], 'o', lambda: 0)\n"
        "from dsh_actors.testing.memory import peak_kib, reset_peak\n"
        "base = reset_peak()\n"
        "print(sum(len(e.data['text']) for e in s.read('s1')) // 2**20, (peak_kib() - base) // 1024)\n"
    )
    decoded_mib, grown_mib = map(int, run_child(code, tmp_path).split())
    assert decoded_mib >= 28 and grown_mib < 10
