"""Reading a session from a file: both encodings, old shapes, and a refusal with the line for the rest."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.adapters.storage.importing import ImportFile, store_session
from dsh_actors.adapters.storage.memory import MemoryStorage
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionCorrupt, SessionExists, SessionUnsupported, StorageFull
from tests.core.test_turn_properties import random_log
from tests.session_logs import turns

HEADER = SessionHeader(SessionId("s"), 1_700_000_000_000, "/srv/shop", SessionId("p"), 0, "subagent", 2, "x")


def head(**changes: Any) -> bytes:
    return json.dumps({"type": "session", **HEADER.to_json(), **changes}).encode() + b"\n"


def plain(events: Sequence[Event]) -> bytes:
    return head() + b"".join(json.dumps(event.to_json()).encode() + b"\n" for event in events)


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def source(data: bytes) -> ImportFile:
    return ImportFile(io.BytesIO(data), "file")


def memory() -> MemoryStorage:
    return MemoryStorage("test", lambda: 1)


def imported(data: bytes) -> tuple[SessionHeader, list[Event]]:
    """What is stored of the file, through a storage."""
    file, storage = source(data), memory()
    header, _ = file.header()
    assert file.check() == store_session(storage, header, file.events())
    return storage.header(header.id), list(storage.read(header.id))


LOG = turns(2)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_every_encoding_gives_the_same_session(packed: bool, compressed: bool) -> None:
    parts = [head(), *(encode_batch(LOG[i : i + 9]) for i in range(0, len(LOG), 9))]
    data = b"".join(parts) if packed else plain(LOG)
    if compressed:
        data = b"".join(map(frame, parts)) if packed else frame(data)
    assert imported(data) == (HEADER, LOG)


@given(st.data())
def test_what_was_exported_comes_back_and_is_exported_the_same(data: st.DataObject) -> None:
    log = random_log(data, 3, 25)
    if not log:
        return
    first = plain(log)
    header, events = imported(first)
    assert (header, events) == (HEADER, log)
    assert plain(events) == first
    assert imported(plain(events)) == (header, events)


def test_old_shapes_are_stored_as_those_of_today() -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "hi"}], "source": {"kind": "user"}}
    rows = [
        ("turn/start", {"turn": 1, "trigger": {"kind": "user"}}, {}),
        ("user/message", user, {"surfaceOp": "append"}),
        ("steering/message", user, {}),
        ("turn/end", {"turn": 1, "reason": {"kind": "disposed"}}, {}),
    ]
    lines = [{"type": k, "seq": i, "time": 1, "data": d, **e} for i, (k, d, e) in enumerate(rows)]
    _, events = imported(head() + b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert [event.type for event in events] == ["turn/start", "user/message", "user/message", "turn/end"]
    assert events[0].data == {"turn": 1}
    assert [event.data["id"] for event in events[1:3]] == ["legacy-message:s:1", "legacy-message:s:2"]
    assert events[3].data["reason"] == {"kind": "aborted", "reason": {"kind": "disposed"}}


@pytest.mark.parametrize("compressed", [False, True])
def test_a_torn_end_loses_only_its_last_line(compressed: bool) -> None:
    whole = plain(LOG)
    cut = whole[:-20]
    assert imported(frame(cut) if compressed else cut)[1] == LOG[:-1]


def test_a_last_line_without_its_newline_is_kept_if_it_is_whole() -> None:
    assert imported(plain(LOG)[:-1])[1] == LOG


def test_a_cut_compressed_file_gives_its_whole_lines_wherever_it_is_cut() -> None:
    parts = [frame(head()), *(frame(encode_batch(LOG[i : i + 9])) for i in range(0, len(LOG), 9))]
    data = b"".join(parts)
    for cut in range(len(parts[0]) + len(parts[1]), len(data), 7):
        events = imported(data[:cut])[1]
        assert events == LOG[: len(events)] and len(events) >= 9


def damaged(lines: list[bytes]) -> str:
    with pytest.raises((SessionCorrupt, SessionUnsupported)) as refusal:
        file = source(b"".join(lines))
        file.header()
        file.check()
    return refusal.value.message


def test_damage_before_the_end_is_refused_with_its_line() -> None:
    lines = plain(LOG).splitlines(keepends=True)
    assert "line 5: not a JSON line" in damaged([*lines[:4], b"\x00\x00\n", *lines[5:]])
    assert "line 6: event 5 stands where event 4 is due" in damaged([*lines[:5], *lines[6:]])
    assert "line 4: event 1" in damaged([*lines[:3], *lines[2:]])
    bad = json.loads(lines[-1]) | {"surfaceOp": "append"}
    assert f"line {len(lines)}" in damaged([*lines[:-1], json.dumps(bad).encode() + b"\n"])
    nan = lines[1].replace(b'"start": 0', b'"start": NaN')
    assert "line 2" in damaged([lines[0], nan, *lines[2:]])
    huge = b'{"type":"run/note","seq":0,"time":0,"ignorable":true,"data":{"x":1e999}}\n'
    assert "line 2" in damaged([lines[0], huge])


def test_a_damaged_frame_is_refused_with_the_line_it_begins_at() -> None:
    parts = [frame(head()), frame(encode_batch(LOG[:9])), frame(encode_batch(LOG[9:]))]
    second = bytearray(parts[2])
    second[len(second) // 2] ^= 1
    lines = encode_batch(LOG[:9]).count(b"\n") + 2
    message = damaged([parts[0], parts[1], bytes(second)])
    assert "zstd" in message and f"line {lines}" in message


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"", "empty"),
        (b"hello\n", "line 1 is not the header"),
        (b"[]\n", "line 1 is not the header"),
        (b'{"type":"segment","format":1}\n', "line 1 is not the header"),
        (head(createdAt=-1), "line 1: session header: wrong createdAt"),
        (head(createdAt=-0.0), "line 1: session header: wrong createdAt"),
        (head(agentPreset=5), "wrong agentPreset"),
        (head(version=1), "version 1"),
        (head(version=-1), "version -1"),
        (head(version="0"), "version '0'"),
    ],
)
def test_what_is_no_header_is_refused(first: bytes, reason: str) -> None:
    assert reason in damaged([first])


def test_an_unknown_event_is_refused_unless_it_may_be_skipped() -> None:
    fact = {"type": "future/fact", "seq": 0, "time": 1, "data": {"x": 1}}
    assert "line 2: event 0 has the unknown type" in damaged([head(), json.dumps(fact).encode(), b"\n"])
    kept = imported(head() + json.dumps(fact | {"ignorable": True}).encode() + b"\n")[1]
    assert kept == [Event("future/fact", 0, 1, {"x": 1}, ignorable=True)]
    retired = {"type": "mode/set", "seq": 0, "time": 1, "data": {}}
    assert "retired" in damaged([head(), json.dumps(retired).encode(), b"\n"])


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_kept() -> None:
    line = (
        b'{"type":"run/note","seq":0,"time":0,"ignorable":true,"data":{"a":"\\ud83d\\ude00","b":"\\ud83d"}}\n'
    )
    assert imported(head() + line)[1][0].data == {"a": "😀", "b": "\ufffd"}


def test_members_of_a_header_that_are_not_known_are_named() -> None:
    assert source(head(colour="red")).header() == (HEADER, ["colour"])


class _Full(MemoryStorage):
    """A storage with room for ``room`` batches."""

    room = 1

    def create(self, header: SessionHeader) -> Any:
        writer, append = super().create(header), None
        append = writer.append

        def limited(events: Sequence[Event]) -> None:
            if self.room == 0:
                raise StorageFull("no room")
            self.room -= 1
            append(events)

        writer.append = limited  # type: ignore[method-assign]
        return writer


def test_a_session_that_cannot_be_stored_whole_is_not_stored() -> None:
    notes = [Event("run/note", i, 0, {}, ignorable=True) for i in range(5000)]
    storage = _Full("test", lambda: 1)
    with pytest.raises(StorageFull):
        store_session(storage, HEADER, notes)
    assert list(storage.list()) == []
    storage.room = 99
    assert store_session(storage, HEADER, notes) == 5000
    with pytest.raises(SessionExists):
        store_session(storage, HEADER, notes)
    assert len(list(storage.read(HEADER.id))) == 5000


def nest(levels: int, inner: str) -> str:
    return '{"a":' * levels + inner + "}" * levels


@pytest.mark.parametrize("levels", [499, 600, 900])
def test_what_is_nested_too_deep_is_refused_with_its_line(levels: int) -> None:
    fact = {"type": "my-plugin/fact", "seq": 0, "time": 1, "ignorable": True}
    line = json.dumps(fact)[:-1] + ',"data":' + nest(levels, '"\\ud83d"') + "}\n"
    if levels < 500:
        assert source(head() + line.encode()).check() == 1
    else:
        assert "line 2: " in damaged([head(), line.encode()])
    first = head()[:-2].decode() + ',"x":' + nest(levels, "1") + "}\n"
    if levels >= 500:
        assert "line 1" in damaged([first.encode()])
