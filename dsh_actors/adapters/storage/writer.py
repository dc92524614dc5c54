"""The one writer of a session on disk: appending, sealing, checkpoints, rewriting.

Native code: no lock, sleep or socket of the standard library, so it runs in native threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dsh_actors.adapters.storage.checkpoints import (
    Found,
    newest_checkpoint,
    record_digest,
    save_checkpoint,
)
from dsh_actors.adapters.storage.files import remove_drafts
from dsh_actors.adapters.storage.layout import CHECKPOINTS_NAME, LOG_NAME, storage_error
from dsh_actors.adapters.storage.lock import SessionLock
from dsh_actors.adapters.storage.recovery import LogReader, Place
from dsh_actors.adapters.storage.sealing import open_next, rewrite, unpacked
from dsh_actors.adapters.storage.segments import SegmentTail, segment_name, touch
from dsh_actors.adapters.storage.sequence import require_next
from dsh_actors.adapters.storage.tail import repair_tail
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.errors import SessionBusy, SessionError
from dsh_actors.ports import Checkpoint

__all__ = ["DEFAULT_SIZES", "SegmentSizes", "SegmentWriter"]


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """When a segment is sealed: at ``compressed`` bytes or ``events``, whichever comes first."""

    compressed: int = 1024 * 1024
    events: int = 4096


DEFAULT_SIZES = SegmentSizes()


@dataclass(frozen=True, slots=True)
class _End:
    """The end of what is durable; ``line`` is the last event's own line, None where it is not known."""

    next_seq: int
    place: Place
    line: bytes | None


