"""The tests' side of the server: start it, load scripts, read what it was asked."""

from __future__ import annotations

import base64
import functools
import http.client
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from tests.model_server.entries import Entry
from tests.model_server.messages_wire import is_messages_body

__all__ = ["ModelServer", "Request"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Request:
    """One chat request as the server saw it; times are of the monotonic clock.

    ``outcome`` is "sent", "client-left", or None while it is being answered.
    """

    index: int
    route: str
    number: int
    path: str
    headers: dict[str, str]
    arrived: float
    first_sent: float | None
    ended: float | None
    outcome: str | None
    body: bytes = b""

    @functools.cached_property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.json["messages"]
        return messages

    @property
    def results(self) -> dict[str, str]:
        """The text of every tool message or result block, by call id."""
        if is_messages_body(self.json):
            blocks = [block for message in self.messages for block in message["content"]]
            return {b["tool_use_id"]: b["content"] for b in blocks if b["type"] == "tool_result"}
        return {m["tool_call_id"]: m["content"] for m in self.messages if m["role"] == "tool"}

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")


class ModelServer:
    """A running server process. One script at a time; loading one empties the log."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.model_server", "--until-stdin-ends"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        self._port = int(self.url.rpartition(":")[2])

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(PATIENCE_S)

    def script(self, *entries: Entry, after: str = "fail", **routes: list[Entry]) -> None:
        """Play ``entries`` one a request on the default route, ``routes`` on theirs.

        ``after`` the last: "fail" (an error answer), "repeat" the last, or "cycle".
        """
        table = {"default": {"entries": entries, "after": after}}
        self.load(table | {name: {"entries": list_, "after": after} for name, list_ in routes.items()})

    def load(self, routes: dict[str, Any], keep_bodies: bool = True) -> None:
        self._call("POST", "script", {"routes": routes, "keep_bodies": keep_bodies})

    def extend(self, *entries: Entry, route: str = "default") -> None:
        """Add entries to the end of a route; the log stays."""
        self._call("POST", "extend", {"route": route, "entries": entries})

    def release(self, name: str) -> None:
        """Let replies go on that hold for ``name``."""
        self._call("POST", "release?" + urlencode({"name": name}))

    def requests(self, start: int = 0, bodies: bool = True) -> list[Request]:
        rows = self._call("GET", f"requests?start={start}&bodies={int(bodies)}")
        return [Request(**row | {"body": base64.b64decode(row.get("body", ""))}) for row in rows]

    def count(self) -> int:
        """How many chat requests came so far."""
        return int(self._call("GET", "wait?count=0&of=arrived&timeout=0")["requests"])

    def wait_for_requests(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until ``count`` requests came in. Raises AssertionError when they do not."""
        self._wait(count, "arrived", timeout_s)

    def wait_for_ends(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until ``count`` requests were answered to the end or given up by the client."""
        self._wait(count, "ended", timeout_s)

    def _wait(self, count: int, of: str, timeout_s: float) -> None:
        answer = self._call("GET", f"wait?count={count}&of={of}&timeout={timeout_s}")
        assert answer["reached"], f"{answer['requests']} requests came; {count} {of} were expected"

    def _call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S * 3)
        try:
            connection.request(
                method, f"/control/{path}", None if body is None else json.dumps(body).encode()
            )
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()
