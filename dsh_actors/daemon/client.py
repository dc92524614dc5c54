"""A client of the daemon's HTTP API: plain blocking calls, errors as the errors of this program.

A stream of events is followed over interruptions: it goes on behind the last event that was seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import requests
import urllib3

from dsh_actors.adapters.llm.sse import EventSource, EventTooLarge
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.client_errors import (
    DAEMON_LOST,
    NO_DAEMON,
    STOPPING,
    refusal,
    stayed_away,
    unreachable,
    unreadable,
)
from dsh_actors.daemon.unix_http import UnixAdapter
from dsh_actors.errors import HarnessError, UsageError

__all__ = ["DaemonClient", "ServerEvent", "loopback_url"]

_CONNECT_S = 10.0
_ANSWER_S = 60.0
_SILENCE_S = 90.0
"""A stream without even a comment for so long is taken for dead."""

_WAIT_SLICE_S = 20.0
"""One request of a longer wait: a daemon that went away is noticed in that time."""

_COMES_BACK = frozenset({NO_DAEMON, STOPPING})
"""What a daemon that was there shows while it is started again."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_PAGE = 500
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream. ``seq`` is None for one that is not in the log.

    ``name`` is the type of a session's event, or a name of the daemon's own (``gap``, ``agent``, …);
    ``connected`` and ``lost`` are the client's, in `DaemonClient.changes` only.
    """

    name: str
    seq: int | None = None
    data: JsonObject = field(default_factory=dict, hash=False)


class DaemonClient:
    """Speaks to the daemon at ``address``: the path of its socket, or ``http://HOST:PORT`` of this machine.

    ``token`` is what TCP needs. ``patience_s``: how long to try again when a daemon that was there is
    gone, so that a restart of it ends no wait and no stream. Every call raises `HarnessError`s: with
    the daemon's own code, message and hint, or NO_DAEMON where none answers, DAEMON_LOST where it went.
    """

    def __init__(self, address: str, token: str | None = None, *, patience_s: float = 30.0) -> None:
        self._address = address
        self._patience_s = patience_s
        self._session = requests.Session()
        # A proxy of the environment has no business between this program and its daemon.
        self._session.trust_env = False
        if "://" in address:
            self._base = loopback_url(address)
        else:
            self._base = "http://localhost"
            self._session.mount("http://", UnixAdapter(address))
        if token is not None:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> DaemonClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    # --- agents ------------------------------------------------------------------------------

    def create(self, spec: JsonObject) -> JsonObject:
        """Create an agent from a task; its AgentInfo."""
        return self._call("POST", "/v1/agents", spec)

    def agents(self, state: str | None = None, *, limit: int | None = None) -> Iterator[JsonObject]:
        """The agents, in the daemon's order, page by page; at most ``limit``."""
        left, after = limit, None
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            given = {"state": state, "after": after, "limit": str(size)}
            query = {key: value for key, value in given.items() if value}
            page = self._call("GET", "/v1/agents", query=query)
            found = page.get("agents")
            if not isinstance(found, list):
                raise unreadable(self._address)
            yield from found
            left = None if left is None else left - len(found)
            after = page.get("next")
            if after is None or not found:
                return

    def agent(self, agent_id: str) -> JsonObject:
        """The AgentInfo of one."""
        return self._call("GET", _path(agent_id))

    def dispose(self, agent_id: str) -> None:
        """End an agent; its session stays."""
        self._call("DELETE", _path(agent_id))

    def deliver(self, agent_id: str, text: str, how: str) -> JsonObject:
        """Give it a message. ``how``: ``send`` (a turn of its own), ``steer`` (before its next step) or
        ``inject`` (with what comes next, which alone starts nothing)."""
        return self._call("POST", _path(agent_id, "messages"), {"text": text, "how": how})

    def cancel(self, agent_id: str, *, keep_inbox: bool = False) -> None:
        """Stop its turn. Messages that wait are dropped too, unless ``keep_inbox``."""
        self._call("POST", _path(agent_id, "cancel"), {"keep_inbox": True} if keep_inbox else {})

    def fork(
        self,
        agent_id: str,
        *,
        at_seq: int | None = None,
        session_id: str | None = None,
        prompt: str | None = None,
    ) -> JsonObject:
        """A new agent that begins with a copy of this one's session, whole or up to event ``at_seq``."""
        given = {"at_seq": at_seq, "session_id": session_id, "prompt": prompt}
        body = {key: value for key, value in given.items() if value is not None}
        return self._call("POST", _path(agent_id, "fork"), body)

    def wait(
        self, agent_ids: Sequence[str], *, any_of: bool = False, timeout_s: float | None = None
    ) -> dict[str, JsonObject | None]:
        """Wait until all of them (``any_of``: one) owe nothing; the ``run.end`` of each that is done, None
        for one that was never asked anything. Who is not done is left out.

        At most ``timeout_s`` seconds. A daemon that is started again meanwhile is waited for.
        """
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        body: JsonObject = {"ids": [each for each in agent_ids if _path(each)], "any": any_of}
        while True:
            left = _WAIT_SLICE_S if give_up is None else max(0.0, give_up - time.monotonic())
            piece = min(left, _WAIT_SLICE_S)
            answer = self._patiently("/v1/wait", body | {"timeout_s": piece}, piece + _ANSWER_S)
            ends = answer.get("ends")
            if not isinstance(ends, dict):
                raise unreadable(self._address)
            if answer.get("done") or (give_up is not None and time.monotonic() >= give_up):
                return {agent: ends[agent] for agent in agent_ids if agent in ends}

    # --- approvals ---------------------------------------------------------------------------

    def approvals(self) -> list[JsonObject]:
        """The questions that are open."""
        return list(self._call("GET", "/v1/approvals").get("approvals", ()))

    def decide(self, approval_id: str, *, allow: bool) -> None:
        """Answer one. Raises `UsageError` with code APPROVAL_NOT_FOUND when it is over."""
        body = {"decision": "allow" if allow else "deny"}
        self._call("POST", f"/v1/approvals/{quote(approval_id, safe='')}", body)

    # --- streams -----------------------------------------------------------------------------

    def events(self, agent_id: str, *, after: int = -1, follow: bool = True) -> Iterator[ServerEvent]:
        """The events of one agent behind ``after``; with ``follow`` until it is disposed of.

        ``gap`` {"from", "to"} stands where the log has lost what was asked for, ``unreadable`` {"code",
        "message"} where it cannot be read on.
        """
        return self._stream(_path(agent_id, "events"), after, follow, tells_connects=False)

    def changes(self) -> Iterator[ServerEvent]:
        """What changes at any agent. ``connected`` comes first, and again after ``lost``: what happened
        before it is to be asked for.
        """
        return self._stream("/v1/events", None, True, tells_connects=True)

    def _stream(
        self, path: str, after: int | None, follow: bool, *, tells_connects: bool
    ) -> Iterator[ServerEvent]:
        last, lost_at, pause_s = after, None, _FIRST_PAUSE_S
        was_open = False
        while True:
            try:
                with self._open(path, last, follow) as response:
                    was_open, lost_at = True, None
                    if tells_connects:
                        yield ServerEvent("connected")
                    for event in self._read(response, is_numbered=not tells_connects):
                        pause_s = _FIRST_PAUSE_S
                        if event.seq is not None and last is not None and event.seq <= last:
                            continue  # sent once more, as the connection broke behind it
                        last = _position(event, last)
                        yield event
                if not follow:
                    return
            except HarnessError as error:
                if was_open and error.code == "AGENT_NOT_FOUND":
                    return  # disposed of, and everything was seen
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                is_gone = error.code == DAEMON_LOST or (was_open and error.code in _COMES_BACK)
                if not is_gone:
                    raise
                if now - lost_at > self._patience_s:
                    raise stayed_away(self._address, self._patience_s) from error
            if tells_connects:
                yield ServerEvent("lost")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _open(self, path: str, last: int | None, follow: bool) -> requests.Response:
        headers = {"Accept": "text/event-stream"}
        query = {} if follow else {"follow": "0"}
        if last is not None and last >= 0:
            headers["Last-Event-ID"] = str(last)
        return self._send("GET", path, None, query, _SILENCE_S, headers=headers, stream=True)

    def _read(self, response: requests.Response, *, is_numbered: bool) -> Iterator[ServerEvent]:
        source = EventSource(lambda size: bytes(response.raw.read1(size)), lambda: False)
        try:
            for batch in source.batches():
                if source.is_tail:
                    return  # the event at the end is not whole
                for event in batch:
                    yield self._event(event.id if is_numbered else None, event.event, event.data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(self._address, error, was_there=True) from error
        except EventTooLarge as error:
            raise unreadable(self._address) from error

    def _event(self, event_id: str | None, name: str, text: str) -> ServerEvent:
        try:
            data = json.loads(text)
            seq = int(event_id) if event_id else None
        except ValueError as error:
            raise unreadable(self._address) from error
        if not isinstance(data, dict):
            raise unreadable(self._address)
        return ServerEvent(name, seq, data)

    # --- requests ----------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        *,
        query: dict[str, str] | None = None,
        timeout_s: float = _ANSWER_S,
    ) -> JsonObject:
        with self._send(method, path, body, query, timeout_s) as response:
            return self._object(response)

    def _patiently(self, path: str, body: JsonObject, timeout_s: float) -> JsonObject:
        """A request that may be made twice, with patience for a daemon that was there and is not now."""
        give_up, pause_s = None, _FIRST_PAUSE_S
        while True:
            try:
                return self._call("POST", path, body, timeout_s=timeout_s)
            except HarnessError as error:
                if error.code in (DAEMON_LOST, STOPPING) and give_up is None:
                    give_up = time.monotonic() + self._patience_s
                is_gone = error.code == DAEMON_LOST or error.code in _COMES_BACK
                if not is_gone or give_up is None:
                    raise
                if time.monotonic() > give_up:
                    raise stayed_away(self._address, self._patience_s) from error
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _send(
        self,
        method: str,
        path: str,
        body: JsonObject | None,
        query: dict[str, str] | None,
        timeout_s: float,
        **options: Any,
    ) -> requests.Response:
        try:
            response = self._session.request(
                method,
                self._base + path,
                params=query,
                json=body,
                timeout=(_CONNECT_S, timeout_s),
                allow_redirects=False,
                **options,
            )
        except (requests.RequestException, OSError) as error:
            raise unreachable(self._address, error) from error
        if response.status_code >= 300:
            with response:
                raise refusal(self._address, response.status_code, self._object(response))
        return response

    def _object(self, response: requests.Response) -> JsonObject:
        """The body; an empty one is an empty object."""
        try:
            content = response.content
            value = json.loads(content) if content else {}
        except requests.RequestException as error:
            raise unreachable(self._address, error, was_there=True) from error
        except ValueError as error:
            raise unreadable(self._address) from error
        if not isinstance(value, dict):
            raise unreadable(self._address)
        return value


def _path(agent_id: str, *parts: str) -> str:
    """Raises `UsageError` for an empty id, as a shell makes it of a variable that is not set."""
    if not agent_id.strip():
        raise UsageError("the id of an agent is empty")
    return "/".join(("/v1/agents", quote(agent_id, safe=""), *parts))


def _position(event: ServerEvent, last: int | None) -> int | None:
    """How far the stream has come: behind a gap when it was told."""
    end = event.data.get("to") if event.name == "gap" else event.seq
    if not isinstance(end, int):
        return last
    return end if last is None else max(last, end)


def loopback_url(address: str) -> str:
    """The address of a daemon on this machine, in its plain form.

    Raises `UsageError` for another machine's: the token would be readable on the way.
    """
    try:
        parts = urlsplit(address)
        is_right = parts.scheme == "http" and parts.hostname in _LOOPBACK and parts.port is not None
        if is_right and parts.path in ("", "/"):
            return f"http://{parts.netloc.rpartition('@')[2]}"
    except ValueError:
        pass
    raise UsageError(
        f"{address} cannot be the address of a daemon",
        hint="give the path of its socket, or http://127.0.0.1:PORT",
    )
