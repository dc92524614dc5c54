"""Reading a stored log in order with bounded memory, telling a cut-off write from damage.

`LogReader` writes nothing. `repair_tail` cuts a torn tail away, under the lock and before anything
is appended, and keeps what it cut beside the segment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count

from dsh_actors.adapters.storage.frames import FrameDamage, FrameFile, compress_frame
from dsh_actors.adapters.storage.layout import (
    LOG_NAME,
    close_descriptor,
    fsync_directory,
    name_of_id,
    storage_error,
)
from dsh_actors.adapters.storage.segments import (
    SegmentHeader,
    SegmentTail,
    segment_first_seq,
    segment_name,
    segment_names,
    write_all,
)
from dsh_actors.core.codec import decode_line
from dsh_actors.core.events import KNOWN_TYPES, Event, SessionHeader
from dsh_actors.errors import EventRefused, SessionBusy, SessionCorrupt, SessionNotFound

__all__ = ["Batch", "LogEnd", "LogReader", "repair_tail"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Stored lines, without their newlines, of the frame at byte ``offset`` of the segment ``path``.

    ``is_torn``: rescued from the incomplete last frame. ``due``: the seq that the segment's header
    promises for the first of its lines; None behind them.
    """

    path: str
    offset: int
    lines: list[bytes]
    is_torn: bool
    due: int | None


@dataclass(slots=True)
class LogEnd:
    """Where the valid part of the last segment ends. ``rescued`` are the good lines of a torn frame."""

    path: str
    inode: int
    size: int
    end: int
    next_seq: int
    rescued: list[bytes] = field(default_factory=list)


