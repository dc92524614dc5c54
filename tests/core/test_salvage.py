"""What is kept of a log with holes: a prefix as it was, then whole steps and turns, and nothing made up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core import turn_io as io
from dsh_actors.core.events import Event, Replace, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.messages import user_message
from dsh_actors.core.salvage import Damage, Salvager
from dsh_actors.core.state import SessionState
from dsh_actors.core.verify import Verifier
from dsh_actors.errors import SessionUnsupported
from dsh_actors.testing.machine import MachineDriver
from tests.core.test_turn_properties import counts_of_calls, random_log
from tests.session_logs import turns

HEADER = SessionHeader(SessionId("s"), 0, "/")
HOLE = Damage("seg", 100, 50, "the frame cannot be decoded")


def salvaged(items: Iterable[Event | Damage], header: SessionHeader = HEADER) -> tuple[list[Event], Salvager]:
    salvager, copy = Salvager(header), []
    for item in items:
        if isinstance(item, Damage):
            salvager.damage(item)
        else:
            copy += salvager.take(item)
    copy += salvager.finish()
    return copy, salvager


def assert_whole(copy: list[Event]) -> None:
    """It opens, it verifies with every request, and every call has exactly one answer."""
    verifier = Verifier(HEADER, requests=True)
    for event in copy:
        verifier.observe(event)
    assert verifier.finish().faults == []
    asked, _, answered = counts_of_calls(copy)
    assert asked == answered and set(asked.values()) <= {1}


def where(log: list[Event], kind: str, occurrence: int = 0) -> int:
    return [event.seq for event in log if event.type == kind][occurrence]


def types(events: Iterable[Event]) -> list[str]:
    return [event.type for event in events if event.type != "assistant/chunk"]


def test_an_undamaged_log_is_copied_as_it_is_even_with_an_open_turn() -> None:
    log = turns(2)
    for end in (len(log), where(log, "tool/call") + 1):
        copy, salvager = salvaged(log[:end])
        assert (copy, salvager.losses) == (log[:end], [])


def test_a_lost_turn_leaves_the_others_and_a_note_of_what_is_missing() -> None:
    log = turns(3)
    first, last = where(log, "turn/end") + 1, where(log, "turn/end", 1)
    copy, salvager = salvaged([*log[:first], HOLE, *log[last + 1 :]])
    assert copy[:first] == log[:first]
    assert copy[first].type == "run/note" and copy[first].ignorable
    note = copy[first].data
    # The third turn begins behind the claim of its message, which says nothing any more.
    begin = where(log, "turn/start", 2)
    assert (note["session"], note["lostFirst"], note["lostLast"]) == ("s", first, begin - 1)
    expected = [t for t in types(log[begin:]) if t not in ("request/digest", "agent/inbox/spliced")]
    assert types(copy[first + 1 :]) == expected
    loss = salvager.losses[0]
    assert (loss.first, loss.last, loss.damages) == (first, begin - 1, (HOLE,))
    assert_whole(copy)


def test_a_loss_inside_a_step_closes_it_and_goes_on_with_the_next_step_of_the_turn() -> None:
    log = turns(1)
    result = where(log, "tool/result")
    copy, _ = salvaged([*log[:result], HOLE, *log[result + 1 :]])
    behind = types(copy[result:])
    assert behind[:4] == ["tool/result", "tool/result", "step/end", "run/note"]
    assert behind[4] == "step/start" and behind[-2:] == ["step/end", "turn/end"]
    assert copy[result].data["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"
    assert copy[-1].data == log[-1].data  # the turn ended as it did
    assert_whole(copy)


def test_citations_follow_the_new_numbers_and_those_of_lost_events_are_dropped() -> None:
    log = turns(2)
    start = where(log, "turn/start", 1)
    chunk = next(event.seq for event in log if event.type == "assistant/chunk" and event.seq > start)
    reply = where(log, "assistant/message", 2)
    holed = [*log[: where(log, "turn/end")], *log[start:]]
    copy, _ = salvaged(holed)
    shift = where(copy, "assistant/message", 2) - reply
    cited = copy[reply + shift].source_event_seqs
    assert cited is not None and log[reply].source_event_seqs is not None
    assert [copy[seq].data for seq in cited] == [log[seq].data for seq in log[reply].source_event_seqs]
    assert copy[cited[0]].data == log[chunk].data
    # A reply whose first chunk does not fit goes on citing the others.
    bad = [replace(e, data={"chunk": 5}) if e.seq == chunk else e for e in log]
    copy, salvager = salvaged(bad)
    assert salvager.losses[0].first == chunk
    assert_whole(copy)


def test_a_pending_message_is_cancelled_at_a_loss_as_it_may_have_been_done() -> None:
    driver = MachineDriver()
    driver.send(io.Deliver(user_message("m", "rm -r build"), "next-turn", wake=False))
    log = driver.log
    copy, _ = salvaged([*log, HOLE])
    state = SessionState(HEADER)
    for event in copy:
        state.apply(event)
    assert not state.inbox.has_pending()
    assert salvaged(log)[0] == log


def test_a_write_that_was_cut_off_loses_no_pending_message() -> None:
    driver = MachineDriver()
    driver.send(io.Deliver(user_message("m", "go on"), "next-turn", wake=False))
    copy, salvager = salvaged([*driver.log, replace(HOLE, is_tail=True)])
    assert copy == driver.log
    assert [(loss.first, loss.last) for loss in salvager.losses] == [(None, None)]


def test_an_event_seen_before_is_passed_over() -> None:
    log = turns(1)
    copy, salvager = salvaged([*log[:9], *log[3:]])
    assert (copy, salvager.losses) == (log, [])


def test_damage_that_hides_no_event_is_listed_and_changes_nothing() -> None:
    log = turns(1)
    copy, salvager = salvaged([*log[:9], HOLE, *log[9:]])
    assert copy == log
    assert [(loss.first, loss.damages) for loss in salvager.losses] == [(None, (HOLE,))]


def test_an_end_that_is_lost_has_no_last_event() -> None:
    log = turns(1)
    cut = where(log, "step/start") + 1
    copy, salvager = salvaged([*log[:cut], HOLE])
    assert types(copy[cut:]) == ["step/end", "turn/end", "run/note"]
    assert (salvager.losses[0].first, salvager.losses[0].last) == (cut, None)


def test_a_replacement_of_a_lost_range_is_left_out() -> None:
    log = turns(2)
    users = [event.seq for event in log if event.type == "user/message"]
    summary = user_message("sum", "in short").to_json()
    shadowed = tuple(e.seq for e in log if e.surface_op and users[0] <= e.seq <= users[1])
    replacing = Event("user/message", len(log), 0, summary, Replace(users[0], users[1]), shadowed)
    copy, salvager = salvaged([*log, replacing])
    assert copy[-1] == replacing and not salvager.losses
    begin = where(log, "turn/start", 1)
    copy, salvager = salvaged([*log[begin:], replacing])
    assert summary["id"] not in [e.data.get("id") for e in copy]
    assert salvager.losses[-1].first == len(log)


def test_the_inherited_part_is_counted_in_the_numbers_of_the_copy() -> None:
    log = turns(3)
    header = replace(HEADER, seed_length=where(log, "turn/end", 1) + 1)
    cut = where(log, "turn/end") + 1
    begin = where(log, "turn/start", 1)
    copy, salvager = salvaged([*log[:cut], HOLE, *log[begin + 3 :]], header)
    assert salvager.seed_length is not None and salvager.seed_length <= len(copy)
    inherited = copy[: salvager.seed_length]
    assert not any(event.data.get("turn") == 3 for event in inherited)
    whole, salvager = salvaged(log, header)
    assert (whole, salvager.seed_length) == (log, header.seed_length)


def test_an_unknown_event_is_no_damage() -> None:
    with pytest.raises(SessionUnsupported):
        salvaged([Event("future/fact", 0, 0, {})])


@given(st.data())
def test_whatever_is_lost_the_copy_is_whole_and_goes_on(data: st.DataObject) -> None:
    log = random_log(data, 5, 50)
    kept: list[Event | Damage] = []
    position, first_loss = 0, None
    while position < len(log):
        good = data.draw(st.integers(1, 30))
        kept += log[position : position + good]
        position += good
        if position < len(log):
            first_loss = position if first_loss is None else first_loss
            kept.append(HOLE)
            position += data.draw(st.integers(1, 12))
    copy, salvager = salvaged(kept)
    assert copy[:first_loss] == log[:first_loss]
    assert_whole(copy)
    assert bool(salvager.losses) == (first_loss is not None)
    again = MachineDriver(log=copy if first_loss is not None else ())
    again.deliver("go on")
    again.settle()
    again.take(io.OpenStream)
