"""Files that appear whole or not at all: drafts, links and renames, each made durable before it counts.

Everything here raises OSError; whoever knows what the file is for says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from dsh_actors.adapters.storage.layout import close_descriptor, fsync_directory

__all__ = ["DRAFT_PREFIX", "remove_drafts", "truncate", "write_all", "write_atomically"]

DRAFT_PREFIX = ".draft-"


def write_all(descriptor: int, data: bytes) -> None:
    """Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_atomically(path: str, pieces: Iterable[bytes], *, replace: bool = True) -> tuple[int, int]:
    """Make ``pieces`` the durable content of ``path``; its inode and size.

    On a failure ``path`` is as it was or, if only the last sync failed, new already. Raises
    FileExistsError unless it may ``replace`` a file.
    """
    directory = os.path.dirname(path)
    draft = os.path.join(directory, f"{DRAFT_PREFIX}{os.getpid()}-{os.urandom(8).hex()}")
    placed = False
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for piece in pieces:
                write_all(descriptor, piece)
            os.fsync(descriptor)
            status = os.fstat(descriptor)
        finally:
            close_descriptor(descriptor)
        if replace:
            os.rename(draft, path)
        else:
            # A link never replaces a file, a rename would.
            os.link(draft, path)
            placed = True
            os.unlink(draft)
        fsync_directory(directory)
    except BaseException:
        for leftover in (draft, path) if placed else (draft,):
            if os.path.lexists(leftover):
                os.unlink(leftover)
        raise
    return status.st_ino, status.st_size


def truncate(path: str, size: int) -> None:
    """Durably."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        close_descriptor(descriptor)


def remove_drafts(directory: str) -> None:
    """Remove what killed writers left in ``directory``. Its session's lock is held, so none is in use."""
    if not os.path.isdir(directory):
        return
    for name in os.listdir(directory):
        if name.startswith(DRAFT_PREFIX):
            os.unlink(os.path.join(directory, name))
