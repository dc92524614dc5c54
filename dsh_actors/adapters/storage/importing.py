"""Sessions from files: the plain layout of `dsh session export`, as the original harness writes it too.

One header line, then one event or packed row a line, plain or as zstd frames; images a line each among
them. A file is checked as a whole before anything of it is stored; both passes stream.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import zstandard

from dsh_actors.adapters.storage.attachments import require_match
from dsh_actors.adapters.storage.frames import MAGIC
from dsh_actors.core.codec import decode_line
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.legacy import LegacyUpgrade
from dsh_actors.core.messages import ImageRef
from dsh_actors.core.repair import Closers
from dsh_actors.core.state import SessionState
from dsh_actors.core.text import JsonObject, clean_json, require_lossless, shape_fault
from dsh_actors.core.verify import fold
from dsh_actors.errors import (
    AttachmentError,
    EventRefused,
    SessionCorrupt,
    SessionUnsupported,
    UsageError,
)
from dsh_actors.ports import SessionStorage

__all__ = ["ImportFile", "store_session"]

MAX_LINE = 256 * 1024 * 1024
"""Bytes of a line. Memory is bounded by this and by what the model sees of the session."""

# Events have no member of this name, so the order of members and the space between them do not matter.
_IMAGE_LINE = re.compile(
    rb'\s*\{\s*"(?:type"\s*:\s*"attachment"|data"\s*:\s*"|attachment"\s*:\s*\{)', re.ASCII
)
_PIECE = 256 * 1024
# A few bytes of a frame may stand for 128 KiB each: small pieces keep what one of them becomes bounded.
_COMPRESSED_PIECE = 2048
_BATCH_EVENTS = 2048
_BATCH_CHARACTERS = 4 * 1024 * 1024
_HEADER_KEYS = frozenset(
    [
        "type",
        "version",
        "id",
        "createdAt",
        "cwd",
        "parentSession",
        "seedLength",
        "origin",
        "delegationDepth",
        "agentPreset",
    ]
)


def _drop(ref: ImageRef, data: bytes) -> None:
    """What becomes of an image while a file is only checked."""


@dataclass(frozen=True, slots=True)
class ImportFile:
    """A seekable file with a session in it. ``name`` stands in messages."""

    file: BinaryIO
    name: str

    def header(self) -> tuple[SessionHeader, list[str]]:
        """The session's header and the names of members that are not known here and will be left out.

        Raises `SessionCorrupt` or `SessionUnsupported`.
        """
        line = next(self._lines(), None)
        if line is None:
            raise SessionCorrupt(f"{self.name} is empty or cut off in its first line")
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict) or raw.get("type") != "session":
            raise SessionCorrupt(
                f"{self.name}: line 1 is not the header of a session",
                hint="dsh session export ID writes what can be imported",
            )
        version = raw.get("version")
        if type(version) is not int or version != 0:
            hint = "upgrade dsh to read it" if type(version) is int and version > 0 else None
            raise SessionUnsupported(f"{self.name}: session version {version!r} is not known here", hint=hint)
        try:
            return SessionHeader.from_json(clean_json(raw)), sorted(raw.keys() - _HEADER_KEYS)
        except EventRefused as error:
            raise SessionCorrupt(f"{self.name}: line 1: {error.message}") from error

    def check(self) -> int:
        """Read everything as `events` does and fold it; the number of events.

        Raises `SessionCorrupt` with the line, `SessionUnsupported` with the reason.
        """
        header, _ = self.header()
        state, closers, number = SessionState(header), Closers(), 0
        for number, event in self._numbered_events(header.id):
            try:
                require_lossless(event.data, f"event {event.seq}")
                fold(state, event)
                closers.observe(event)
            except (EventRefused, AttributeError) as error:
                raise self._damaged(number, str(error)) from error
        count = state.next_seq
        try:
            for event in closers.closing_events(state.next_seq):
                fold(state, event)
        except EventRefused as error:
            raise self._damaged(number, error.message) from error
        return count

    def events(self, keep_image: Callable[[ImageRef, bytes], None] = _drop) -> Iterator[Event]:
        """The events in today's shapes. Raises as `check` does, but folds nothing.

        ``keep_image`` is given each image when its line is met.
        """
        header, _ = self.header()
        for _number, event in self._numbered_events(header.id, keep_image):
            yield event

    def _numbered_events(
        self, session_id: SessionId, keep_image: Callable[[ImageRef, bytes], None] = _drop
    ) -> Iterator[tuple[int, Event]]:
        upgrade, due = LegacyUpgrade(session_id).upgrade, 0
        for number, line in enumerate(self._lines(), 1):
            if number == 1 or not line.strip():
                continue
            if _IMAGE_LINE.match(line):
                if line.endswith(b"\n"):
                    keep_image(*self._image(line, number))
                continue
            try:
                events = decode_line(line)
            except EventRefused as error:
                if not line.endswith(b"\n"):
                    return  # the last write of the file was cut off
                raise self._damaged(number, error.message) from error
            for event in events:
                if event.seq != due:
                    raise self._damaged(number, f"event {event.seq} stands where event {due} is due")
                due += 1
                yield number, self._current(upgrade, event, line, number)

    def _current(self, upgrade: Callable[[Event], Event], event: Event, line: bytes, number: int) -> Event:
        try:
            event = upgrade(event)
            event.require_known()
        except SessionUnsupported as error:
            message = f"{self.name}: line {number}: {error.message}"
            raise SessionUnsupported(message, hint=error.hint) from error
        if b"\\u" in line:
            # JSON escapes can spell half a surrogate pair, which no text of ours may hold.
            try:
                data: JsonObject = clean_json(event.data)
            except EventRefused as error:
                raise self._damaged(number, error.message) from error
            event = event if data == event.data else replace(event, data=data)
        return event

    def _image(self, line: bytes, number: int) -> tuple[ImageRef, bytes]:
        try:
            raw = json.loads(line)
            ref, data = ImageRef.from_json(raw["attachment"]), base64.b64decode(raw["data"], validate=True)
            if ref is None:
                raise self._damaged(number, "the image has no usable reference")
            require_match(ref, data, "the line")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(number, f"not an image: {shape_fault(error)}") from error
        except AttachmentError as error:
            raise self._damaged(number, error.message) from error
        return ref, data

    def _damaged(self, number: int, reason: str) -> SessionCorrupt:
        return SessionCorrupt(f"{self.name} is damaged at line {number}: {reason}")

    def _lines(self) -> Iterator[bytes]:
        """Every line with its newline; the last one may have none. Raises `SessionCorrupt`."""
        self.file.seek(0)
        is_zstd = self.file.read(len(MAGIC)) == MAGIC
        self.file.seek(0)
        rest: list[bytes] = []
        size, number = 0, 1
        try:
            for piece in _decoded(self.file) if is_zstd else iter(lambda: self.file.read(_PIECE), b""):
                *whole, last = piece.split(b"\n")
                for end in whole:
                    yield b"".join((*rest, end, b"\n"))
                    rest, size, number = [], 0, number + 1
                rest.append(last)
                size += len(last)
                if size > MAX_LINE:
                    raise self._damaged(number, f"the line is longer than {MAX_LINE} bytes")
        except zstandard.ZstdError as error:
            raise self._damaged(
                number, f"a zstd frame is damaged there or a little later: {error}"
            ) from error
        except OSError as error:
            raise UsageError(f"cannot read {self.name}: {error.strerror}") from error
        torn = b"".join(rest)
        if torn:
            yield torn


def _decoded(file: BinaryIO) -> Iterator[bytes]:
    """The content of concatenated frames, the last of which may be cut off. Raises ZstdError."""
    decoder = zstandard.ZstdDecompressor()
    frame = decoder.decompressobj()
    while data := file.read(_COMPRESSED_PIECE):
        while data:
            if frame.eof:
                frame = decoder.decompressobj()
            piece = frame.decompress(data)
            if piece:
                yield piece
            data = frame.unused_data if frame.eof else b""


def store_session(storage: SessionStorage, header: SessionHeader, events: Iterable[Event]) -> int:
    """Make a new session of ``events``, a bounded batch at a time; how many there were.

    It appears whole, or not at all. Raises `SessionExists` and what the storage or ``events`` raise.
    """
    draft = storage.draft(header)
    try:
        for batch in _batches(events):
            draft.append(batch)
        count = draft.next_seq
        draft.publish().close()
    except BaseException:
        draft.discard()
        raise
    return count


def _batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    batch: list[Event] = []
    size = 0
    for event in events:
        batch.append(event)
        # Chunks are small and many; anything else may be megabytes.
        size += 0 if event.type == "assistant/chunk" else len(str(event.data))
        if len(batch) >= _BATCH_EVENTS or size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
