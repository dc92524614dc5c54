"""What the session store does in native threads: reserve, open, look at, repair and copy sessions.

A checkpoint only saves time: where one cannot be used, the whole log is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from dsh_actors.actors import protocol as p
from dsh_actors.actors.held import HeldSession
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.fork import child_header, find_seed, seed_events
from dsh_actors.core.ids import SessionId
from dsh_actors.core.repair import Closers
from dsh_actors.core.snapshot import dump, load, load_closers
from dsh_actors.core.state import SessionState
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused, SessionCorrupt, SessionExists, SessionNotFound
from dsh_actors.ports import Checkpoint, SessionStorage, SessionWriter

__all__ = [
    "Ready",
    "Source",
    "close_writer",
    "copy_session",
    "fold_log",
    "inspect_session",
    "load_session",
    "open_session",
    "release_session",
    "reread",
    "reserve_session",
]

COPY_BATCH = 4_096
"""Events of a copy that are in memory, and made durable, at a time."""

Read = Callable[[int], Iterable[Event]]


@dataclass(frozen=True, slots=True)
class Ready:
    """What a session came to when it was last read; used again while its ``revision`` is the same.

    Kept as a dump, so that nobody shares a state with anybody.
    """

    revision: str
    header: SessionHeader
    stored_below: int
    dumped: JsonObject = field(hash=False)
    closers: tuple[Event, ...] = field(hash=False)
    checkpoint_below: int = 0

    @staticmethod
    def of(revision: str, opened: p.Opened) -> Ready:
        stored_below = opened.state.next_seq - len(opened.closers)
        dumped = dump(opened.state)
        return Ready(revision, opened.header, stored_below, dumped, opened.closers, opened.checkpoint_below)

    def opened(self) -> p.Opened:
        return p.Opened(self.header, load(self.header, self.dumped), self.closers, self.checkpoint_below)


def fold_log(header: SessionHeader, read: Read, checkpoint: Checkpoint | None = None) -> p.Opened:
    """Fold a stored log and work out what closes it. Raises `SessionCorrupt` or `SessionUnsupported`."""
    if checkpoint is not None:
        try:
            state, closers = load(header, checkpoint.state), load_closers(checkpoint.state)
            if state.next_seq == checkpoint.next_seq:
                return _fold(state, closers, read(checkpoint.next_seq), checkpoint.next_seq)
        except EventRefused:
            # The checkpoint is of another make, or is not what the log says. The log decides.
            checkpoint = None
    try:
        return _fold(SessionState(header), Closers(), read(0), 0)
    except EventRefused as error:
        raise SessionCorrupt(
            f"session {header.id} is damaged: {error.message}", hint="look at it with `dsh session show`"
        ) from error


def _fold(state: SessionState, closers: Closers, events: Iterable[Event], from_seq: int) -> p.Opened:
    for event in events:
        event.require_known()
        state.apply(event)
        closers.observe(event)
    header = state.header
    if header.seed_length is not None and state.next_seq < header.seed_length:
        raise SessionCorrupt(
            f"session {header.id} is an unfinished copy of {header.parent_session}: it has "
            f"{state.next_seq} of {header.seed_length} events",
            hint="fork that session again",
        )
    ending = closers.closing_events(state.next_seq)
    for event in ending:
        state.apply(event)
    return p.Opened(header, state, tuple(ending), from_seq)


def reserve_session(storage: SessionStorage, header: SessionHeader) -> tuple[SessionWriter, p.Opened]:
    writer = storage.create(header)
    return writer, p.Opened(header, SessionState(header))


def open_session(
    storage: SessionStorage, session_id: SessionId, ready: Ready | None = None
) -> tuple[SessionWriter, p.Opened]:
    """Take a session over for writing. What ``ready`` knows is not folded again."""
    writer = storage.open(session_id)
    try:
        checkpoint = writer.checkpoint()
        if ready is not None and ready.revision == storage.revision(session_id):
            for _event in writer.replay(0 if checkpoint is None else checkpoint.next_seq):
                continue  # the writer looks for a torn tail at the end
            if writer.next_seq == ready.stored_below:
                return writer, ready.opened()
            return writer, fold_log(writer.header, partial(storage.read, session_id), checkpoint)
        return writer, fold_log(writer.header, writer.replay, checkpoint)
    except BaseException:
        writer.close()
        raise


def release_session(
    storage: SessionStorage, writer: SessionWriter, opened: p.Opened
) -> tuple[Ready, p.Opened]:
    """Let a prepared session go again; what it came to, for the next who wants it."""
    try:
        return Ready.of(storage.revision(opened.header.id), opened), opened
    finally:
        writer.close()


def inspect_session(
    storage: SessionStorage, session_id: SessionId, ready: Ready | None = None
) -> tuple[Ready, p.Opened]:
    """What a session comes to, from a look without a lock. Writes nothing."""
    revision = storage.revision(session_id)
    if ready is not None and ready.revision == revision:
        return ready, ready.opened()
    header = storage.header(session_id)
    checkpoint = storage.checkpoint(session_id)
    # The revision is from before the reading: what was appended meanwhile makes it stale, never wrong.
    opened = fold_log(header, partial(storage.read, session_id), checkpoint)
    return Ready.of(revision, opened), opened


def close_writer(writer: SessionWriter, unwanted: SessionStorage | None = None) -> None:
    """Give the lock back. ``unwanted``: the storage that shall not keep the session."""
    writer.close()
    if unwanted is not None:
        unwanted.delete(writer.header.id)


def load_session(storage: SessionStorage, session_id: SessionId) -> p.Opened:
    """Commit what closes an interrupted session; its balanced view."""
    writer, opened = open_session(storage, session_id)
    try:
        writer.append(opened.closers)
        return opened
    finally:
        writer.close()


def reread(held: HeldSession) -> p.Opened:
    """The state of a held session, from what is durable of it."""
    header, storage = held.writer.header, held.storage
    if held.writer.next_seq == 0:
        return p.Opened(header, SessionState(header))
    return fold_log(header, partial(storage.read, header.id), storage.checkpoint(header.id))


# --- copies -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """Where a copy comes from. ``writer`` is there for a session that is held in this process."""

    storage: SessionStorage
    session_id: SessionId
    writer: SessionWriter | None = None

    def header(self) -> SessionHeader:
        return self.writer.header if self.writer is not None else self.storage.header(self.session_id)

    def read(self) -> Iterator[Event]:
        if self.writer is not None and self.writer.next_seq == 0:
            return iter(())  # nothing is stored of it yet
        return self.storage.read(self.session_id)


def copy_session(
    source: Source, storage: SessionStorage, ask: p.ForkSession
) -> tuple[SessionWriter, p.Opened]:
    """Write a fork's seed, a bounded batch at a time; it appears whole, or not at all.

    Raises `SessionExists` (first of all), `SessionNotFound`, and what `find_seed` raises.
    """
    _require_absent(storage, ask.child_id)
    parent = source.header()
    seed = find_seed(parent.id, source.read(), ask.at_seq)
    header = child_header(parent, seed, ask.child_id, ask.now_ms)
    header = replace(header, agent_preset=ask.preset or header.agent_preset)
    if ask.depth:
        header = replace(header, origin="subagent", delegation_depth=ask.depth)
    draft = storage.draft(header)
    try:
        state = SessionState(header)
        for batch in _batches(seed_events(seed, source.read(), ask.now_ms)):
            for event in batch:
                event.require_known()
                state.apply(event)
            draft.append(batch)
        return draft.publish(), p.Opened(header, state)
    except BaseException as error:
        draft.discard()
        if isinstance(error, EventRefused):
            raise SessionCorrupt(f"session {parent.id} is damaged: {error.message}") from error
        raise


def _batches(events: Iterator[Event]) -> Iterator[list[Event]]:
    while batch := list(islice(events, COPY_BATCH)):
        yield batch


def _require_absent(storage: SessionStorage, session_id: SessionId) -> None:
    try:
        storage.revision(session_id)
    except SessionNotFound:
        return
    raise SessionExists(f"session {session_id!r} exists already", hint="choose another id")
