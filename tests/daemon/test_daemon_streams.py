"""Event streams: the log and what is live join without a gap, and nobody who reads holds anything up."""

from __future__ import annotations

import gc
import os
import random
import resource
import socket
import threading
import time

import pytest

from dsh_actors.core.events import Event
from dsh_actors.daemon.feeds import Feed
from dsh_actors.daemon.streams import Notice
from dsh_actors.errors import StorageError
from dsh_actors.runtime import wsgi
from dsh_actors.runtime.tasks import deadline, start_task
from tests.daemon.http_kit import EventReader, info, until


def in_background(work):
    """Run it beside the test; an error in it becomes the test's."""
    ends = []
    start_task(lambda _token: work(), ends.append, name="test")

    def join():
        until(lambda: bool(ends))
        if ends[0].error is not None:
            raise ends[0].error

    return join


def numbers(events):
    return [int(event.id) for event in events if event.id is not None]


def take(reader, count):
    found = []
    for event in reader:
        found.append(event)
        if len(found) == count:
            return found
    raise AssertionError(f"the stream ended after {len(found)} of {count}")


def test_the_log_comes_first_and_then_what_happens(stage):
    stage.host.record("a", 3)
    reader = EventReader(stage.client, "/v1/agents/a/events")
    first = take(reader, 3)
    stage.host.record("a", 2, text="é\u2028\n")
    events = first + take(reader, 2)
    assert numbers(events) == [0, 1, 2, 3, 4]
    assert [Event.from_json(event.data) for event in events] == stage.host.agents["a"].log
    assert {event.name for event in events} == {"run/note"}
    reader.leave()


def test_a_replay_ends_where_nobody_follows(stage):
    stage.host.record("a", 5)
    reader = EventReader(stage.client, "/v1/agents/a/events?after=1&follow=0")
    assert numbers(reader) == [2, 3, 4]


def test_the_place_to_come_back_to_wins_over_the_one_to_begin_at(stage):
    stage.host.record("a", 5)
    reader = EventReader(stage.client, "/v1/agents/a/events?after=0&follow=0", last_id="3")
    assert numbers(reader) == [4]


@pytest.mark.parametrize("missed", [1, 3])
def test_what_was_not_stored_yet_when_the_log_was_read_is_not_missed(stage, missed):
    stage.host.record("a", 2)
    stage.host.record("a", missed, stored=False)  # nobody listens yet
    reader = EventReader(stage.client, "/v1/agents/a/events")
    first = take(reader, 2)
    stage.host.store("a")
    stage.host.record("a")
    assert numbers(first + take(reader, missed + 1)) == list(range(missed + 3))
    reader.leave()


def test_what_happens_while_the_log_is_read_comes_once_and_at_once(stage):
    def once(text):
        left = [text]
        return lambda: stage.host.record("a", text=left.pop()) if left else None

    stage.host.record("a", 2)
    stage.host.before_read = once("in the log too")
    stage.host.after_read = once("behind the log")
    reader = EventReader(stage.client, "/v1/agents/a/events")
    events = take(reader, 4)
    assert numbers(events) == [0, 1, 2, 3]
    assert events[3].data["data"]["text"] == "behind the log"
    stage.host.record("a")
    assert numbers(take(reader, 1)) == [4]
    reader.leave()


def test_history_that_is_gone_is_one_gap(stage):
    stage.host.record("a", 6)
    stage.host.agents["a"].lost_below = 4
    reader = EventReader(stage.client, "/v1/agents/a/events?after=0&follow=0")
    events = list(reader)
    assert [event.name for event in events] == ["gap", "run/note", "run/note"]
    assert events[0].data == {"from": 1, "to": 3} and events[0].id is None
    assert numbers(events) == [4, 5]


@pytest.mark.parametrize("follow", ["0", "1"])
def test_a_log_that_cannot_be_read_on_is_told_once(stage, monkeypatch, follow):
    def damaged(_agent_id, after=-1):
        yield from stage.host.agents["a"].log[max(0, after + 1) : 2]
        raise StorageError("the log is damaged", code="SESSION_CORRUPT")

    stage.host.record("a", 3)
    monkeypatch.setattr(stage.host, "events", damaged)
    reader = EventReader(stage.client, f"/v1/agents/a/events?follow={follow}")
    events = take(reader, 3)
    assert numbers(events) == [0, 1]
    assert (events[2].name, events[2].id) == ("unreadable", None)
    assert events[2].data == {"code": "SESSION_CORRUPT", "message": "the log is damaged"}
    if follow == "0":
        assert list(reader) == []
        return
    stage.host.record("a")
    assert [event.name for event in take(reader, 2)] == ["gap", "run/note"]
    reader.leave()


