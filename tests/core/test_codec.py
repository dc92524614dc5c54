"""The record codec: exact round trips, packed runs, and refusal of everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.core.codec import decode_line, encode_batch
from dsh_actors.core.events import Event, Replace
from dsh_actors.errors import EventRefused

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
INT = st.integers(0, 2) | st.booleans()


def delta(kind: str, index: object, text: object, call: dict[str, Any] | None = None) -> dict[str, Any]:
    if kind == "tool-call-delta":
        return {"type": kind, "index": index, **(call or {"id": "c"}), "argumentsDelta": text}
    return {"type": kind, "index": index, "text": text}


CHUNKS = st.builds(
    delta,
    st.sampled_from(["text-delta", "reasoning-delta", "tool-call-delta"]),
    INT,
    TEXT | st.none(),
    st.sampled_from([{"id": "c"}, {"id": "c", "name": "bash"}, {"id": "d"}, {"id": "c", "name": None}]),
)
CHUNK_DATA = st.fixed_dictionaries({"turn": INT, "step": st.just(1), "chunk": CHUNKS | JSON})
PAYLOADS = st.tuples(st.just("assistant/chunk"), CHUNK_DATA) | st.tuples(
    st.sampled_from(["turn/start", "text-chunks", "x/y"]), st.dictionaries(TEXT, JSON, max_size=3)
)
EXTRAS = st.sampled_from(
    [
        {},
        {},
        {},
        {"ignorable": True},
        {"surface_op": "append"},
        {"surface_op": Replace(1, 2)},
        {"source_event_seqs": (1,)},
    ]
)


@st.composite
def batches(draw: st.DrawFn) -> list[Event]:
    seq = draw(st.integers(0, 5))
    events = []
    for (kind, data), extras in draw(st.lists(st.tuples(PAYLOADS, EXTRAS), max_size=12)):
        for _ in range(draw(st.integers(1, 4))):
            time = draw(st.integers(-5, 2**53))
            events.append(Event(kind, seq, time, data, **extras))
            # Mostly contiguous: a gap must end a run too.
            seq += draw(st.sampled_from([1, 1, 1, 2]))
    return events


def decode(data: bytes) -> list[Event]:
    return [event for line in data.splitlines(keepends=True) for event in decode_line(line)]


def exact(events: list[Event]) -> list[str]:
    """Text that tells True from 1 and 1.0 from 1, which ``==`` does not."""
    return [json.dumps(event.to_json(), sort_keys=True) for event in events]


@settings(max_examples=100, deadline=None)
@given(batches())
def test_what_is_decoded_is_what_was_encoded(events: list[Event]) -> None:
    data = encode_batch(events)
    assert exact(decode(data)) == exact(events)
    assert encode_batch(decode(data)) == data


def chunks(texts: list[str], times: list[int], **shared: Any) -> list[Event]:
    return [
        Event("assistant/chunk", 7 + i, time, {"turn": 1, "step": 2, "chunk": {**shared, "text": text}})
        for i, (text, time) in enumerate(zip(texts, times, strict=True))
    ]


def test_a_run_becomes_one_row_in_the_shape_of_the_original() -> None:
    events = chunks(["a", "", "é\u2028"], [100, 90, 95], type="text-delta", index=0)
    data = encode_batch(events)
    assert data.endswith(b"\n") and data.count(b"\n") == 1
    assert json.loads(data) == {
        "type": "text-chunks",
        "seq0": 7,
        "time0": 100,
        "data": {"turn": 1, "step": 2, "index": 0, "dt": [-10, 5], "texts": ["a", "", "é\u2028"]},
    }
    assert decode(data) == events


def test_a_run_of_a_named_call_keeps_its_name_and_an_unnamed_one_has_none() -> None:
    for call in ({"id": "c1", "name": "bash"}, {"id": "c1"}):
        events = [
            Event(
                "assistant/chunk",
                i,
                i,
                {"turn": 1, "step": 1, "chunk": delta("tool-call-delta", 0, "{", call)},
            )
            for i in range(3)
        ]
        row = json.loads(encode_batch(events))
        assert row["type"] == "tool-call-chunks"
        assert row["data"] == {"turn": 1, "step": 1, "index": 0, **call, "dt": [1, 1], "args": ["{"] * 3}
        assert decode(encode_batch(events)) == events


def test_two_deltas_and_mixed_kinds_are_stored_one_by_one() -> None:
    two = chunks(["a", "b"], [1, 2], type="text-delta", index=0)
    assert encode_batch(two).count(b"\n") == 2
    mixed = [*two, *chunks(["c"], [3], type="reasoning-delta", index=0)]
    assert encode_batch(mixed).count(b"\n") == 3


def test_a_gap_in_the_numbers_ends_a_run() -> None:
    one = chunks(["a", "b", "c"], [1, 2, 3], type="text-delta", index=0)
    later = [Event(e.type, e.seq + 10, e.time, e.data) for e in one]
    assert encode_batch([*one, *later]).count(b"\n") == 2
    assert decode(encode_batch([*one, *later])) == [*one, *later]


def test_an_event_whose_type_is_that_of_a_row_is_stored_as_the_event_it_is() -> None:
    event = Event("text-chunks", 3, 4, {"turn": 1}, ignorable=True)
    assert decode(encode_batch([event])) == [event]


@pytest.mark.parametrize("odd", [True, 1.0, "1", None])
@pytest.mark.parametrize("member", ["turn", "step", "index"])
def test_a_run_with_numbers_of_another_type_comes_back_as_it_was(member: str, odd: object) -> None:
    shared = {"turn": 1, "step": 1, "index": 1, member: odd}
    chunk = {"type": "text-delta", "index": shared["index"], "text": "a"}
    data = {"turn": shared["turn"], "step": shared["step"], "chunk": chunk}
    events = [Event("assistant/chunk", seq, 0, data) for seq in range(3)]
    assert exact(decode(encode_batch(events))) == exact(events)
    assert encode_batch(events).count(b"\n") == 3


@pytest.mark.parametrize("extra", [{"ignorable": True}, {"surface_op": "append"}, {"source_event_seqs": ()}])
def test_a_chunk_with_more_in_its_envelope_is_not_packed(extra: dict[str, Any]) -> None:
    data = {"turn": 1, "step": 1, "chunk": delta("text-delta", 0, "a")}
    events = [Event("assistant/chunk", seq, 0, data, **extra) for seq in range(3)]
    assert exact(decode(encode_batch(events))) == exact(events)


@pytest.mark.parametrize(
    "chunk",
    [
        {**delta("text-delta", 0, "a"), "more": 1},
        {**delta("tool-call-delta", 0, "{"), "more": 1},
        {**delta("tool-call-delta", 0, "{"), "name": None},
        {**delta("tool-call-delta", 0, "{", {"id": "c", "name": "n"}), "more": 1},
        {"type": "text-delta", "index": 0},
        {"type": "block-start", "index": 0, "blockType": "text"},
        "no chunk",
    ],
)
def test_a_chunk_of_any_other_shape_is_not_packed(chunk: object) -> None:
    data = {"turn": 1, "step": 1, "chunk": chunk}
    for payload in (data, {**data, "more": 1}):
        events = [Event("assistant/chunk", seq, 0, payload) for seq in range(3)]
        assert exact(decode(encode_batch(events))) == exact(events)


def test_an_empty_batch_has_no_bytes() -> None:
    assert encode_batch([]) == b""


GOOD_ROW: dict[str, Any] = {
    "type": "text-chunks",
    "seq0": 1,
    "time0": 2,
    "data": {"turn": 1, "step": 1, "index": 0, "dt": [0, 0], "texts": ["a", "b", "c"]},
}


@pytest.mark.parametrize(
    "change",
    [
        {"type": "other-chunks"},
        {"type": ["text-chunks"]},
        {"seq0": "1"},
        {"seq0": True},
        {"time0": None},
        {"extra": 1},
        {"data": []},
        {"data": {**GOOD_ROW["data"], "dt": [0]}},
        {"data": {**GOOD_ROW["data"], "dt": [0, 0.5]}},
        {"data": {**GOOD_ROW["data"], "texts": ["a", "b", 3]}},
        {"data": {**GOOD_ROW["data"], "texts": "abc"}},
        {"data": {**GOOD_ROW["data"], "dt": [0], "texts": ["a", "b"]}},
        {"data": {**GOOD_ROW["data"], "id": "x"}},
        {"data": {**GOOD_ROW["data"], "turn": None}},
        {"type": "tool-call-chunks"},
        {
            "type": "tool-call-chunks",
            "data": {"turn": 1, "step": 1, "index": 0, "dt": [0, 0], "args": ["", "", ""]},
        },
    ],
)
def test_a_malformed_row_is_refused(change: dict[str, Any]) -> None:
    assert len(decode_line(json.dumps(GOOD_ROW).encode())) == 3
    with pytest.raises(EventRefused):
        decode_line(json.dumps(GOOD_ROW | change).encode())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b"\xff",
        b"\x00" * 8,
        b"[" * 5000,
        b'{"type":"turn/start","seq":0}',
        b'{"type":"a","seq":0,"time":0,"data":{"x":NaN}}',
        b'{"type":"a","seq":0,"time":0,"data":{}} {}',
    ],
)
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(EventRefused):
        decode_line(line)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"bytes", "\ud800"])
def test_data_without_a_json_form_is_refused(value: object) -> None:
    with pytest.raises(EventRefused):
        encode_batch([Event("run/note", 0, 0, {"value": value})])
