"""The event streams: an agent's log replayed and then live, and what happens to all agents.

No event is lost or doubled where the replay meets what is live: whoever reads listens first, reads the log
then, and skips by number what it has seen. Where it lags behind the ring, it reads the log again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dsh_actors.core.events import Event
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.feeds import Feed, Reader
from dsh_actors.daemon.hosting import Hosting
from dsh_actors.daemon.info import AgentInfo
from dsh_actors.daemon.sse import BEGIN, KEEP_ALIVE, event_block, session_event
from dsh_actors.errors import AgentNotFound, HarnessError
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.wsgi import Connection

__all__ = ["Notice", "Streams"]

KEEP_ALIVE_S = 15.0
BLOCK_BYTES = 65_536
"""Events are sent together up to about this size."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that is told and not logged. It has no number in an agent's stream.

    An agent's change becomes JSON when somebody reads it: there are many of them, and few readers.
    """

    name: str
    content: JsonObject | AgentInfo = field(hash=False)

    @property
    def data(self) -> JsonObject:
        return self.content.to_json() if isinstance(self.content, AgentInfo) else self.content


Item = Event | Notice
OpenNotices = Callable[[str], list[Notice]]


class _AgentFeed:
    """One agent's events, heard of only while somebody reads them."""

    def __init__(self, limit: int) -> None:
        self.feed: Feed[Item] = Feed(limit)
        self.undo: Callable[[], None] | None = None