def test_events_that_never_reach_the_log_are_one_gap_before_the_next(stage):
    stage.host.record("a", 1)
    reader = EventReader(stage.client, "/v1/agents/a/events")
    take(reader, 1)
    agent = stage.host.agents["a"]
    hearers, agent.hearers = agent.hearers, []
    stage.host.record("a", 2, stored=False)
    agent.hearers = hearers
    agent.lost_below = 3
    stage.host.record("a")
    events = take(reader, 2)
    assert (events[0].name, events[0].data) == ("gap", {"from": 1, "to": 2})
    assert numbers(events) == [3]
    reader.leave()


def test_twenty_disconnects_while_thousands_of_events_flow_lose_and_double_nothing(stages):
    stage = stages("a", queue=64)
    wanted, rng = 5_000, random.Random(5)

    def flow():
        left = wanted
        while left:
            count = min(left, rng.choice((1, 1, 3, 40, 200)))
            stage.host.record("a", count, stored=rng.random() < 0.5, text="x" * 50)
            if rng.random() < 0.3:
                stage.host.store("a")
            left -= count
            time.sleep(0)
        stage.host.store("a")
        stage.host.record("a", text="last")

    join = in_background(flow)
    seen, last_id = [], None
    for round_number in range(21):
        reader = EventReader(stage.client, "/v1/agents/a/events", last_id)
        stop_after = rng.randrange(1, 400) if round_number < 20 else wanted + 1
        for event in reader:
            assert event.name == "run/note", event
            seen.append(Event.from_json(event.data))
            last_id = event.id
            stop_after -= 1
            if stop_after <= 0 or event.data["data"]["text"] == "last":
                break
        reader.leave()
        if round_number == 20:
            break
    join()
    assert [event.seq for event in seen] == list(range(wanted + 1))
    assert seen == stage.host.agents["a"].log


def test_a_reader_that_lags_behind_the_ring_reads_the_log_again(stages):
    stage = stages("a", queue=16)
    reader = EventReader(stage.client, "/v1/agents/a/events")
    until(lambda: stage.streams.readers == 1)
    stage.host.record("a", 500)  # in one go: no reader can keep up with that
    assert numbers(take(reader, 500)) == list(range(500))
    assert stage.host.reads >= 2
    reader.leave()


def test_a_slow_client_is_cut_off_and_can_come_back(stages):
    stage = stages("a", queue=16)
    slow = EventReader(stage.client, "/v1/agents/a/events")
    text = "x" * 100_000
    fast = EventReader(stage.client, "/v1/agents/a/events")
    for _ in range(60):  # it takes nothing: the system's buffers are full long before the end
        stage.host.record("a", text=text)
        take(fast, 1)
    until(lambda: stage.streams.readers == 1)
    cut = [int(event.id) for event in slow]
    assert cut == list(range(len(cut))) and len(cut) < 60
    again = EventReader(stage.client, "/v1/agents/a/events", str(cut[-1] if cut else ""))
    assert numbers(take(again, 60 - len(cut))) == list(range(len(cut), 60))
    for reader in (slow, fast, again):
        reader.leave()


def test_a_client_that_takes_nothing_at_all_is_cut_off_after_a_while(stages):
    stage = stages("a", io_timeout_s=0.2)
    stage.host.record("a", 200, text="x" * 100_000)
    reader = EventReader(stage.client, "/v1/agents/a/events?follow=0")
    until(lambda: stage.server.connections == 0)
    reader.leave()


def test_abandoned_clients_are_noticed_without_a_word_to_them(stage):
    before = len(os.listdir("/proc/self/fd"))
    readers = [EventReader(stage.client, "/v1/agents/a/events") for _ in range(25)]
    readers += [EventReader(stage.client, "/v1/events") for _ in range(25)]
    until(lambda: stage.streams.readers == 50)
    assert stage.client.get("/v1/health").json["connections"] == 51
    for reader in readers:
        reader.leave()
    until(lambda: stage.streams.readers == 0 and stage.server.connections == 0)
    assert stage.host.agents["a"].hearers == []
    gc.collect()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # some are closed in a later turn of the hub
    assert stage.client.get("/v1/health").status == 200


def test_a_stream_that_is_silent_says_that_it_is_there(stages):
    stage = stages("a", keep_alive_s=0.01)
    reader = EventReader(stage.client, "/v1/agents/a/events")
    lines = [reader.response.readline() for _ in range(6)]
    assert lines.count(b": still here\n") == 2
    reader.leave()


def test_the_streams_of_an_agent_end_with_it(stage):
    stage.host.record("a", 2)
    reader = EventReader(stage.client, "/v1/agents/a/events")
    take(reader, 2)
    assert stage.client.ask("DELETE", "/v1/agents/a").status == 200
    assert list(reader) == []
    reader.leave()


