"""Ordered writing to an inherited file descriptor (pipe, file or terminal) that never blocks the hub.

The descriptor's flags are shared with other processes, so it is never made non-blocking: a native
thread of the writer's own does the writing, and may hang there for as long as nobody reads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from gevent import Greenlet
from gevent.event import Event

from dsh_actors.errors import ProtocolError
from dsh_actors.runtime.files import NativePool
from dsh_actors.runtime.log import LOGGER

__all__ = ["MAX_QUEUED_BYTES", "Writer"]

MAX_QUEUED_BYTES = 8 << 20
_CHUNK_BYTES = 64 << 10


class Writer:
    """Writes to ``fd`` in the order of the calls. The descriptor itself is never closed.

    ``broken`` is set when a write fails (the reader has gone, the disk is full; see ``error``): what
    is queued and all later data is dropped, and ``on_broken`` is called once.
    """

    def __init__(self, fd: int, *, on_broken: Callable[[], None] | None = None) -> None:
        self.fd = fd
        self.broken = False
        self.error: BaseException | None = None
        self.on_broken = on_broken
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._is_draining = False
        self._is_closed = False
        self._pool = NativePool(1)
        self._idle = Event()
        self._idle.set()
        self._room = Event()
        self._room.set()

    @property
    def queued_bytes(self) -> int:
        """How much is not written yet."""
        return self._queued

    def write(self, data: bytes, *, wait: bool = False) -> None:
        """Queue ``data``. With ``wait`` the calling greenlet waits while more than 8 MiB are queued.

        Raises `ProtocolError` after `close`.
        """
        if self._is_closed:
            raise ProtocolError("The output is closed.")
        if self.broken or not data:
            return
        self._queue.append(bytes(data))
        self._queued += len(data)
        if self._queued > MAX_QUEUED_BYTES:
            self._room.clear()
        if not self._is_draining:
            self._is_draining = True
            self._idle.clear()
            Greenlet.spawn(self._drain)
        if wait:
            self._room.wait()

    def flush(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds till all is written; whether it is, and nothing was dropped."""
        self._idle.wait(timeout_s)
        return not self._is_draining and not self.broken

    def close(self) -> None:
        """Accept no more. Returns at once; what is queued is still written: call `flush` before."""
        if not self._is_closed:
            self._is_closed = True
            if not self._is_draining:
                self._pool.close()

    def _drain(self) -> None:
        try:
            while self._queue:
                self._write_all(self._take())
        except Exception as error:
            # An `OSError` of the write; anything else would be lost in this greenlet.
            self._break(error)
        except BaseException as error:
            # Thrown into this greenlet by whoever ends everything: then nothing more is written.
            self._break(error)
            raise
        finally:
            self._is_draining = False
            self._idle.set()
        if self._is_closed:
            self._pool.close()

    def _take(self) -> bytes:
        """The next bytes to write: many small pieces cost one hop to the thread."""
        queue = self._queue
        pieces = [queue.popleft()]
        size = len(pieces[0])
        while queue and size + len(queue[0]) <= _CHUNK_BYTES:
            pieces.append(queue.popleft())
            size += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                count = self._write_some(view[:_CHUNK_BYTES])
            except BlockingIOError:
                # Another process made the shared descriptor non-blocking.
                from gevent.socket import wait_write

                wait_write(self.fd)
                continue
            view = view[count:]
            self._queued -= count
            if self._queued <= MAX_QUEUED_BYTES:
                self._room.set()

    def _write_some(self, data: memoryview) -> int:
        try:
            return self._pool.run(os.write, self.fd, data)
        except RuntimeError:
            # No thread can be started (out of memory, a limit on processes): better wait than lose output.
            return os.write(self.fd, data)

    def _break(self, error: BaseException) -> None:
        self.broken = True
        self.error = error
        self._queue.clear()
        self._queued = 0
        self._room.set()
        if self.on_broken is not None:
            try:
                self.on_broken()
            except Exception:
                # The callback is the caller's.
                LOGGER.exception("the callback for a broken output failed")
