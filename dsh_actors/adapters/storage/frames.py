"""Independent zstd frames in a file: writing one, walking over many, decoding them in pieces.

Every frame here has a checksum and a content size. The walk reads block headers only, so the
question "is this frame whole?" needs no decoding. Objects belong to one thread at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, cast

import zstandard

from dsh_actors.adapters.storage.layout import close_descriptor, open_to_read, storage_error
from dsh_actors.errors import SessionNotFound

__all__ = ["MAGIC", "FrameDamage", "FrameFile", "compress_frame", "opened"]

LEVEL = 3
MAGIC = b"\x28\xb5\x2f\xfd"

_WINDOW = 256 * 1024
_SLICE = 64 * 1024
_PIECE = 256 * 1024
# Up to this size a frame is checked as a whole before any of it is given away.
_MAX_WHOLE = 1024 * 1024
_MAX_BLOCK = 128 * 1024
_LONGEST_HEADER = 18
# A flipped bit is looked for in incomplete frames up to this size: in their headers, and in the block
# headers where the walk ended, as it goes astray right behind a damaged one.
_MAX_PROBED_FRAME = 1024 * 1024
_PROBED_TAIL = 16 * 3

_At = Callable[[int, int], bytes]


class FrameDamage(Exception):
    """What stands at ``offset`` is neither a whole frame nor the beginning of one."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def compress_frame(data: bytes, level: int = LEVEL) -> bytes:
    """``data`` as one frame."""
    if level != LEVEL or len(data) > _MAX_REUSED:
        return _compressor(level).compress(data)
    try:
        compressor = _idle_compressors.pop()
    except IndexError:
        compressor = _compressor(LEVEL)
    frame = compressor.compress(data)
    _idle_compressors.append(compressor)
    return frame


# A compressor keeps megabytes after one large batch, and making one costs as much as a small batch. So
# those of small batches are used again, by one thread at a time: at most as many as compress at once.
_MAX_REUSED = 64 * 1024
_idle_compressors: list[zstandard.ZstdCompressor] = []


def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)


@contextmanager
def opened(path: str) -> Iterator[FrameFile]:
    """The frames of ``path`` for as long as the block runs. Raises `SessionNotFound` or `StorageError`."""
    try:
        frames = FrameFile(path)
    except FileNotFoundError as error:
        raise SessionNotFound(f"{path} is gone") from error
    except OSError as error:
        raise storage_error(error, "read", path) from error
    try:
        yield frames
    finally:
        frames.close()


