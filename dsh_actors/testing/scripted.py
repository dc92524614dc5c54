"""A provider that plays a script instead of asking a model. Needs no key and no network.

A script is a list of entries, one a request, in order:

    {"text": "…"}                                        an answer
    {"think": "…", "text": "…"}                          reasoning before it
    {"calls": [{"tool": "bash", "arguments": {…}}]}      tool calls; arguments may be raw text
    {"finish": "length"}                                 stop, tool_calls, length
    {"error": {"code": "RATE_LIMIT", "status": 429, "retry_after_ms": 3000, "message": "…"}}

An entry with ``"for": TEXT`` is for agents whose task holds that text: such an agent gets the entries for it,
in order, and every other agent those that are for nobody.

Any entry may carry ``"usage"`` ({"input", "output", "cache_read", "cache_write", "reasoning"}) and
``"chunks"``, the number of pieces that each text is cut into. Usage is estimated where it is absent.
"""

from __future__ import annotations

import json
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    CallConfig,
    Chunk,
    Failure,
    Finish,
    FinishKind,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import Block, Message, ReasoningBlock, TextBlock, ToolCallBlock, text_of
from dsh_actors.core.request import ModelRequest, RequestHeader
from dsh_actors.core.retry import RetryPolicy
from dsh_actors.core.text import JsonObject, clean_text, json_fault, read_json
from dsh_actors.errors import UsageError
from dsh_actors.ports import PreparedCall, StreamControl

__all__ = ["ScriptedProvider", "check_script"]

CONTEXT_WINDOW = 1_000_000
DEFAULT_CHUNKS = 3

_ENTRY_KEYS = frozenset({"text", "think", "calls", "finish", "error", "usage", "chunks", "for"})
_USAGE_KEYS = frozenset({"input", "output", "cache_read", "cache_write", "reasoning"})
_ERROR_KEYS = frozenset({"code", "status", "retry_after_ms", "message"})
_FINISHES: dict[str, FinishKind] = {"stop": "stop", "tool_calls": "tool-calls", "length": "max-tokens"}


