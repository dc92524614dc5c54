"""How many agents are live, by number, descriptors and time; and how sleep and messages meet."""

from __future__ import annotations

import random
from functools import partial

import pytest

from dsh_actors.daemon.room import Room
from dsh_actors.errors import AgentNotFound, HostFull
from dsh_actors.runtime.tasks import deadline
from tests.actors.kit import until
from tests.daemon.host_kit import answer, at_once, run_program


def test_the_agent_that_was_idle_the_longest_makes_room(make_daemon):
    daemon = make_daemon(max_live=2)
    one, two = daemon.agent("hello"), daemon.agent("hello")
    daemon.end(one), daemon.end(two)
    daemon.host.deliver(one, "again")
    daemon.end(one)
    three = daemon.agent()
    assert daemon.states() == {one: "idle", two: "asleep", three: "idle"}
    daemon.host.deliver(two, "and you?")
    assert daemon.end(two).answer == "echo: and you?"
    assert daemon.states() == {one: "asleep", two: "idle", three: "idle"}


def test_with_all_places_at_work_there_is_no_room_until_one_is_done(make_daemon):
    daemon = make_daemon(max_live=1)
    sleeper = daemon.agent("hello")
    daemon.end(sleeper)
    busy = daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()
    for ask in (daemon.agent, partial(daemon.host.deliver, sleeper, "wake up")):
        with pytest.raises(HostFull, match="max_live") as caught:
            ask()
        assert caught.value.retry_after_s > 0
    assert daemon.states() == {sleeper: "asleep", busy: "running"}
    stream.send(*answer("done"))
    daemon.end(busy)
    daemon.host.deliver(sleeper, "wake up")
    assert daemon.end(sleeper).answer == "echo: wake up"


def test_who_waits_for_room_gets_it_as_soon_as_there_is_some(make_daemon):
    daemon = make_daemon(max_live=1, admission_wait_s=20.0)
    busy = daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()

    def finish():
        until(lambda: daemon.host._table.room._waiting)
        stream.send(*answer("done"))

    created, _ = at_once(daemon.agent, finish)
    assert daemon.states() == {busy: "asleep", created: "idle"}


def test_queued_input_keeps_an_agent_awake_until_its_place_is_needed(make_daemon):
    daemon = make_daemon(max_live=2)
    one = daemon.agent("hello")
    daemon.end(one)
    daemon.host.deliver(one, "by the way", "inject")
    two = daemon.agent("hello")
    daemon.end(two)
    three = daemon.agent()
    assert daemon.states() == {one: "idle", two: "asleep", three: "idle"}
    daemon.host.deliver(three, "wait for me", "inject")
    daemon.agent()
    assert daemon.host.get(one).state == "asleep"
    assert daemon.host.get(one).next_step == 1, "nothing of it is lost"


def test_an_agent_falls_asleep_when_it_was_idle_for_long_enough(make_daemon):
    daemon = make_daemon(idle_after_s=0.01)
    one, two = daemon.agent("hello"), daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()
    until(lambda: daemon.host.get(one).state == "asleep")
    assert daemon.host.get(two).state == "running"
    stream.send(*answer("done"))
    until(lambda: daemon.host.get(two).state == "asleep")
    assert daemon.host.get(two).last_end["answer"] == "done"


def test_one_that_may_not_sleep_keeps_no_other_awake(make_daemon):
    daemon = make_daemon(idle_after_s=0.05)
    one = daemon.agent("hello")
    daemon.end(one)
    daemon.host.deliver(one, "by the way", "inject")
    two = daemon.agent("hello")
    until(lambda: daemon.host.get(two).state == "asleep")
    assert daemon.host.get(one).state == "idle"


def test_open_questions_and_owned_work_keep_an_agent_awake(daemon):
    one = daemon.agent("hello")
    daemon.end(one)
    daemon.host.approval_opened(one)
    assert daemon.host.get(one).approvals == 1
    assert not daemon.host._table.sleep_if_idle(one, is_pressed=True)
    daemon.host.approval_closed(one)
    item = daemon.harness.work.add(one, "job-1", "bash", "make", lambda: None)
    assert not daemon.host._table.sleep_if_idle(one, is_pressed=True)
    daemon.harness.work.release(item)
    daemon.lay_down(one)


def test_a_run_is_over_only_when_nothing_that_it_started_goes_on(daemon):
    one = daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()
    item = daemon.harness.work.add(one, "job-1", "bash", "make", lambda: None)
    stream.send(*answer("waiting"))
    until(lambda: not daemon.host._table.live[one].is_running)
    assert daemon.host.get(one).state == "running"
    daemon.host._table.live[one].handle.followup("the job is done")
    daemon.manual.next_stream().send(*answer("all done"))
    daemon.harness.work.release(item)
    end = daemon.end(one)
    assert (end.answer, end.turns) == ("all done", 2)


def test_a_run_out_of_time_while_what_it_started_goes_on_has_not_completed(daemon):
    one = daemon.agent("work", model="manual/m", limits={"timeout": 1.0})
    stream = daemon.manual.next_stream()
    work = daemon.harness.work
    item = work.add(one, "job-1", "bash", "make", lambda: work.release(item))
    stream.send(*answer("waiting"))
    end = daemon.end(one)
    assert (end.reason, end.exit_code, end.answer) == ("timeout", 124, "waiting")
    daemon.host.deliver(one, "again")
    assert not work.is_quiet(one), "what it starts now is heard of"
    daemon.manual.next_stream().send(*answer("done"))
    assert daemon.end(one).answer == "done"


