"""Server-sent events from a byte stream of any shape, one list of events for each read.

Lines and byte order marks are normalised and whole events handed to sseclient-py, so that no
event is parsed twice or late, however the network cut the bytes. Events of the usual one or two
lines are read here, in half the time. No network code here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import cast

from sseclient import Event, SSEClient

from dsh_actors.adapters.llm.errors import looks_like_events

__all__ = ["MAX_EVENT_BYTES", "PREFIX_BYTES", "EventSource", "EventTooLarge"]

READ_BYTES = 65_536
MAX_EVENT_BYTES = 32 * 1024 * 1024
PREFIX_BYTES = 4_096
"""What is kept of the start of the body, to tell what it was if it was no event stream."""

BUSY_S = 0.005
"""How long a stream that always has data may keep other work waiting."""

BLOCKED_S = 0.0005
"""A read longer than this has waited for data, so others had their turn."""

_event = cast(Callable[[None, str, str], Event], Event)
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event is longer than `MAX_EVENT_BYTES`."""


class EventSource:
    """Reads events from ``read(n) -> bytes`` (empty at the end) until ``stopped()`` is true.

    ``prefix`` holds the first `PREFIX_BYTES` of the body, ``received`` counts its bytes.
    ``at_end`` becomes true at the end of the body; an event that has no blank line after it then
    comes in a last list of its own, with ``is_tail`` set, and an unfinished line is dropped. ``rest``
    is then what followed the last blank line: all of a body that is no event stream, but for blank
    lines before it.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        stopped: Callable[[], bool],
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        self.prefix = b""
        self.rest = b""
        self.received = 0
        self.at_end = False
        self.is_tail = False
        self._read = read
        self._stopped = stopped
        self._max_event_bytes = max_event_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ends_line = True  # what is held ends with a line feed, or nothing is held
        self._after_cr = False
        self._batch = b""
        self._is_foreign: bool | None = None
        # The parser only iterates its source, anew for each batch.
        self._client = SSEClient(cast(Iterator[bytes], self))

    def __iter__(self) -> Iterator[bytes]:
        """The bytes that the parser has to read now: whole events only."""
        return iter((self._batch,))

    @property
    def is_foreign(self) -> bool:
        """Whether enough of the body is there to see that it is no event stream."""
        if self._is_foreign is None:
            if self.received < PREFIX_BYTES:
                return False
            whole_lines = self.prefix[: self.prefix.rfind(b"\n") + 1]
            self._is_foreign = not looks_like_events(whole_lines or self.prefix)
        return self._is_foreign

    def close(self) -> None:
        """Part of what sseclient-py asks of a source; closing is the reader's business."""

    def batches(self) -> Iterator[list[Event]]:
        """Lists of events, one a read; empty ones for reads that completed none.

        Raises `EventTooLarge`, and whatever the reading function raises.
        """
        last_pause = time.monotonic()
        read, stopped, clock = self._read, self._stopped, time.monotonic
        while not stopped():
            before = clock()
            data = read(READ_BYTES)
            now = clock()
            if stopped():
                return
            if not data:
                self.at_end = True
                yield from self._tail()
                return
            whole = self._take(data)
            yield self._parse(whole) if whole else []
            if now - before > BLOCKED_S:
                last_pause = now
            elif now - last_pause > BUSY_S:
                # A sleep of zero would look at sockets and timers only now and then.
                time.sleep(1e-6)
                last_pause = clock()

    def _take(self, data: bytes) -> bytes:
        """Add what was read; return the events that are now complete."""
        if self.received >= PREFIX_BYTES and not self._after_cr and b"\r" not in data:
            self.received += len(data)
            if not self._held and data.endswith(b"\n\n"):
                self._ends_line = True
                return data
            return self._split(data)
        if len(self.prefix) < PREFIX_BYTES:
            self.prefix += data[: PREFIX_BYTES - len(self.prefix)]
        start = self.received
        self.received = start + len(data)
        if start < len(_BOM):
            data = self._without_bom(data, start)
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 10:
                data = data[1:]
        if b"\r" in data:
            self._after_cr = data[-1] == 13
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data:
            return b""
        return self._split(data)

    def _without_bom(self, data: bytes, start: int) -> bytes:
        """Hold back the first bytes while they may still be a byte order mark."""
        seen = self.prefix[: self.received]
        if self.received < len(_BOM) and _BOM.startswith(seen):
            return b""
        if seen.startswith(_BOM):
            return data[len(_BOM) - start :]
        # The first bytes were held back, but were no mark.
        return seen[:start] + data if start and _BOM.startswith(seen[:start]) else data

    def _split(self, data: bytes) -> bytes:
        cut = data.rfind(b"\n\n") + 2
        if cut == 1:
            # No blank line inside; one may begin with the line feed that ends what is held.
            cut = 1 if self._ends_line and data[0] == 10 else 0
        self._ends_line = data[-1] == 10
        if cut == 0:
            self._hold(data)
            return b""
        self._held.append(data[:cut])
        whole = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        if cut < len(data):
            self._hold(data[cut:])
        return whole

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > self._max_event_bytes:
            raise EventTooLarge(f"one event is longer than {self._max_event_bytes} bytes")

    def _parse(self, whole: bytes) -> list[Event]:
        if len(whole) > self._max_event_bytes + READ_BYTES:
            raise EventTooLarge(f"one event is longer than {self._max_event_bytes} bytes")
        try:
            events = _plain_events(whole)
        except UnicodeDecodeError:
            whole = whole.decode("utf-8", "replace").encode()
            events = _plain_events(whole)
        if events is not None:
            return events
        self._batch = whole
        return list(self._client.events())

    def _tail(self) -> Iterator[list[Event]]:
        rest = self.rest = b"".join(self._held)
        whole = rest[: rest.rfind(b"\n") + 1]
        self._held.clear()
        if whole:
            self.is_tail = True
            yield self._parse(whole)


def _plain_events(whole: bytes) -> list[Event] | None:
    """The events of ``whole``, or None unless each is a comment, or one data line, perhaps after its name.

    Raises `UnicodeDecodeError`.
    """
    if whole.startswith(b"data: ") and whole.find(b"\n") == len(whole) - 2:
        return [_event(None, "message", whole[6:-2].decode())]
    events: list[Event] = []
    blocks = whole.decode().split("\n\n")
    if blocks.pop():
        return None
    for block in blocks:
        if block.startswith("data: "):
            name, data = "message", block[6:]
        elif block.startswith("event: "):
            name, _, line = block[7:].partition("\n")
            if not name or not line.startswith("data: "):
                return None
            data = line[6:]
        elif block.startswith(":") and "\n" not in block:
            continue
        else:
            return None
        if "\n" in data:
            return None
        events.append(_event(None, name, data))
    return events