def test_what_is_recorded_while_the_log_is_read_is_told_once(stage, monkeypatch):
    stage.host.record("a", 2)
    events, begun = stage.host.events, []

    def events_and_more(agent_id, after=-1):
        if not begun:
            begun.append(1)
            stage.host.record("a", 3)  # heard of live, and in the log by now
        return events(agent_id, after)

    monkeypatch.setattr(stage.host, "events", events_and_more)
    reader = EventReader(stage.client, "/v1/agents/a/events")
    first = take(reader, 5)
    stage.host.record("a")
    assert numbers(first + take(reader, 1)) == [0, 1, 2, 3, 4, 5]
    reader.leave()


def test_a_place_of_another_life_of_the_daemon_is_a_gap(stage):
    reader = EventReader(stage.client, "/v1/events")
    until(lambda: stage.streams.readers == 1)
    for _ in range(3):
        stage.streams.announce("a", Notice("agent", info("a")))
    place = take(reader, 1)[0].id
    reader.leave()
    assert place.endswith("-0")
    again = EventReader(stage.client, "/v1/events", "0" * 8 + "-0")
    assert take(again, 1)[0].name == "gap"
    again.leave()


def test_a_stream_that_could_not_begin_keeps_no_later_one_from_hearing(stage, monkeypatch):
    subscribe = stage.host.subscribe

    def fail(*_arguments):
        raise StorageError("the table cannot be read")

    monkeypatch.setattr(stage.host, "subscribe", fail)
    assert list(EventReader(stage.client, "/v1/agents/a/events")) == []
    monkeypatch.setattr(stage.host, "subscribe", subscribe)
    reader = EventReader(stage.client, "/v1/agents/a/events")
    until(lambda: stage.host.agents["a"].hearers)
    stage.host.record("a")
    assert numbers(take(reader, 1)) == [0]
    reader.leave()


def test_a_stream_of_an_agent_that_goes_as_it_begins_ends(stage, monkeypatch):
    subscribe = stage.host.subscribe

    def subscribe_as_it_goes(*arguments):
        undo = subscribe(*arguments)
        stage.host.dispose("a")
        stage.streams.end_agent("a")
        return undo

    monkeypatch.setattr(stage.host, "subscribe", subscribe_as_it_goes)
    with deadline(10.0):
        assert list(EventReader(stage.client, "/v1/agents/a/events")) == []
    assert stage.streams.readers == 0


def test_readers_that_begin_at_the_same_time_all_hear_what_comes(stage, monkeypatch):
    subscribe, gate, waiting = stage.host.subscribe, threading.Event(), []

    def subscribe_late(*arguments):
        waiting.append(1)
        gate.wait(20)
        return subscribe(*arguments)

    monkeypatch.setattr(stage.host, "subscribe", subscribe_late)
    readers = [EventReader(stage.client, "/v1/agents/a/events") for _ in range(2)]
    until(lambda: len(waiting) == 2)
    stage.host.record("a")  # before either of them listens, and so in the log that is read
    gate.set()
    assert [numbers(take(reader, 1)) for reader in readers] == [[0], [0]]
    for reader in readers:
        reader.leave()
    until(lambda: not stage.host.agents["a"].hearers)


def test_questions_are_told_to_those_who_come_later_too(stage):
    stage.streams.announce("a", Notice("approval.requested", {"id": "early"}))
    asked = {"id": "q", "agent": "a"}
    stage.desk.open = lambda agent: [type("Open", (), {"to_json": lambda self: asked})()]
    reader = EventReader(stage.client, "/v1/agents/a/events")
    event = take(reader, 1)[0]
    assert (event.name, event.id, event.data) == ("approval.requested", None, asked)
    reader.leave()


# --- all agents ------------------------------------------------------------------------------------


def test_what_happens_to_all_agents_is_told_in_order_and_once(stage):
    reader = EventReader(stage.client, "/v1/events")
    until(lambda: stage.streams.readers == 1)
    for state in ("running", "idle"):
        stage.streams.announce("a", Notice("agent", info("a", state)))
    stage.streams.announce("b", Notice("agent.failed", {"id": "b", "error": "x"}))
    events = take(reader, 3)
    assert [event.name for event in events] == ["agent", "agent", "agent.failed"]
    assert [event.data.get("state") for event in events[:2]] == ["running", "idle"]
    reader.leave()
    stage.streams.announce("a", Notice("agent", info("a")))
    again = EventReader(stage.client, "/v1/events", events[1].id)
    assert [event.name for event in take(again, 2)] == ["agent.failed", "agent"]
    again.leave()


@pytest.mark.parametrize("last_id", ["another-3", "x", "-", "1-1-1", "1-" + "9" * 5_000])
def test_a_place_that_is_not_known_is_a_gap(stage, last_id):
    reader = EventReader(stage.client, "/v1/events", last_id)
    assert take(reader, 1)[0].name == "gap"
    reader.leave()