class Streams:
    """Of one daemon. ``queue`` is how many events a reader may lag behind; ``asked(agent)`` gives the notices
    of questions that are open when somebody begins to read.
    """

    def __init__(
        self, host: Hosting, queue: int, asked: OpenNotices, keep_alive_s: float = KEEP_ALIVE_S
    ) -> None:
        self._host = host
        self._queue = queue
        self._asked = asked
        self._keep_alive_s = keep_alive_s
        self._agents: dict[str, _AgentFeed] = {}
        self._all: Feed[Notice] = Feed(queue)
        self._boot = secrets.token_hex(4)
        self._is_closed = False

    @property
    def readers(self) -> int:
        """How many streams are open."""
        return self._all.readers + sum(each.feed.readers for each in self._agents.values())

    def announce(self, agent_id: str, notice: Notice) -> None:
        """Tell the readers of all agents, and those of this one. Quick; never waits."""
        self._all.push(notice)
        agent = self._agents.get(agent_id)
        if agent is not None and notice.name != "agent":
            agent.feed.push(notice)

    def end_agent(self, agent_id: str) -> None:
        """The agent is gone: its streams end after what is left in them."""
        agent = self._agents.pop(agent_id, None)
        if agent is not None:
            agent.feed.close()

    def close(self) -> None:
        """End every stream; new ones end after their replay."""
        self._is_closed = True
        self._all.close()
        for agent_id in tuple(self._agents):
            self.end_agent(agent_id)

    # --- one agent ---------------------------------------------------------------------------

    def of_agent(
        self, agent_id: str, after: int, connection: Connection, *, follow: bool = True
    ) -> Iterator[bytes]:
        """The events of an agent behind number ``after``, then, with ``follow``, those to come."""
        yield BEGIN
        position = _Position(after)
        if not follow or self._is_closed:
            yield from self._replay(agent_id, position)
            return
        agent = self._enter(agent_id)
        reader = agent.feed.reader(connection.cut)
        undo = connection.on_hangup(reader.hang_up)
        try:
            while not reader.is_over:
                reader.skip()  # before the log is read: what comes meanwhile is in the ring
                for block in self._replay(agent_id, position):
                    yield from _sent(reader, block)
                for notice in self._asked(agent_id):
                    yield from _sent(reader, event_block(notice.name, notice.data))
                yield from self._live(agent_id, reader, position)
        finally:
            undo()
            reader.close()
            self._leave(agent_id, agent)

    def _enter(self, agent_id: str) -> _AgentFeed:
        agent = self._agents.get(agent_id)
        if agent is not None:
            return agent
        # Others find it when it hears: what it has not heard of they would miss.
        made = _AgentFeed(self._queue)
        made.undo = self._host.subscribe(agent_id, made.feed.push)
        agent = self._agents.setdefault(agent_id, made)
        if agent is not made:
            made.undo()
        try:
            self._host.get(agent_id)
            is_there = not self._is_closed
        except HarnessError:
            is_there = False  # it has gone while it was listened to, and nobody will say so any more
        if not is_there:
            self.end_agent(agent_id)
        return agent

    def _leave(self, agent_id: str, agent: _AgentFeed) -> None:
        if agent.feed.readers:
            return
        if self._agents.get(agent_id) is agent:
            del self._agents[agent_id]
        undo, agent.undo = agent.undo, None
        if undo is not None:
            undo()

    def _replay(self, agent_id: str, position: _Position) -> Iterator[bytes]:
        """What the log has behind ``position``, which moves along."""
        block = bytearray()
        try:
            for event in self._host.events(agent_id, position.last):
                block += position.pass_on(event)
                if len(block) >= BLOCK_BYTES:
                    yield bytes(block)
                    block.clear()
        except HarnessError as error:
            # Damaged or gone: what is missing becomes a gap as soon as a number behind it is known.
            LOGGER.warning("the events of %s could not be read: %s", agent_id, error.message)
            if not self._is_closed and not isinstance(error, AgentNotFound):
                block += position.unreadable(error)
        if block:
            yield bytes(block)

    def _live(self, agent_id: str, reader: Reader[Item], position: _Position) -> Iterator[bytes]:
        """What the ring has, until the reader is over or has to read the log again."""
        while not reader.is_over:
            if reader.has_lost:
                return
            items = reader.take()
            if not items:
                if not reader.wait(self._keep_alive_s):
                    yield from _sent(reader, KEEP_ALIVE)
                continue
            block = bytearray()
            for item in items:
                if isinstance(item, Event) and item.seq > position.last + 1:
                    # Recorded before anybody listened, and not stored yet when the log was read.
                    for missed in self._replay(agent_id, position):
                        block += missed
                block += position.pass_on(item)
                if len(block) >= BLOCK_BYTES:
                    yield from _sent(reader, bytes(block))
                    block.clear()
            if block:
                yield from _sent(reader, bytes(block))

    # --- all agents --------------------------------------------------------------------------

    def of_all(self, last_id: str | None, connection: Connection) -> Iterator[bytes]:
        """What happens to all agents, from ``last_id`` on where that is still known, else from now on."""
        yield BEGIN
        place, is_gap = self._place_of(last_id)
        reader = self._all.reader(connection.cut, place)
        undo = connection.on_hangup(reader.hang_up)
        try:
            if is_gap:
                yield from _sent(reader, event_block("gap", {"from": None, "to": None}))
            while not reader.is_over:
                if reader.has_lost:
                    reader.skip()
                    yield from _sent(reader, event_block("gap", {"from": None, "to": None}))
                notices, number = reader.take(), self._all.end
                if not notices:
                    if not reader.wait(self._keep_alive_s):
                        yield from _sent(reader, KEEP_ALIVE)
                    continue
                first = number - len(notices)
                blocks = [
                    event_block(notice.name, notice.data, f"{self._boot}-{first + index}")
                    for index, notice in enumerate(notices)
                ]
                yield from _sent(reader, b"".join(blocks))
        finally:
            undo()
            reader.close()

    def _place_of(self, last_id: str | None) -> tuple[int | None, bool]:
        """Where to go on behind ``last_id``, and whether something between is gone."""
        if last_id is None:
            return None, False
        boot, _, number = last_id.partition("-")
        if boot != self._boot or not (number.isascii() and number.isdigit() and len(number) < 19):
            return None, True
        place = int(number) + 1
        if not self._all.begin <= place <= self._all.end:
            return None, True
        return place, False


@dataclass(slots=True)
class _Position:
    """``last`` is the number of the last event that was passed on."""

    last: int
    is_told: bool = False

    def unreadable(self, error: HarnessError) -> bytes:
        """The bytes to send where the log cannot be read on: told once, or it would be taken for whole."""
        if self.is_told:
            return b""
        self.is_told = True
        return event_block("unreadable", {"code": error.code, "message": error.message})

    def pass_on(self, item: Item) -> bytes:
        """The bytes to send for it: none for what was sent before, a gap first where numbers are missing."""
        if isinstance(item, Notice):
            return event_block(item.name, item.data)
        if item.seq <= self.last:
            return b""
        missing, self.last = (self.last + 1, item.seq - 1), item.seq
        if missing[0] > missing[1]:
            return session_event(item)
        return event_block("gap", {"from": missing[0], "to": missing[1]}) + session_event(item)


def _sent(reader: Reader[Item] | Reader[Notice], block: bytes) -> Iterator[bytes]:
    """Give a block to the server, which returns when the client's system has taken it."""
    reader.is_sending = True
    try:
        yield block
    finally:
        reader.is_sending = False
