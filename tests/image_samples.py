"""Small images that tests share, made by hand: whole files of each type, byte for byte."""

from __future__ import annotations

import struct
import zlib

from dsh_actors.adapters.storage.attachments import MemoryAttachments
from dsh_actors.core.messages import ImageBlock

__all__ = ["ALL_TYPES", "block", "chunk", "gif", "jpeg", "png", "webp", "webp_canvas"]


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int = 2, height: int = 3, colour: int = 200) -> bytes:
    """A grey picture that every decoder shows; only its header is right for huge sizes."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = (b"\0" + bytes([colour]) * width) * height if width * height < 1_000_000 else b"\0"
    pixels = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def jpeg(width: int = 2, height: int = 3, frame: int = 0xC0) -> bytes:
    """Segments as a camera writes them, with a preview that has an end marker of its own."""
    preview = b"Exif\0\0" + b"\xff\xd8\xff\xd9"
    app = b"\xff\xe1" + struct.pack(">H", len(preview) + 2) + preview
    size = struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    scan = b"\xff\xda" + struct.pack(">H", 8) + b"\x01\x01\x00\x00\x3f\x00" + b"\x12\xff\x00\x34\xff\xd0\x56"
    return b"\xff\xd8" + app + b"\xff" + bytes([0xFF, frame]) + size + scan + b"\xff\xd9"


def gif(width: int = 2, height: int = 3) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    extension = b"\x21\xf9\x04\0\0\0\0\0"
    picture = b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\0"
    return b"GIF89a" + screen + extension + picture + b"\x3b"


def _riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(
        kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) & 1) for kind, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def webp(width: int = 2, height: int = 3, parts: int = 0) -> bytes:
    """Lossless: 14 bits for each side less one. ``parts`` empty chunks of no meaning follow."""
    bits = (width - 1) | (height - 1) << 14
    return _riff((b"VP8L", b"\x2f" + struct.pack("<I", bits) + b"\x07\x10\x11"), *[(b"ABCD", b"")] * parts)


def webp_canvas(width: int = 2, height: int = 3) -> bytes:
    """An extended file, lossy inside, whose picture is smaller than its canvas."""
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    picture = b"\x10\x02\x00\x9d\x01\x2a" + struct.pack("<HH", 1, 1) + b"\x00\x47"
    return _riff((b"VP8X", b"\0\0\0\0" + sides), (b"VP8 ", picture))


ALL_TYPES = {
    "image/png": png(),
    "image/jpeg": jpeg(),
    "image/gif": gif(),
    "image/webp": webp(),
}


def block(data: bytes, name: str | None = None, store: MemoryAttachments | None = None) -> ImageBlock:
    """The block of an image, which ``store`` has then."""
    return ImageBlock((store or MemoryAttachments()).put(data, name))
