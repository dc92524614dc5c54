"""What must hold of every stored session, whatever happened to the process that wrote it.

`session_faults` reads the log from outside, as the next process would, and names what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dsh_actors.cli.session_verify import verify_session
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.core.repair import NOT_STARTED
from dsh_actors.errors import SessionNotFound
from dsh_actors.ports import SessionStorage

__all__ = ["session_faults"]


def session_faults(
    storage: SessionStorage,
    session_id: str,
    *,
    accepted: Iterable[str] = (),
    lives: Sequence[Sequence[Event]] | None = None,
    is_closed: bool = True,
) -> list[str]:
    """One line a fault.

    ``accepted``: ids of messages that were taken in and are durable. ``lives``: what the observers of each
    life of the session were told, the last life to its end. ``is_closed``: no turn may be open.
    """
    faults: list[str] = []
    try:
        events = list(storage.read(SessionId(session_id)))
    except SessionNotFound:
        events = []
    else:
        report = verify_session(storage, SessionId(session_id), requests=True)
        faults += [f"{fault.kind} at {fault.seq}: {fault.reason}" for fault in report.faults]
        if is_closed and report.closers:
            faults.append(f"{report.closers} events are missing at the end")
    faults += _bracket_faults(events, is_closed)
    faults += _call_faults(events, is_closed)
    faults += _message_faults(events, accepted)
    if lives is not None:
        faults += _life_faults(events, lives)
    return [f"{session_id}: {fault}" for fault in faults]


def _bracket_faults(events: Sequence[Event], is_closed: bool) -> list[str]:
    """Turns and steps begin and end in pairs, in order, and hold everything that belongs to them."""
    faults, turn, step, last_turn = [], None, None, 0
    for event in events:
        data = event.data
        match event.type:
            case "turn/start":
                if turn is not None or data["turn"] != last_turn + 1:
                    faults.append(f"turn {data['turn']} begins in turn {turn}, after turn {last_turn}")
                turn = last_turn = data["turn"]
            case "turn/end":
                if data["turn"] != turn or step is not None:
                    faults.append(f"turn {data['turn']} ends in turn {turn}, step {step}")
                turn = None
            case "step/start":
                if data["turn"] != turn or step is not None:
                    faults.append(f"step {data['step']} begins in turn {turn}, step {step}")
                step = data["step"]
            case "step/end":
                if (data["turn"], data["step"]) != (turn, step):
                    faults.append(f"step {data['step']} ends in turn {turn}, step {step}")
                step = None
            case "assistant/message" | "assistant/chunk" | "tool/call" | "tool/result":
                if step is None:
                    faults.append(f"{event.type} at {event.seq} is in no step")
    if is_closed and turn is not None:
        faults.append(f"turn {turn} never ends")
    return faults


def _call_faults(events: Sequence[Event], is_closed: bool) -> list[str]:
    """Every call that the model made has one answer, and was logged once, before it."""
    asked: Counter[str] = Counter()
    logged: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    faults = []
    for event in events:
        match event.type:
            case "assistant/message":
                blocks = event.data["message"]["content"]
                asked.update(block["id"] for block in blocks if block["type"] == "tool-call")
            case "tool/call":
                logged[event.data["callId"]] += 1
            case "tool/result":
                call_id = event.data["message"]["content"][0]["toolCallId"]
                answered[call_id] += 1
                if not logged[call_id] and event.data.get("error", {}).get("code") != NOT_STARTED:
                    faults.append(f"the result at {event.seq} answers a call that is not logged")
    if is_closed and asked != answered:
        faults.append(f"asked {dict(asked - answered)} not answered, {dict(answered - asked)} not asked")
    faults += [f"call {call} is logged {count} times" for call, count in logged.items() if count > 1]
    faults += [f"call {call} is answered {count} times" for call, count in answered.items() if count > 1]
    return faults


def _message_faults(events: Sequence[Event], accepted: Iterable[str]) -> list[str]:
    """A message is taken in once, and shown to the model at most once; what was accepted is there."""
    inserted: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for event in events:
        if event.type == "agent/inbox/spliced":
            inserted.update(message["id"] for message in event.data["inserted"])
        elif event.type == "user/message":
            shown[event.data["id"]] += 1
    faults = [f"message {name} was taken in {count} times" for name, count in inserted.items() if count > 1]
    faults += [f"message {name} was shown {count} times" for name, count in shown.items() if count > 1]
    faults += [f"message {name} was accepted and is lost" for name in accepted if not inserted[name]]
    return faults


def _life_faults(events: Sequence[Event], lives: Sequence[Sequence[Event]]) -> list[str]:
    """What was told of is what stands in the log, and after the last of it nothing does."""
    faults = []
    for told in filter(None, lives):
        first = told[0].seq
        stored = events[first : first + len(told)]
        if len(stored) < len(told):
            faults.append(f"{len(told)} events were told of from {first} on, and {len(stored)} are there")
        for one, other in zip(stored, told, strict=False):
            if one != other:
                faults.append(f"at {one.seq} stands {one.type}, and {other.type} at {other.seq} was told of")
                break
    last = next((told for told in reversed(lives) if told), None)
    if last is not None and last[-1].seq + 1 < len(events):
        faults.append(f"the log goes on behind event {last[-1].seq}, which was told of last")
    return faults
