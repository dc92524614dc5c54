"""The moments between two states of an agent: what is asked, ended or refused just then."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from dsh_actors.daemon import restart
from dsh_actors.daemon.registry import Registry
from dsh_actors.daemon.restart import AT_ONCE
from dsh_actors.errors import ActorGone, HarnessError, StorageFull
from dsh_actors.subagents.request import ChildRequest
from tests.actors.kit import until
from tests.daemon.host_kit import answer, at_once, held_writes, no_room


def test_an_agent_whose_row_is_just_being_saved_is_what_it_is_and_not_what_it_was(daemon, monkeypatch):
    one = daemon.agent("hello")
    daemon.end(one)
    daemon.host._table.writer.note(daemon.host._table.live[one].row)
    began, go_on, _written = held_writes(daemon.host._registry, monkeypatch)

    def look():
        assert began.wait(20)
        try:
            assert one not in daemon.host._table.live
            assert daemon.host.get(one).state == "asleep"
            assert daemon.host.list()[0].state == "asleep"
            return daemon.host.wait([one], timeout=0.2)
        finally:
            go_on.set()

    slept, ends = at_once(partial(daemon.host._table.sleep_if_idle, one), look)
    assert slept is True
    assert not isinstance(ends, BaseException), ends
    assert ends[one].answer == "echo: hello"


def test_an_agent_that_ended_and_cannot_be_forgotten_is_not_at_work(daemon, monkeypatch):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    registry, write = daemon.host._registry, daemon.host._registry.write

    def only_saves(changes):
        if any(change.values is None for change in changes):
            raise StorageFull("no room")
        write(changes)

    def end_it():
        until(lambda: daemon.host._table.waits._by_id)
        with monkeypatch.context() as patches:
            patches.setattr(registry, "write", only_saves)
            with pytest.raises(StorageFull):
                daemon.host.dispose(one)

    ends, error = at_once(lambda: daemon.host.wait([one], timeout=3), end_it)
    assert error is None
    assert ends[one].reason == "internal"
    assert daemon.host.get(one).state == "failed"
    daemon.host._table.writer.flush()
    assert registry.owed() == []
    daemon.host.dispose(one)
    assert daemon.states() == {}


@pytest.mark.parametrize("error", [StorageFull("no room"), TypeError("a fault of ours")])
def test_cut_runs_that_cannot_go_on_keep_no_other_from_it(daemon, monkeypatch, error):
    ids = [daemon.agent("work", model="manual/m") for _ in range(AT_ONCE + 2)]
    for _ in ids:
        daemon.manual.next_stream()
    daemon.close()
    refused, others = set(ids[:AT_ONCE]), ids[AT_ONCE:]
    awake, write = restart.awake, Registry.write

    def awake_others(table, agent_id, wait_s=None):
        if agent_id in refused:
            raise error
        return awake(table, agent_id, wait_s)

    def write_others(registry, changes):
        if any(change.id in refused for change in changes):
            raise StorageFull("no room")
        write(registry, changes)

    with monkeypatch.context() as patches:
        patches.setattr(restart, "awake", awake_others)
        patches.setattr(Registry, "write", write_others)
        daemon.open()
        for _ in others:
            daemon.manual.next_stream().send(*answer("done"))
    for one in others:
        assert daemon.end(one).answer == "done"
    assert {daemon.host.get(one).state for one in refused} == {"asleep"}


def test_a_run_that_time_has_ended_is_not_set_to_work_again_by_what_it_started(daemon):
    one = daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()
    live = daemon.host._table.live[one]
    daemon.harness.subagents.start_continuable(one, ChildRequest("look"))
    daemon.manual.next_stream()
    stream.send(*answer("waiting"))
    until(lambda: not live.is_running)
    daemon.host._table.stop_run(live, "timeout")
    end = daemon.end(one)
    assert (end.reason, end.turns) == ("timeout", 1)
    assert daemon.host.get(one).state == "idle"
    daemon.host.deliver(one, "again")
    assert not daemon.harness.work.is_quiet(one)
    daemon.manual.next_stream().send(*answer("done"))
    assert daemon.end(one).reason == "completed"


def test_a_run_of_an_agent_whose_last_one_is_still_watched_comes_to_its_end(daemon, monkeypatch):
    one = daemon.agent("first", model="manual/m")
    live = daemon.host._table.live[one]
    work = daemon.harness.work
    item = work.add(one, "job-1", "bash", "make", lambda: None)
    held, tell = threading.Event(), threading.Event()
    when_done = type(live.handle).when_done

    def late(handle, timeout=None):
        done = when_done(handle, timeout)
        held.set()
        tell.wait(20)
        return done

    monkeypatch.setattr(type(live.handle), "when_done", late)
    daemon.manual.next_stream().send(*answer("waiting"))
    until(lambda: live.is_watched)
    work.release(item)
    assert held.wait(20)
    # Over by another way: the end of a turn that came in between.
    live.handle.followup("on")
    daemon.manual.next_stream().send(*answer("one"))
    assert daemon.end(one).answer == "one"
    item = work.add(one, "job-2", "bash", "make", lambda: None)
    daemon.host.deliver(one, "second")
    daemon.manual.next_stream().send(*answer("two"))
    until(lambda: not live.is_running)
    work.release(item)
    tell.set()
    assert daemon.end(one).answer == "two"


def test_an_agent_that_is_just_gone_takes_no_message(daemon, monkeypatch):
    one = daemon.agent("hello")
    daemon.end(one)
    table = daemon.host._table
    live, late = table.live[one], []
    monkeypatch.setattr("dsh_actors.daemon.live_table.when_waiting", late.append)
    live.handle.dispose()
    with pytest.raises(ActorGone):
        daemon.host.deliver(one, "are you there?")
    late[-1]()
    assert daemon.host.get(one).state == "failed"
    assert one not in table.room.idle


def test_an_agent_that_is_made_as_the_host_closes_is_not_left_behind(daemon, monkeypatch):
    table, host = daemon.host._table, daemon.host
    save = table.writer.save
    closing = []

    def save_and_close(row, options=None):
        save(row, options)
        if options is not None and not closing:
            closing.append(True)
            host.close()

    monkeypatch.setattr(table.writer, "save", save_and_close)
    with pytest.raises(HarnessError):
        daemon.agent()
    assert daemon.harness.agents() == []
    assert table.live == {}


def test_nothing_is_taken_in_while_the_host_lets_runs_end(daemon):
    one = daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()

    def speak():
        until(lambda: daemon.host._table.closing)
        try:
            with pytest.raises(ActorGone):
                daemon.host.deliver(one, "one more thing")
        finally:
            stream.send(*answer("done"))

    errors = at_once(lambda: daemon.host.close(drain_s=20), speak)
    assert errors == [None, None]


def test_an_agent_whose_log_cannot_be_flushed_stays_awake_until_it_has_worked_again(daemon, monkeypatch):
    one = daemon.agent("hello")
    daemon.end(one)

    with monkeypatch.context() as patches:
        patches.setattr(daemon.harness, "flush", no_room)
        assert not daemon.host._table.sleep_if_idle(one)
    assert one not in daemon.host._table.room.idle
    daemon.host.deliver(one, "again")
    assert daemon.end(one).answer == "echo: again"
    daemon.lay_down(one)


def test_what_is_said_as_an_agent_falls_asleep_is_owed_where_the_process_ends_then(daemon, monkeypatch):
    one = daemon.agent("first", model="manual/m")
    daemon.manual.next_stream().send(*answer("one"))
    daemon.end(one)
    table = daemon.host._table
    live, flush = table.live[one], daemon.harness.flush

    def flush_and_speak(agent_id):
        flush(agent_id)
        live.handle.followup("by the way")
        daemon.manual.next_stream()

    with monkeypatch.context() as patches:
        patches.setattr(daemon.harness, "flush", flush_and_speak)
        patches.setattr(table, "on_left_over", lambda _agent_id: None)
        assert table.sleep_if_idle(one)
    assert daemon.host._registry.owed() == [one]
    daemon.close()
    daemon.open()
    daemon.manual.next_stream().send(*answer("two"))
    assert daemon.end(one).answer == "two"


def test_an_agent_that_sleeps_is_asleep_though_its_row_could_not_be_written(daemon, monkeypatch):
    one = daemon.agent("hello")
    daemon.end(one)

    with monkeypatch.context() as patches:
        patches.setattr(daemon.host._registry, "write", no_room)
        assert daemon.host._table.sleep_if_idle(one)
        assert daemon.host.get(one).state == "asleep"
    assert daemon.host.wait([one], timeout=5)[one].answer == "echo: hello"