@pytest.mark.parametrize("seed", range(6))
def test_no_message_is_lost_however_sleep_and_messages_meet(make_daemon, seed):
    chance = random.Random(seed)
    daemon = make_daemon(max_live=3, admission_wait_s=20.0)
    ids = [daemon.agent(session_id=f"agent-{n}") for n in range(4)]
    sent = {agent_id: [] for agent_id in ids}

    def worker(moves):
        for agent_id, move, text in moves:
            if move == "sleep":
                daemon.host._table.sleep_if_idle(agent_id)
            elif move == "wait":
                daemon.host.wait([agent_id], timeout=20)
            else:
                daemon.host.deliver(agent_id, text, move)
                sent[agent_id].append(text)

    ways = ("send", "send", "steer", "inject", "sleep", "sleep", "wait")
    plans = [
        [(chance.choice(ids), chance.choice(ways), f"{worker}-{n}") for n in range(15)] for worker in range(5)
    ]
    assert at_once(*(partial(worker, plan) for plan in plans)) == [None] * 5
    for agent_id in ids:
        daemon.host.deliver(agent_id, "the last", "send")
    for agent_id in ids:
        daemon.end(agent_id)
        said = [
            event.data["content"][0]["text"]
            for event in daemon.host.events(agent_id)
            if event.type == "user/message" and event.data["source"]["kind"] == "user"
        ]
        assert sorted(said) == sorted([*sent[agent_id], "the last"]), agent_id
        assert daemon.host.get(agent_id).next_turn == daemon.host.get(agent_id).next_step == 0


def test_disposing_and_sending_at_once_end_with_neither_agent_nor_place_left(daemon):
    one = daemon.agent("hello")
    daemon.end(one)
    outcomes = at_once(
        partial(daemon.host.deliver, one, "hello"),
        partial(daemon.host.dispose, one),
        partial(daemon.host.get, one),
    )
    assert outcomes[1] is None
    with pytest.raises(AgentNotFound):
        daemon.host.get(one)
    assert daemon.host._table.room.taken == 0
    assert daemon.host._table.doors._doors == {}


_FEW_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from tests.daemon.host_kit import Daemon
from dsh_actors.errors import HostFull
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
daemon = Daemon(Path(sys.argv[1]))
busy = []
try:
    while True:
        busy.append(daemon.agent("work", model="manual/m"))
        daemon.manual.next_stream()
except HostFull as error:
    print(len(busy), error.message)
for agent_id in busy:
    daemon.host.cancel(agent_id)
    daemon.end(agent_id)
others = [daemon.agent("hello") for _ in range(50)]
print({daemon.end(agent_id).answer for agent_id in others})
daemon.close()
"""


def test_agents_are_refused_or_put_to_sleep_before_the_descriptors_run_out(tmp_path):
    found = run_program(_FEW_DESCRIPTORS, tmp_path)
    assert found.returncode == 0, found.stderr
    number, message = found.stdout.splitlines()[0].split(" ", 1)
    assert 10 < int(number) < 80
    assert "descriptor" in message
    assert found.stdout.splitlines()[1] == "{'echo: hello'}"
    assert "Too many open files" not in found.stderr


def test_a_place_that_comes_free_while_somebody_looks_for_one_is_not_missed():
    room = Room(1, 60.0, lambda _agent, *, is_pressed=False: leave(is_pressed))

    def leave(is_pressed):
        if not is_pressed:
            room.give_back()
            room.is_idle("busy again")
        return False

    room.take()
    room.is_idle("busy")
    with deadline(10.0):
        room.take()
    assert room.taken == 1
    assert room._waiting == []


def test_an_agent_does_not_fall_asleep_while_a_message_to_it_is_made_durable(daemon, monkeypatch):
    one = daemon.agent("hello")
    daemon.end(one)
    flush, slept = daemon.harness.flush, []

    def press(agent_id):
        slept.append(daemon.host._table.sleep_if_idle(agent_id, is_pressed=True))
        flush(agent_id)

    with monkeypatch.context() as patches:
        patches.setattr(daemon.harness, "flush", press)
        daemon.host.deliver(one, "by the way", "inject")
    assert slept == [False]
    assert daemon.host._table.sleep_if_idle(one, is_pressed=True)


def test_what_somebody_else_says_as_an_agent_falls_asleep_is_worked_on(daemon, monkeypatch):
    one = daemon.agent("first", model="manual/m")
    daemon.manual.next_stream().send(*answer("one"))
    daemon.end(one)
    live, flush = daemon.host._table.live[one], daemon.harness.flush

    def flush_and_speak(agent_id):
        flush(agent_id)
        live.handle.followup("by the way")
        daemon.manual.next_stream()

    with monkeypatch.context() as patches:
        patches.setattr(daemon.harness, "flush", flush_and_speak)
        assert daemon.host._table.sleep_if_idle(one)
    daemon.manual.next_stream().send(*answer("two"))
    assert daemon.end(one).answer == "two"
    assert daemon.host.get(one).state == "idle"
