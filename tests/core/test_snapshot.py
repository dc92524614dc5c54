"""A dumped state goes on exactly as the state did, wherever the log is cut; nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import TextDelta, Usage, UsageChunk
from dsh_actors.core.events import Event
from dsh_actors.core.repair import Closers
from dsh_actors.core.snapshot import dump, load, load_closers
from dsh_actors.core.state import SessionState
from dsh_actors.errors import EventRefused
from dsh_actors.testing.machine import MachineDriver, call_chunks, text_chunks
from tests.core.test_turn_properties import Walker

JOB_FACTS = [("job/started", {"id": "bash-1", "label": "make"}), ("job/ended", {"id": "bash-1"})]
TODOS = {"todos": [{"content": "mow", "status": "pending"}]}


def fold(driver: MachineDriver, events: list[Event]) -> tuple[SessionState, Closers]:
    state, closers = SessionState(driver.header), Closers()
    for event in events:
        state.apply(event)
        closers.observe(event)
    return state, closers


def through_json(state: SessionState, closers: Closers) -> dict[str, Any]:
    return json.loads(json.dumps(dump(state, closers)))


def random_log(data: st.DataObject) -> MachineDriver:
    walker = Walker(data)
    for _ in range(data.draw(st.integers(1, 40))):
        if walker.driver.open and walker.choose("answer", "answer", "answer", "outside") == "answer":
            walker.answer()
        elif walker.choose("outside", "outside", "record") == "record":
            kind, fact = data.draw(
                st.sampled_from(
                    [("todo/write", TODOS), ("session/title", {"title": "A walk"}), *JOB_FACTS]
                )
            )
            walker.send(io.Record(kind, fact))
        else:
            walker.outside()
    return walker.driver


@given(st.data())
def test_at_every_cut_the_dump_is_the_state_and_knows_how_to_close_it(data):
    driver = random_log(data)
    state, closers = SessionState(driver.header), Closers()
    for event in driver.log:
        state.apply(event)
        closers.observe(event)
        dumped = through_json(state, closers)
        again = load(driver.header, dumped)
        assert again.fingerprint() == state.fingerprint()
        assert load_closers(dumped).closing_events(again.next_seq) == closers.closing_events(state.next_seq)


@given(st.data())
def test_a_loaded_state_folds_the_rest_of_the_log_to_the_same_end(data):
    driver = random_log(data)
    cut = data.draw(st.integers(0, len(driver.log)))
    dumped = through_json(*fold(driver, driver.log[:cut]))
    state, closers = load(driver.header, dumped), load_closers(dumped)
    for event in driver.log[cut:]:
        state.apply(event)
        closers.observe(event)
    whole, all_closers = fold(driver, driver.log)
    assert state.fingerprint() == whole.fingerprint() == driver.machine.state.fingerprint()
    assert closers.closing_events(state.next_seq) == all_closers.closing_events(whole.next_seq)


@given(st.data())
def test_a_machine_over_a_loaded_state_sends_the_same_request(data):
    driver = random_log(data)
    state, closers = fold(driver, driver.log)
    closing = list(closers.closing_events(state.next_seq))
    driver.log += closing
    state, closers = fold(driver, driver.log)
    from_log, from_dump = MachineDriver(log=driver.log), MachineDriver()
    from_dump.machine.state = load(driver.header, through_json(state, closers))
    for each in (from_log, from_dump):
        each.now = state.last_time + 10
        each.deliver("go on")
        each.settle()
    assert from_log.log[len(driver.log) :] == from_dump.log
    assert from_log.take(io.OpenStream).request == from_dump.take(io.OpenStream).request


def rich_driver() -> MachineDriver:
    """A log in the middle of a step: replaced, counted, noted and unbilled facts, and two open calls."""
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(UsageChunk(Usage(7, 3, 2)), *call_chunks(("read", "{}")))
    driver.run_tool("a long result")
    result = next(event for event in driver.log if event.type == "tool/result")
    driver.reply(*text_chunks("done"))
    driver.deliver("waits", "next-step", wake=False)
    driver.send(io.Record("session/title", {"title": "A walk"}))
    driver.deliver("again")
    driver.reply(*call_chunks(("read", "{}"), ("write", "{}"), prefix="d"))
    driver.send(io.Record("todo/write", TODOS))
    driver.log.append(
        Event(
            "tool/result",
            len(driver.log),
            driver.now,
            json.loads(json.dumps(result.data).replace("a long result", "cut")),
            Event.from_json({**result.to_json(), "surfaceOp": _replace(result.seq)}).surface_op,
            (result.seq,),
        )
    )
    return driver


def _replace(seq: int) -> dict[str, Any]:
    return {"op": "replace", "start": seq, "end": seq}


def test_open_calls_replacements_and_notes_survive_a_dump():
    driver = rich_driver()
    state, closers = fold(driver, driver.log)
    dumped = through_json(state, closers)
    again = load(driver.header, dumped)
    assert again.fingerprint() == state.fingerprint()
    assert again.surface.replace_generation == 1
    assert set(again.open_calls) == {"d0", "d1"} and again.counters.input == 7
    assert (again.title, again.todos) == ("A walk", TODOS["todos"])
    closing = load_closers(dumped).closing_events(again.next_seq)
    assert [e.type for e in closing] == ["tool/result", "tool/result", "step/end", "turn/end"]


def test_usage_that_is_not_billed_yet_is_billed_after_a_load():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(UsageChunk(Usage(7, 3)), TextDelta(0, "half"))
    state, closers = fold(driver, driver.log)
    again = load(driver.header, through_json(state, closers))
    assert again.counters.input == 0
    for event in closers.closing_events(again.next_seq):
        again.apply(event)
    assert again.counters.input == 7


def test_two_open_calls_with_one_id_are_both_closed_after_a_load():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.settle()
    call = {"type": "tool-call", "id": "same", "name": "read", "arguments": "{}"}
    message = {"id": "a", "role": "assistant", "content": [call, call]}
    message["source"] = {"kind": "model", "provider": "p", "model": "m"}
    data = {"turn": 1, "step": 1, "message": message}
    log = [*driver.log, Event("assistant/message", len(driver.log), driver.now, data, "append", ())]
    dumped = through_json(*fold(driver, log))
    closing = load_closers(dumped).closing_events(len(log))
    assert [event.type for event in closing] == ["tool/result", "tool/result", "step/end", "turn/end"]


def test_an_open_turn_is_not_dumped_without_what_closes_it():
    driver = MachineDriver()
    driver.deliver("hello")
    with pytest.raises(EventRefused, match="open turn"):
        dump(driver.machine.state)


def broken(value: Any) -> Any:
    """Another value of another type."""
    return {"x": 1} if not isinstance(value, dict) else ["x"]


@pytest.mark.parametrize("name", sorted(dump(SessionState(MachineDriver().header))))
def test_a_dump_with_a_missing_or_wrong_member_is_refused(name):
    driver = rich_driver()
    good = through_json(*fold(driver, driver.log))
    for bad in ({k: v for k, v in good.items() if k != name}, {**good, name: broken(good[name])}):
        with pytest.raises(EventRefused):
            load(driver.header, bad)
            load_closers(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"next_seq": 3},
        {"next_seq": True},
        {"open_step": -1},
        {"guard": {"recent": ["zz"], "count": 0}},
        {"open_calls": [["c", 1, "{}", None, 0]]},
        {"open_calls": [["c", "read"]]},
        {"closers": {"turn": 1, "step": 1, "pending": [[1, None]]}},
    ],
)
def test_a_dump_that_cannot_be_is_refused(change):
    driver = rich_driver()
    good = through_json(*fold(driver, driver.log))
    with pytest.raises(EventRefused):
        load(driver.header, good | change)
        load_closers(good | change)


@pytest.mark.parametrize("data", [None, 3, "x", [], {}, {"format": 1}])
def test_what_is_no_dump_at_all_is_refused(data):
    with pytest.raises(EventRefused):
        load(MachineDriver().header, data)
