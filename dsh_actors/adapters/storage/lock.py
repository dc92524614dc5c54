"""The kernel lock that makes a session have one writer. It ends with its holder, however that ends.

The file is never removed while the session exists; its text only tells people who holds the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os

from dsh_actors.adapters.storage.layout import close_descriptor, open_to_read, storage_error
from dsh_actors.errors import SessionBusy, SessionNotFound, StorageError

__all__ = ["SessionLock", "is_held", "this_process"]

_HELD = frozenset({errno.EWOULDBLOCK, errno.EACCES})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_MAX_TEXT = 4096
# A look at a lock (`is_held`) holds it shared for microseconds; so many of them in a row is somebody else.
_ATTEMPTS = 10_000
# A pipe in the place of the file is never waited for.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SessionLock:
    """A held lock. Used by one thread at a time."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @staticmethod
    def acquire(path: str, owner: str, what: str) -> SessionLock:
        """Take the lock at ``path`` at once and write ``owner`` into it.

        Raises `SessionBusy` naming the holder of ``what``, `SessionNotFound` if the directory went
        away meanwhile, `StorageError` where locks do not work.
        """
        try:
            descriptor = os.open(path, _FLAGS, 0o600)
            try:
                _hold(descriptor, path, owner, what)
            except BaseException:
                close_descriptor(descriptor)
                raise
        except FileNotFoundError as error:
            raise SessionNotFound(f"{what} went away while it was being opened") from error
        except OSError as error:
            if error.errno in _NO_LOCKS:
                message = f"file locks do not work at {path}: {error.strerror}"
                raise StorageError(message, hint="set DSH_HOME to a file system with locks") from error
            raise storage_error(error, "lock", path) from error
        return SessionLock(descriptor)

    def release(self) -> None:
        """Give the lock back. May be called again."""
        if self._descriptor is not None:
            close_descriptor(self._descriptor)
            self._descriptor = None


def is_held(path: str) -> bool:
    """Whether a live writer holds the lock at ``path``. Neither waits nor makes a writer fail."""
    try:
        descriptor = open_to_read(path)
    except OSError:
        return False  # no lock file, or not ours to read: then no writer of ours is known to hold it
    try:
        return not _flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        return False  # locks do not work there, so nobody can hold one
    finally:
        close_descriptor(descriptor)


def this_process() -> str:
    """One line that names this process to people who meet its locks."""
    return f"pid {os.getpid()} on {os.uname().nodename}"


def _hold(descriptor: int, path: str, owner: str, what: str) -> None:
    if not _try_exclusive(descriptor):
        raise SessionBusy(f"{what} is in use by {_holder(descriptor)}")
    if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
        raise SessionBusy(f"{what} was replaced while it was being opened")
    text = owner.encode(errors="replace")[:_MAX_TEXT]
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))


def _try_exclusive(descriptor: int) -> bool:
    for _ in range(_ATTEMPTS):
        if _flock(descriptor, fcntl.LOCK_EX):
            return True
        if not _flock(descriptor, fcntl.LOCK_SH):
            return False  # a writer has it: those who only look would share it
    return False


def _flock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, _MAX_TEXT, 0).decode(errors="replace").strip()
    return text or "another process"
