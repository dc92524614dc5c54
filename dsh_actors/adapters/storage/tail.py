"""Cutting a torn tail away, under the lock and before anything is appended; what is cut is kept beside."""

from __future__ import annotations

import os
from itertools import chain, count

from dsh_actors.adapters.storage.files import truncate, write_atomically
from dsh_actors.adapters.storage.frames import compress_frame, opened
from dsh_actors.adapters.storage.layout import open_to_read, storage_error
from dsh_actors.adapters.storage.recovery import LogEnd
from dsh_actors.adapters.storage.segments import SegmentTail
from dsh_actors.errors import SessionBusy

__all__ = ["repair_tail"]


def repair_tail(end: LogEnd) -> SegmentTail:
    """Cut off what stands behind the valid part and keep it beside; the session's lock is held.

    Rescued lines become the last frame. Raises `StorageFull` or `StorageError`.
    """
    if end.end == end.size:
        return SegmentTail(end.path, end.inode, end.size)
    try:
        with opened(end.path) as frames:
            if (frames.inode, frames.size) != (end.inode, end.size):
                raise SessionBusy(f"{end.path} changed while it was being repaired")
            _keep_beside(end.path, b"".join(frames.raw(end.end, end.size)))
            if end.rescued:
                last = compress_frame(b"\n".join((*end.rescued, b"")))
                write_atomically(end.path, chain(frames.raw(0, end.end), (last,)))
            else:
                truncate(end.path, end.end)
        status = os.stat(end.path)
    except OSError as error:
        raise storage_error(error, "repair", end.path) from error
    return SegmentTail(end.path, status.st_ino, status.st_size)


def _keep_beside(path: str, torn: bytes) -> None:
    for number in count(1):
        kept = f"{path}.torn" if number == 1 else f"{path}.torn-{number}"
        if not os.path.exists(kept):
            write_atomically(kept, (torn,))
            return
        with os.fdopen(open_to_read(kept, follow=True), "rb") as file:
            if file.read() == torn:
                return  # an earlier repair of the same tail came so far
