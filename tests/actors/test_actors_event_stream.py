"""The events of an agent for a reader: in order, whole, whatever the reader does; and handles as contexts."""

from __future__ import annotations

import threading
from itertools import islice

import pytest

from dsh_actors.actors import event_stream as stream
from dsh_actors.core.chunks import BlockEnd, BlockStart, Finish, TextDelta
from dsh_actors.core.events import Event
from dsh_actors.core.messages import TextBlock
from dsh_actors.core.scope import Scope
from dsh_actors.errors import ActorGone
from tests.actors.conftest import Stage

HELLO = (BlockStart(0, "text"), TextDelta(0, "hello"), BlockEnd(0, TextBlock("hello")), Finish("stop"))


def event(seq: int) -> Event:
    return Event("run/note", seq, 1, {}, ignorable=True)


class Told:
    """A scope whose agent logs events, and a log that has all of them."""

    def __init__(self) -> None:
        self.scope = Scope("agent")
        self.log: list[Event] = []
        self.reads: list[int] = []

    def stored(self, seq: int):
        self.reads.append(seq)
        return iter(self.log[seq:])

    def tell(self, count: int) -> None:
        for _ in range(count):
            self.log.append(event(len(self.log)))
            for observer in self.scope.handlers_of("session/event"):
                observer(self.log[-1])

    def dispose(self) -> None:
        for observer in self.scope.handlers_of("agent/disposed"):
            observer({"session": "s"})

    def events(self, after: int = -1, *, follow: bool = True):
        return stream.event_stream(self.scope, self.stored, after, follow=follow)


def seqs(events) -> list[int]:
    return [each.seq for each in events]


def test_stored_events_come_first_then_live_ones_and_the_end_is_the_agents() -> None:
    told = Told()
    told.tell(3)
    events = told.events(after=0)
    assert seqs(islice(events, 2)) == [1, 2]
    told.tell(2)
    assert seqs(islice(events, 2)) == [3, 4]
    told.dispose()
    assert seqs(events) == []
    assert told.reads == [1]


def test_without_following_it_ends_with_what_there_is() -> None:
    told = Told()
    told.tell(2)
    assert seqs(told.events(follow=False)) == [0, 1]
    assert told.scope.handlers_of("session/event") == []


@pytest.mark.parametrize("is_over", [False, True])
def test_a_slow_reader_gets_everything_and_little_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr(stream, "MAX_WAITING", 4)
    told = Told()
    told.tell(1)
    events = told.events()
    assert next(events).seq == 0
    told.tell(100)
    if is_over:
        told.dispose()
    assert seqs(islice(events, 100)) == list(range(1, 101))
    if not is_over:
        told.tell(1)
        assert next(events).seq == 101
        told.dispose()
    assert seqs(events) == []


def test_leaving_a_stream_leaves_nothing_behind() -> None:
    told = Told()
    told.tell(1)
    events = told.events()
    next(events)
    assert told.scope.handlers_of("session/event")
    events.close()
    assert told.scope.handlers_of("session/event") == []


@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_reader_in_another_thread_sees_a_whole_session(stage: Stage, ephemeral: bool) -> None:
    seen: list[Event] = []
    with stage.agent(ephemeral=ephemeral) as agent:
        reader = threading.Thread(target=lambda: seen.extend(agent.events()))
        reader.start()
        agent.followup("hi")
        stage.model.next_stream().send(*HELLO)
        agent.when_idle()
        now = list(agent.events(follow=False))
        late = agent.events(after=now[-1].seq)
    reader.join(10)
    assert seqs(seen) == list(range(len(seen))) and seen[: len(now)] == now
    assert now[-1].type == "turn/end"
    assert list(late) == []


def test_a_handle_as_a_context_ends_its_agent_also_after_an_error(stage: Stage) -> None:
    with pytest.raises(ValueError, match="mine"), stage.agent() as agent:
        raise ValueError("mine")
    with pytest.raises(ActorGone):
        agent.run("more")
    assert stage.harness.agents() == []


@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_reader_of_an_agent_that_never_said_anything_ends_with_it(stage: Stage, ephemeral: bool) -> None:
    agent = stage.agent(ephemeral=ephemeral)
    assert list(agent.events(follow=False)) == []
    events = agent.events()
    reader = threading.Thread(target=lambda: stage.events.extend(events))
    reader.start()
    agent.dispose()
    reader.join(10)
    assert not reader.is_alive() and stage.events == []
    assert list(agent.events()) == []
