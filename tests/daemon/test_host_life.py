"""Agents of the host: created, spoken to, asleep and awake again, ended."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.backend import open_storage
from dsh_actors.config import load_config
from dsh_actors.core.messages import text_of
from dsh_actors.errors import (
    AgentNotFound,
    HarnessError,
    SessionBusy,
    SessionCorrupt,
    SessionExists,
    StorageFull,
    UsageError,
)
from dsh_actors.runtime.tasks import live_tasks
from tests.actors.kit import until
from tests.daemon.host_kit import answer, at_once, no_room


def test_an_agent_is_created_works_and_tells_how_its_run_ended(daemon):
    one = daemon.agent("hello")
    end = daemon.end(one)
    info = daemon.host.get(one)
    assert (end.reason, end.answer, end.session_id) == ("completed", "echo: hello", one)
    assert (info.state, info.turn, info.tokens, info.next_turn) == ("idle", 1, 12, 0)
    assert info.last_end["answer"] == "echo: hello"
    assert (info.cwd, info.model, info.title) == (str(daemon.cwd), "echo/m", "hello")
    assert [info.state for info in daemon.changes][-1] == "idle"
    assert "running" in [info.state for info in daemon.changes]


def test_a_message_wakes_a_sleeping_agent_which_remembers(daemon):
    one = daemon.agent("first", model="manual/m")
    daemon.manual.next_stream().send(*answer("one"))
    daemon.end(one)
    daemon.lay_down(one)
    assert daemon.harness.agents() == []
    daemon.host.deliver(one, "second")
    stream = daemon.manual.next_stream()
    assert [text_of(m) for m in stream.request.messages if m.role == "assistant"] == ["one"]
    stream.send(*answer("two"))
    assert daemon.end(one).answer == "two"
    assert daemon.host.get(one).turn == 2


def test_an_agent_that_was_told_nothing_sleeps_and_wakes_though_it_has_no_session(daemon):
    one = daemon.agent()
    daemon.lay_down(one)
    assert list(daemon.host.events(one)) == []
    daemon.close()
    daemon.open()
    daemon.host.deliver(one, "hello")
    assert daemon.end(one).answer == "echo: hello"


def test_messages_that_come_together_wake_an_agent_once_and_none_is_lost(daemon):
    one = daemon.agent("zero")
    daemon.end(one)
    daemon.lay_down(one)
    woken = []
    daemon.harness.scope.listen("agent/session-start", lambda payload: woken.append(payload["session"]))
    got = at_once(*(partial(daemon.host.deliver, one, f"message {n}") for n in range(12)))
    assert len({each["message_id"] for each in got}) == 12
    until(lambda: daemon.host.get(one).turn == 13 and daemon.host.get(one).state == "idle")
    assert woken == [one]


def test_an_injected_message_is_queued_without_a_turn_and_keeps_its_agent_awake(daemon):
    one = daemon.agent("hello")
    daemon.end(one)
    daemon.lay_down(one)
    daemon.host.deliver(one, "by the way", "inject")
    info = daemon.host.get(one)
    assert (info.state, info.next_step, info.turn) == ("idle", 1, 1)
    assert not daemon.host._table.sleep_if_idle(one)


def test_what_is_queued_outlives_the_process_though_no_run_is_owed(daemon):
    one = daemon.agent("hello", model="manual/m")
    daemon.manual.next_stream().send(*answer("one"))
    daemon.end(one)
    daemon.host.deliver(one, "by the way", "inject")
    daemon.close()
    daemon.open()
    assert daemon.host.get(one).state == "asleep"
    daemon.host.deliver(one, "again")
    stream = daemon.manual.next_stream()
    assert "by the way" in [text_of(message) for message in stream.request.messages]
    stream.send(*answer("two"))
    daemon.end(one)


def test_cancel_ends_a_turn_and_wakes_nobody(daemon):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    daemon.host.cancel(one)
    assert daemon.end(one).reason == "interrupted"
    daemon.lay_down(one)
    daemon.host.cancel(one)
    assert daemon.host.get(one).state == "asleep"


def test_a_session_that_another_process_has_cannot_be_woken_until_that_has_ended(daemon):
    one = daemon.agent("hello")
    daemon.end(one)
    daemon.lay_down(one)
    config = load_config(env={"DSH_HOME": str(daemon.home)}, cwd=str(daemon.cwd))
    other = open_storage(config).open(one)
    with pytest.raises(SessionBusy):
        daemon.host.deliver(one, "are you there?")
    assert daemon.host.get(one).state == "asleep"
    other.close()
    daemon.host.deliver(one, "and now?")
    assert daemon.end(one).answer == "echo: and now?"


def test_an_agent_whose_session_is_damaged_fails_alone_and_its_session_stays(daemon):
    one, two = daemon.agent("hello"), daemon.agent("hello")
    daemon.end(one), daemon.end(two)
    daemon.lay_down(one)
    folder = Path(daemon.harness.storage.path(one))
    segment = next(path for path in (folder / "log").iterdir())
    segment.write_bytes(b"\0" * 400 + segment.read_bytes()[400:])
    with pytest.raises(SessionCorrupt):
        daemon.host.deliver(one, "are you there?")
    info = daemon.host.get(one)
    assert info.state == "failed"
    assert one in info.error
    daemon.host.deliver(two, "and you?")
    assert daemon.end(two).answer == "echo: and you?"
    daemon.host.dispose(one)
    assert folder.is_dir()
    with pytest.raises(AgentNotFound):
        daemon.host.get(one)


def test_an_agent_that_crashes_too_often_is_failed_and_can_be_disposed_of(daemon):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    live = daemon.host._table.live[one]
    for _ in range(4):
        ref = live.handle._address.ref
        ref.tell("not a message for an agent")
        until(lambda ref=ref: live.handle._address.ref is not ref)
    info = daemon.host.get(one)
    assert (info.state, info.last_end["reason"]) == ("failed", "internal")
    assert "not a message for an agent" in info.error
    assert [each.id for each in daemon.host.list("failed")] == [one]
    daemon.host.dispose(one)
    assert daemon.states() == {}


def test_a_run_goes_on_over_a_crash_of_its_agent_while_something_is_queued(daemon):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    daemon.host.deliver(one, "and this")
    daemon.host._table.live[one].handle._address.ref.tell("not a message for an agent")
    daemon.manual.next_stream().send(*answer("done"))
    end = daemon.end(one)
    assert (end.answer, end.turns) == ("done", 2)


@pytest.mark.parametrize(
    ("limit", "reason"), [({"max_steps": 3}, "max_steps"), ({"max_tokens": 30}, "max_tokens")]
)
def test_limits_go_on_counting_over_sleep(daemon, limit, reason):
    one = daemon.agent("1", limits=limit)
    ends = [daemon.end(one).reason]
    for _ in range(3):
        daemon.lay_down(one)
        daemon.host.deliver(one, "more")
        ends.append(daemon.end(one).reason)
    assert ends == ["completed", "completed", "completed", reason]


def test_a_run_that_takes_too_long_is_ended(daemon):
    one = daemon.agent("work", model="manual/m", limits={"timeout": 0.05})
    assert daemon.end(one).reason == "timeout"


def test_what_an_agent_was_made_with_holds_when_it_wakes(daemon):
    rules = daemon.cwd / "rules.toml"
    rules.write_text('default = "allow"\n[[rule]]\ntool = "write"\ndecision = "deny"\n')
    made = {"deny_tools": ["bash"], "system_prompt": "Be brief.", "approve": str(rules)}
    one = daemon.agent("hello", model="manual/m", **made)
    before = daemon.manual.next_stream()
    before.send(*answer("one"))
    daemon.end(one)
    policy = policy_of(daemon, one)
    daemon.lay_down(one)
    daemon.host.deliver(one, "again")
    after = daemon.manual.next_stream()
    assert after.request.header == before.request.header
    assert "bash" not in {tool.name for tool in after.request.header.tools}
    woken = policy_of(daemon, one)
    assert woken == policy
    assert woken.rules
    after.send(*answer("two"))
    daemon.end(one)


def policy_of(daemon, agent_id):
    return daemon.harness._agents[agent_id].options.policy


def test_a_fork_begins_with_what_was_said_under_the_same_options(daemon):
    one = daemon.agent("first", model="manual/m", deny_tools=["bash"])
    daemon.manual.next_stream().send(*answer("one"))
    daemon.end(one)
    daemon.lay_down(one)
    child = daemon.host.fork(one, session_id="child", prompt="second")
    stream = daemon.manual.next_stream()
    assert [text_of(m) for m in stream.request.messages if m.role == "assistant"] == ["one"]
    assert "bash" not in {tool.name for tool in stream.request.header.tools}
    stream.send(*answer("two"))
    assert daemon.end("child").answer == "two"
    assert (child.id, child.parent) == ("child", one)
    assert daemon.host.get(one).state == "asleep"


def test_a_stored_session_is_taken_over_once(daemon):
    one = daemon.agent("first")
    daemon.end(one)
    daemon.host.dispose(one)
    assert daemon.agent("second", model=None, resume=one) == one
    assert daemon.end(one).answer == "echo: second"
    daemon.lay_down(one)
    with pytest.raises(SessionExists):
        daemon.agent("third", resume=one)


def test_waiting_is_for_all_or_for_any_and_ends_in_time(daemon):
    slow = daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()
    quick, silent = daemon.agent("hello"), daemon.agent()
    daemon.end(quick)
    assert daemon.host.wait([slow, quick], any=True).keys() == {quick}
    assert daemon.host.wait([slow, quick], timeout=0.01)[quick].answer == "echo: hello"
    assert daemon.host.wait([silent], timeout=0.01) == {silent: None}
    stream.send(*answer("done"))
    assert daemon.host.wait([slow, quick], timeout=20)[slow].answer == "done"


def test_the_end_of_an_agent_that_is_disposed_of_is_told_to_who_waits(daemon):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    ends, _ = at_once(lambda: daemon.host.wait([one], timeout=20), lambda: daemon.host.dispose(one))
    assert ends[one].reason == "internal"
    assert daemon.changes[-1].state == "disposed"


def test_the_end_of_an_agent_that_something_else_ended_is_told_to_who_waits(daemon):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    handle = daemon.host._table.live[one].handle

    def end_it():
        until(lambda: daemon.host._table.waits._by_id)
        handle.dispose()

    ends, _ = at_once(lambda: daemon.host.wait([one], timeout=20), end_it)
    assert ends[one].reason == "internal"
    assert daemon.host.get(one).state == "failed"


def test_an_agent_that_is_disposed_of_with_a_full_disk_is_failed_until_that_is_repeated(daemon, monkeypatch):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    writer = daemon.harness._books.held[one].writer

    monkeypatch.setattr(type(writer), "append", no_room)
    with pytest.raises(HarnessError, match="no room"):
        daemon.host.dispose(one)
    assert daemon.host.get(one).state == "failed"
    assert "no room" in daemon.host.get(one).error
    assert daemon.host._table.room.taken == 0
    daemon.host.dispose(one)
    assert daemon.states() == {}


def test_an_agent_that_is_not_there_is_named(daemon):
    host = daemon.host
    for call in (
        lambda: host.get("nobody"),
        lambda: host.deliver("nobody", "x"),
        lambda: host.cancel("nobody"),
        lambda: host.fork("nobody"),
        lambda: host.wait(["nobody"], timeout=1),
        lambda: host.dispose("nobody"),
        lambda: host.events("nobody"),
        lambda: host.subscribe("nobody", print),
    ):
        with pytest.raises(AgentNotFound, match="nobody"):
            call()


def test_what_cannot_be_is_refused_with_nothing_left_behind(daemon):
    for fields in ({"ephemeral": True}, {"model": "nowhere/m"}, {"cwd": "/nowhere"}):
        with pytest.raises(UsageError):
            daemon.agent("hello", **fields)
    one = daemon.agent("hello", session_id="one")
    with pytest.raises(SessionExists):
        daemon.agent("hello", session_id="one")
    for call in (
        lambda: daemon.host.deliver(one, " "),
        lambda: daemon.host.deliver(one, "x", "shout"),
        lambda: daemon.host.list("tired"),
        lambda: daemon.host.list(limit=0),
    ):
        with pytest.raises(UsageError):
            call()
    assert list(daemon.states()) == ["one"]
    daemon.end(one)


def test_an_agent_that_cannot_be_kept_is_not_created(daemon, monkeypatch):
    monkeypatch.setattr(daemon.host._registry, "write", no_room)
    with pytest.raises(StorageFull):
        daemon.agent("hello")
    assert daemon.harness.agents() == []
    assert daemon.host._table.room.taken == 0


def test_events_are_the_whole_log_and_a_subscriber_hears_on_after_a_sleep(daemon):
    one = daemon.agent("hello")
    heard = []
    undo = daemon.host.subscribe(one, heard.append)
    daemon.end(one)
    daemon.lay_down(one)
    daemon.host.deliver(one, "again")
    daemon.end(one)
    events = list(daemon.host.events(one))
    assert [event.seq for event in events] == list(range(len(events)))
    last = [event.seq for event in events if event.type == "turn/start"][-1]
    assert [event for event in heard if event.seq >= last] == events[last:]
    assert list(daemon.host.events(one, after=last)) == events[last + 1 :]
    undo()
    daemon.host.deliver(one, "unheard")
    daemon.end(one)
    assert heard[-1] == events[-1]


def test_a_list_is_in_order_in_pages_and_by_state(daemon):
    ids = sorted(daemon.agent(session_id=f"agent-{n}") for n in range(5))
    daemon.lay_down(ids[1])
    daemon.lay_down(ids[3])
    pages, after = [], None
    while page := daemon.host.list(after=after, limit=2):
        pages.append([info.id for info in page])
        after = page[-1].id
    assert pages == [ids[:2], ids[2:4], ids[4:]]
    assert [info.id for info in daemon.host.list("asleep")] == [ids[1], ids[3]]
    assert [info.id for info in daemon.host.list("idle", limit=2)] == [ids[0], ids[2]]


def test_a_task_that_cannot_be_kept_leaves_no_agent_behind(daemon, monkeypatch):
    one = daemon.agent("hello")
    daemon.end(one)

    with monkeypatch.context() as patches:
        patches.setattr(daemon.harness, "flush", no_room)
        for begin in (
            lambda: daemon.agent("work", model="manual/m"),
            lambda: daemon.host.fork(one, prompt="and you?"),
        ):
            with pytest.raises(StorageFull):
                begin()
    assert daemon.states() == {one: "idle"}
    assert daemon.host._table.room.taken == 1


@pytest.mark.parametrize(
    "wrong", [{"session_id": ""}, {"session_id": "a\nb"}, {"session_id": "x" * 201}, {"prompt": " "}]
)
def test_a_fork_of_a_wrong_name_or_with_nothing_to_do_is_refused(daemon, wrong):
    one = daemon.agent("hello")
    daemon.end(one)
    with pytest.raises(UsageError):
        daemon.host.fork(one, **wrong)
    assert daemon.states() == {one: "idle"}


def test_a_cancel_takes_what_is_queued_for_a_sleeping_agent_too(daemon):
    one = daemon.agent("hello")
    daemon.end(one)
    daemon.host.deliver(one, "by the way", "inject")
    assert daemon.host._table.sleep_if_idle(one, is_pressed=True)
    daemon.host.cancel(one, keep_inbox=True)
    assert (daemon.host.get(one).state, daemon.host.get(one).next_step) == ("asleep", 1)
    daemon.host.cancel(one)
    assert daemon.host.get(one).next_step == 0
    daemon.host.deliver(one, "and now?")
    daemon.end(one)
    assert "by the way" not in said(daemon, one)


def said(daemon, agent_id):
    events = (event for event in daemon.host.events(agent_id) if event.type == "user/message")
    return [block["text"] for event in events for block in event.data["content"]]


def test_a_late_word_of_the_run_before_does_not_end_the_next_one(daemon, monkeypatch):
    one = daemon.agent("first", model="manual/m")
    daemon.manual.next_stream().send(*answer("one"))
    table = daemon.host._table
    live, before = table.live[one], table.live[one].fold
    daemon.end(one)
    save, wait = table.writer.save, type(live.handle).when_done

    def save_late(row, options=None):
        save(row, options)
        table._at_rest(live, before)
        table._at_rest(live, live.fold)  # nothing was said to it yet

    monkeypatch.setattr(table.writer, "save", save_late)
    daemon.host.deliver(one, "second")
    assert live.fold is not None and live.fold is not before
    assert live.row.last_end is not None and '"one"' in live.row.last_end
    daemon.manual.next_stream().send(*answer("two"))
    assert daemon.end(one).answer == "two"
    assert wait(live.handle, 10.0)


def test_a_run_that_starts_work_turn_after_turn_is_watched_by_one_task(daemon):
    one = daemon.agent("work", model="manual/m")
    item = daemon.harness.work.add(one, "job-1", "bash", "make", lambda: None)
    live = daemon.host._table.live[one]
    for turn in range(4):
        daemon.manual.next_stream().send(*answer(f"waiting {turn}"))
        until(lambda: not live.is_running and live.is_watched)
        if turn < 3:
            live.handle.followup("go on")
    assert live_tasks().count("daemon/when-done") == 1
    daemon.harness.work.release(item)
    assert daemon.end(one).turns == 4


def test_what_an_agent_has_started_is_seen_while_it_goes_on(daemon):
    os.mkfifo(daemon.cwd / "fifo")
    job = {"tool": "bash", "arguments": {"command": "read word < fifo; echo $word", "background": True}}
    script = daemon.cwd / "script.json"
    script.write_text(json.dumps([{"calls": [job]}, *({"text": "it goes on"} for _ in range(3))]))
    one = daemon.agent("begin", model=f"scripted/{script}", approve="all", sandbox="off")
    until(lambda: not daemon.host._table.live[one].is_running)
    info = daemon.host.get(one)
    assert info.state == "running", "its run is not over"
    assert info.work == ({"id": "bash-1", "kind": "bash", "label": job["arguments"]["command"]},)
    assert info.to_json()["work"] == list(info.work)
    assert any(change.work for change in daemon.changes), "who watches has been told"
    with open(daemon.cwd / "fifo", "w") as fifo:
        fifo.write("done\n")
    assert daemon.end(one).reason == "completed"
    assert daemon.host.get(one).work == () == daemon.changes[-1].work
