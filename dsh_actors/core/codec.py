"""Events to the lines of a stored batch and back, without loss.

Three or more consecutive deltas of one block become one packed row from which every member is
restored exactly. A row has ``seq0`` where an event has ``seq``, so no event can be taken for a row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

from dsh_actors.core.events import Event
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused

__all__ = ["MIN_RUN", "ROW_TYPES", "decode_line", "encode_batch"]

MIN_RUN = 3
"""Shorter runs are stored as single events."""

ROW_TYPES = frozenset({"text-chunks", "reasoning-chunks", "tool-call-chunks"})
"""The ``type`` of a packed row."""

_CHUNK = "assistant/chunk"
_RUN_KEY = tuple[Any, ...]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_encode = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def encode_batch(events: Sequence[Event]) -> bytes:
    """One JSON line a row, each with its newline. Runs are packed within the batch only.

    Raises `EventRefused` naming the event that JSON cannot hold.
    """
    rows: list[str] = []
    run: list[Event] = []
    run_key: _RUN_KEY | None = None
    next_seq = -1
    for event in events:
        key = _run_key(event) if event.type == _CHUNK else None
        if key is not None and key == run_key and event.seq == next_seq:
            run.append(event)
        else:
            if run:
                _close_run(run, run_key, rows)
            if key is None:
                run = []
                rows.append(_line(event, event.to_json()))
            else:
                run = [event]
            run_key = key
        next_seq = event.seq + 1
    if run:
        _close_run(run, run_key, rows)
    rows.append("")
    try:
        return "\n".join(rows).encode()
    except UnicodeEncodeError as error:
        raise EventRefused(f"events from {events[0].seq} on: {error}") from error


def decode_line(line: bytes) -> tuple[Event, ...]:
    """The events of one line, with or without its newline. Raises `EventRefused` for anything else."""
    try:
        raw = _decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise EventRefused(f"not a JSON line: {error}") from error
    if type(raw) is dict and "seq0" in raw:
        return _unpack(raw)
    return (Event.from_json(raw),)


def _line(event: Event, row: JsonObject) -> str:
    try:
        return _encode(row)
    except (TypeError, ValueError, RecursionError) as error:
        raise EventRefused(f"{event.type} event {event.seq} has no JSON form: {error}") from error


def _run_key(event: Event) -> _RUN_KEY | None:
    """What all members of a run share; None for a chunk whose shape the row could not restore."""
    data = event.data
    chunk = data.get("chunk")
    if type(chunk) is not dict or len(data) != 3:
        return None
    kind, index, turn, step = chunk.get("type"), chunk.get("index"), data.get("turn"), data.get("step")
    # Exact types: True and 1.0 equal 1, but would not come back as they were.
    if type(kind) is not str or type(index) is not int or type(turn) is not int or type(step) is not int:
        return None
    if event.ignorable or event.surface_op is not None or event.source_event_seqs is not None:
        return None
    if kind == "text-delta" or kind == "reasoning-delta":
        return (kind, turn, step, index) if len(chunk) == 3 and type(chunk.get("text")) is str else None
    if kind != "tool-call-delta" or type(chunk.get("argumentsDelta")) is not str:
        return None
    call_id, name = chunk.get("id"), chunk.get("name")
    named = type(name) is str
    if type(call_id) is not str or len(chunk) != (5 if named else 4):
        return None
    return (kind, turn, step, index, call_id, name)


def _close_run(run: list[Event], key: _RUN_KEY | None, rows: list[str]) -> None:
    if len(run) < MIN_RUN or key is None:
        rows.extend(_line(event, event.to_json()) for event in run)
        return
    first = run[0]
    kind, turn, step, index, *call = key
    data: JsonObject = {"turn": turn, "step": step, "index": index}
    if call:
        data["id"] = call[0]
        if call[1] is not None:
            data["name"] = call[1]
    data["dt"] = [after.time - before.time for before, after in pairwise(run)]
    text_key = "argumentsDelta" if call else "text"
    data["args" if call else "texts"] = [event.data["chunk"][text_key] for event in run]
    row = {"type": kind[:-5] + "chunks", "seq0": first.seq, "time0": first.time, "data": data}
    rows.append(_line(first, row))


def _unpack(row: JsonObject) -> tuple[Event, ...]:
    kind, seq, data = row.get("type"), row["seq0"], row.get("data")
    time: Any = row.get("time0")
    if len(row) != 4 or type(kind) is not str or kind not in ROW_TYPES or type(data) is not dict:
        raise EventRefused(f"packed row {seq!r}: wrong type, data or members")
    is_call = kind == "tool-call-chunks"
    texts: Any = data.get("args" if is_call else "texts")
    gaps: Any = data.get("dt")
    turn, step, index = data.get("turn"), data.get("step"), data.get("index")
    _require(all(type(number) is int for number in (seq, time, turn, step, index)), seq)
    _require(type(texts) is list and all(type(text) is str for text in texts), seq)
    _require(type(gaps) is list and all(type(gap) is int for gap in gaps), seq)
    _require(len(texts) >= MIN_RUN and len(gaps) == len(texts) - 1, seq)
    shared: JsonObject = {"type": kind[:-6] + "delta", "index": index}
    text_key = "text"
    if is_call:
        named = "name" in data
        _require(len(data) == 6 + named and type(data.get("id")) is str, seq)
        _require(not named or type(data["name"]) is str, seq)
        shared["id"] = data["id"]
        if named:
            shared["name"] = data["name"]
        text_key = "argumentsDelta"
    else:
        _require(len(data) == 5, seq)
    events = []
    for position, text in enumerate(texts):
        if position:
            time += gaps[position - 1]
        chunk = {**shared, text_key: text}
        events.append(Event(_CHUNK, seq + position, time, {"turn": turn, "step": step, "chunk": chunk}))
    return tuple(events)


def _require(good: bool, seq: object) -> None:
    if not good:
        raise EventRefused(f"packed row {seq!r}: wrong shape")
