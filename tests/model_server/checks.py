"""What must hold for every request and every run, as functions that return the faults they find.

`WELLFORMED`, the stable prefix and `PIDS` of the case collection.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.model_server.messages_wire import is_messages_body, messages_faults

__all__ = ["marked_pids", "prefix_faults", "request_faults", "reuse_faults", "wait_until_unmarked"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def request_faults(body: bytes) -> list[str]:
    """What a strict provider would refuse in this request body."""
    try:
        request = json.loads(body.decode("utf-8"))
    except ValueError as error:
        return [f"not UTF-8 JSON: {error}"]
    faults = []
    # ensure_ascii=False shows what the reader of the JSON gets: escaped halves become lone surrogates.
    if _SURROGATE.search(json.dumps(request, ensure_ascii=False)):
        faults.append("a lone surrogate")
    if is_messages_body(request):
        return faults + messages_faults(request)
    if not request.get("messages"):
        faults.append("no messages")
    open_calls: list[str] = []
    for place, message in enumerate(request.get("messages", ())):
        match message.get("role"):
            case "tool":
                identity = message.get("tool_call_id")
                if identity not in open_calls:
                    faults.append(f"message {place}: a tool message without its call: {identity}")
                else:
                    open_calls.remove(identity)
                if not isinstance(message.get("content"), str):
                    faults.append(f"message {place}: tool content is not text")
                continue
            case "assistant":
                faults += [f"message {place}: {fault}" for fault in _assistant_faults(message)]
        if open_calls:
            faults.append(f"message {place}: calls without a result before it: {open_calls}")
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    if open_calls:
        faults.append(f"calls without a result at the end: {open_calls}")
    return faults


def _assistant_faults(message: dict[str, Any]) -> list[str]:
    faults = []
    calls = message.get("tool_calls") or []
    if not calls and not isinstance(message.get("content"), str):
        faults.append("neither content nor calls")
    if not calls and not message.get("content") and not message.get("reasoning_content"):
        faults.append("an empty assistant message")
    identities = [call["id"] for call in calls]
    if len(set(identities)) != len(identities) or not all(identities):
        faults.append(f"call ids are empty or not unique: {identities}")
    for call in calls:
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            faults.append(f"arguments are no object: {call['function']['arguments'][:80]!r}")
    return faults


def prefix_faults(bodies: Sequence[bytes]) -> list[str]:
    """Where request n+1 is not request n with messages added; compared byte for byte.

    On the Messages wire a message of the same role joins the last one, so there blocks are compared.
    """
    faults = []
    previous: tuple[dict[str, str], list[str]] | None = None
    for number, body in enumerate(bodies):
        members, messages = _spans(body.decode("utf-8"))
        if previous is not None:
            before, old = previous
            changed = [
                name for name in sorted(before.keys() | members) if before.get(name) != members.get(name)
            ]
            if changed:
                faults.append(f"request {number}: {', '.join(changed)} changed")
            if messages[: len(old)] != old:
                place = next(i for i, text in enumerate(old) if messages[i : i + 1] != [text])
                faults.append(f"request {number}: message {place} changed")
        previous = members, messages
    return faults


def reuse_faults(bodies: Sequence[bytes]) -> list[str]:
    """Where a body does not begin with the bytes of the one before it, but for the two that close that one.

    Stricter than `prefix_faults`: it also wants the members in an order that a cache by prefix can use.
    The same request sent again is no fault.
    """
    faults = []
    for number, (before, body) in enumerate(itertools.pairwise(bodies), 1):
        if not body.startswith(before.removesuffix(b"]}")):
            pairs = zip(before, body, strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            faults.append(f"request {number} has {same} of {len(before)} bytes, then {body[same:][:80]!r}")
    return faults


def _spans(text: str) -> tuple[dict[str, str], list[str]]:
    """The exact text of every member of the top object, and of every message."""
    decoder, members, messages = json.JSONDecoder(), {}, []
    place = _skip(text, 0) + 1
    while text[_skip(text, place)] != "}":
        name, place = decoder.raw_decode(text, _skip(text, place))
        start = _skip(text, place)
        _, place = decoder.raw_decode(text, start)
        if name == "messages":
            messages = _elements(text, start, decoder)
        else:
            members[name] = text[start:place]
    if "cache_control" in members:
        messages = [block for message in messages for block in _blocks(message, decoder)]
    return members, messages


def _blocks(message: str, decoder: json.JSONDecoder) -> list[str]:
    """The exact text of every block of a message, with what stands before the content."""
    head, _, _ = message.partition("[")
    return [head + block for block in _elements(message, len(head), decoder)]


def _elements(text: str, place: int, decoder: json.JSONDecoder) -> list[str]:
    elements = []
    place += 1
    while text[start := _skip(text, place)] != "]":
        _, place = decoder.raw_decode(text, start)
        elements.append(text[start:place])
    return elements


def _skip(text: str, place: int) -> int:
    while text[place] in " \t\r\n,:":
        place += 1
    return place


def marked_pids(mark: str) -> list[int]:
    """Live processes that carry ``mark`` in their environment (this one and zombies excluded)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it is gone, or belongs to somebody else
    return found


def wait_until_unmarked(mark: str, timeout_s: float) -> list[int]:
    """Wait for every marked process to end; the pids that are left when time is up."""
    deadline = time.monotonic() + timeout_s
    while pids := marked_pids(mark):
        if (left := deadline - time.monotonic()) <= 0:
            break
        _wait_for_exit(pids[0], left)
    return pids


def _wait_for_exit(pid: int, timeout_s: float) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll(timeout_s * 1000)
    finally:
        os.close(handle)
