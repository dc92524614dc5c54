"""Actors that crash come back from the log, the others do not notice, and nothing committed is lost."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import pytest
from gevent.event import Event as Signal

from dsh_actors.actors import lifecycle
from dsh_actors.actors import protocol as p
from dsh_actors.actors import supervisor as supervising
from dsh_actors.actors.address import Address
from dsh_actors.core.chunks import TextDelta
from dsh_actors.core.messages import text_of
from dsh_actors.errors import ActorGone, SessionBusy, UsageError
from dsh_actors.handle import AgentHandle
from dsh_actors.runtime.actor import live_actors
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import live_tasks, start_task
from dsh_actors.testing.machine import text_chunks
from tests.actors.kit import until

WORKERS = ["store", "gateway", "pool", "approvals"]


def crash(address) -> None:
    """A message that no actor understands; being told, it ends the receiver. Waits until it is dead."""
    ref = address.ref
    ref.tell(object())
    until(lambda: not ref.is_alive)


def crash_and_return(address) -> None:
    """As `crash`; waits until another incarnation is there."""
    ref = address.ref
    crash(address)
    until(lambda: address.ref is not ref)
    assert address.ref.is_alive


def aside(work: Callable[[], object]) -> queue.SimpleQueue:
    """Do something that waits beside the test; its end comes in the queue."""
    ends: queue.SimpleQueue = queue.SimpleQueue()
    start_task(lambda _token: work(), ends.put, name="aside")
    return ends


class Watch:
    """Collects notifications of one kind, so that a test can wait for one."""

    def __init__(self) -> None:
        self.seen: queue.SimpleQueue[dict] = queue.SimpleQueue()

    def __call__(self, payload: dict) -> None:
        self.seen.put(payload)


def watching(kind: str, watch: Callable) -> Callable:
    return lambda scope: scope.observe(kind, watch) and None


# --- agents -----------------------------------------------------------------------------------


def test_an_agent_that_crashes_in_a_turn_is_rebuilt_and_the_turn_is_interrupted(stage):
    watch = Watch()
    agent = stage.agent(watching("agent/error", watch))
    agent.followup("hello")
    stage.model.next_stream().send(TextDelta(0, "half"))
    crash(agent._address)
    report = watch.seen.get(timeout=10)
    assert report.keys() == {"session", "message", "code"} and report["session"] == agent.id
    assert agent.when_idle(10)
    agent.followup("go on")
    stream = stage.model.next_stream()
    assert next(text_of(m) for m in stream.request.messages) == "hello"
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)
    agent.dispose()
    ends = [e.data["reason"]["kind"] for e in stage.stored(agent.id) if e.type == "turn/end"]
    assert ends == ["interrupted", "completed"]
    seqs = [e.seq for e in stage.stored(agent.id)]
    assert seqs == list(range(len(seqs)))


def test_observers_see_what_closes_a_turn_after_a_crash_and_that_the_agent_is_idle(stage):
    statuses: list[str] = []
    agent = stage.agent(watching("agent/status", lambda payload: statuses.append(payload["status"])))
    agent.followup("hello")
    stage.model.next_stream().send(TextDelta(0, "half"))
    crash(agent._address)
    assert agent.when_idle(10)
    assert statuses == ["running", "idle"]
    agent.dispose()
    assert stage.stored(agent.id) == stage.events


def test_what_was_queued_behind_a_turn_goes_on_after_a_crash(stage):
    agent = stage.agent()
    agent.followup("first")
    stage.model.next_stream().send(TextDelta(0, "half"))
    ended = aside(lambda: agent.run("second"))
    until(lambda: agent.status().next_turn == 1)
    crash(agent._address)
    stage.model.next_stream().send(*text_chunks("done"))
    end = ended.get(timeout=10).value
    assert (end.reason, end.answer) == ("completed", "done")


def test_a_crash_between_turns_starts_none(stage):
    agent = stage.agent()
    agent.inject("later")
    crash_and_return(agent._address)
    assert agent.status().status == "idle" and agent.status().next_step == 1
    assert "turn/start" not in stage.types()


def test_other_agents_do_not_notice_a_crash(stage):
    one, two = stage.agent(), stage.agent()
    two.followup("hello")
    stream = stage.model.next_stream()
    other = two._address.ref
    crash(one._address)
    stream.send(*text_chunks("ok"))
    assert two.when_idle(10)
    assert two.status().turn == 1 and two._address.ref is other
    assert one.status().status == "idle"


def test_an_agent_that_keeps_crashing_is_given_up_with_its_error(stage):
    watch = Watch()
    agent = stage.agent(watching("agent/disposed", watch))
    for _ in range(3):
        crash_and_return(agent._address)
    agent.followup("hello")
    stage.model.next_stream()
    crash(agent._address)
    gone = watch.seen.get(timeout=10)
    assert gone["session"] == agent.id and gone["error"]
    assert stage.types()[-1] == "turn/end" and stage.stored(agent.id) == stage.events
    with pytest.raises(ActorGone):
        agent.status()
    assert stage.harness.agents() == []


def test_what_an_agent_dies_twice_before_reading_is_answered_by_the_third(stage, monkeypatch):
    agent = stage.agent()
    ask, asked = Address.ask, []

    def ask_the_dying(self, message, *, timeout):
        if self is agent._address:
            asked.append(self.ref)
            if len(asked) < 3:
                self.ref.tell(object())
        return ask(self, message, timeout=timeout)

    monkeypatch.setattr(Address, "ask", ask_the_dying)
    message_id = agent.inject("kept")
    monkeypatch.undo()
    assert len({id(ref) for ref in asked}) == 3
    inserted = [event.data["inserted"] for event in stage.events if event.type == "agent/inbox/spliced"]
    assert [[message["id"] for message in each] for each in inserted] == [[message_id]]


def test_an_asker_that_stopped_waiting_is_forgotten(stage):
    agent = stage.agent()
    agent.followup("hello")
    stream = stage.model.next_stream()
    for _ in range(20):
        assert not agent.when_idle(0.001)
    agent.status()
    actor = next(each for each in live_actors() if each.name == agent.id)
    assert not actor._waiters
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)


def test_runs_leave_nothing_on_the_scope(stage):
    agent = stage.agent()
    before = len(agent._scope._undos)
    for _ in range(3):
        ended = aside(lambda: agent.run("x"))
        stage.model.next_stream().send(*text_chunks("ok"))
        ended.get(timeout=10)
    assert len(agent._scope._undos) == before


# --- shared workers ---------------------------------------------------------------------------


@pytest.mark.parametrize("worker", WORKERS)
def test_a_shared_worker_that_crashes_comes_back_and_nothing_is_lost(stage, worker):
    agent = stage.agent()
    agent.followup("hello")
    stream = stage.model.next_stream()
    stream.send(TextDelta(0, "half "))
    crash_and_return(getattr(stage.harness._at, worker))
    stream.send(TextDelta(0, "whole"), *text_chunks("")[1:])
    assert agent.when_idle(10)
    agent.followup("again")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    agent.dispose()
    assert stage.stored(agent.id) == stage.events
    ends = [e.data["reason"]["kind"] for e in stage.events if e.type == "turn/end"]
    assert ends == ["completed", "completed"]


def test_a_store_that_crashes_with_unwritten_events_writes_them_afterwards(stage):
    agent = stage.agent()
    agent.inject("kept")
    ref = stage.harness._at.store.ref
    ref.tell(object())
    agent.inject("kept too")
    agent.dispose()
    assert stage.harness._at.store.ref is not ref
    stored = stage.stored(agent.id)
    assert stored == stage.events
    assert [e.data["inserted"][0]["content"][0]["text"] for e in stored[:2]] == ["kept", "kept too"]


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_that_keeps_crashing_ends_the_agents_with_its_error_and_frees_their_sessions(stage, worker):
    watch = Watch()
    agent = stage.agent(watching("agent/disposed", watch))
    agent.followup("hello")
    stage.model.next_stream().send(TextDelta(0, "half"))
    address = getattr(stage.harness._at, worker)
    for _ in range(4):
        crash_and_return(address)
    gone = watch.seen.get(timeout=10)
    assert f"{address.name} keeps failing" in gone["error"]
    with pytest.raises(ActorGone):
        agent.status()
    with pytest.raises(ActorGone, match="keeps failing"):
        stage.agent()
    assert stage.harness._supervisor.is_alive
    assert stage.stored(agent.id) == stage.events
    stage.harness.close()
    stage.harness = stage.open()
    assert stage.harness.resume(agent.id, stage.options()).id == agent.id


def test_a_worker_that_dies_once_more_is_told_nothing_any_more(stage):
    address = stage.harness._at.pool
    for _ in range(4):
        crash_and_return(address)
    crash(address)
    until(lambda: address._gone is not None)
    address.tell("nobody hears it")
    assert address._kept == []
    with pytest.raises(ActorGone, match="tool_pool keeps failing"):
        address.ask("anything", timeout=5)


def test_a_store_that_is_gone_for_good_leaves_no_session_locked(stage):
    agent = stage.agent()
    agent.inject("kept")
    address = stage.harness._at.store
    for _ in range(4):
        crash_and_return(address)
    crash(address)
    stage.harness.close()
    stage.harness = stage.open()
    stage.harness.resume(agent.id, stage.options())
    stored = stage.stored(agent.id)
    assert stored and stored == stage.events[: len(stored)]


def test_a_harness_whose_supervisor_died_closes_and_frees_the_sessions(stage):
    agent = stage.agent()
    agent.followup("hello")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    # Books that are wrong: a task ends for an agent that is no agent.
    stage.harness._supervisor.tell(supervising._Disposed(None, None))
    until(lambda: not stage.harness._supervisor.is_alive)
    agent.inject("still at work")
    crash(stage.harness._at.pool)
    stage.harness._at.pool.tell("nobody will hear it")
    assert stage.harness._at.pool._kept == []
    stage.harness.close()
    assert live_actors() == []
    stage.harness = stage.open()
    assert stage.harness.resume(agent.id, stage.options()).status().next_step == 1


def test_the_supervisor_lives_on_after_a_message_that_it_cannot_use(stage):
    stage.harness._supervisor.tell(object())
    assert stage.harness.agents() == [] and stage.harness._supervisor.is_alive


# --- disposing --------------------------------------------------------------------------------


def test_an_agent_that_hangs_is_disposed_of_and_its_session_is_free(stage, monkeypatch):
    monkeypatch.setattr(lifecycle, "CLOSE_TIMEOUT_S", 0.2)
    go = Signal()
    agent = stage.agent(
        watching("session/event", lambda event: go.wait(10) if event.type == "turn/start" else None)
    )
    waiting = aside(lambda: agent.followup("x"))
    until(lambda: any(event.type == "turn/start" for event in stage.events))
    agent.dispose(0.1)
    monkeypatch.undo()
    assert stage.harness.agents() == []
    again = stage.harness.resume(agent.id, stage.options())
    go.set()
    waiting.get(timeout=10)
    assert again.status().status == "idle"


@pytest.mark.parametrize("is_known", [False, True], ids=["at once", "while it is rebuilt"])
def test_a_dispose_of_an_agent_that_has_just_died_closes_its_turn(stage, is_known):
    agent = stage.agent()
    agent.followup("hello")
    stage.model.next_stream().send(TextDelta(0, "half"))
    until(lambda: any(event.type == "assistant/chunk" for event in stage.events))
    began, go = Signal(), Signal()
    if is_known:
        agent._scope.observe("agent/error", lambda _payload: began.set() or go.wait(10))
    agent._address.ref.tell(object())
    disposed = aside(agent.dispose)
    if is_known:
        assert began.wait(10)
        go.set()
    assert disposed.get(timeout=10).error is None
    assert stage.stored(agent.id) == stage.events
    (end,) = [event for event in stage.events if event.type == "turn/end"]
    assert end.data["reason"]["kind"] in ("interrupted", "aborted")


def test_a_dispose_goes_on_when_the_store_dies_in_it(stage, monkeypatch):
    agent = stage.agent()
    agent.inject("kept")
    store, stop = stage.harness._at.store, Ref.stop
    old = store.ref

    def stop_and_crash(self, *, timeout):
        stop(self, timeout=timeout)
        if self.name == agent.id:
            store.tell(object())

    monkeypatch.setattr(Ref, "stop", stop_and_crash)
    agent.dispose()
    assert store.ref is not old
    stage.harness.resume(agent.id, stage.options())
    assert stage.stored(agent.id) == stage.events


def test_an_agent_and_the_store_that_crash_at_once_both_come_back(stage):
    agent = stage.agent()
    agent.inject("kept")
    one, other = agent._address.ref, stage.harness._at.store.ref
    one.tell(object())
    until(lambda: not one.is_alive)
    other.tell(object())
    until(lambda: agent._address.ref is not one and stage.harness._at.store.ref is not other)
    assert agent.status().next_step == 1


def test_only_who_holds_the_handle_can_dispose_of_an_agent(stage):
    handle = stage.agent()
    (found,) = stage.harness.agents()
    assert found.id == handle.id and not isinstance(found, AgentHandle)
    assert not hasattr(found, "dispose")
    with pytest.raises(UsageError):
        found.cancel({"kind": "disposed"})
    assert found.status().status == "idle"
    found.followup("hello")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert found.when_idle(10)


def test_a_run_of_an_agent_that_is_gone_says_so(stage):
    agent = stage.agent()
    agent.dispose()
    with pytest.raises(ActorGone):
        agent.run("x")


# --- coming and going -------------------------------------------------------------------------


def test_an_id_is_free_as_soon_as_the_veto_is_heard(stage):
    def veto(_payload):
        raise RuntimeError("vetoed")

    with pytest.raises(RuntimeError, match="vetoed"):
        stage.agent(watching("agent/created", veto), session_id="one")
    assert stage.harness.agents() == []
    assert stage.agent(session_id="one").id == "one"


@pytest.mark.parametrize("point", ["agent/created", "agent/session-start", "agent/error", "agent/disposed"])
def test_the_supervisor_answers_while_foreign_code_waits(stage, point):
    began, go = Signal(), Signal()

    def wait(_payload):
        began.set()
        go.wait(10)

    def setup(scope):
        (scope.listen if point == "agent/session-start" else scope.observe)(point, wait)

    created = aside(lambda: stage.agent(setup))
    if point in ("agent/error", "agent/disposed"):
        agent = created.get(timeout=10).value
        created = aside(agent.dispose if point == "agent/disposed" else lambda: crash(agent._address))
    assert began.wait(10)
    until(lambda: stage.harness._supervisor.ask(p.GetAgents(), timeout=1) is not None)
    assert stage.agent().status().status == "idle"
    go.set()
    assert created.get(timeout=10).error is None


def test_an_agent_that_is_ready_after_the_close_began_is_never_seen(stage):
    began, go, seen = Signal(), Signal(), []

    def setup(scope):
        for kind in ("agent/created", "agent/disposed"):
            scope.observe(kind, lambda payload, kind=kind: seen.append(kind))
        scope.listen("agent/session-start", lambda payload: seen.append("start"))
        began.set()
        go.wait(10)

    created = aside(lambda: stage.agent(setup, session_id="one"))
    assert began.wait(10)
    closed = aside(stage.harness.close)
    until(lambda: stage.harness._closed)
    time.sleep(0)
    go.set()
    assert isinstance(created.get(timeout=10).error, ActorGone)
    assert closed.get(timeout=10).error is None
    assert seen == []
    stage.harness = stage.open()
    assert stage.agent(session_id="one").id == "one"


def test_a_setup_that_hangs_keeps_the_close_waiting_no_longer_than_agents_may(stage):
    began = Signal()

    def setup(scope):
        began.set()
        Signal().wait(60)

    created = aside(lambda: stage.agent(setup))
    assert began.wait(10)
    stage.harness.close(0.1)
    assert isinstance(created.get(timeout=10).error, ActorGone)
    assert live_tasks() == []


def test_an_announcement_that_hangs_does_not_keep_the_harness_open(stage):
    began = Signal()

    def wait(_payload):
        began.set()
        Signal().wait(60)

    created = aside(lambda: stage.agent(watching("agent/created", wait)))
    assert began.wait(10)
    stage.harness.close()
    assert isinstance(created.get(timeout=10).error, ActorGone)


def test_a_failing_listener_keeps_no_other_from_being_called(stage):
    seen = []

    def explode(_payload):
        raise RuntimeError("boom")

    def setup(scope):
        scope.listen("agent/session-start", explode)
        scope.listen("agent/session-start", seen.append)

    agent = stage.agent(setup)
    assert seen == [{"session": agent.id, "source": "startup"}]


def test_a_session_that_is_being_created_is_busy(stage):
    began, go = Signal(), Signal()

    def setup(scope):
        began.set()
        go.wait(10)

    created = aside(lambda: stage.agent(setup, session_id="one"))
    assert began.wait(10)
    with pytest.raises(SessionBusy):
        stage.agent(session_id="one")
    go.set()
    assert created.get(timeout=10).value.id == "one"
