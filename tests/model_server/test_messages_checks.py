"""The checks of the Messages wire find what they are for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.model_server import prefix_faults, request_faults


def body(*messages: dict[str, Any], **more: Any) -> bytes:
    members = {"model": "m", "max_tokens": 1, "cache_control": {"type": "ephemeral"}, **more}
    return json.dumps({**members, "messages": messages}).encode()


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


TEXT = {"type": "text", "text": "t"}
THINK = {"type": "thinking", "thinking": "h", "signature": "s"}


def use(identity: str = "c", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "f", "input": {}, **more}


def result(identity: str = "c", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": "r", **more}


def test_a_good_conversation_has_no_faults() -> None:
    assert request_faults(body(user(TEXT), assistant(THINK, TEXT, use()), user(result(), TEXT))) == []


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "no messages"),
        ([user(TEXT), user(TEXT)], "twice in a row"),
        ([{"role": "system", "content": [TEXT]}], "the role system"),
        ([user()], "no content"),
        ([user({"type": "text", "text": " "})], "blank text"),
        ([user(TEXT), assistant(use())], "at the end"),
        ([user(TEXT), assistant(use()), user(TEXT)], "for the calls"),
        ([user(result())], "for the calls"),
        ([user(TEXT), assistant(use()), user(TEXT, result())], "too late"),
        ([user(TEXT), assistant(use("c/1")), user(result("c/1"))], "the call c/1"),
        ([user(TEXT), assistant(use(input="{}")), user(result())], "an unknown block"),
        ([user(TEXT), assistant(use(), use()), user(result(), result())], "again"),
        ([user(TEXT), assistant(use()), user(result()), assistant(use()), user(result())], "again"),
        ([user(TEXT), assistant(TEXT, THINK)], "ends with thinking"),
        ([user(TEXT), assistant({**THINK, "signature": ""}, TEXT)], "without a signature"),
    ],
)
def test_what_the_vendor_refuses_is_a_fault(messages: list[dict[str, Any]], fault: str) -> None:
    assert any(fault in found for found in request_faults(body(*messages)))


def test_too_many_cache_markers_are_a_fault() -> None:
    marked = {**TEXT, "cache_control": {}}
    assert "5 cache markers" in request_faults(body(user(marked, marked, marked, marked)))


def test_a_message_may_grow_by_blocks_but_not_change() -> None:
    first, grown = body(user(TEXT)), body(user(TEXT, TEXT))
    assert prefix_faults([first, grown, body(user(TEXT, TEXT), assistant(TEXT))]) == []
    assert prefix_faults([grown, first]) != []
    assert prefix_faults([first, body(user({"type": "text", "text": "u"}))]) != []
    assert prefix_faults([first, body(assistant(TEXT))]) != []
    assert prefix_faults([first, body(user(TEXT), system="s")]) != []
