"""Sessions that live as long as the process, with the contract of the stored ones.

Events are kept encoded: they are as isolated from their writer, and as small, as on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dsh_actors.adapters.storage.sequence import require_next
from dsh_actors.adapters.storage.summary import SessionSummary
from dsh_actors.core.codec import decode_line, encode_batch
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import (
    EventRefused,
    SessionBusy,
    SessionError,
    SessionExists,
    SessionNotFound,
    SessionUnsupported,
)
from dsh_actors.ports import Checkpoint, SessionListing

__all__ = ["MemoryStorage"]


class _Kept:
    """One session: its encoded lines, and whether a writer has it."""

    __slots__ = ("checkpoint", "has_writer", "header", "lines", "next_seq", "updated_ms")

    def __init__(self, header: SessionHeader) -> None:
        self.header = header
        self.lines: list[bytes] = []
        self.next_seq = 0
        self.updated_ms = header.created_at
        self.has_writer = True
        self.checkpoint: Checkpoint | None = None

    def events(self, from_seq: int) -> Iterator[Event]:
        for line in tuple(self.lines):
            for event in decode_line(line):
                event.require_known()
                if event.seq >= from_seq:
                    yield event

    def listing(self) -> SessionListing:
        summary = SessionSummary()
        try:
            summary.observe_lines(self.lines)
            status = "live" if self.has_writer else summary.status
        except SessionUnsupported:
            status = "unsupported"
        except EventRefused:
            status = "corrupt"
        header, turns, title = self.header, summary.turns, summary.title
        times = (header.created_at, self.updated_ms)
        return SessionListing(header.id, header.cwd, title, *times, turns, status, header.agent_above)


class MemoryStorage:
    """A `SessionStorage` for ``--ephemeral``. Used by one thread at a time.

    ``owner`` names this process to whoever meets a held session; ``clock_ms`` dates the changes.
    """

    def __init__(self, owner: str, clock_ms: Callable[[], int]) -> None:
        self._owner = owner
        self._clock_ms = clock_ms
        self._sessions: dict[SessionId, _Kept] = {}

    def create(self, header: SessionHeader) -> MemoryWriter:
        """Raises `SessionExists`, or `EventRefused` for a wrong header."""
        header.require_valid()
        kept = _Kept(header)
        if self._sessions.setdefault(header.id, kept) is not kept:
            raise SessionExists(f"session {header.id!r} exists already")
        return MemoryWriter(kept, self._clock_ms, lambda: self._forget(header.id))

    def draft(self, header: SessionHeader) -> MemoryDraft:
        """Raises as `create` does."""
        return MemoryDraft(self, self.create(header))

    def open(self, session_id: SessionId) -> MemoryWriter:
        """Raises `SessionNotFound` or `SessionBusy`."""
        kept = self._find(session_id)
        if kept.has_writer:
            raise SessionBusy(f"session {session_id!r} is in use by {self._owner}")
        kept.has_writer = True
        return MemoryWriter(kept, self._clock_ms, lambda: self._forget(session_id))

    def header(self, session_id: SessionId) -> SessionHeader:
        """Raises `SessionNotFound`."""
        return self._find(session_id).header

    def read(self, session_id: SessionId, from_seq: int = 0) -> Iterator[Event]:
        """Stream what was appended. Raises `SessionNotFound`."""
        return self._find(session_id).events(from_seq)

    def list(self, cwd: str | None = None) -> Iterator[SessionListing]:
        """Newest first."""
        shown = [k for k in self._sessions.values() if k.lines and cwd in (None, k.header.cwd)]
        shown.sort(key=lambda kept: (kept.updated_ms, kept.header.id), reverse=True)
        return (kept.listing() for kept in shown)

    def checkpoint(self, session_id: SessionId) -> Checkpoint | None:
        """Raises `SessionNotFound`."""
        return self._find(session_id).checkpoint

    def revision(self, session_id: SessionId) -> str:
        """Raises `SessionNotFound`."""
        return str(self._find(session_id).next_seq)

    def delete(self, session_id: SessionId) -> int:
        """Raises `SessionNotFound` or `SessionBusy`."""
        kept = self._find(session_id)
        if kept.has_writer:
            raise SessionBusy(f"session {session_id!r} is in use by {self._owner}")
        del self._sessions[session_id]
        return sum(map(len, kept.lines))

    def path(self, session_id: SessionId) -> str:
        """Always raises `SessionNotFound`: there is no directory."""
        self._find(session_id)
        raise SessionNotFound(f"session {session_id!r} is kept in memory only")

    def _find(self, session_id: SessionId) -> _Kept:
        kept = self._sessions.get(session_id)
        if kept is None or not kept.lines:
            raise SessionNotFound(f"no session {session_id!r} in memory")
        return kept

    def _forget(self, session_id: SessionId) -> None:
        if not self._sessions[session_id].lines:
            del self._sessions[session_id]


class MemoryDraft:
    """A copy that is being made. It ends with the process, so there is no part of it to hide from others."""

    def __init__(self, storage: MemoryStorage, writer: MemoryWriter) -> None:
        self._storage = storage
        self._writer = writer
        self._is_over = False

    @property
    def next_seq(self) -> int:
        return self._writer.next_seq

    def append(self, events: Sequence[Event]) -> None:
        """Raises as the `append` of a writer does."""
        self._writer.append(events)

    def publish(self) -> MemoryWriter:
        """The writer of what was appended."""
        self._is_over = True
        return self._writer

    def discard(self) -> None:
        """Leave nothing of it, unless it was published. May be called again."""
        if self._is_over:
            return
        self._is_over = True
        has_events = self._writer.next_seq > 0
        self._writer.close()
        if has_events:
            self._storage.delete(self._writer.header.id)


class MemoryWriter:
    """The one writer of a session in memory."""

    def __init__(self, kept: _Kept, clock_ms: Callable[[], int], on_close: Callable[[], None]) -> None:
        self._kept = kept
        self._clock_ms = clock_ms
        self._on_close: Callable[[], None] | None = on_close

    @property
    def header(self) -> SessionHeader:
        return self._kept.header

    @property
    def next_seq(self) -> int:
        return self._kept.next_seq

    def checkpoint(self) -> Checkpoint | None:
        return self._kept.checkpoint

    def replay(self, from_seq: int = 0) -> Iterator[Event]:
        """The events from ``from_seq`` on."""
        return self._kept.events(from_seq)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._kept.checkpoint = checkpoint

    def append(self, events: Sequence[Event]) -> None:
        """Raises `EventRefused` for a gap or for data without a JSON form; nothing is kept then."""
        if self._on_close is None:
            raise SessionError(f"the writer of session {self.header.id!r} is closed")
        require_next(events, self.next_seq)
        self._kept.lines.extend(encode_batch(events).split(b"\n")[:-1])
        self._kept.next_seq += len(events)
        self._kept.updated_ms = self._clock_ms()

    def close(self) -> None:
        """Let the session go. May be called again."""
        if self._on_close is not None:
            self._kept.has_writer = False
            self._on_close()
            self._on_close = None
