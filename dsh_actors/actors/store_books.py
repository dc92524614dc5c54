"""What outlives an incarnation of the session store: whatever holds a lock; and how locks are given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dsh_actors.actors import protocol as p
from dsh_actors.actors.held import HeldSession
from dsh_actors.actors.opening import Ready, close_writer
from dsh_actors.core.chunks import Failure
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import error_chain
from dsh_actors.ports import SessionStorage, SessionWriter
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import TaskEnd, start_task

__all__ = ["Looked", "OnBroken", "PreparedLock", "StoreBooks", "Taken", "release"]

NATIVE_TIMEOUT_S = 30.0

OnBroken = Callable[[Failure], None]


@dataclass(frozen=True, slots=True)
class PreparedLock:
    """A session that is read and locked, for an `OpenSession` to come."""

    writer: SessionWriter
    opened: p.Opened


@dataclass(frozen=True, slots=True)
class Taken:
    """A writer was opened in a native thread for one of the asks. ``on_broken`` None: only prepared."""

    session_id: SessionId
    storage: SessionStorage
    on_broken: OnBroken | None
    promise: GeventFuture
    end: TaskEnd[tuple[SessionWriter, p.Opened]]
    is_new_copy: bool = False


@dataclass(frozen=True, slots=True)
class Looked:
    """A session was read, and remains the property of nobody."""

    session_id: SessionId
    promise: GeventFuture
    end: TaskEnd[tuple[Ready, p.Opened]]


@dataclass(frozen=True, slots=True)
class StoreBooks:
    """``taking``: who waits for a session that is being opened; ``unheard``: closings that failed when the
    store that had been asked for them was dead.
    """

    held: dict[SessionId, HeldSession] = field(default_factory=dict)
    prepared: dict[SessionId, PreparedLock] = field(default_factory=dict)
    taking: dict[SessionId, GeventFuture] = field(default_factory=dict)
    unheard: dict[SessionId, Failure] = field(default_factory=dict)

    def release_all(self) -> None:
        """Without a store: write what can be written and give every lock back. For the very end."""
        for held in tuple(self.held.values()):
            held.stop_timer()
            if not held.wait_for_native(NATIVE_TIMEOUT_S):
                LOGGER.error("session %s stays locked until this process ends", held.id)
                continue
            _contained(partial(_write_rest, held), held.id)
            _contained(partial(close_writer, held.writer), held.id)
        for session_id, prepared in tuple(self.prepared.items()):
            _contained(partial(close_writer, prepared.writer), session_id)
        self.held.clear()
        self.prepared.clear()


def _write_rest(held: HeldSession) -> None:
    rest = held.unwritten()
    if rest and rest[0].seq == held.writer.next_seq:
        held.writer.append(rest)


def _contained(work: Callable[[], None], session_id: SessionId) -> None:
    try:
        run_native(work)
    except Exception as error:
        # Whatever the disk says: the other sessions are closed all the same.
        LOGGER.error("session %s could not be closed: %s", session_id, error_chain(error))


def _nothing(_end: TaskEnd[None]) -> None:
    """For releases that nobody waits for."""


def release(
    writer: SessionWriter,
    session_id: SessionId,
    closed: Callable[[TaskEnd[None]], None] = _nothing,
    unwanted: SessionStorage | None = None,
) -> None:
    """Give a lock back in a native thread. ``unwanted``: the storage that shall not keep the session."""
    work = partial(close_writer, writer, unwanted)
    start_task(lambda _token: run_native(work), closed, name=f"close {session_id}")
