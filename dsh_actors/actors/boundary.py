"""What foreign code may hand in: messages, facts and tool results are checked before anything changes.

The turn machine folds what it logs at once, so whatever it could not fold, or the disk could not
hold, is refused here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dsh_actors.core.chunks import Failure
from dsh_actors.core.events import KNOWN_TYPES, OWN_TYPES, SURFACE_TYPES
from dsh_actors.core.ids import MessageId, SessionId
from dsh_actors.core.messages import (
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    block_from_json,
    require_input,
)
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject, clean_text, require_lossless, shorten
from dsh_actors.core.turn_io import Call, ToolResult
from dsh_actors.errors import EventRefused, HarnessError, error_chain

__all__ = [
    "check_fact",
    "check_message",
    "error_payload",
    "failure_of",
    "is_parallel_call",
    "is_recordable",
    "let_exits_pass",
    "loggable_result",
    "needs_record",
]

_STRUCTURE = SURFACE_TYPES | {
    "assistant/chunk",
    "tool/call",
    "agent/inbox/spliced",
    "session/end-seed",
    "limit/reached",
    "session/title-llm-request",
    "session/title-llm-result",
}
_STRUCTURE_PREFIXES = ("turn/", "step/", "request/", "llm/")


def _is_todo_list(value: Any) -> bool:
    return type(value) is list and all(
        type(item) is dict and type(item.get("content")) is str and type(item.get("status")) is str
        for item in value
    )


def _is_text_list(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


def _is_text(value: Any) -> bool:
    return type(value) is str


_MEMBERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "todo/write": ("todos", _is_todo_list),
    "session/title": ("title", _is_text),
    "approval/asked": ("id", _is_text),
    "approval/decided": ("id", _is_text),
    "job/started": ("id", _is_text),
    "job/ended": ("id", _is_text),
    "subagent/started": ("id", _is_text),
    "subagent/ended": ("id", _is_text),
    "answer/rejected": ("errors", _is_text_list),
}
"""The member that readers of a fact rely on, and its shape."""


def let_exits_pass(error: BaseException) -> None:
    """Raise ``error`` again if it asks the process to end; anything else foreign code raised is contained."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error


def is_parallel_call(scope: Scope, call: Call) -> bool:
    """Whether a call may run beside others, by what its tool says."""
    tool: Any = scope.visible_tools().get(call.name)
    try:
        return tool is not None and tool.is_parallel(call.arguments) is True
    except BaseException as error:  # a tool is foreign code; one that cannot say runs alone
        let_exits_pass(error)
        return False


def needs_record(scope: Scope, call: Call) -> bool:
    """Whether a call must be durable before it starts."""
    tool: Any = scope.visible_tools().get(call.name)
    try:
        if tool is None or call.problem is not None:
            return False
        return tool.spec.changes is not False or tool.spec.delegates is not False
    except BaseException as error:  # a tool is foreign code; one that cannot say is taken to change something
        let_exits_pass(error)
        return True


def is_recordable(kind: str) -> bool:
    """Whether this type may be logged on somebody's word: it has no part in the structure of the log."""
    return kind not in _STRUCTURE and not kind.startswith(_STRUCTURE_PREFIXES)


def check_fact(kind: object, data: object) -> bool:
    """Whether a fact must be marked ``ignorable``. Raises `EventRefused` for what may not be recorded."""
    if type(kind) is not str or not kind or type(data) is not dict:
        raise EventRefused("a recorded fact needs a type and an object")
    require_lossless([kind, data], shorten(kind, 80))
    if not is_recordable(kind):
        raise EventRefused(f"{kind} events are written by the harness only")
    member, fits = _MEMBERS.get(kind, ("", _is_text))
    if member and not fits(data.get(member)):
        raise EventRefused(f"{kind}: wrong or missing {member!r}")
    # A reader without the owner of an unknown type must be able to skip it.
    return kind in OWN_TYPES or kind not in KNOWN_TYPES


def check_message(message: object, what: str) -> None:
    """Raises `EventRefused` for anything but a well-formed user message of text and opaque content."""
    if not isinstance(message, Message):
        raise EventRefused(f"{what} must be a message, not a {type(message).__name__}")
    raw = message.to_json()
    require_lossless(raw, what)
    # As the log will give it back: what does not survive that would make the session unreadable.
    read = Message.from_json(raw)
    if type(read.id) is not str:
        raise EventRefused(f"{what} needs a text as its id")
    require_input(read)
    for block in read.content:
        if isinstance(block, TextBlock | ReasoningBlock) and type(block.text) is not str:
            raise EventRefused(f"{what}: a block without text")


def loggable_result(result: ToolResult) -> ToolResult:
    """The result as it may be committed. Raises `EventRefused` for one that the log cannot hold.

    What it says to the model gets ids of ours: a tool's own may be pending already, now or by then.
    """
    texts = (result.text, result.code or "", result.name or "")
    if any(type(text) is not str for text in texts):
        raise EventRefused("a tool result's text, code and name must be texts")
    if type(result.is_error) is not bool or type(result.concludes) is not bool:
        raise EventRefused("a tool result's is_error and concludes must be true or false")
    if result.meta is not None and type(result.meta) is not dict:
        raise EventRefused("a tool result's meta must be an object")
    require_lossless([*texts, result.meta], "a tool result")
    for kind, data in _pairs(result.events):
        check_fact(kind, data)
    if result.images:
        _check_images(result.images)
    if not isinstance(result.contexts, tuple):
        raise EventRefused("a tool result's contexts must be a tuple of messages")
    for context in result.contexts:
        check_message(context, "a tool's context")
    if not result.contexts:
        return result
    named = (replace(each, id=MessageId(f"msg-{secrets.token_hex(12)}")) for each in result.contexts)
    return replace(result, contexts=tuple(named))


def _check_images(images: object) -> None:
    if not isinstance(images, tuple) or not all(isinstance(image, ImageBlock) for image in images):
        raise EventRefused("a tool result's images must be a tuple of image blocks")
    for image in images:
        raw = image.to_json()
        require_lossless(raw, "a tool's image")
        if block_from_json(raw) != image:
            raise EventRefused("a tool's image is no reference to a stored one")


def _pairs(events: Any) -> list[tuple[Any, Any]]:
    if not isinstance(events, tuple) or not all(isinstance(e, tuple) and len(e) == 2 for e in events):
        raise EventRefused("a tool result's events must be pairs of a type and an object")
    return list(events)


def failure_of(error: BaseException, code: str = "UNKNOWN") -> Failure:
    """An error from outside as a failure that the log can hold; ``code`` is for one that has none."""
    own = error.code if isinstance(error, HarnessError) else code
    return Failure(clean_text(error_chain(error)), clean_text(str(own)))


def error_payload(
    session_id: SessionId, failure: Failure, turn: int | None = None, step: int | None = None
) -> JsonObject:
    """What every ``agent/error`` notification carries: session, message, code, and where it was."""
    payload: JsonObject = {"session": session_id, "message": failure.message, "code": failure.code}
    if turn is not None:
        payload["turn"] = turn
    if step is not None:
        payload["step"] = step
    return payload
