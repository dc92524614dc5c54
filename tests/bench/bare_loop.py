"""The yardstick: the shortest agent loop over gevent, requests and sseclient. Keeps nothing, checks nothing.

It sends the members of a request of the harness (model, tools, system prompt), so that both send the
same bytes, streams the same replies and runs the same tool. For `tests.bench.worker` only.
"""

from __future__ import annotations

import json
import os
from typing import Any

import gevent
import gevent.event
import gevent.os
import requests
import sseclient

__all__ = ["run_bare_steps"]


def run_bare_steps(url: str, members: dict[str, Any], prompt: str) -> int:
    """Run until the model calls no more; the number of requests."""
    session = requests.Session()
    messages = [*members["messages"][:1], {"role": "user", "content": prompt}]
    for step in range(1, 1_000_000):
        body = json.dumps({**members, "messages": messages}, ensure_ascii=False).encode()
        text, calls = _stream(session, url, body)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        messages.append(message)
        if not calls:
            return step
        message["tool_calls"] = calls
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            result = _bash(arguments["command"]) if call["function"]["name"] == "bash" else arguments["text"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    raise AssertionError("the script never ends")


def _stream(session: requests.Session, url: str, body: bytes) -> tuple[str, list[dict[str, Any]]]:
    headers = {"Authorization": "Bearer sk-bench", "Content-Type": "application/json"}
    headers["Accept-Encoding"] = "identity"
    texts: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    address = f"{url}/chat/completions"
    with session.post(address, data=body, headers=headers, stream=True, timeout=60) as response:
        for event in sseclient.SSEClient(iter(response)).events():
            if event.data == "[DONE]":
                continue  # read on to the end: the connection is used again
            for choice in json.loads(event.data)["choices"]:
                delta = choice["delta"]
                texts.append(delta.get("content") or "")
                for part in delta.get("tool_calls", ()):
                    call = calls.setdefault(part["index"], {**part, "function": dict(part["function"])})
                    if "id" not in part:
                        call["function"]["arguments"] += part["function"]["arguments"]
    for call in calls.values():
        del call["index"]
    return "".join(texts), list(calls.values())


def _bash(command: str) -> str:
    """Spawn, read to the end, reap: what a shell step costs at the least."""
    reader, writer = os.pipe()
    gevent.os.make_nonblocking(reader)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_DUP2, writer, 2),
    ]
    hub = gevent.get_hub()
    hub.loop.install_sigchld()
    pid = os.posix_spawn(
        "/bin/bash", ["bash", "-c", command], dict(os.environ), file_actions=actions, setsid=True
    )
    ended = gevent.event.Event()
    watcher = hub.loop.child(pid)
    # Started before the hub runs again: the loop reaps every child and tells only who listens then.
    watcher.start(ended.set)
    os.close(writer)
    chunks = []
    while chunk := gevent.os.nb_read(reader, 65536):
        chunks.append(chunk)
    os.close(reader)
    ended.wait()
    watcher.close()
    return b"".join(chunks).decode()
