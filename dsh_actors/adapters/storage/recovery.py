"""Reading a stored log in order with bounded memory, telling a cut-off write from damage.

Nothing here writes. A reader without the lock may meet a write that is being taken back, or a
segment that is being rewritten: `stable_events` reads again until what it sees is what is there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dsh_actors.adapters.storage.frames import FrameDamage, FrameFile, opened
from dsh_actors.adapters.storage.layout import LOG_NAME, name_of_id, storage_error
from dsh_actors.adapters.storage.segments import (
    SegmentHeader,
    segment_first_seq,
    segment_name,
    segment_names,
)
from dsh_actors.core.codec import decode_line
from dsh_actors.core.events import KNOWN_TYPES, Event, SessionHeader
from dsh_actors.errors import EventRefused, SessionCorrupt, SessionNotFound

__all__ = ["Batch", "LogEnd", "LogReader", "Place", "corrupt", "stable_events"]

# A reader that gets no further in so many attempts, each time seeing another file, gives up.
_MAX_ATTEMPTS = 100

Place = tuple[str, int]
"""The name of a segment and the offset of a frame in it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Stored lines, without their newlines, of the frame at byte ``offset`` of the segment ``path``.

    ``is_torn``: rescued from the incomplete last frame. ``due``: the seq that the segment's header
    promises for the first of its lines, or that the frame has where reading began; None behind them.
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
        self._seen: tuple[object, ...] = ()
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
        with opened(os.path.join(self._log, self._names[0])) as frames:
            head = self._segment_header(frames)[0]
            if head.header is None or head.header.id != head.session or self._names[0] != segment_name(0):
                raise corrupt(frames.path, 0, "it is not the first segment of its session")
            return head.header

    def segment_header(self, name: str) -> SegmentHeader:
        """The header of one segment. Raises as `header` does."""
        with opened(os.path.join(self._log, name)) as frames:
            return self._segment_header(frames)[0]

    @property
    def names(self) -> list[str]:
        """The segments in order; at least one."""
        return self._names

    @property
    def seen(self) -> tuple[object, ...]:
        """What tells the file that was read last from what it was, or will be, at other times."""
        return self._seen

    def events(self, from_seq: int = 0, hint: Place | None = None) -> Iterator[Event]:
        """The events from ``from_seq`` on. Raises `SessionCorrupt` with the place, `SessionUnsupported`.

        ``hint`` is where ``from_seq`` was once seen; a wrong one costs time only.
        """
        next_seq = -1
        rescued: list[bytes] = []
        for batch in self.batches(from_seq, hint):
            if batch.due is not None:
                if next_seq not in (-1, batch.due):
                    raise corrupt(batch.path, 0, f"its events begin at {batch.due} instead of {next_seq}")
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

    def batches(self, from_seq: int = 0, hint: Place | None = None) -> Iterator[Batch]:
        """The lines from the frame that holds ``from_seq`` on, checked but not decoded.

        The chain of segments is checked from the first segment on that is read from its beginning.
        """
        first = max((i for i, name in enumerate(self._names) if _first_seq(name) <= from_seq), default=0)
        previous: tuple[str, str] | None = None
        for position in range(first, len(self._names)):
            name = self._names[position]
            is_last = position == len(self._names) - 1
            digest = None if is_last else hashlib.sha256()
            with opened(os.path.join(self._log, name)) as frames:
                self._seen = (name, frames.inode, frames.size, frames.changed_ns)
                head, offset = self._segment_header(frames)
                self._require_successor(frames.path, head, position, previous)
                start, due = offset, head.first_seq
                if position == first and from_seq > head.first_seq:
                    wanted = hint[1] if hint is not None and hint[0] == name else None
                    start, due = _seek(frames, offset, head.first_seq, from_seq, wanted)
                for batch in self._segment_batches(frames, start, is_last, due):
                    if digest is not None:
                        digest.update(b"\n".join((*batch.lines, b"")))
                    yield batch
            whole = digest is not None and start == offset
            previous = (name, digest.hexdigest()) if digest is not None and whole else None

    def _require_successor(
        self, path: str, head: SegmentHeader, position: int, previous: tuple[str, str] | None
    ) -> None:
        is_first = position == 0
        if head.first_seq != _first_seq(self._names[position]) or is_first != (head.first_seq == 0):
            raise corrupt(path, 0, f"its events cannot begin at {head.first_seq}")
        if is_first != (head.prev is None):
            raise corrupt(path, 0, "it does not say which segment comes before it")
        if head.prev is None:
            return
        if head.prev[0] != self._names[position - 1]:
            raise corrupt(path, 0, f"the segment before it, {head.prev[0]}, is missing")
        if previous is not None and head.prev != previous:
            raise corrupt(path, 0, "the segment before it has changed")

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
            raise corrupt(frames.path, damage.offset, damage.reason) from damage
        except EventRefused as error:
            raise corrupt(frames.path, 0, error.message) from error
        return head, end

    def _require_own(self, session_id: str) -> None:
        if not session_id or name_of_id(session_id) != os.path.basename(self._directory):
            raise EventRefused(f"it belongs to session {session_id!r}")

    def _segment_batches(
        self, frames: FrameFile, offset: int, is_last: bool, first_seq: int
    ) -> Iterator[Batch]:
        """The batches from ``offset`` on, whose first event is ``first_seq``."""
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
            raise corrupt(frames.path, damage.offset, damage.reason) from damage

    def _finish(self, next_seq: int, rescued: list[bytes]) -> None:
        end = self.end
        if end.next_seq > next_seq >= 0:
            raise corrupt(end.path, 0, f"its events begin at {end.next_seq} instead of {next_seq}")
        end.next_seq = max(end.next_seq, next_seq)
        end.rescued = rescued


