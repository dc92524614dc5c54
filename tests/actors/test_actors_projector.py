"""The projector keeps the index near the sessions; nothing waits for it and nothing fails with it."""

from __future__ import annotations

import os
import select
import sqlite3
import time

import pytest

from dsh_actors.actors import projector as module
from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.projector import ProjectorActor
from dsh_actors.adapters.storage.backend import open_index
from dsh_actors.adapters.storage.index import SessionIndex
from dsh_actors.closing import settle_index
from dsh_actors.core.ids import SessionId
from dsh_actors.runtime.actor import live_actors, start_actor
from dsh_actors.testing.machine import text_chunks


class Bell:
    """Rung in a native thread, heard in the hub."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()

    def ring(self) -> None:
        os.write(self._in, b"!")

    def wait(self) -> None:
        assert select.select([self._out], [], [], 10)[0]
        os.close(self._out)
        os.close(self._in)


def rows(stage, query: str) -> list[tuple]:
    database = sqlite3.connect(stage.home / "index.sqlite3")
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def finished(stage, prompt: str, dispose: bool = True):
    agent = stage.agent()
    agent.followup(prompt)
    stage.model.next_stream().send(*text_chunks("a fine answer"))
    assert agent.when_idle(10)
    if dispose:
        agent.dispose()
    return agent


def test_a_session_that_was_given_up_is_in_the_index_when_the_harness_is_closed(stage):
    agent = finished(stage, "count the pears")
    stage.harness.close()
    assert rows(stage, "SELECT id, title, turns, status FROM sessions") == [
        (agent.id, "count the pears", 1, "ok")
    ]
    index = open_index(str(stage.home), stage.harness.storage)
    assert [found[0] for found in index.find("a fine answer")] == [agent.id]


def test_a_live_session_is_looked_at_after_its_turn(stage, monkeypatch):
    looked = []
    project = SessionIndex.project

    def noted(index: SessionIndex, session_id: SessionId) -> bool:
        done = project(index, session_id)
        looked.append(session_id)
        return done

    monkeypatch.setattr(SessionIndex, "project", noted)
    agent = finished(stage, "one", dispose=False)
    settle_index(stage.harness._at.projector, 10)
    assert looked == [agent.id]
    assert rows(stage, "SELECT turns FROM projections") == [(1,)]
    agent.dispose()


def test_an_index_that_fails_changes_nothing_for_the_run(stage, monkeypatch):
    def fail(_index: SessionIndex, _session_id: SessionId) -> bool:
        raise RuntimeError("the index is broken")

    monkeypatch.setattr(SessionIndex, "project", fail)
    agents = [finished(stage, f"task {n}") for n in range(5)]
    stage.harness.close()
    assert all(stage.stored(agent.id)[-1].type == "turn/end" for agent in agents)


def test_a_projector_that_crashes_comes_back_and_goes_on(stage):
    first = stage.harness._at.projector.ref
    stage.harness._at.projector.tell(object())
    agent = finished(stage, "one")
    assert not first.is_alive
    stage.harness.close()
    assert rows(stage, "SELECT id FROM sessions") == [(agent.id,)]


def test_closing_waits_a_bounded_time_for_an_index_that_hangs(stage, monkeypatch):
    bell = Bell()

    def hang(_index: SessionIndex, _session_id: SessionId) -> bool:
        bell.ring()
        with gate:
            return True

    gate = _native_lock()
    gate.acquire()
    monkeypatch.setattr(SessionIndex, "project", hang)
    finished(stage, "one")
    began = time.monotonic()
    stage.harness.close()
    assert time.monotonic() - began < 10
    bell.wait()
    gate.release()


def test_an_ephemeral_agent_leaves_nothing_in_an_index(stage):
    agent = stage.agent(ephemeral=True)
    agent.followup("x")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    agent.dispose()
    stage.harness.close()
    assert not (stage.home / "index.sqlite3").exists()


class Direct:
    """A projector without a harness; its work waits for the test."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.bell: Bell | None = None
        self.gate = _native_lock()
        self.home = Address("projector")
        actor = ProjectorActor(
            name="projector", parent=None, generation=0, home=self.home, project=self.work, window_s=0.01
        )
        self.ref = start_actor(actor)
        self.home.move_to(self.ref)

    def work(self, session_id: SessionId) -> None:
        with self.gate:
            self.looked.append(session_id)
        if self.bell is not None:
            self.bell.ring()

    def changed(self, name: str) -> None:
        self.home.tell(p.SessionChanged(SessionId(name)))

    def settle(self) -> None:
        self.home.ask(p.SettleIndex(), timeout=10)


@pytest.fixture
def direct():
    direct = Direct()
    yield direct
    direct.ref.stop(timeout=10)
    assert live_actors() == []


def test_what_changed_is_looked_at_when_the_window_is_over(direct):
    direct.bell = Bell()
    direct.changed("a")
    direct.bell.wait()
    direct.settle()
    assert direct.looked == ["a"]


def test_changes_that_come_while_one_is_looked_at_are_looked_at_once(direct):
    with direct.gate:
        for _ in range(3):
            for name in ("a", "b", "c"):
                direct.changed(name)
    direct.settle()
    assert sorted(direct.looked) in (["a", "a", "b", "c"], ["a", "b", "c"])


def test_the_number_of_waiting_sessions_is_bounded(direct, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    with direct.gate:
        for number in range(50):
            direct.changed(str(number))
    direct.settle()
    assert len(direct.looked) <= 11
    assert direct.looked[-1] == "49"


def test_a_failure_is_contained_and_the_next_session_is_looked_at(direct):
    work = direct.work

    def failing(session_id: SessionId) -> None:
        work(session_id)
        if session_id == "bad":
            raise OSError("no index")

    direct.ref.stop(timeout=10)
    actor = ProjectorActor(name="projector", parent=None, generation=1, home=direct.home, project=failing)
    direct.ref = start_actor(actor)
    direct.home.move_to(direct.ref)
    direct.changed("bad")
    direct.changed("good")
    direct.settle()
    assert direct.looked == ["bad", "good"]


def _native_lock():
    """A lock that native threads may use."""
    from gevent.monkey import get_original

    return get_original("_thread", "allocate_lock")()