class FrameFile:
    """The frames of one file, up to the size that it had when it was opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = open_to_read(path)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self.inode = status.st_ino
        self.changed_ns = status.st_mtime_ns
        self._decompressor = zstandard.ZstdDecompressor()
        self._window = b""
        self._window_start = 0

    def close(self) -> None:
        """May be called again."""
        if self._descriptor >= 0:
            close_descriptor(self._descriptor)
            self._descriptor = -1

    def is_frame(self, start: int) -> bool:
        """Whether a frame, or the beginning of one, stands at ``start``."""
        magic = self._at(start, len(MAGIC))
        return MAGIC.startswith(magic) and magic != b""

    def frame_end(self, start: int) -> int | None:
        """Where the frame at ``start`` ends; None if the file ends before. Raises `FrameDamage`."""
        return _walk(self._at, start, self.size)

    def whole_frames(self, start: int) -> list[tuple[int, int]]:
        """Start and end of every whole frame from ``start`` on. Raises `FrameDamage`."""
        found: list[tuple[int, int]] = []
        while start < self.size and self.is_frame(start):
            end = self.frame_end(start)
            if end is None:
                break
            found.append((start, end))
            start = end
        return found

    def content_size(self, start: int) -> int:
        """How long the content of the frame at ``start`` claims to be."""
        return zstandard.frame_content_size(self._at(start, _LONGEST_HEADER))

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The content of the frame in ``[start, end)``, decoded and checked. Raises `FrameDamage`.

        A frame with more than `_MAX_WHOLE` of content is given away while it is checked.
        """
        if self.content_size(start) <= _MAX_WHOLE:
            yield b"".join(self.unchecked_pieces(start, end))
        else:
            yield from self.unchecked_pieces(start, end)

    def unchecked_pieces(self, start: int, end: int) -> Iterator[bytes]:
        """As `pieces`, but what comes before the last piece is given away before the frame is checked."""
        span = cast(IO[bytes], _Span(self._at, start, end))
        size, reader = 0, self._decompressor.stream_reader(span)
        while True:
            try:
                # Bounded output: a few bytes of a frame may stand for megabytes.
                piece = reader.read(_PIECE)
            except zstandard.ZstdError as error:
                raise FrameDamage(start, f"the frame cannot be decoded: {error}") from error
            if not piece:
                break
            size += len(piece)
            yield piece
        if size != self.content_size(start):
            raise FrameDamage(start, "the frame has no end")

    def torn_pieces(self, start: int) -> Iterator[bytes]:
        """What can be decoded of an incomplete frame that begins at ``start``."""
        decoder = self._decompressor.decompressobj()
        for position in range(start, self.size, _SLICE):
            try:
                piece = decoder.decompress(self._at(position, min(_SLICE, self.size - position)))
            except zstandard.ZstdError:
                return  # the rest of the tail is of no use
            if piece:
                yield piece

    def require_torn(self, start: int) -> None:
        """Check that what follows ``start`` is a write that was cut off, not damage.

        Cut off is the beginning of one frame, or the zeros of a write whose data never arrived.
        Raises `FrameDamage` if a later frame is whole, or if one flipped bit explains it all.
        """
        if self._is_zeros(start):
            return
        if not self.is_frame(start):
            raise FrameDamage(start, "no frame begins here")
        for candidate in self.magics(start + 1):
            if self._is_whole(candidate):
                raise FrameDamage(start, f"a whole frame follows at byte {candidate}")
        if self.size - start <= _MAX_PROBED_FRAME and _is_bit_from_whole(self._at(start, self.size - start)):
            raise FrameDamage(start, "the structure of the frame is damaged")

    def raw(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes as they are, in pieces."""
        for position in range(start, end, _WINDOW):
            yield self._at(position, min(_WINDOW, end - position))

    def _at(self, position: int, count: int) -> bytes:
        """Up to ``count`` bytes at ``position``, fewer only at the end of the file."""
        offset = position - self._window_start
        if offset < 0 or offset + count > len(self._window):
            wanted = min(max(count, _WINDOW), self.size - position)
            try:
                self._window = os.pread(self._descriptor, max(wanted, 0), position)
            except OSError as error:
                raise storage_error(error, "read", self.path) from error
            self._window_start, offset = position, 0
        return self._window[offset : offset + count]

    def _is_zeros(self, start: int) -> bool:
        return all(not any(piece) for piece in self.raw(start, self.size))

    def magics(self, start: int) -> Iterator[int]:
        """Where a frame may begin, from ``start`` on."""
        overlap = len(MAGIC) - 1
        for position in range(start, self.size, _SLICE):
            piece = self._at(position, _SLICE + overlap)
            found = piece.find(MAGIC)
            while found >= 0:
                yield position + found
                found = piece.find(MAGIC, found + 1)

    def _is_whole(self, start: int) -> bool:
        try:
            end = self.frame_end(start)
            if end is None:
                return False
            for _piece in self.pieces(start, end):
                continue
        except FrameDamage:
            return False
        return True


class _Span:
    """Some bytes of a file, as a decompressor reads them."""

    def __init__(self, at: _At, position: int, end: int) -> None:
        self._at = at
        self._position = position
        self._end = end

    def read(self, count: int) -> bytes:
        piece = self._at(self._position, min(count, self._end - self._position))
        self._position += len(piece)
        return piece


def _walk(at: _At, start: int, limit: int, visited: list[int] | None = None) -> int | None:
    """The end of the frame at ``start``; None if it lies beyond ``limit``. Raises `FrameDamage`.

    ``visited`` collects the positions of the bytes that decided.
    """
    head = at(start, _LONGEST_HEADER)
    if not (MAGIC.startswith(head[:4]) or head.startswith(MAGIC)):
        raise FrameDamage(start, "no frame begins here")
    if len(head) < 5:
        return None
    descriptor = head[4]
    size_code, is_single = descriptor >> 6, descriptor & 0x20
    # Reserved bit clear, checksum present, no dictionary, content size present.
    if descriptor & 0x0F != 0x04 or not (size_code or is_single):
        raise FrameDamage(start, "this is no frame of a session log")
    position = start + 5 + (0 if is_single else 1) + (1 << size_code)
    if visited is not None:
        visited.extend(range(start, min(position, limit)))
    is_last = False
    while not is_last:
        block = int.from_bytes(at(position, 3), "little")
        if position + 3 > limit:
            return None
        if visited is not None:
            visited.extend(range(position, position + 3))
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if block == 0:
            return None  # zeros where data never arrived: an empty block comes last or not at all
        if kind == 3 or size > _MAX_BLOCK:
            raise FrameDamage(start, "a block header of the frame is damaged")
        position += 3 + (1 if kind == 1 else size)
    return position + 4 if position + 4 <= limit else None


def _is_bit_from_whole(torn: bytes) -> bool:
    """Whether flipping one bit of the structure makes ``torn`` exactly one whole, valid frame."""
    probe = bytearray(torn)

    def at(position: int, count: int) -> bytes:
        return bytes(probe[position : position + count])

    visited: list[int] = []
    try:
        _walk(at, 0, len(probe), visited)
    except FrameDamage:
        return False
    for position in visited[:_LONGEST_HEADER] + visited[_LONGEST_HEADER:][-_PROBED_TAIL:]:
        for bit in range(8):
            probe[position] ^= 1 << bit
            if _is_exactly_whole(at, probe):
                return True
            probe[position] ^= 1 << bit
    return False


def _is_exactly_whole(at: _At, frame: bytearray) -> bool:
    try:
        if _walk(at, 0, len(frame)) != len(frame):
            return False
        decoder = zstandard.ZstdDecompressor().decompressobj()
        decoder.decompress(bytes(frame))
    except (FrameDamage, zstandard.ZstdError):
        return False
    return decoder.eof
