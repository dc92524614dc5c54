"""Sealed segments: opening the next one, and rewriting the old ones smaller, with the same lines.

A sealed segment is never appended to again. Its successor's header holds the digest of its lines,
so a rewriting that changed one of them would be found before it replaces anything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from dsh_actors.adapters.storage.files import write_atomically
from dsh_actors.adapters.storage.frames import FrameDamage, FrameFile, compress_frame, opened
from dsh_actors.adapters.storage.layout import LOG_NAME, storage_error
from dsh_actors.adapters.storage.recovery import LogReader, corrupt
from dsh_actors.adapters.storage.segments import SegmentHeader, SegmentTail, segment_name
from dsh_actors.errors import SessionBusy

__all__ = ["open_next", "rewrite", "unpacked"]

PACKED_LEVEL = 9
PACKED_TEXT = 256 * 1024
"""A rewritten segment has one frame for so many bytes of text, rounded up to whole lines."""


def open_next(tail: SegmentTail, session: str, next_seq: int, data: bytes) -> SegmentTail:
    """Seal the segment that ends in ``tail`` and store ``data`` as the first batch of the next.

    Durable on return, otherwise nothing has changed. Raises `SessionBusy` if somebody else changed
    the segment, `SessionCorrupt` if it cannot be read, `StorageFull` or `StorageError`.
    """
    path = os.path.join(tail.folder, segment_name(next_seq))
    try:
        tail.require_unchanged()
        previous = (tail.name, tail.records_sha256() or _records_sha256(tail.path))
        head = SegmentHeader(session, next_seq, previous).encode()
        inode, size = write_atomically(path, (compress_frame(head), compress_frame(data)), replace=False)
    except FileExistsError as error:
        raise SessionBusy(f"stale writer: {path} exists already, nothing was written") from error
    except OSError as error:
        raise storage_error(error, "write", path) from error
    return SegmentTail(path, inode, size, data)


def unpacked(directory: str, names: list[str]) -> list[str]:
    """Which of the segments before the last were not rewritten yet, oldest first.

    They are rewritten in this order, so only the newest are looked at.
    """
    found: list[str] = []
    for name in reversed(names[:-1]):
        with opened(os.path.join(directory, LOG_NAME, name)) as frames:
            try:
                if _is_packed(frames):
                    break
            except FrameDamage:
                break  # damage is for a reader to find
        found.insert(0, name)
    return found


def rewrite(directory: str, name: str) -> None:
    """Replace a sealed segment by one with the same lines in larger frames.

    Raises `SessionCorrupt` if its lines are not those that were sealed, `StorageFull` or
    `StorageError`; the segment has the same lines then.
    """
    reader = LogReader(directory)
    successor = reader.segment_header(reader.names[reader.names.index(name) + 1])
    path = os.path.join(directory, LOG_NAME, name)
    with opened(path) as frames:
        try:
            write_atomically(path, _packed(frames, None if successor.prev is None else successor.prev[1]))
        except FrameDamage as damage:
            raise corrupt(path, damage.offset, damage.reason) from damage
        except OSError as error:
            raise storage_error(error, "rewrite", path) from error


def _packed(frames: FrameFile, records_sha256: str | None) -> Iterator[bytes]:
    """The frames of the rewritten segment. Raises `FrameDamage` at its end if the lines are others."""
    spans = _all_frames(frames)
    yield from frames.raw(*spans[0])
    digest, text, searched = hashlib.sha256(), bytearray(), PACKED_TEXT - 1
    for span in spans[1:]:
        for piece in frames.pieces(*span):
            digest.update(piece)
            text += piece
            while cut := text.find(b"\n", searched) + 1:
                yield compress_frame(bytes(text[:cut]), PACKED_LEVEL)
                del text[:cut]
                searched = PACKED_TEXT - 1
            searched = max(PACKED_TEXT - 1, len(text))
    if digest.hexdigest() != records_sha256:
        raise FrameDamage(0, "its lines are not those that were sealed")
    if text:
        yield compress_frame(bytes(text), PACKED_LEVEL)


def _records_sha256(path: str) -> str:
    """Of the lines behind the header. Raises `SessionCorrupt`."""
    digest = hashlib.sha256()
    with opened(path) as frames:
        try:
            for span in _all_frames(frames)[1:]:
                for piece in frames.pieces(*span):
                    digest.update(piece)
        except FrameDamage as damage:
            raise corrupt(path, damage.offset, damage.reason) from damage
    return digest.hexdigest()


def _all_frames(frames: FrameFile) -> list[tuple[int, int]]:
    spans = frames.whole_frames(0)
    end = spans[-1][1] if spans else 0
    if end != frames.size:
        raise FrameDamage(end, "no whole frame stands here")
    return spans


def _is_packed(frames: FrameFile) -> bool:
    """Whether only the last frame has less text than a rewritten one."""
    return all(frames.content_size(start) >= PACKED_TEXT for start, _end in frames.whole_frames(0)[1:-1])
