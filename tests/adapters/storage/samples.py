"""Events and storages that the tests of this folder share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import zstandard

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId

OWNER = "process 7 on testhost since 2026-01-01 (dsh run)"


class Ticking:
    """A clock that advances one second with each look."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        self.now_ms += 1000
        return self.now_ms


def header(session_id: str = "s1", cwd: str | None = "/srv/shop") -> SessionHeader:
    return SessionHeader(SessionId(session_id), 1_700_000_000_000, cwd)


def turn(first_seq: int, number: int = 1, chunks: int = 4, prompt: str = "say hi") -> list[Event]:
    """A whole turn of one step, with a packed run in it."""
    rows: list[tuple[str, dict[str, object]]] = [("turn/start", {"turn": number})]
    content = [{"type": "text", "text": prompt}]
    message = {"id": f"u{number}", "role": "user", "content": content, "source": {"kind": "user"}}
    rows += [("step/start", {"turn": number, "step": 1}), ("user/message", message)]
    for i in range(chunks):
        chunk = {"type": "text-delta", "index": 0, "text": f"wörd {i} "}
        rows.append(("assistant/chunk", {"turn": number, "step": 1, "chunk": chunk}))
    rows += [("step/end", {"turn": number, "step": 1})]
    rows += [("turn/end", {"turn": number, "reason": {"kind": "completed"}})]
    return [
        Event(kind, seq, 1_700_000_000_000 + seq, data, "append" if kind == "user/message" else None)
        for seq, (kind, data) in enumerate(rows, first_seq)
    ]


def notes(first_seq: int, count: int, text: str = "") -> list[Event]:
    """Events of about the size of ``text`` that nothing can be packed from."""
    return [Event("run/note", first_seq + i, i, {"text": text}, ignorable=True) for i in range(count)]


def disk(root: str | os.PathLike[str], **sizes: int) -> SegmentStorage:
    return SegmentStorage(os.fspath(root), OWNER, Ticking(), **sizes)


def whole_log(storage: SegmentStorage, session_id: str = "s1") -> list[bytes]:
    """The decoded lines of all segments without their headers, as another program reads them."""
    log = Path(storage.path(SessionId(session_id)), "log")
    lines: list[bytes] = []
    for path in sorted(log.glob("*.zst")):
        with path.open("rb") as file:
            text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        head, *rest = text.splitlines()
        assert head.startswith(b'{"type":"segment"')
        lines += rest
    return lines


def stored(storage: SegmentStorage, batches: Sequence[list[Event]], session_id: str = "s1") -> str:
    """Write each batch as one append; returns the path of the segment."""
    writer = storage.create(header(session_id))
    for batch in batches:
        writer.append(batch)
    writer.close()
    return segment(storage, session_id)


def segment(storage: SegmentStorage, session_id: str = "s1", first_seq: int = 0) -> str:
    return os.path.join(storage.path(SessionId(session_id)), "log", f"{first_seq:012d}.jsonl.zst")


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start Python code that may import this project, with pipes for its input and output."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_child(code: str, *arguments: object) -> str:
    """What the code prints. It has to end well."""
    process = child(code, *arguments)
    output, _ = process.communicate()
    assert process.returncode == 0
    return output