class SegmentWriter:
    """The one writer of a session on disk; used by one thread at a time.

    `compact` and `save_checkpoint` may run beside an `append`, each in a thread of its own.
    Damage behind the header, and unknown events, are found by `replay`. Whoever appends without
    having replayed makes the writer read the log first, as it never adds to what it has not checked.
    """

    def __init__(
        self,
        directory: str,
        header: SessionHeader,
        clock_ms: Callable[[], int],
        sizes: SegmentSizes,
        *,
        lock: SessionLock | None = None,
        publish: Callable[[bytes], tuple[SessionLock, SegmentTail]] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._directory = directory
        self._header = header
        self._clock_ms = clock_ms
        self._sizes = sizes
        self._lock = lock
        self._publish = publish
        self._on_close = on_close
        self._tail: SegmentTail | None = None
        self._end = _End(0, ("", 0), None)
        self._found: Found | None = None
        self._unpacked: list[str] = []
        self._may_rewrite = True
        self._is_closed = False

    @property
    def header(self) -> SessionHeader:
        return self._header

    @property
    def next_seq(self) -> int:
        """Reads the log if it was not read. Raises as `replay` does."""
        self._require_read()
        return self._end.next_seq

    @property
    def needs_rewrite(self) -> bool:
        """Whether `compact` has something to do. After a failure, not before another segment is sealed."""
        return self._may_rewrite and bool(self._unpacked) and not self._is_closed

    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that fits the log; None where everything has to be replayed."""
        self._require_open()
        if self._publish is None:
            self._found = newest_checkpoint(self._directory, self._header.id)
        return None if self._found is None else self._found.checkpoint

    def replay(self, from_seq: int = 0) -> Iterator[Event]:
        """The stored events from ``from_seq`` on. At its end a torn tail is cut off and kept beside.

        Raises `SessionCorrupt` with the place, `SessionUnsupported`, or `StorageError`.
        """
        if self._publish is not None:
            return
        self._require_open()
        reader = LogReader(self._directory)
        found = self._found
        is_known = found is not None and found.checkpoint.next_seq == from_seq
        yield from reader.events(from_seq, found.place if found is not None and is_known else None)
        if self._tail is None:
            self._take_over(reader)

    def append(self, events: Sequence[Event]) -> None:
        """Durable on return; on failure nothing is written and the same call may be made again.

        Raises `SessionBusy` (a stale writer), `StorageFull`, `StorageError`, `SessionExists` (first
        append only), or `EventRefused` for a gap or for data without a JSON form.
        """
        self._require_open()
        self._require_read()
        next_seq = self._end.next_seq
        require_next(events, next_seq)
        if not events:
            return
        data = encode_batch(events)
        if self._tail is not None:
            self._require_last(self._tail)
            touch(self._directory, self._clock_ms())
            if self._is_full(self._tail):
                self._seal(self._tail, data)
            else:
                self._tail.append(data)
        elif self._publish is not None:
            self._lock, self._tail = self._publish(data)
            self._publish = None
        self._set_end(next_seq + len(events), data[data.rfind(b"\n", 0, -1) + 1 :])

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint of events that are all durable; the newest two are kept.

        Raises `SessionError` for events that are not stored, `EventRefused` for a state without a
        JSON form, `StorageFull` or `StorageError`; what was kept is still there then.
        """
        self._require_open()
        end = self._end
        if not 0 < checkpoint.next_seq <= end.next_seq:
            raise SessionError(f"{checkpoint.next_seq} events are not stored, so no checkpoint of them is")
        place, digest = end.place, ""
        if checkpoint.next_seq == end.next_seq and end.line is not None:
            digest = hashlib.sha256(end.line).hexdigest()
        else:
            place, digest = _look_up(self._directory, checkpoint.next_seq)
        save_checkpoint(self._directory, self._header.id, checkpoint, place, digest)

    def compact(self) -> None:
        """Rewrite the sealed segments that were not yet, smaller and with the same lines.

        Raises `SessionCorrupt`, `StorageFull` or `StorageError`; the log is as valid as before.
        """
        while self.needs_rewrite:
            name = self._unpacked[0]
            try:
                rewrite(self._directory, name)
            except BaseException:
                self._may_rewrite = False
                raise
            self._unpacked.remove(name)

    def move(self, directory: str) -> None:
        """The session's directory has another name now."""
        self._directory = directory
        if self._tail is not None:
            self._tail.move(os.path.join(directory, LOG_NAME))

    def close(self) -> None:
        """Give the lock back. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._tail is not None:
            self._tail.close()
        if self._lock is not None:
            self._lock.release()
        if self._on_close is not None:
            self._on_close()

    def _take_over(self, reader: LogReader) -> None:
        log = os.path.join(self._directory, LOG_NAME)
        try:
            remove_drafts(log)
        except OSError as error:
            raise storage_error(error, "clean up", log) from error
        with suppress(OSError):  # checkpoints only save time: a session goes on without
            remove_drafts(os.path.join(self._directory, CHECKPOINTS_NAME))
        self._tail = repair_tail(reader.end)
        self._unpacked = unpacked(self._directory, reader.names)
        self._set_end(reader.end.next_seq, None)

    def _is_full(self, tail: SegmentTail) -> bool:
        sizes, events = self._sizes, self._end.next_seq - tail.first_seq
        return events >= sizes.events or (tail.size >= sizes.compressed and events > 0)

    def _seal(self, tail: SegmentTail, data: bytes) -> None:
        self._tail = open_next(tail, self._header.id, self._end.next_seq, data)
        tail.close()
        self._unpacked.append(tail.name)
        self._may_rewrite = True

    def _require_last(self, tail: SegmentTail) -> None:
        """A sealed segment does not change, so only its successor tells that somebody sealed it."""
        path = f"{tail.folder}/{segment_name(self._end.next_seq)}"
        if path != tail.path and os.path.lexists(path):
            raise SessionBusy(
                f"stale writer: {path} exists already, nothing was written",
                hint="another program changed the session; resume it again",
            )

    def _set_end(self, next_seq: int, line: bytes | None) -> None:
        if self._tail is not None:
            is_row = line is None or b'"seq0":' in line
            self._end = _End(next_seq, (self._tail.name, self._tail.size), None if is_row else line)

    def _require_read(self) -> None:
        if self._tail is None and self._publish is None:
            for _event in self.replay():
                continue

    def _require_open(self) -> None:
        if self._is_closed:
            raise SessionError(f"the writer of session {self._header.id!r} is closed")


def _look_up(directory: str, next_seq: int) -> tuple[Place, str]:
    """Where the frame with ``next_seq`` is, and the digest of the record before it."""
    before = next(LogReader(directory).events(next_seq - 1))
    batch = next(LogReader(directory).batches(next_seq))
    return (os.path.basename(batch.path), batch.offset), record_digest(before)
