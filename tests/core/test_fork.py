"""Where a session may be forked, and what the child inherits."""

from __future__ import annotations

import pytest

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import TextDelta
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.fork import find_seed, plan_fork
from dsh_actors.core.ids import SessionId
from dsh_actors.core.messages import user_message
from dsh_actors.core.state import SessionState
from dsh_actors.core.turn import TurnMachine
from dsh_actors.core.turn_env import Environment
from dsh_actors.errors import UsageError
from dsh_actors.testing.machine import MachineDriver, text_chunks

CHILD = SessionId("child")
NOW = 5_000


def two_turns() -> MachineDriver:
    driver = MachineDriver()
    for prompt in ("one", "two"):
        driver.deliver(prompt)
        driver.reply(*text_chunks(f"answer to {prompt}"))
    return driver


def ends(driver: MachineDriver) -> list[int]:
    return [event.seq for event in driver.log if event.type == "turn/end"]


def plan(driver: MachineDriver, at_seq: int | None = None) -> tuple[SessionHeader, list[Event]]:
    header, events = plan_fork(driver.header, driver.log, CHILD, at_seq, NOW)
    return header, list(events)


def refusal(log: object, at_seq: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        plan_fork(SessionHeader(SessionId("s"), 0, "/"), log, CHILD, at_seq, NOW)  # type: ignore[arg-type]
    return caught.value


def test_a_child_has_the_log_of_its_parent_and_one_marker():
    driver = two_turns()
    header, events = plan(driver)
    assert events[:-1] == driver.log
    assert events[-1] == Event("session/end-seed", len(driver.log), NOW, {})
    assert header == SessionHeader(
        CHILD, NOW, "/", parent_session=driver.header.id, seed_length=len(driver.log)
    )


def test_the_boundary_is_the_last_event_that_is_inherited():
    driver = two_turns()
    first = ends(driver)[0]
    header, events = plan(driver, first)
    assert header.seed_length == first + 1
    assert events[-2] == driver.log[first]


def test_trailing_facts_after_a_closed_turn_are_inherited():
    driver = two_turns()
    driver.send(io.Record("session/title", {"title": "A walk"}))
    header, events = plan(driver)
    assert events[-2].type == "session/title"
    state = SessionState(header)
    for event in events:
        state.apply(event)
    assert state.title == "A walk"


def test_an_earlier_boundary_is_allowed_while_a_later_turn_is_open():
    driver = two_turns()
    driver.deliver("three")
    driver.settle()
    assert plan(driver, ends(driver)[1])[0].seed_length == ends(driver)[1] + 1


def test_a_boundary_inside_a_turn_is_refused_and_a_good_one_named():
    driver = two_turns()
    error = refusal(driver.log, ends(driver)[1] - 1)
    assert error.code == "OPEN_TURN"
    hint = error.hint or ""
    assert f"s@{ends(driver)[0]}" in hint and f"s@{ends(driver)[1]}" in hint
    assert "resume" not in hint, "the turn has ended already"


def test_a_boundary_inside_the_open_turn_is_refused_with_a_way_to_end_it():
    driver = two_turns()
    driver.deliver("three")
    driver.settle()
    hint = refusal(driver.log, ends(driver)[1] + 2).hint or ""
    assert "resume it first" in hint and f"s@{ends(driver)[1]}" in hint


def test_a_session_that_broke_in_its_first_turn_is_not_forked():
    driver = MachineDriver()
    driver.deliver("one")
    error = refusal(driver.log, None)
    assert error.code == "OPEN_TURN" and "resume" in (error.hint or "")


@pytest.mark.parametrize("at_seq", [-1, 10_000, 10**30, 1.0, True, "3"])
def test_a_boundary_that_is_no_event_is_refused(at_seq):
    assert refusal(two_turns().log, at_seq).code == "INVALID_BOUNDARY"


def test_the_boundary_just_behind_the_end_is_refused():
    log = two_turns().log
    assert refusal(log, len(log)).code == "INVALID_BOUNDARY"
    assert refusal(iter(log), len(log)).code == "INVALID_BOUNDARY"
    assert refusal(log, 10**300).code == "INVALID_BOUNDARY"


def test_an_empty_session_has_an_empty_child():
    header, events = plan_fork(SessionHeader(SessionId("s"), 0, "/"), [], CHILD, None, NOW)
    assert header.seed_length == 0
    assert [event.type for event in events] == ["session/end-seed"]


def test_a_fork_of_a_fresh_fork_gets_no_second_marker():
    header, events = plan(two_turns())
    again, inherited = plan_fork(header, events, SessionId("grandchild"), None, NOW)
    assert [event.type for event in inherited].count("session/end-seed") == 1
    assert (again.parent_session, again.seed_length) == (CHILD, len(events))


def test_a_child_of_a_sub_agent_is_no_sub_agent():
    parent = SessionHeader(SessionId("s"), 0, "/", origin="subagent", delegation_depth=2, agent_preset="p")
    header, _ = plan_fork(parent, [], CHILD, None, NOW)
    assert (header.origin, header.delegation_depth, header.agent_preset) == (None, 0, "p")


def test_a_bare_iterator_is_read_once_and_no_further_than_the_boundary():
    driver = two_turns()
    first = ends(driver)[0]
    source = iter(driver.log)
    _, events = plan_fork(driver.header, source, CHILD, first, NOW)
    assert len(list(events)) == first + 2
    assert next(source).seq == first + 1


def test_finding_the_seed_reads_no_further_than_the_boundary():
    driver = two_turns()
    source = iter(driver.log)
    assert find_seed(driver.header.id, source, ends(driver)[0]).length == ends(driver)[0] + 1
    assert next(source).seq == ends(driver)[0] + 1


def test_the_child_has_nothing_pending_and_its_first_request_extends_the_parents_last():
    driver = two_turns()
    driver.deliver("for the parent only", "next-step", wake=False)
    header, events = plan(driver)
    state = SessionState(header)
    for event in events:
        state.apply(event)
    assert not state.inbox.has_pending()
    child = MachineDriver()
    child.machine = TurnMachine(state, Environment(driver.machine.env.config))
    child.deliver("three")
    child.settle()
    request = child.take(io.OpenStream).request
    parent = driver.machine.state
    assert request.header == parent.request_header
    assert list(request.messages)[:-1] == parent.surface.messages()
    assert request.messages[-1] == user_message(request.messages[-1].id, "three")


def test_a_reply_under_way_is_no_place_to_fork():
    driver = MachineDriver()
    driver.deliver("one")
    driver.reply(TextDelta(0, "half"))
    assert refusal(driver.log, len(driver.log) - 1).code == "OPEN_TURN"