def stable_events(directory: str, from_seq: int) -> Iterator[Event]:
    """As `LogReader.events`, by a reader without the lock: damage counts once it is seen twice unchanged."""
    attempts, failure, next_seq = 0, None, from_seq
    while True:
        reader = LogReader(directory)
        try:
            # From the beginning each time: what was read once is what the chain is checked with.
            for event in reader.events(from_seq):
                if event.seq >= next_seq:
                    next_seq = event.seq + 1
                    attempts = 0
                    yield event
            return
        except SessionCorrupt as error:
            attempts += 1
            if failure == (reader.seen, error.message) or attempts > _MAX_ATTEMPTS:
                raise
            failure = (reader.seen, error.message)


def _seek(
    frames: FrameFile, offset: int, first_seq: int, from_seq: int, wanted: int | None
) -> tuple[int, int]:
    """The last whole frame that begins at or before ``from_seq``, and its first seq.

    Only the first lines of a few frames are decoded. ``offset`` and ``first_seq`` are the first frame's.
    """
    try:
        spans = frames.whole_frames(offset)
        found = (offset, first_seq)
        for span in spans:
            if span[0] == wanted and _first_seq_of(frames, span) == from_seq:
                return span[0], from_seq
        low, high = 1, len(spans)
        while low < high:
            middle = (low + high) // 2
            seq = _first_seq_of(frames, spans[middle])
            if seq > from_seq:
                high = middle
            else:
                found, low = (spans[middle][0], seq), middle + 1
    except FrameDamage as damage:
        raise corrupt(frames.path, damage.offset, damage.reason) from damage
    return found


def _first_seq_of(frames: FrameFile, span: tuple[int, int]) -> int:
    head = b""
    for piece in frames.unchecked_pieces(*span):
        head += piece
        if b"\n" in piece:
            break
    try:
        return decode_line(head.partition(b"\n")[0])[0].seq
    except EventRefused as error:
        raise FrameDamage(span[0], error.message) from error


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
        raise corrupt(batch.path, batch.offset, error.message) from error
    return events


def _first_seq(name: str) -> int:
    return segment_first_seq(name) or 0


def corrupt(path: str, offset: int, reason: str) -> SessionCorrupt:
    """The one line that names the place of damage."""
    return SessionCorrupt(
        f"{path} is damaged at byte {offset}: {reason}",
        hint="the file was left as it is; put back a copy of it, or start a new session",
    )