def test_who_comes_back_just_in_time_has_missed_nothing(stages):
    stage = stages("a", queue=16)
    reader = EventReader(stage.client, "/v1/events")
    until(lambda: stage.streams.readers == 1)
    stage.streams.announce("a", Notice("agent", info("a")))
    place = take(reader, 1)[0].id
    reader.leave()
    for _ in range(16):
        stage.streams.announce("a", Notice("agent", info("a")))
    late = EventReader(stage.client, "/v1/events", place)
    assert {event.name for event in take(late, 16)} == {"agent"}
    late.leave()


def test_who_comes_back_too_late_is_told_so_and_goes_on_from_there(stages):
    stage = stages("a", queue=16)
    reader = EventReader(stage.client, "/v1/events")
    until(lambda: stage.streams.readers == 1)
    stage.streams.announce("a", Notice("agent", info("a")))
    place = take(reader, 1)[0].id
    reader.leave()
    for _ in range(40):
        stage.streams.announce("a", Notice("agent", info("a")))
    late = EventReader(stage.client, "/v1/events", place)
    assert take(late, 1)[0].name == "gap"
    stage.streams.announce("a", Notice("agent", info("a", "running")))
    assert take(late, 1)[0].data["state"] == "running"
    late.leave()


def test_every_stream_ends_when_the_daemon_stops(stage):
    readers = [EventReader(stage.client, path) for path in ("/v1/events", "/v1/agents/a/events")]
    until(lambda: stage.streams.readers == 2)
    stage.streams.close()
    assert [list(reader) for reader in readers] == [[], []]
    for reader in readers:
        reader.leave()


# --- the ring --------------------------------------------------------------------------------------


def test_a_ring_gives_each_reader_what_is_new_to_it():
    feed: Feed[int] = Feed(4)
    early = feed.reader(lambda: None)
    feed.push(1)
    late = feed.reader(lambda: None)
    feed.push(2)
    assert (early.take(), late.take(), early.take()) == ([1, 2], [2], [])
    for number in range(5):
        feed.push(number)
    assert early.has_lost and not early.was_cut
    early.skip()
    assert early.take() == [] and not early.has_lost
    assert feed.reader(lambda: None, feed.begin).take() == [1, 2, 3, 4]


def test_only_a_reader_that_does_not_take_what_it_is_sent_is_cut():
    feed: Feed[int] = Feed(2)
    cuts = []
    waiting, sending = feed.reader(lambda: cuts.append("w")), feed.reader(lambda: cuts.append("s"))
    sending.is_sending = True
    for number in range(2):
        feed.push(number)
    assert cuts == [], "all that it has not taken is there"
    for number in range(4):
        feed.push(number)
    assert cuts == ["s"]
    assert sending.is_over and not waiting.is_over


def test_a_ring_that_is_closed_is_read_to_its_end():
    feed: Feed[int] = Feed(4)
    reader = feed.reader(lambda: None)
    feed.push(1)
    feed.close()
    assert not reader.is_over and reader.wait(0.0)
    assert reader.take() == [1]
    assert reader.is_over


# --- the server ------------------------------------------------------------------------------------


def test_more_connections_than_there_is_room_for_are_told_so_and_the_others_go_on(stages):
    stage = stages("a", max_connections=3)
    readers = [EventReader(stage.client, "/v1/events") for _ in range(3)]
    refused = stage.client.ask("HEAD", "/v1/health")
    assert refused.status == 503
    for reader in readers:
        reader.leave()
    until(lambda: stage.server.connections == 0)
    assert stage.client.get("/v1/health").status == 200


def test_a_connection_that_asks_nothing_is_closed_at_once_at_the_end(stages):
    stage = stages("a")
    connection = stage.client.connect()
    connection.request("GET", "/v1/health")
    connection.getresponse().read()
    assert stage.server.connections == 1
    stage.server.stop_accepting()
    connection.sock.settimeout(10.0)
    assert connection.sock.recv(1) == b"", "nobody waits for its next request"
    connection.close()


def test_without_a_descriptor_left_clients_wait_and_nothing_is_printed(stage, capfd, monkeypatch):
    monkeypatch.setattr(wsgi, "_ACCEPT_PAUSE_S", 0.01)
    until(lambda: stage.server.connections == 0)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.settimeout(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        waiting.connect(stage.client.place)
        waiting.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")
        for _ in range(100):
            time.sleep(0)
        assert stage.server.connections == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")
    waiting.close()
    assert capfd.readouterr().err == ""


def test_a_connection_without_a_request_is_closed_after_a_while(stages):
    stage = stages("a", io_timeout_s=0.1)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(stage.client.place)
        raw.sendall(b"GET / HT")
        assert raw.recv(100) == b""
