"""Reading what is left of a damaged session directory. Nothing there is opened for writing, or locked.

A frame is used if it is whole and its checksum is right; after damage the next such frame is looked
for. Of a frame that is cut off at the end of the log its complete lines are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from dsh_actors.adapters.storage.frames import FrameDamage, FrameFile
from dsh_actors.adapters.storage.layout import LOG_NAME, id_of_name, is_denied, storage_error
from dsh_actors.adapters.storage.segments import SegmentHeader, segment_names
from dsh_actors.core.codec import decode_line
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.salvage import Damage
from dsh_actors.errors import EventRefused, SessionCorrupt

__all__ = ["DamagedLog"]


@dataclass(slots=True)
class _Frame:
    offset: int
    end: int
    lines: list[bytes] = field(default_factory=list)


class DamagedLog:
    """The readable events and the damaged places of the session in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._log = os.path.join(directory, LOG_NAME)
        try:
            self._paths = [os.path.join(self._log, name) for name in segment_names(self._log)]
        except FileNotFoundError:
            self._paths = []
        except OSError as error:
            raise storage_error(error, "read", self._log) from error

    def header(self, cwd: str | None = None) -> SessionHeader:
        """The session's header; where it is lost, one with the id, the time of the first event and ``cwd``.

        Raises as `items` does, and `SessionCorrupt` if nothing can be read.
        """
        first: Event | None = None
        for item in self.items():
            if isinstance(item, SegmentHeader):
                if item.header is not None:
                    return item.header
            elif isinstance(item, Event):
                first = item
                break
        if first is None:
            raise SessionCorrupt(f"nothing in {self._log} can be read", hint="put back a copy of it")
        name = id_of_name(os.path.basename(self._directory))
        return SessionHeader(SessionId(name), max(first.time, 0), cwd)

    def items(self) -> Iterator[SegmentHeader | Event | Damage]:
        """Everything in the order of the files.

        Raises `SessionUnsupported` for a newer format, `StorageError` for what this user may not read.
        """
        for position, path in enumerate(self._paths):
            yield from self._segment(path, position == len(self._paths) - 1)

    def _segment(self, path: str, is_last: bool) -> Iterator[SegmentHeader | Event | Damage]:
        try:
            frames = FrameFile(path)
        except OSError as error:
            if is_denied(error):
                raise storage_error(error, "read", path) from error
            yield Damage(path, 0, 0, f"it cannot be opened: {error.strerror}")
            return
        try:
            for found in _frames(frames, is_last):
                if isinstance(found, Damage):
                    yield found
                    continue
                lines = found.lines
                if found.offset == 0 and lines:
                    yield from self._segment_header(path, found)
                    continue
                for line in lines:
                    try:
                        yield from decode_line(line)
                    except EventRefused as error:
                        size = found.end - found.offset
                        yield Damage(path, found.offset, size, f"a line is no event: {error.message}")
        finally:
            frames.close()

    def _segment_header(self, path: str, frame: _Frame) -> Iterator[SegmentHeader | Damage]:
        try:
            yield SegmentHeader.decode(frame.lines[0])
        except EventRefused as error:
            yield Damage(path, 0, frame.end, error.message)


def _frames(frames: FrameFile, is_last: bool) -> Iterator[_Frame | Damage]:
    """The whole frames of a file, and what lies between them."""
    offset = 0
    while offset < frames.size:
        try:
            frame = _whole(frames, offset)
        except FrameDamage as damage:
            reason, is_cut = damage.reason, False
        else:
            if frame is not None:
                yield frame
                offset = frame.end
                continue
            reason, is_cut = "the file ends inside a frame", True
        following = _next_whole(frames, offset + 1)
        end = frames.size if following is None else following
        is_tail = following is None and is_last and is_cut
        if is_tail:
            lines = b"".join(frames.torn_pieces(offset)).split(b"\n")[:-1]
            yield _Frame(offset, end, _events_at_head(lines))
        yield Damage(frames.path, offset, end - offset, reason, is_tail)
        offset = end


def _whole(frames: FrameFile, offset: int) -> _Frame | None:
    """The frame at ``offset``; None if the file ends inside it. Raises `FrameDamage`."""
    end = frames.frame_end(offset)
    if end is None:
        return None
    lines = b"".join(frames.pieces(offset, end)).split(b"\n")
    if lines[-1]:
        raise FrameDamage(offset, "the frame ends inside a line")
    return _Frame(offset, end, lines[:-1])


def _next_whole(frames: FrameFile, start: int) -> int | None:
    """Where the next whole frame begins, from ``start`` on."""
    return next((place for place in frames.magics(start) if _is_whole(frames, place)), None)


def _is_whole(frames: FrameFile, offset: int) -> bool:
    try:
        return _whole(frames, offset) is not None
    except FrameDamage:
        return False


def _events_at_head(lines: list[bytes]) -> list[bytes]:
    """The lines up to the first that is no event: zeros or noise follow a write that was cut off."""
    for position, line in enumerate(lines):
        try:
            decode_line(line)
        except EventRefused:
            return lines[:position]
    return lines
