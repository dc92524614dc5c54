"""Entries compiled to packets, once when a script is loaded: sending is then only copying.

Pure: no socket, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tests.model_server.entries import Entry, dumps, pieces_of
from tests.model_server.messages_wire import deltas_of, ending_of

__all__ = ["Answer", "Packet", "Reply", "compile_entry"]

_REASONS = {200: "OK", 401: "Unauthorized", 402: "Payment Required", 429: "Too Many Requests"}
_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


@dataclass(frozen=True, slots=True)
class Packet:
    """Wait ``delay`` seconds and for the release of ``hold``, then send ``data`` in one write.

    ``template``: holds a placeholder. ``chunked``: gets an HTTP chunk frame when it is sent.
    """

    data: bytes
    delay: float = 0.0
    hold: str | None = None
    template: bool = False
    chunked: bool = True

    def wire(self, number: int, route: str) -> bytes:
        data = self.data
        if self.template:
            data = data.replace(b"@@N@@", b"%d" % number).replace(b"@@R@@", route.encode())
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data


@dataclass(frozen=True, slots=True)
class Reply:
    """``end``: keep, close, reset or cut (see `entries`)."""

    packets: tuple[Packet, ...]
    end: Literal["keep", "close", "reset", "cut"]


class Answer:
    """An entry as a reply on each wire, made when that wire first asks for it."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    @cached_property
    def chat(self) -> Reply:
        return compile_entry(self._entry)

    @cached_property
    def messages(self) -> Reply:
        return compile_entry(self._entry, is_messages=True)


def compile_entry(entry: Entry, is_messages: bool = False) -> Reply:
    if "raw" in entry:
        return Reply((Packet(entry["raw"].encode("latin-1"), chunked=False),), "close")
    if "status" in entry:
        return _plain(entry)
    end = entry.get("end", "keep")
    chunked = end != "close"
    head = _head(200, {"content-type": "text/event-stream", **entry.get("headers", {})}, chunked)
    payloads = [_frame(frame, entry, is_messages) for frame in _stream(entry, is_messages)]
    body = _packets(entry, payloads, chunked)
    tail = (Packet(b"0\r\n\r\n", chunked=False),) if end == "keep" else ()
    return Reply((Packet(head, chunked=False), *body, *tail), end)


def _plain(entry: Entry) -> Reply:
    body = dumps(entry.get("body", "")).encode()
    kind = "text/html" if body.startswith(b"<") else "application/json"
    headers = {"content-type": kind, "content-length": str(len(body)), **entry.get("headers", {})}
    return Reply((Packet(_head(entry["status"], headers, False) + body, chunked=False),), "keep")


def _head(status: int, headers: dict[str, str], chunked: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Scripted')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if chunked:
        lines.append("transfer-encoding: chunked")
    elif "content-length" not in headers:
        lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode()


@dataclass(frozen=True, slots=True)
class _Frame:
    """One SSE payload (``None`` with a comment for a comment line) and what to wait for before it."""

    data: object
    wait: float = 0.0
    hold: str | None = None
    comment: str | None = None


def _stream(entry: Entry, is_messages: bool) -> list[_Frame]:
    if "frames" in entry:
        return [_Frame(frame) for frame in entry["frames"]]
    frames = [_Frame(None, comment="keep-alive") for _ in range(entry.get("ping", 0))]
    deltas = deltas_of(entry) if is_messages else [_chunk(delta) for delta in _deltas(entry)]
    # A message and its first block begin with an event each, before the first delta.
    second = 3 if is_messages else 1
    hold = entry.get("hold")
    for index, delta in enumerate(deltas):
        frames.append(_Frame(delta, hold=hold if index == second else None))
    rest = [_Frame(event) for event in ending_of(entry)] if is_messages else list(_ending(entry))
    stall = entry.get("stall", 0.0)
    if stall or (hold and len(deltas) <= second):
        first = rest[0] if rest else _Frame(None, comment="end")
        rest[:1] = [_Frame(first.data, stall, hold if len(deltas) <= second else None, first.comment)]
    return frames + rest


def _ending(entry: Entry) -> list[_Frame]:
    frames = []
    finish = entry.get("finish", "tool_calls" if entry.get("calls") else "stop")
    if finish is not None:
        frames.append(_Frame(_chunk({"content": ""}, finish)))
    usage = entry.get("usage", _USAGE)
    if usage is not None:
        frames.append(_Frame({**_chunk({}), "choices": [], "usage": usage}))
    if entry.get("done", True):
        frames.append(_Frame("[DONE]"))
    return frames


def _deltas(entry: Entry) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    if entry.get("think"):
        deltas += [
            {"role": "assistant", "content": None, "reasoning_content": piece}
            for piece in pieces_of(entry["think"], entry.get("pieces", 1))
        ]
    text = entry.get("text", "")
    deltas += [
        {"content": piece}
        for piece in (text if isinstance(text, list) else pieces_of(text, entry.get("pieces", 1)))
    ]
    for index, call in enumerate(entry.get("calls", ())):
        arguments = call["arguments"]
        opening = {"name": call["tool"], "arguments": ""}
        identity = {"id": call.get("id", f"call_@@N@@_{index}"), "type": "function"}
        deltas.append({"tool_calls": [{"index": index, **identity, "function": opening}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in pieces_of(dumps(arguments), entry.get("pieces", 1))
        ]
    return deltas


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-scripted-@@N@@",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def _frame(frame: _Frame, entry: Entry, is_messages: bool) -> tuple[bytes, float, str | None]:
    line = f": {frame.comment}" if frame.comment is not None else f"data: {dumps(frame.data)}"
    end = "\r\n" if entry.get("crlf") else "\n"
    if is_messages and isinstance(frame.data, dict) and "type" in frame.data:
        line = f"event: {frame.data['type']}{end}{line}"
    return f"{line}{end}{end}".encode(), frame.wait, frame.hold


def _packets(entry: Entry, payloads: list[tuple[bytes, float, str | None]], chunked: bool) -> list[Packet]:
    delay = float(entry.get("delay", 0.0))
    packets = []
    for data, wait, hold in payloads:
        template = b"@@" in data
        if entry.get("per_byte"):
            data = data.replace(b"@@N@@", b"1")
            first = Packet(data[:1], wait or delay, hold, chunked=chunked)
            packets += [
                first,
                *(Packet(data[i : i + 1], delay, chunked=chunked) for i in range(1, len(data))),
            ]
        else:
            packets.append(Packet(data, wait or delay, hold, template, chunked))
    return packets