class LogReader:
    """One pass over the log of a session. Used by one thread at a time."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._log = os.path.join(directory, LOG_NAME)
        self._end: LogEnd | None = None
        try:
            self._names = segment_names(self._log)
        except FileNotFoundError:
            self._names = []
        except OSError as error:
            raise storage_error(error, "read", self._log) from error
        if self._names:
            return
        if not os.path.isdir(directory):
            raise SessionNotFound(f"the session in {directory} is gone")
        raise SessionCorrupt(f"{self._log} holds no segment of a session")

    @property
    def end(self) -> LogEnd:
        """Known once `events` came to its end."""
        if self._end is None:
            raise RuntimeError("the log was not read to its end")
        return self._end

    def header(self) -> SessionHeader:
        """The session header, from the first frame of the first segment.

        Raises `SessionCorrupt`, or `SessionUnsupported` for a newer format.
        """
        with _opened(os.path.join(self._log, self._names[0])) as frames:
            head = self._segment_header(frames)[0]
            if head.header is None or head.header.id != head.session or self._names[0] != segment_name(0):
                raise _corrupt(frames.path, 0, "it is not the first segment of its session")
            return head.header

    def events(self, from_seq: int = 0) -> Iterator[Event]:
        """The events from ``from_seq`` on. Raises `SessionCorrupt` with the place, `SessionUnsupported`."""
        next_seq = -1
        rescued: list[bytes] = []
        for batch in self.batches(from_seq):
            if batch.due is not None:
                if next_seq not in (-1, batch.due):
                    raise _corrupt(batch.path, 0, f"its events begin at {batch.due} instead of {next_seq}")
                next_seq = batch.due
            for line in batch.lines:
                events = _decoded(batch, line, next_seq)
                if events is None:
                    break  # neither is what comes behind it
                next_seq += len(events)
                if batch.is_torn:
                    rescued.append(line)
                for event in events:
                    if event.type not in KNOWN_TYPES:
                        event.require_known()
                    if event.seq >= from_seq:
                        yield event
        self._finish(next_seq, rescued)

    def batches(self, from_seq: int = 0) -> Iterator[Batch]:
        """The lines from the segment that holds ``from_seq`` on, checked but not decoded."""
        first = max((i for i, name in enumerate(self._names) if _first_seq(name) <= from_seq), default=0)
        previous: tuple[str, str] | None = None
        for position in range(first, len(self._names)):
            name = self._names[position]
            is_last = position == len(self._names) - 1
            digest = None if is_last else hashlib.sha256()
            with _opened(os.path.join(self._log, name)) as frames:
                head, offset = self._segment_header(frames)
                if head.first_seq != _first_seq(name) or (position == 0) != (head.first_seq == 0):
                    raise _corrupt(frames.path, 0, f"its events cannot begin at {head.first_seq}")
                if None not in (previous, head.prev) and head.prev != previous:
                    raise _corrupt(frames.path, 0, "the segment before it has changed")
                for batch in self._segment_batches(frames, offset, is_last, head.first_seq):
                    if digest is not None:
                        digest.update(b"\n".join((*batch.lines, b"")))
                    yield batch
            previous = None if digest is None else (name, digest.hexdigest())

    def _segment_header(self, frames: FrameFile) -> tuple[SegmentHeader, int]:
        """The header of a segment and the offset of the frame behind it."""
        try:
            end = frames.frame_end(0)
            if end is None:
                raise FrameDamage(0, "it has no header" if frames.size else "it is empty")
            lines = [line for lines in _lines(frames.pieces(0, end), 0) for line in lines]
            if len(lines) != 1:
                raise FrameDamage(0, "its first frame is no header")
            head = SegmentHeader.decode(lines[0])
            self._require_own(head.session)
        except FrameDamage as damage:
            raise _corrupt(frames.path, damage.offset, damage.reason) from damage
        except EventRefused as error:
            raise _corrupt(frames.path, 0, error.message) from error
        return head, end

    def _require_own(self, session_id: str) -> None:
        if not session_id or name_of_id(session_id) != os.path.basename(self._directory):
            raise EventRefused(f"it belongs to session {session_id!r}")

    def _segment_batches(
        self, frames: FrameFile, offset: int, is_last: bool, first_seq: int
    ) -> Iterator[Batch]:
        due: int | None = first_seq
        try:
            while offset < frames.size:
                end = frames.frame_end(offset) if frames.is_frame(offset) else None
                if end is None:
                    break
                for lines in _lines(frames.pieces(offset, end), offset):
                    yield Batch(frames.path, offset, lines, False, due)
                    due = None
                offset = end
            self._end = LogEnd(frames.path, frames.inode, frames.size, offset, first_seq)
            if offset == frames.size:
                return
            if not is_last:
                raise FrameDamage(offset, "it is cut off, and another segment follows")
            frames.require_torn(offset)
            for lines in _lines(frames.torn_pieces(offset), None):
                yield Batch(frames.path, offset, lines, True, due)
                due = None
        except FrameDamage as damage:
            raise _corrupt(frames.path, damage.offset, damage.reason) from damage

    def _finish(self, next_seq: int, rescued: list[bytes]) -> None:
        end = self.end
        if end.next_seq > next_seq >= 0:
            raise _corrupt(end.path, 0, f"its events begin at {end.next_seq} instead of {next_seq}")
        end.next_seq = max(end.next_seq, next_seq)
        end.rescued = rescued


def repair_tail(end: LogEnd) -> SegmentTail:
    """Cut off what stands behind the valid part and keep it beside; the session's lock is held.

    Rescued lines become the last frame. Raises `StorageFull` or `StorageError`.
    """
    if end.end == end.size:
        return SegmentTail(end.path, end.inode, end.size)
    try:
        with _opened(end.path) as frames:
            if (frames.inode, frames.size) != (end.inode, end.size):
                raise SessionBusy(f"{end.path} changed while it was being repaired")
            _keep_beside(end.path, b"".join(frames.raw(end.end, end.size)))
            if end.rescued:
                last = compress_frame(b"\n".join((*end.rescued, b"")))
                _write_atomically(end.path, chain(frames.raw(0, end.end), (last,)))
            else:
                _truncate(end.path, end.end)
        status = os.stat(end.path)
    except OSError as error:
        raise storage_error(error, "repair", end.path) from error
    return SegmentTail(end.path, status.st_ino, status.st_size)


def _keep_beside(path: str, torn: bytes) -> None:
    for number in count(1):
        kept = f"{path}.torn" if number == 1 else f"{path}.torn-{number}"
        if not os.path.exists(kept):
            _write_atomically(kept, (torn,))
            return
        with open(kept, "rb") as file:
            if file.read() == torn:
                return  # an earlier repair of the same tail came so far


def _write_atomically(path: str, pieces: Iterable[bytes]) -> None:
    draft = os.path.join(os.path.dirname(path), f".draft-{os.getpid()}-{os.urandom(8).hex()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for piece in pieces:
                write_all(descriptor, piece)
            os.fsync(descriptor)
        finally:
            close_descriptor(descriptor)
        os.rename(draft, path)
    except BaseException:
        if os.path.lexists(draft):
            os.unlink(draft)
        raise
    fsync_directory(os.path.dirname(path))


def _truncate(path: str, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        close_descriptor(descriptor)


def _lines(pieces: Iterable[bytes], offset: int | None) -> Iterator[list[bytes]]:
    """Complete lines of a frame. A rest without newline is damage, or dropped without an ``offset``."""
    rest: list[bytes] = []
    for piece in pieces:
        cut = piece.rfind(b"\n")
        if cut < 0:
            rest.append(piece)
            continue
        yield b"".join((*rest, piece[:cut])).split(b"\n")
        rest = [piece[cut + 1 :]]
    if offset is not None and any(rest):
        raise FrameDamage(offset, "the frame ends inside a line")


def _decoded(batch: Batch, line: bytes, next_seq: int) -> tuple[Event, ...] | None:
    """The events of a line; None for a line of a torn frame that never was whole."""
    try:
        events = decode_line(line)
        if events[0].seq != next_seq:
            raise EventRefused(f"event {events[0].seq} stands where event {next_seq} is due")
    except EventRefused as error:
        if batch.is_torn:
            return None
        raise _corrupt(batch.path, batch.offset, error.message) from error
    return events


def _first_seq(name: str) -> int:
    return segment_first_seq(name) or 0


def _corrupt(path: str, offset: int, reason: str) -> SessionCorrupt:
    return SessionCorrupt(
        f"{path} is damaged at byte {offset}: {reason}",
        hint="the file was left as it is; put back a copy of it, or start a new session",
    )


@contextmanager
def _opened(path: str) -> Iterator[FrameFile]:
    try:
        frames = FrameFile(path)
    except FileNotFoundError as error:
        raise SessionNotFound(f"{path} is gone") from error
    except OSError as error:
        raise storage_error(error, "read", path) from error
    try:
        yield frames
    finally:
        frames.close()
