"""The vocabulary of a script: each function makes one entry, a plain JSON object, for one request.

An entry is what the server answers to one request. Every member is optional:

    text      what the model says; cut into `pieces` deltas (default 1), or a list of deltas
    think     reasoning_content, sent before the text; `signature` is what seals it on the Messages wire
    calls     [{"tool": NAME, "arguments": object or raw text, "id": optional}]
    finish    finish_reason; default "stop", "tool_calls" where there are calls; null sends none
    usage     object, sent in a chunk of its own; null sends none
    done      false leaves "[DONE]" out
    end       "keep" (default), "close" (clean end of the body by closing), "reset" (RST), "cut"
              (the socket is closed in the middle of a chunked body)
    ping      so many comment lines come first
    delay     seconds between packets
    stall     seconds of silence after the deltas, before the finish (then the rest is sent)
    hold      NAME: silence after the first delta until the test releases NAME
    per_byte  one byte a packet
    crlf      CRLF line ends in the event stream
    status, headers, body    an HTTP answer that is no stream (body: text or a JSON value)
    frames    raw SSE data payloads (text or JSON values) instead of all of the above; on the Messages
              wire an object's `type` becomes the event's name
    raw       latin-1 text: the bytes of the whole HTTP answer, head and all

A request to `/v1/messages` gets the same entry as the events of that wire (see `messages_wire`).

`@@N@@` in any text becomes the number of the request within its route (from 1), `@@R@@` the route.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["CC", "EOF", "ERRFRAME", "LEN", "PING", "RAW", "STALL", "THINK", "C", "Entry", "H", "T"]

Entry = dict[str, Any]


def T(text: str | list[str], pieces: int = 1, **more: Any) -> Entry:
    """Final text."""
    return {"text": text, "pieces": pieces, **more}


def C(tool: str, arguments: object, **more: Any) -> Entry:
    """One tool call; ``arguments`` is an object, or a string that is sent as it is."""
    return CC((tool, arguments), **more)


def CC(*calls: tuple[str, object], **more: Any) -> Entry:
    """Several tool calls in one message."""
    return {"calls": [{"tool": tool, "arguments": arguments} for tool, arguments in calls], **more}


def THINK(reasoning: str, entry: Entry) -> Entry:
    """``entry`` with reasoning before it."""
    return {**entry, "think": reasoning}


def LEN(text: str = "", **more: Any) -> Entry:
    """A reply cut by its length."""
    return {"text": text, "finish": "length", **more}


def EOF(text: str = "", **more: Any) -> Entry:
    """Some text, then the socket closes cleanly without a terminal chunk."""
    return {"text": text, "finish": None, "usage": None, "done": False, "end": "close", **more}


def STALL(seconds: float, text: str = "", **more: Any) -> Entry:
    """Some text, then silence, then the end of the socket."""
    return EOF(text, stall=seconds, **more)


def PING(count: int, **more: Any) -> Entry:
    """Only comment lines, then the socket closes."""
    return EOF("", ping=count, **more)


def H(code: int, headers: dict[str, str] | None = None, body: object = None) -> Entry:
    """An HTTP error; the body is an error object of the usual shape unless one is given."""
    if body is None:
        body = {"error": {"message": f"scripted status {code}", "type": "error", "param": None, "code": None}}
    return {"status": code, "headers": headers or {}, "body": body}


def ERRFRAME(code: object, message: str = "scripted error", kind: str = "error", text: str = "") -> Entry:
    """Status 200, maybe some text, then an error object in the stream."""
    frames: list[object] = []
    if text:
        frames.append({"choices": [{"index": 0, "delta": {"content": text}}]})
    frames.append({"error": {"message": message, "type": kind, "code": code}})
    return {"frames": [*frames, "[DONE]"]}


def RAW(answer: bytes) -> Entry:
    """Exactly these bytes, status line included, then the socket closes."""
    return {"raw": answer.decode("latin-1")}


def pieces_of(text: str, count: int) -> list[str]:
    """``text`` in at most ``count`` parts; a placeholder is never cut."""
    if not text:
        return []
    if count <= 1 or "@@" in text:
        return [text]
    size = -(-len(text) // count)
    return [text[start : start + size] for start in range(0, len(text), size)]


def dumps(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
