"""Writes the stored session of format 1 that every later version must read: `python make_format_1.py DIR`.

The same bytes for the same version of the compressor. Run it only to add what a format can newly hold,
never to make a failing test pass: sessions that users have cannot be made again either.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from dsh_actors.adapters.storage.frames import compress_frame  # noqa: E402
from dsh_actors.adapters.storage.segments import SegmentHeader, segment_name  # noqa: E402
from dsh_actors.core.codec import encode_batch  # noqa: E402
from dsh_actors.core.events import Event, SessionHeader  # noqa: E402
from dsh_actors.core.ids import SessionId  # noqa: E402
from tests.session_logs import turns  # noqa: E402

HEADER = SessionHeader(SessionId("golden"), 1_700_000_000_000, "/srv/shop", SessionId("parent"), 0)


def events() -> list[Event]:
    """Two turns with reasoning, calls and proofs of requests, then a third that was cut off in a tool."""
    log = turns(3)
    calls = [event.seq for event in log if event.type == "tool/call"]
    return log[: calls[-1] + 1]


def segments() -> dict[str, bytes]:
    """The files of the log: a sealed segment and an open one, a frame for every durable batch."""
    import hashlib

    log = events()
    middle = next(event.seq for event in log if event.type == "turn/end") + 1
    sealed, rest = encode_batch(log[:middle]), encode_batch(log[middle:])
    first = SegmentHeader(HEADER.id, 0, None, HEADER).encode()
    chain = (segment_name(0), hashlib.sha256(sealed).hexdigest())
    second = SegmentHeader(HEADER.id, middle, chain).encode()
    return {
        segment_name(0): compress_frame(first) + compress_frame(sealed),
        segment_name(middle): compress_frame(second) + compress_frame(rest),
    }


def write(directory: Path) -> None:
    place = directory / "srv-shop" / "golden" / "log"
    place.mkdir(parents=True)
    (place.parent / "lock").write_bytes(b"")
    for name, data in segments().items():
        (place / name).write_bytes(data)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
