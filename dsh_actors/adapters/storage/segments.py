"""Segment files: their header line, their names, and appending to the last one.

An append is compare-and-swap on the file's identity and size, and is taken back when any part of it fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
from collections import OrderedDict
from dataclasses import dataclass

from dsh_actors.adapters.storage.files import write_all
from dsh_actors.adapters.storage.frames import compress_frame
from dsh_actors.adapters.storage.layout import close_descriptor, storage_error
from dsh_actors.core.events import SessionHeader
from dsh_actors.core.text import JsonObject, shape_fault
from dsh_actors.errors import EventRefused, SessionBusy, SessionUnsupported

__all__ = [
    "FORMAT",
    "SegmentHeader",
    "SegmentTail",
    "segment_first_seq",
    "segment_name",
    "segment_names",
    "touch",
]

FORMAT = 1

_NAME = re.compile(r"(\d{12,})\.jsonl\.zst")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first line of a segment. ``header`` stands in the first segment of a session only.

    ``prev`` is the segment before and the SHA-256 of its decoded lines after its own header.
    """

    session: str
    first_seq: int
    prev: tuple[str, str] | None = None
    header: SessionHeader | None = None

    def encode(self) -> bytes:
        """The line with its newline. Raises `EventRefused` for text that is not valid Unicode."""
        prev = None
        if self.prev is not None:
            prev = {"segment": self.prev[0], "records_sha256": self.prev[1]}
        row: JsonObject = {
            "type": "segment",
            "format": FORMAT,
            "session": self.session,
            "first_seq": self.first_seq,
            "prev": prev,
        }
        if self.header is not None:
            row["header"] = self.header.to_json()
        try:
            return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        except UnicodeEncodeError as error:
            raise EventRefused(f"session header: not valid Unicode: {error}") from error

    @staticmethod
    def decode(line: bytes) -> SegmentHeader:
        """Raises `EventRefused` for a wrong shape, `SessionUnsupported` for a newer format."""
        try:
            row = json.loads(line.decode())
            if row["type"] != "segment" or type(row["format"]) is not int or row["format"] < 1:
                raise EventRefused("the first line is no segment header")
            if row["format"] > FORMAT:
                message = f"the session was written by a newer version of dsh (format {row['format']})"
                raise SessionUnsupported(message, hint="upgrade dsh to read it")
            session, first_seq, prev = row["session"], row["first_seq"], row["prev"]
            header = row.get("header")
            if type(session) is not str or type(first_seq) is not int:
                raise EventRefused("the segment header has a wrong session or first_seq")
            return SegmentHeader(
                session,
                first_seq,
                None if prev is None else (prev["segment"], prev["records_sha256"]),
                None if header is None else SessionHeader.from_json(header),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EventRefused(f"the first line is no segment header: {shape_fault(error)}") from error


def segment_name(first_seq: int) -> str:
    return f"{first_seq:012d}.jsonl.zst"


def segment_first_seq(name: str) -> int | None:
    """The seq in a segment's name; None for a file that is no segment."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def segment_names(log_directory: str) -> list[str]:
    """The segments in order. Raises OSError."""
    numbered = [(segment_first_seq(name), name) for name in os.listdir(log_directory)]
    return [name for _seq, name in sorted((seq, name) for seq, name in numbered if seq is not None)]


_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_MAX_OPEN = 1_024 if _LIMIT == resource.RLIM_INFINITY else min(1_024, _LIMIT // 8)
_open_tails: OrderedDict[SegmentTail, int] = OrderedDict()
"""Descriptors of the segments that were appended to last; older ones are closed, so that an idle session
costs none in the long run. Whoever takes one out owns it, which is one atomic step."""


class SegmentTail:
    """The end of the last segment, as its writer believes it to be. The session's lock is held.

    ``first`` are the lines behind its header where it was made just now: their digest is carried on then.
    """

    __slots__ = ("_digest", "_inode", "_is_dirty", "folder", "name", "path", "size")

    def __init__(self, path: str, inode: int, size: int, first: bytes | None = None) -> None:
        self.path = path
        self.folder, self.name = os.path.split(path)
        self.size = size
        self._inode = inode
        self._is_dirty = False  # a failed append could not be taken back
        self._digest = None if first is None else hashlib.sha256(first)

    def records_sha256(self) -> str | None:
        """Of the lines behind the header. None where this process did not write them all."""
        return None if self._digest is None else self._digest.hexdigest()

    def close(self) -> None:
        """Nothing is appended any more. May be called again."""
        descriptor = _open_tails.pop(self, None)
        if descriptor is not None:
            close_descriptor(descriptor)

    def move(self, folder: str) -> None:
        """Its directory has another name now."""
        self.folder, self.path = folder, os.path.join(folder, self.name)

    @property
    def first_seq(self) -> int:
        return segment_first_seq(self.name) or 0

    def append(self, data: bytes) -> None:
        """Add ``data`` as one frame; durable on return, otherwise nothing is added.

        Raises `SessionBusy` if somebody else changed the file, `StorageFull` or `StorageError`.
        """
        frame = compress_frame(data)
        descriptor, is_sound = _open_tails.pop(self, None), False
        try:
            if descriptor is None:
                descriptor = self._open()
            self._require_unchanged(descriptor)
            self._is_dirty = True
            try:
                write_all(descriptor, frame)
                os.fdatasync(descriptor)
            except BaseException:
                self._take_back(descriptor)
                raise
            self.size += len(frame)
            self._is_dirty, is_sound = False, True
            if self._digest is not None:
                self._digest.update(data)
        except OSError as error:
            raise storage_error(error, "write", self.path) from error
        finally:
            if is_sound and descriptor is not None:
                self._keep(descriptor)
            elif descriptor is not None:
                close_descriptor(descriptor)

    def require_unchanged(self) -> None:
        """Check it as `append` does. Raises `SessionBusy` or OSError."""
        descriptor = self._open()
        try:
            self._require_unchanged(descriptor)
        finally:
            close_descriptor(descriptor)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _keep(self, descriptor: int) -> None:
        _open_tails[self] = descriptor
        while len(_open_tails) > _MAX_OPEN:
            try:
                close_descriptor(_open_tails.popitem(last=False)[1])
            except KeyError:
                return  # other threads took them all

    def _require_unchanged(self, descriptor: int) -> None:
        # By its name: a descriptor would not tell that another file has taken its place.
        status = os.lstat(self.path)
        if self._is_dirty and status.st_size > self.size and status.st_ino == self._inode:
            self._take_back(descriptor)
            status = os.lstat(self.path)
        if status.st_size != self.size or status.st_ino != self._inode:
            raise SessionBusy(
                f"stale writer: {self.path} is not as this process left it, nothing was written",
                hint="another program changed the session; resume it again",
            )

    def _take_back(self, descriptor: int) -> None:
        os.ftruncate(descriptor, self.size)
        self._is_dirty = False


def touch(directory: str, now_ms: int) -> None:
    """Date a session's directory: one look at it then tells when the session last changed."""
    try:
        os.utime(directory, ns=(now_ms * 1_000_000, now_ms * 1_000_000))
    except OSError as error:
        raise storage_error(error, "write", directory) from error
