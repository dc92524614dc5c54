"""The folded state of a session as JSON and back: what a checkpoint holds.

A dump shares the immutable data of its events, so making one costs a little for each message on the
surface. It may be made anywhere in a log, also in the middle of a step.
"""

from __future__ import annotations

from typing import Any

from dsh_actors.core.chunks import Usage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.inbox import Inbox
from dsh_actors.core.jobs import JobLog
from dsh_actors.core.loop_guard import LoopGuard
from dsh_actors.core.repair import Closers
from dsh_actors.core.request import RequestHeader
from dsh_actors.core.state import CallRecord, Counters, SessionState
from dsh_actors.core.surface import Surface
from dsh_actors.core.text import JsonObject, shape_fault
from dsh_actors.errors import EventRefused

__all__ = ["FORMAT", "dump", "load", "load_closers"]

FORMAT = 1
"""Another format is refused; whoever opens the session then folds the log instead."""

_NUMBERS = ("next_seq", "last_time", "last_turn")
_MAYBE_NUMBERS = ("open_turn", "open_step")


def dump(state: SessionState, closers: Closers | None = None) -> JsonObject:
    """The state as JSON. ``closers`` folded the same events; without them no turn may be open.

    Raises `EventRefused` where a turn is open and nothing says how to close it.
    """
    if closers is None:
        if state.open_turn is not None:
            raise EventRefused("a state with an open turn is dumped together with its closers")
        closers = Closers()
    header, unbilled = state.request_header, state.unbilled
    data: JsonObject = {"format": FORMAT}
    data |= {name: getattr(state, name) for name in _NUMBERS + _MAYBE_NUMBERS}
    if state.title_pinned:
        data["title_pinned"] = True
    if state.children:
        data["children"] = {name: dict(fact) for name, fact in state.children.items()}
    if state.jobs.started:
        data["jobs"] = state.jobs.to_json()
    return data | {
        "inbox": state.inbox.snapshot(),
        "surface": [node.to_json() for node in state.surface.nodes],
        "replace_generation": state.surface.replace_generation,
        "request_header": None if header is None else header.to_json(),
        "request_context": state.request_context,
        "open_calls": [[k, c.name, c.arguments, c.seq, c.started] for k, c in state.open_calls.items()],
        "counters": {name: getattr(state.counters, name) for name in Counters.__slots__},
        "guard": state.guard.snapshot(),
        "todos": state.todos,
        "title": state.title,
        "unbilled": None if unbilled is None else unbilled.to_json(),
        "closers": closers.snapshot(),
    }


def load(header: SessionHeader, data: JsonObject) -> SessionState:
    """The state that was dumped. Raises `EventRefused` for anything that is no dump of this format."""
    try:
        return _load(header, data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise EventRefused(f"not a snapshot: {shape_fault(error)}") from error


def load_closers(data: JsonObject) -> Closers:
    """What closes the turn that was open at the dump. Raises `EventRefused` as `load` does."""
    try:
        return Closers.restore(data["closers"], data["last_time"])
    except (KeyError, TypeError, ValueError) as error:
        raise EventRefused(f"not a snapshot: {shape_fault(error)}") from error


def _load(header: SessionHeader, data: JsonObject) -> SessionState:
    if data["format"] != FORMAT:
        raise EventRefused(f"the snapshot has format {data['format']!r}, not {FORMAT}")
    logged, unbilled, title, todos = (data[name] for name in ("request_header", "unbilled", "title", "todos"))
    _require(title is None or type(title) is str, "title")
    _require(todos is None or type(todos) is list, "todos")
    context = data["request_context"]
    _require(context is None or type(context) is dict, "request_context")
    places: dict[str, Any] = {name: _number(data, name) for name in _NUMBERS}
    places |= {name: None if data[name] is None else _number(data, name) for name in _MAYBE_NUMBERS}
    state = SessionState(
        header,
        **places,
        inbox=Inbox.restore(data["inbox"]),
        surface=_surface(data),
        request_header=None if logged is None else RequestHeader.from_json(logged),
        request_context=context,
        open_calls={call_id: CallRecord(*call) for call_id, *call in data["open_calls"]},
        counters=Counters(**{name: _number(data["counters"], name) for name in Counters.__slots__}),
        guard=LoopGuard.restore(data["guard"]),
        todos=todos,
        title=title,
        title_pinned=data.get("title_pinned") is True,
        unbilled=None if unbilled is None else Usage.from_json(unbilled),
        children=dict(data.get("children", {})),
        jobs=JobLog.from_json(data["jobs"]) if "jobs" in data else JobLog(),
    )
    _require(all(type(fact) is dict for fact in state.children.values()), "children")
    for call in state.open_calls.values():
        _require(type(call.name) is str and type(call.arguments) is str, "open_calls")
        _require(type(call.started) is int and type(call.seq) in (int, type(None)), "open_calls")
    return state


def _surface(data: JsonObject) -> Surface:
    nodes = [Event.from_json(node) for node in data["surface"]]
    seqs = {node.seq for node in nodes}
    _require(len(seqs) == len(nodes) and all(0 <= seq < data["next_seq"] for seq in seqs), "surface")
    return Surface.restore(nodes, _number(data, "replace_generation"))


def _number(data: JsonObject, name: str) -> Any:
    _require(type(data[name]) is int and data[name] >= 0, name)
    return data[name]


def _require(good: bool, name: str) -> None:
    if not good:
        raise EventRefused(f"the snapshot has a wrong {name}")