class ScriptedProvider:
    """Plays ``entries``, or the script that the model's name points to: a file, or ``demo``.

    Each script is played once by a provider, whoever asks. With ``entries`` every request is kept
    in `requests`.
    """

    def __init__(
        self,
        entries: Sequence[JsonObject] | None = None,
        *,
        name: str = "scripted",
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self.name = name
        self.retry_policy = retry_policy or RetryPolicy()
        self._bodies: list[bytes] = []
        self._keeps_requests = entries is not None
        self._own = None if entries is None else _Player(check_script(list(entries), "entries"))
        self._players: dict[str, _Player] = {}

    @property
    def requests(self) -> list[ModelRequest]:
        """The normalised requests so far, oldest first."""
        return [_decode(body) for body in self._bodies]

    def play(self, entries: Sequence[JsonObject]) -> None:
        """Go on with this script. Raises `UsageError` where it is none."""
        self._own = _Player(check_script(list(entries), "entries"))

    def prepare(self, config: CallConfig) -> PreparedCall:
        """Reads the script's file when it is named first. Raises `UsageError` where it is no script."""
        if self._own is None and config.model != "demo":
            self._player(config.model)
        return _ScriptedCall(config)

    def stream(self, call: PreparedCall, body: bytes, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        """Play the next entry. A script that has run out fails with SCRIPT_EXHAUSTED."""
        if self._keeps_requests:
            self._bodies.append(body)
        number, entry = self._next(call.config.model, body)
        if entry is None:
            text = f"the script has no entry for request {number}"
            yield [Finish("error", Failure(text, "SCRIPT_EXHAUSTED"))]
            return
        for chunk in _chunks(entry, number, body):
            if control.aborted is not None:
                yield [_aborted(control.aborted)]
                return
            yield [chunk]

    def _next(self, model: str, body: bytes) -> tuple[int, JsonObject | None]:
        if self._own is None and model == "demo":
            from dsh_actors.testing.demo import demo_entry

            request = _decode(body)
            step = sum(message.role == "assistant" for message in request.messages)
            return step + 1, demo_entry(request)
        return (self._own or self._player(model)).next(body)

    def _player(self, path: str) -> _Player:
        player = self._players.get(path)
        if player is None:
            player = self._players[path] = _Player(_read_script(path))
        return player


class _Player:
    """Each list of entries is played by those it is for; the numbers of requests are the script's."""

    def __init__(self, entries: list[JsonObject]) -> None:
        self._played = 0
        self._rest: dict[str | None, deque[JsonObject]] = {None: deque()}
        for entry in entries:
            self._rest.setdefault(entry.get("for"), deque()).append(entry)

    def next(self, body: bytes) -> tuple[int, JsonObject | None]:
        self._played += 1
        whose = None
        if len(self._rest) > 1:
            task = _task(_decode(body))
            whose = next((name for name in self._rest if name is not None and name in task), None)
        rest = self._rest[whose]
        return self._played, rest.popleft() if rest else None


def _task(request: ModelRequest) -> str:
    """What the agent was last asked to do, by a person or by another agent."""
    for message in reversed(request.messages):
        if message.role == "user" and message.source.to_json()["kind"] in ("user", "coordinator"):
            return text_of(message)
    return ""


@dataclass(frozen=True, slots=True)
class _ScriptedCall:
    config: CallConfig
    adapter_defaults: frozenset[str] = frozenset()
    context_window: int | None = CONTEXT_WINDOW
    input_modalities: tuple[str, ...] = ("text", "image")

    def encoder(self) -> _Encoder:
        return _Encoder()


class _Encoder:
    """The normalised request as JSON, its length first; each message is encoded once."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._parts: list[bytes] = []

    def encode(self, request: ModelRequest) -> bytes:
        known = len(self._messages)
        if list(request.messages[:known]) != self._messages:
            self._messages, self._parts, known = [], [], 0
        for message in request.messages[known:]:
            self._messages.append(message)
            self._parts.append(_dump(message.to_json()))
        head = b'{"length":%d,"header":%b,"messages":[' % (
            len(self._messages),
            _dump(request.header.to_json()),
        )
        return head + b",".join(self._parts) + b"]}"


def _dump(value: JsonObject) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _decode(body: bytes) -> ModelRequest:
    data = json.loads(body)
    return ModelRequest(
        RequestHeader.from_json(data["header"]), tuple(map(Message.from_json, data["messages"]))
    )


def _read_script(path: str) -> list[JsonObject]:
    try:
        # It is read while agents work: nothing may keep the reader waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"the script {path} is not a regular file", code="UNKNOWN_MODEL")
            data = read_json(file.read())
    except OSError as error:
        raise UsageError(
            f"cannot read the script {path}: {error.strerror}",
            code="UNKNOWN_MODEL",
            hint="the shipped one is scripted/demo",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the script {path} is not JSON: {json_fault(error)}") from error
    return check_script(data, path)


def check_script(data: Any, what: str) -> list[JsonObject]:
    """``data`` if it is a script. Raises `UsageError` naming the first entry that is wrong."""
    if not isinstance(data, list):
        raise UsageError(f"{what}: a script is a JSON list of entries")
    for number, entry in enumerate(data, 1):
        problem = _problem(entry)
        if problem:
            raise UsageError(f"{what}, entry {number}: {problem}")
    return data


def _problem(entry: Any) -> str | None:
    if not isinstance(entry, dict) or not entry:
        return "not an object with at least one member"
    for allowed, part in (
        (_ENTRY_KEYS, entry),
        (_USAGE_KEYS, entry.get("usage", {})),
        (_ERROR_KEYS, entry.get("error", {})),
    ):
        if not isinstance(part, dict):
            return "usage and error must be objects"
        if part.keys() - allowed:
            return f"unknown member {min(part.keys() - allowed)!r}"
    if not all(isinstance(entry.get(key, ""), str) for key in ("text", "think", "for")):
        return "text, think and for must be strings"
    if "error" in entry and not isinstance(entry["error"].get("code"), str):
        return "an error needs a code"
    if any(type(value) is not int or value < 0 for value in entry.get("usage", {}).values()):
        return "usage counts must be whole numbers"
    chunks = entry.get("chunks", 1)
    if type(chunks) is not int or chunks < 1:
        return "chunks must be a whole number from 1"
    if entry.get("finish", "stop") not in _FINISHES:
        return f"finish must be one of {', '.join(_FINISHES)}"
    calls = entry.get("calls", [])
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        return 'calls must be a list of {"tool": NAME, "arguments": OBJECT or TEXT}'
    return None


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and not call.keys() - {"tool", "arguments", "id"}
        and isinstance(call.get("tool"), str)
        and isinstance(call.get("id", ""), str)
        and isinstance(call.get("arguments", {}), dict | str)
    )


def _blocks(entry: JsonObject, number: int, body: bytes) -> list[Block]:
    # A script may be played again in a resumed session; the length keeps the ids of calls apart.
    length = body[len(b'{"length":') : body.index(b",")].decode()
    blocks: list[Block] = []
    if entry.get("think"):
        blocks.append(ReasoningBlock(clean_text(entry["think"])))
    if entry.get("text"):
        blocks.append(TextBlock(clean_text(entry["text"])))
    for position, call in enumerate(entry.get("calls", ())):
        arguments = call.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call_id = CallId(call.get("id") or f"call_{number}_{length}_{position}")
        blocks.append(ToolCallBlock(call_id, call["tool"], clean_text(arguments)))
    return blocks


def _chunks(entry: JsonObject, number: int, body: bytes) -> Iterator[Chunk]:
    """What a provider would stream for this entry."""
    blocks = _blocks(entry, number, body)
    pieces = entry.get("chunks", DEFAULT_CHUNKS)
    for index, block in enumerate(blocks):
        yield from _block_chunks(index, block, pieces)
    error = entry.get("error")
    if error is not None:
        message = error.get("message", f"the script says {error['code']}")
        failure = Failure(message, error["code"], error.get("status"), error.get("retry_after_ms"))
        yield Finish("error", failure)
        return
    for index, block in enumerate(blocks):
        yield BlockEnd(index, block)
    yield UsageChunk(_usage(entry, blocks, body))
    if not blocks and "finish" not in entry:
        yield Finish("error", Failure("the script answers with nothing", "EMPTY_RESPONSE"))
        return
    default = "tool_calls" if entry.get("calls") else "stop"
    yield Finish(_FINISHES[entry.get("finish", default)])


def _block_chunks(index: int, block: Block, pieces: int) -> Iterator[Chunk]:
    match block:
        case TextBlock(text):
            yield BlockStart(index, "text")
            for piece in _cut(text, pieces):
                yield TextDelta(index, piece)
        case ReasoningBlock(text):
            yield BlockStart(index, "reasoning")
            for piece in _cut(text, pieces):
                yield ReasoningDelta(index, piece)
        case ToolCallBlock(call_id, name, arguments):
            yield BlockStart(index, "tool-call")
            yield ToolCallDelta(index, call_id, name, "")
            for piece in _cut(arguments, pieces):
                yield ToolCallDelta(index, call_id, None, piece)


def _cut(text: str, pieces: int) -> list[str]:
    size = max(1, -(-len(text) // pieces))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _usage(entry: JsonObject, blocks: list[Block], body: bytes) -> Usage:
    given = entry.get("usage")
    if given is not None:
        return Usage(**{"input": 0, "output": 0, **given})
    output = sum(len(_dump(block.to_json())) for block in blocks)
    return Usage(-(-len(body) // 4), -(-output // 4))


def _aborted(reason: str) -> Finish:
    if reason == "timeout":
        return Finish("error", Failure("the script was too slow", "TIMEOUT"))
    return Finish("aborted", Failure("the call was cancelled", "ABORTED"))
