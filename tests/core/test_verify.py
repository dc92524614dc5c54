"""A log is checked by itself: numbering, types, fold, closers, and every request that was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.repair import Closers
from dsh_actors.core.snapshot import dump
from dsh_actors.core.state import SessionState
from dsh_actors.core.verify import Report, Verifier
from dsh_actors.errors import SessionCorrupt, SessionUnsupported
from tests.core.test_turn_properties import random_log
from tests.session_logs import turns

HEADER = SessionHeader(SessionId("s"), 0, "/")


def verified(log: Iterable[Event], *, requests: bool = True) -> Report:
    verifier = Verifier(HEADER, requests=requests)
    for event in log:
        verifier.observe(event)
    return verifier.finish()


def changed(log: list[Event], kind: str, occurrence: int = 0, **members: Any) -> tuple[list[Event], int]:
    """The log with members of one payload changed, and where that is."""
    seq = [event.seq for event in log if event.type == kind][occurrence]
    event = log[seq]
    return [*log[:seq], replace(event, data={**event.data, **members}), *log[seq + 1 :]], seq


def test_a_log_of_the_machine_passes_and_every_request_is_derived_again() -> None:
    log = turns(3)
    report = verified(log)
    assert (report.status, report.events, report.requests) == ("ok", len(log), 6)
    assert (report.closers, report.faults) == (0, [])
    assert verified(log, requests=False).requests == 0


@given(st.data())
def test_any_log_of_the_machine_passes_wherever_it_is_cut(data: st.DataObject) -> None:
    log = random_log(data, 1, 30)
    cut = log[: data.draw(st.integers(0, len(log)))]
    assert verified(cut).faults == []


def test_an_open_turn_is_no_fault_but_what_will_close_it_is_counted() -> None:
    log = turns(1)
    cut = next(event.seq for event in log if event.type == "tool/call")
    report = verified(log[: cut + 1])
    assert (report.status, report.closers) == ("ok", 4)  # two results, the step's end, the turn's end


def test_a_changed_message_breaks_the_proof_of_the_next_request() -> None:
    log = turns(2)
    content = [{"type": "text", "text": "another task"}]
    bad, seq = changed(log, "user/message", content=content)
    report = verified(bad)
    assert [fault.kind for fault in report.faults] == ["request"]
    fault = report.faults[0]
    assert fault.seq == next(e.seq for e in log if e.type == "request/digest" and e.seq > seq)
    assert "digest" in fault.reason and report.status == "corrupt"
    assert verified(bad, requests=False).status == "ok"


def test_a_changed_tool_or_system_text_breaks_it_too() -> None:
    log = turns(1)
    header = next(e for e in log if e.type == "request/header").data["header"]
    bad, _ = changed(log, "request/header", header={**header, "system": "be bad"})
    assert [fault.kind for fault in verified(bad).faults] == ["request"]


def test_a_wrong_number_of_messages_is_named() -> None:
    bad, seq = changed(turns(1), "request/digest", messages=9)
    assert verified(bad).faults[0].to_json() == {
        "kind": "request",
        "seq": seq,
        "reason": f"event {seq}: the log gives 1 messages, 9 were sent",
    }


def test_a_gap_is_named_and_ends_the_fold() -> None:
    log = turns(1)
    report = verified([*log[:5], *log[6:]])
    assert [(fault.kind, fault.seq) for fault in report.faults] == [("log", 6), ("fold", 6)]


def test_an_unknown_type_is_named_unless_it_may_be_skipped() -> None:
    log = turns(1)
    more = Event("future/fact", len(log), 0, {})
    assert verified([*log, replace(more, ignorable=True)]).faults == []
    report = verified([*log, more])
    assert (report.status, report.faults[0].kind, report.faults[0].seq) == ("unsupported", "type", len(log))


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("user/message", {"role": "assistant"}),
        ("assistant/message", {"message": 5}),
        ("tool/result", {"message": {"content": []}}),
        ("request/header", {"header": {"config": []}}),
        ("agent/inbox/spliced", {"start": 9}),
        ("assistant/chunk", {"chunk": 5}),
    ],
)
def test_a_wrong_payload_is_a_fault_of_the_fold_and_never_an_exception(
    kind: str, members: dict[str, Any]
) -> None:
    bad, seq = changed(turns(1), kind, **members)
    report = verified(bad)
    assert ("fold", seq) in [(fault.kind, fault.seq) for fault in report.faults]


def test_what_reading_found_is_added() -> None:
    for error, kind in ((SessionCorrupt("at byte 7"), "log"), (SessionUnsupported("newer"), "type")):
        verifier = Verifier(HEADER)
        verifier.fault_of(error)
        assert [(f.kind, f.reason) for f in verifier.finish().faults] == [(kind, error.message)]


def checkpoint(log: list[Event], events: int) -> tuple[int, dict[str, Any]]:
    """What a checkpoint after so many events holds, as it comes back from the disk."""
    state, closers = SessionState(HEADER), Closers()
    for event in log[:events]:
        state.apply(event)
        closers.observe(event)
    return events, json.loads(json.dumps(dump(state, closers)))


def test_a_checkpoint_anywhere_in_a_log_is_what_the_events_before_it_give() -> None:
    log = turns(2)
    for events in range(len(log) + 1):
        verifier = Verifier(HEADER, checkpoint=checkpoint(log, events))
        for event in log:
            verifier.observe(event)
        assert verifier.finish().faults == []


@pytest.mark.parametrize("member", ["surface", "counters", "inbox", "closers", "title", "last_turn"])
def test_a_checkpoint_that_says_something_else_is_a_fault(member: str) -> None:
    log = turns(2)
    events, state = checkpoint(log, len(log) - 3)
    verifier = Verifier(HEADER, checkpoint=(events, {**state, member: "something else"}))
    for event in log:
        verifier.observe(event)
    (fault,) = verifier.finish().faults
    assert (fault.kind, fault.seq) == ("checkpoint", events)
    assert f"another {member} " in fault.reason


def test_a_checkpoint_of_another_format_is_none() -> None:
    log = turns(1)
    verifier = Verifier(HEADER, checkpoint=(len(log), {"format": 0}))
    for event in log:
        verifier.observe(event)
    assert verifier.finish().faults == []
