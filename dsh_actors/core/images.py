"""What the bytes of an image say about it: type, pixels, whether they are whole. Pure; decodes nothing.

PNG, JPEG, GIF and WebP, read by their published layouts (PNG: ISO/IEC 15948; JPEG: ITU-T T.81;
GIF89a; WebP: RFC 9649).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from dsh_actors.core.events import Event
from dsh_actors.core.messages import IMAGE_TYPES, ImageRef
from dsh_actors.errors import ImageRefused

__all__ = [
    "HEAD_BYTES",
    "MAX_IMAGES",
    "MAX_IMAGE_BYTES",
    "MAX_PIXELS",
    "MAX_SIDE",
    "MAX_TOTAL_BYTES",
    "ImageFacts",
    "image_type",
    "images_of",
    "inspect_image",
    "require_batch",
]

MAX_IMAGE_BYTES = 20 << 20
MAX_IMAGES = 20
"""Images of one message."""

MAX_TOTAL_BYTES = 32 << 20
"""Of one message: as base64 they fit into the 48 MiB that providers take, with room for the rest."""

MAX_PIXELS = 64_000_000
MAX_SIDE = 8192

HEAD_BYTES = 12
"""So many bytes tell the type."""

MAX_PARTS = 250_000
"""Chunks, segments or blocks: three times what a picture of 20 MiB has, against files made to be slow."""

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_AFTER_FILL = re.compile(rb"[^\xff]", re.DOTALL)
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
# Start-of-frame markers; C4, C8 and CC between them are something else.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}



@dataclass(frozen=True, slots=True)
class ImageFacts:
    """``width`` and ``height`` are pixels as stored, before any rotation that metadata asks for."""

    media_type: str
    width: int
    height: int


class _Broken(Exception):
    """Why the bytes are no whole image."""


def image_type(head: bytes) -> str | None:
    """The media type that the first `HEAD_BYTES` bytes announce; None for what is no known image."""
    if head.startswith(_PNG):
        return "image/png"
    if head.startswith(_JPEG):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def inspect_image(data: bytes, name: str) -> ImageFacts:
    """The facts of a whole image within the limits. ``name`` stands in the message of what is raised.

    Raises `ImageRefused` with the code UNSUPPORTED_IMAGE_TYPE, INVALID_IMAGE (damaged or cut off),
    IMAGE_TOO_LARGE, IMAGE_TOO_MANY_PIXELS or IMAGE_DIMENSION_TOO_LARGE.
    """
    kind = image_type(data[:HEAD_BYTES])
    if kind is None:
        raise ImageRefused(
            f"{name} is not an image that can be attached",
            code="UNSUPPORTED_IMAGE_TYPE",
            hint="use PNG, JPEG, GIF or WebP",
        )
    if len(data) > MAX_IMAGE_BYTES:
        size = f"larger than {MAX_IMAGE_BYTES >> 20} MiB"
        raise ImageRefused(f"{name} is {size}, the most that an image may have", code="IMAGE_TOO_LARGE")
    try:
        width, height = _READERS[kind](data)
    except (_Broken, IndexError) as error:
        reason = str(error) if isinstance(error, _Broken) else "it is cut off"
        raise ImageRefused(f"{name} is no whole {IMAGE_TYPES[kind]} image: {reason}") from error
    if width < 1 or height < 1:
        raise ImageRefused(f"{name} is no whole {IMAGE_TYPES[kind]} image: it has no pixels")
    shape = f"{name} has {width} × {height} pixels"
    if max(width, height) > MAX_SIDE:
        raise ImageRefused(f"{shape}; a side may have {MAX_SIDE}", code="IMAGE_DIMENSION_TOO_LARGE")
    if width * height > MAX_PIXELS:
        raise ImageRefused(f"{shape}; {MAX_PIXELS} are the most", code="IMAGE_TOO_MANY_PIXELS")
    return ImageFacts(kind, width, height)


def require_batch(count: int, total_bytes: int) -> None:
    """Whether so much may go with one message. Raises `ImageRefused`: TOO_MANY_IMAGES or IMAGES_TOO_LARGE."""
    if count > MAX_IMAGES:
        raise ImageRefused(
            f"{count} images are too many: a message takes {MAX_IMAGES}", code="TOO_MANY_IMAGES"
        )
    if total_bytes > MAX_TOTAL_BYTES:
        raise ImageRefused(
            f"the images together are larger than {MAX_TOTAL_BYTES >> 20} MiB", code="IMAGES_TOO_LARGE"
        )


def images_of(event: Event) -> Iterator[ImageRef]:
    """Every reference to an image in an event, however deep."""
    if event.type == "assistant/chunk":
        chunk = event.data.get("chunk")
        if not isinstance(chunk, dict) or chunk.get("type") != "block-end":
            return  # a delta, of which there are many
    work: list[object] = [event.data]
    while work:
        item = work.pop()
        if isinstance(item, dict):
            if "attachmentId" in item and (ref := ImageRef.from_json(item)) is not None:
                yield ref
            work.extend(item.values())
        elif isinstance(item, list | tuple):
            work.extend(item)


def _broken(reason: str) -> NoReturn:
    raise _Broken(reason)


def _number(data: bytes, start: int, size: int, order: str = "big") -> int:
    piece = data[start : start + size]
    if len(piece) < size:
        _broken("it is cut off")
    return int.from_bytes(piece, "big" if order == "big" else "little")


def _png(data: bytes) -> tuple[int, int]:
    """Chunks: length, type, content, checksum; IHDR first, IEND last, pixels in IDAT between."""
    if data[12:16] != b"IHDR" or _number(data, 8, 4) != 13:
        _broken("its header is missing")
    at, has_pixels, view = len(_PNG), False, memoryview(data)
    for _ in range(MAX_PARTS):
        length, kind = _number(data, at, 4), data[at + 4 : at + 8]
        end = at + 8 + length
        checksum = _number(data, end, 4)
        if zlib.crc32(view[at + 4 : end]) != checksum:
            _broken("a checksum does not match")
        has_pixels |= kind == b"IDAT" and length > 0
        at = end + 4
        if kind == b"IEND":
            break
    else:
        _broken("it has too many parts")
    if not has_pixels:
        _broken("it holds no pixels")
    return _number(data, 16, 4), _number(data, 20, 4)


def _jpeg(data: bytes) -> tuple[int, int]:
    """Segments with a length each, up to the first scan, which an end marker must follow."""
    at, size = 2, None
    for _ in range(MAX_PARTS):
        if data[at] != 0xFF:
            _broken("a marker is missing")
        found = _AFTER_FILL.search(data, at)  # any number of fill bytes
        if found is None:
            _broken("it is cut off")
        marker, at = data[found.start()], found.end()
        if marker in _NO_LENGTH:
            continue
        if marker == 0xD9:
            _broken("it holds no pixels")
        length = _number(data, at, 2)
        if length < 2:
            _broken("a segment has no length")
        if marker in _FRAMES:
            size = _number(data, at + 5, 2), _number(data, at + 3, 2)
        at += length
        if marker == 0xDA:
            break
    else:
        _broken("it has too many parts")
    if size is None:
        _broken("its header is missing")
    # Coded pixels hold no such pair, so the first one would do; the last one also covers several scans.
    if data.rfind(b"\xff\xd9", at) < 0:
        _broken("it is cut off")
    return size


def _gif(data: bytes) -> tuple[int, int]:
    """Screen descriptor, then extensions and images as runs of sub-blocks, then the trailer."""
    at = 13 + _colours(data[10])
    has_pixels, parts = False, 0
    while (kind := data[at]) != 0x3B:
        if kind == 0x2C:
            has_pixels = True
            at += 10 + _colours(data[at + 9]) + 1
        elif kind == 0x21:
            at += 2
        else:
            _broken("a block is of no known kind")
        while (length := data[at]) != 0:
            at, parts = at + 1 + length, parts + 1
            _require_few(parts)
        at, parts = at + 1, parts + 1
        _require_few(parts)
    if not has_pixels:
        _broken("it holds no pixels")
    return _number(data, 6, 2, "little"), _number(data, 8, 2, "little")


def _require_few(parts: int) -> None:
    if parts > MAX_PARTS:
        _broken("it has too many parts")


def _colours(flags: int) -> int:
    """The bytes of the colour table that a packed field announces."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _webp(data: bytes) -> tuple[int, int]:
    """RIFF chunks: one picture (VP8 or VP8L), or VP8X with the canvas and the pictures after it."""
    whole = _number(data, 4, 4, "little") + 8
    if whole > len(data):
        _broken("it is cut off")
    at, size, has_pixels = 12, None, False
    for _ in range(MAX_PARTS):
        if at + 8 > whole:
            break
        kind, length, body = data[at : at + 4], _number(data, at + 4, 4, "little"), at + 8
        if body + length > whole:
            _broken("it is cut off")
        if kind == b"VP8X":
            size = _number(data, body + 4, 3, "little") + 1, _number(data, body + 7, 3, "little") + 1
        elif kind in (b"VP8 ", b"VP8L", b"ANMF"):
            has_pixels = True
            if size is None:
                size = _webp_picture(data, kind, body)
        at = body + length + (length & 1)
    else:
        _broken("it has too many parts")
    if size is None or not has_pixels:
        _broken("it holds no pixels")
    return size


def _webp_picture(data: bytes, kind: bytes, body: int) -> tuple[int, int]:
    if kind == b"VP8L":
        if data[body] != 0x2F:
            _broken("its header is missing")
        bits = _number(data, body + 1, 4, "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind != b"VP8 " or data[body + 3 : body + 6] != b"\x9d\x01\x2a":
        _broken("its header is missing")
    return _number(data, body + 6, 2, "little") & 0x3FFF, _number(data, body + 8, 2, "little") & 0x3FFF


_READERS: dict[str, Callable[[bytes], tuple[int, int]]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
}
