"""Stored sessions through the harness: looked at, reserved, repaired, streamed and forked."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import pytest

from dsh_actors.assembly import AgentAssembly
from dsh_actors.core.chunks import TextDelta
from dsh_actors.core.events import Event
from dsh_actors.core.messages import text_of
from dsh_actors.core.options import AgentOptions, Limits
from dsh_actors.core.scope import Scope
from dsh_actors.errors import SessionBusy, SessionExists, SessionNotFound, UsageError
from dsh_actors.ports import ToolOutput, ToolSpec
from dsh_actors.runtime.tasks import start_task
from dsh_actors.testing.machine import call_chunks, text_chunks


def turn(stage, agent, prompt: str = "hello", answer: str = "hi") -> None:
    agent.followup(prompt)
    stage.model.next_stream().send(*text_chunks(answer))
    assert agent.when_idle(10)


def finished(stage, *prompts: str, **fields: object) -> str:
    agent = stage.agent(**fields)
    for prompt in prompts:
        turn(stage, agent, prompt, f"answer to {prompt}")
    agent.dispose()
    return agent.id


def interrupted(stage) -> str:
    """A stored session whose process died in a step with a call that was not started."""
    session_id = finished(stage, "one")
    storage = stage.harness.storage
    driver_log = list(storage.read(session_id))
    seq = len(driver_log)
    call = {"type": "tool-call", "id": "c", "name": "read", "arguments": "{}"}
    source = {"kind": "model", "provider": "manual", "model": "m"}
    message = {"id": "a", "role": "assistant", "content": [call], "source": source}
    place = {"turn": 2, "step": 1}
    now = driver_log[-1].time
    writer = storage.open(session_id)
    writer.append(
        [
            Event("turn/start", seq, now, {"turn": 2}),
            Event("step/start", seq + 1, now, place),
            Event("assistant/message", seq + 2, now, {**place, "message": message}, "append", ()),
        ]
    )
    writer.close()
    return session_id


CLOSERS = ["tool/result", "step/end", "turn/end"]


# --- the prompt of a resumed session ----------------------------------------------------------


def system_of(stage, agent) -> str:
    agent.followup("more")
    stream = stage.model.next_stream()
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)
    return stream.request.header.system


def resumed_system(stage, session_id: str, setup=None, **fields: object) -> str:
    agent = stage.harness.resume(session_id, stage.options(**fields), setup)
    try:
        return system_of(stage, agent)
    finally:
        agent.dispose()


def begun(stage, setup=None, **fields: object) -> tuple[str, str]:
    agent = stage.agent(setup, **fields)
    system = system_of(stage, agent)
    agent.dispose()
    return agent.id, system


def test_a_resumed_session_has_the_prompt_it_began_with_however_often(stage):
    stage.harness.scope.section("plugin", 5, "PLUGIN {{brace}}TEXT")

    def setup(scope):
        scope.section("own", 6, "OWN TEXT")

    session_id, first = begun(stage, setup)
    assert first.count("PLUGIN {{TEXT") == 1 and first.count("OWN TEXT") == 1
    for _ in range(3):
        assert resumed_system(stage, session_id, setup) == first


def test_a_prompt_of_its_own_is_kept_with_what_was_appended(stage):
    session_id, first = begun(stage, system_prompt="You are Bo.", append_system_prompt="Be brief.")
    assert first == "You are Bo.\n\nBe brief."
    assert resumed_system(stage, session_id) == first
    assert resumed_system(stage, session_id, append_system_prompt="Be brief.") == first
    assert resumed_system(stage, session_id, append_system_prompt="And kind.") == f"{first}\n\nAnd kind."
    assert resumed_system(stage, session_id, system_prompt="You are Al.") == "You are Al."


def test_what_is_registered_after_a_resume_counts(stage):
    session_id, first = begun(stage)
    agent = stage.harness.resume(session_id, stage.options())
    assert system_of(stage, agent) == first
    undo = stage.harness.scope.section("plugin", 5, "PLUGIN TEXT")
    assert "PLUGIN TEXT" in system_of(stage, agent)
    undo()
    assert system_of(stage, agent) == first


def test_a_fork_with_another_preset_has_the_words_of_that(stage):
    stage.harness.preset("reviewer").section("persona", 0, "You review.")
    session_id, first = begun(stage)
    plain = stage.harness.fork(session_id, stage.options())
    assert system_of(stage, plain) == first
    other = stage.harness.fork(session_id, stage.options(preset="reviewer"))
    assert system_of(stage, other) == "You review."


def test_the_time_of_a_run_begins_with_the_run():
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    scope = Scope("agent")
    assembly = AgentAssembly(None, clock, scope, {}, None, None)  # type: ignore[arg-type]  # not used here
    left = assembly._time_left(AgentOptions("m/m", "/", limits=Limits(timeout_s=10.0)), scope)
    for began in (100.0, 500.0):
        now[0] = began
        for observer in scope.handlers_of("agent/status"):
            observer({"status": "running"})
        now[0] += 4.0
        assert left() == 6_000
        for observer in scope.handlers_of("agent/status"):
            observer({"status": "idle"})


# --- inspect ----------------------------------------------------------------------------------


def test_an_interrupted_session_is_closed_in_memory_and_stays_as_it_is(stage):
    session_id = interrupted(stage)
    before = stage.stored(session_id)
    view = stage.harness.inspect(session_id)
    assert [event.type for event in view.closers] == CLOSERS
    assert view.state.open_turn is None and not view.is_live
    assert view.state.next_seq == len(before) + len(CLOSERS)
    assert stage.stored(session_id) == before


def test_every_view_has_a_state_of_its_own(stage):
    session_id = interrupted(stage)
    first, second = stage.harness.inspect(session_id), stage.harness.inspect(session_id)
    assert first.state is not second.state
    assert first.state.fingerprint() == second.state.fingerprint()
    first.state.inbox.apply({"target": "next-turn", "start": 0, "inserted": []}, 0)
    first.state.counters.turns = 99
    assert stage.harness.inspect(session_id).state.counters.turns == 2


def test_a_live_session_is_shown_in_the_middle_of_its_turn(stage):
    agent = stage.agent()
    agent.followup("hello")
    stream = stage.model.next_stream()
    stream.send(TextDelta(0, "half"))
    agent.status()
    view = stage.harness.inspect(agent.id)
    assert view.is_live and view.state.open_turn == 1 and view.closers == ()
    assert view.state.next_seq == agent.status().next_seq
    stream.send(*text_chunks("")[1:])
    assert agent.when_idle(10)


def test_a_session_that_changed_is_read_again(stage):
    session_id = finished(stage, "one")
    assert stage.harness.inspect(session_id).state.last_turn == 1
    agent = stage.harness.resume(session_id, stage.options())
    turn(stage, agent)
    agent.dispose()
    assert stage.harness.inspect(session_id).state.last_turn == 2


def test_an_unknown_session_is_not_found(stage):
    for ask in (stage.harness.inspect, stage.harness.load, stage.harness.prepare):
        with pytest.raises(SessionNotFound):
            ask("nobody")


# --- prepare and load -------------------------------------------------------------------------


def test_a_prepared_session_is_resumed_and_closed_once(stage):
    session_id = interrupted(stage)
    with stage.harness.prepare(session_id) as prepared:
        assert [event.type for event in prepared.closers] == CLOSERS
        agent = stage.harness.resume(session_id, stage.options())
    turn(stage, agent)
    agent.dispose()
    log = stage.stored(session_id)
    assert [event.seq for event in log] == list(range(len(log)))
    ends = [e.data["reason"]["kind"] for e in log if e.type == "turn/end"]
    assert ends == ["completed", "interrupted", "completed"]


def test_a_prepared_session_is_reserved_until_it_is_released(stage):
    session_id = finished(stage, "one")
    prepared = stage.harness.prepare(session_id)
    with pytest.raises(SessionBusy):
        stage.harness.prepare(session_id)
    with pytest.raises(SessionBusy):
        stage.harness.load(session_id)
    with pytest.raises(SessionBusy):
        stage.harness.storage.open(session_id)
    prepared.release()
    prepared.release()
    agent = stage.harness.resume(session_id, stage.options())
    turn(stage, agent, "more")
    agent.dispose()


def test_an_old_reservation_does_not_release_a_newer_one(stage):
    session_id = finished(stage, "one")
    with stage.harness.prepare(session_id):
        stage.harness.resume(session_id, stage.options()).dispose()
        newer = stage.harness.prepare(session_id)
    with pytest.raises(SessionBusy):
        stage.harness.storage.open(session_id)
    newer.release()
    stage.harness.storage.open(session_id).close()


def test_a_released_session_is_written_to_by_nobody(stage):
    session_id = interrupted(stage)
    before = stage.stored(session_id)
    stage.harness.prepare(session_id).release()
    assert stage.stored(session_id) == before


def test_a_prepared_session_survives_a_crash_of_the_store(stage):
    session_id = finished(stage, "one")
    with stage.harness.prepare(session_id):
        ref = stage.harness._at.store.ref
        ref.tell(object())
        agent = stage.agent()
        agent.dispose()
        assert stage.harness._at.store.ref is not ref
        turn(stage, stage.harness.resume(session_id, stage.options()))


def test_closing_the_harness_releases_what_is_prepared(stage):
    session_id = finished(stage, "one")
    stage.harness.prepare(session_id)
    stage.harness.close()
    stage.harness = stage.open()
    turn(stage, stage.harness.resume(session_id, stage.options()))


def test_loading_commits_the_repair_once(stage):
    session_id = interrupted(stage)
    before = stage.stored(session_id)
    view = stage.harness.load(session_id)
    assert stage.stored(session_id) == [*before, *view.closers]
    assert stage.harness.load(session_id).closers == ()
    assert len(stage.stored(session_id)) == len(before) + len(CLOSERS)


def test_a_live_session_is_loaded_only_between_turns(stage):
    agent = stage.agent()
    with pytest.raises(SessionNotFound):
        stage.harness.load(agent.id)
    agent.followup("hello")
    stream = stage.model.next_stream()
    with pytest.raises(SessionBusy) as caught:
        stage.harness.load(agent.id)
    assert caught.value.code == "OPEN_TURN"
    stream.send(*text_chunks("hi"))
    assert agent.when_idle(10)
    assert stage.harness.load(agent.id).is_live


# --- read_from --------------------------------------------------------------------------------


def test_a_suffix_is_streamed_as_it_is_stored(stage):
    session_id = interrupted(stage)
    log = stage.stored(session_id)
    for seq in (0, 3, len(log) - 1):
        assert list(stage.harness.read_from(session_id, seq)) == log[seq:]
    assert list(stage.harness.read_from(session_id, len(log))) == []
    assert list(stage.harness.read_from(session_id, len(log) + 50)) == []


@pytest.mark.parametrize("seq", [-1, 1.5, True])
def test_a_place_that_is_none_is_refused(stage, seq):
    with pytest.raises(UsageError):
        stage.harness.read_from("any", seq)


# --- fork -------------------------------------------------------------------------------------


def requests_of(stage, agent, prompt: str) -> list[str]:
    agent.followup(prompt)
    stream = stage.model.next_stream()
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)
    return [text_of(message) for message in stream.request.messages]


def test_a_fork_of_a_stored_session_goes_on_from_a_copy(stage):
    session_id = finished(stage, "one", "two")
    parent = stage.stored(session_id)
    child = stage.harness.fork(session_id, stage.options(session_id="child"))
    texts = requests_of(stage, child, "three")
    assert [t for t in texts if "Working directory" not in t] == [
        "one",
        "answer to one",
        "two",
        "answer to two",
        "three",
    ]
    child.dispose()
    log = stage.stored("child")
    assert log[: len(parent)] == parent
    assert log[len(parent)].type == "session/end-seed"
    assert [event.type for event in log].count("session/end-seed") == 1
    header = stage.harness.storage.header("child")
    assert (header.parent_session, header.seed_length, header.delegation_depth) == (
        session_id,
        len(parent),
        0,
    )
    assert stage.stored(session_id) == parent


def test_the_first_request_of_a_fork_extends_the_last_one_of_its_parent(stage):
    agent = stage.agent()
    agent.followup("one")
    last = stage.model.next_stream()
    last.send(*text_chunks("answer"))
    assert agent.when_idle(10)
    child = stage.harness.fork(agent.id, stage.options())
    child.followup("two")
    first = stage.model.next_stream()
    sent = list(last.request.messages)
    assert list(first.request.messages)[: len(sent)] == sent
    assert first.request.header == last.request.header
    first.send(*text_chunks("ok"))
    assert child.when_idle(10)


def test_parent_and_fork_live_side_by_side(stage):
    parent = stage.agent()
    turn(stage, parent, "one", "answer")
    child = stage.harness.fork(parent.id, stage.options())
    assert requests_of(stage, child, "for the child")[-1] == "for the child"
    assert "for the child" not in requests_of(stage, parent, "for the parent")


def test_a_fork_inherits_nothing_that_was_pending(stage):
    parent = stage.agent()
    turn(stage, parent)
    parent.inject("later")
    child = stage.harness.fork(parent.id, stage.options())
    assert child.status().next_step == 0 and parent.status().next_step == 1


def test_a_fork_at_an_earlier_turn_forgets_the_later_one(stage):
    session_id = finished(stage, "one", "two")
    end = next(event.seq for event in stage.stored(session_id) if event.type == "turn/end")
    child = stage.harness.fork(session_id, stage.options(), end)
    assert "two" not in requests_of(stage, child, "three")


def test_a_live_session_is_forked_at_the_end_of_an_earlier_turn_while_it_works(stage):
    parent = stage.agent()
    turn(stage, parent, "one", "answer")
    end = parent.status().next_seq - 1
    parent.followup("two")
    stream = stage.model.next_stream()
    with pytest.raises(UsageError) as caught:
        stage.harness.fork(parent.id, stage.options())
    assert caught.value.code == "OPEN_TURN"
    child = stage.harness.fork(parent.id, stage.options(), end)
    assert "two" not in requests_of(stage, child, "three")
    stream.send(*text_chunks("ok"))
    assert parent.when_idle(10)


def test_a_session_without_events_has_an_empty_fork(stage):
    parent = stage.agent()
    child = stage.harness.fork(parent.id, stage.options())
    assert requests_of(stage, child, "one")[0] == "one"
    child.dispose()
    assert stage.stored(child.id)[0].type == "session/end-seed"


def test_the_refusals_come_in_their_order_and_leave_nothing(stage):
    session_id = finished(stage, "one")
    taken = finished(stage, "other", session_id="taken")
    asks = {
        "SESSION_ALREADY_EXISTS": (session_id, "taken", 10_000),
        "SESSION_NOT_FOUND": ("nobody", "new", None),
        "INVALID_BOUNDARY": (session_id, "new", 10_000),
        "OPEN_TURN": (session_id, "new", 3),
    }
    for code, (source, child, at_seq) in asks.items():
        with pytest.raises((UsageError, SessionExists, SessionNotFound)) as caught:
            stage.harness.fork(source, stage.options(session_id=child), at_seq)
        assert caught.value.code == code
    assert {listing.id for listing in stage.harness.storage.list()} == {session_id, taken}
    live = stage.agent(session_id="live")
    with pytest.raises(SessionExists):
        stage.harness.fork(session_id, stage.options(session_id="live"), 10_000)
    live.dispose()


class Stubborn:
    """A tool that notices a cancel and ends when the test says so."""

    spec = ToolSpec("stubborn", "waits", {"type": "object"}, changes=False)

    def __init__(self) -> None:
        self.cancelled: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.go: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.began: queue.SimpleQueue[str] = queue.SimpleQueue()

    def is_parallel(self, arguments) -> bool:
        return False

    def execute(self, arguments, context) -> ToolOutput:
        context.cancel.on_cancel(lambda: self.cancelled.put("cancelled"))
        self.began.put("began")
        return ToolOutput(self.go.get())


def test_a_session_that_is_just_being_disposed_of_is_not_forked(stage):
    tool = Stubborn()
    parent = stage.agent(lambda scope: scope.tool(tool) and None)
    parent.followup("one")
    stage.model.next_stream().send(*call_chunks(("stubborn", "{}")))
    tool.began.get(timeout=10)
    gone: queue.SimpleQueue[object] = queue.SimpleQueue()
    start_task(lambda _token: parent.dispose(), gone.put, name="dispose")
    tool.cancelled.get(timeout=10)
    with pytest.raises(SessionBusy) as caught:
        stage.harness.fork(parent.id, stage.options())
    assert caught.value.code == "SESSION_NOT_LIVE"
    tool.go.put("done")
    assert gone.get(timeout=10).error is None
    stage.harness.fork(parent.id, stage.options()).dispose()


def test_a_setup_that_fails_takes_the_copy_back(stage):
    session_id = finished(stage, "one")

    def setup(_scope):
        raise UsageError("not today")

    with pytest.raises(UsageError, match="not today"):
        stage.harness.fork(session_id, stage.options(session_id="child"), setup=setup)
    with pytest.raises(SessionNotFound):
        stage.harness.storage.header("child")
    stage.harness.fork(session_id, stage.options(session_id="child")).dispose()


def test_a_fork_that_is_not_kept_leaves_nothing_on_the_disk(stage):
    session_id = finished(stage, "one")
    child = stage.harness.fork(session_id, stage.options(session_id="child", ephemeral=True))
    assert "one" in requests_of(stage, child, "two")
    child.dispose()
    assert {listing.id for listing in stage.harness.storage.list()} == {session_id}


def test_a_resumed_fork_keeps_its_lineage_and_one_marker(stage):
    session_id = finished(stage, "one")
    child = stage.harness.fork(session_id, stage.options(session_id="child"))
    child.dispose()
    again = stage.harness.resume("child", stage.options())
    assert again.header.parent_session == session_id
    turn(stage, again)
    again.dispose()
    assert [event.type for event in stage.stored("child")].count("session/end-seed") == 1


def test_a_fork_whose_calls_are_answered_needs_the_tool_no_more(stage):
    agent = stage.agent()
    agent.followup("one")
    stage.model.next_stream().send(*call_chunks(("nothing", "{}")))
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    child = stage.harness.fork(agent.id, stage.options())
    assert requests_of(stage, child, "two")[-1] == "two"
