"""The versioned HTTP interface as a table: every path with what it takes, what it gives and what it does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsh_actors import __version__
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon import schemas as s
from dsh_actors.daemon.approvals_desk import ApprovalsDesk
from dsh_actors.daemon.hosting import Hosting
from dsh_actors.daemon.openapi import describe
from dsh_actors.daemon.routes import EVENT_STREAM, HTML, PLAIN, Call, Parameter, Refusal, Reply, Route
from dsh_actors.daemon.streams import Streams
from dsh_actors.runtime.wsgi import Connection
from dsh_actors.task_spec import TaskSpec

__all__ = ["Api"]

MAX_PAGE = 1_000
DEFAULT_PAGE = 100
_WAIT_SLICE_S = 2.0
"""How long a waiting request goes without looking whether its client is still there."""

_LONGEST_WAIT_S = 1e9
"""Longer waits are cut to it: nobody lives so long, and a number of any size may be asked for."""

_AGENT = s.ref("AgentInfo")
_STATE = Parameter("state", {"type": "string", "enum": [*s.STATES[:-1]]}, "only those in this state")
_AFTER_ID = Parameter("after", {"type": "string"}, "behind this id")
_LIMIT = Parameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, f"at most so many, 1 to {MAX_PAGE}"
)
_TIMEOUT = Parameter("timeout", {"type": "number", "minimum": 0}, "seconds to wait; without it no end")
_AFTER_SEQ = Parameter(
    "after", {"type": "integer", "minimum": -1}, "behind this event; -1, the default, is all of them"
)
_FOLLOW = Parameter("follow", {"type": "boolean"}, "0: end after the replay")
_LAST_SEQ = Parameter(
    "Last-Event-ID", {"type": "string", "pattern": "^[0-9]{0,18}$"}, "go on behind this event", "header"
)
_LAST_ID = Parameter("Last-Event-ID", {"type": "string"}, "go on behind this event", "header")


class Api:
    """The handlers. ``page`` gives the status page, ``metrics`` the text of all gauges and counters."""

    def __init__(
        self,
        host: Hosting,
        desk: ApprovalsDesk,
        streams: Streams,
        *,
        page: Callable[[], str],
        metrics: Callable[[], str],
        connections: Callable[[], int],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._host = host
        self._desk = desk
        self._streams = streams
        self._page = page
        self._metrics = metrics
        self._connections = connections
        self._is_stopping = is_stopping
        self._started = time.monotonic()
        self.routes: tuple[Route, ...] = (
            *self._about_the_daemon(),
            *self._about_agents(),
            *self._about_one_agent(),
            *self._about_waiting(),
            *self._about_approvals(),
        )
        self._description = describe(self.routes)

    # --- the table ---------------------------------------------------------------------------

    def _about_the_daemon(self) -> Sequence[Route]:
        return (
            Route(
                "GET", "/v1/health", "health", "Whether it is well; asks no agent.", self._health,
                s.ref("Health"), is_open=True,
            ),
            Route(
                "GET", "/v1/openapi.json", "openapi", "This description.",
                lambda _call: Reply(self._description), s.ref("OpenAPI"),
            ),
            Route(
                "GET", "/metrics", "metrics", "Gauges and counters for Prometheus.",
                lambda _call: Reply(self._metrics(), media=PLAIN), media=PLAIN,
            ),
            Route(
                "GET", "/", "page", "The status page.",
                lambda _call: Reply(self._page(), media=HTML), media=HTML, is_open=True,
            ),
            Route(
                "GET", "/v1/events", "events", "What happens to all agents: agent, agent.failed, "
                "agent.disposed, approval.requested, approval.decided, gap.",
                self._all_events, media=EVENT_STREAM, query=(_LAST_ID,),
            ),
        )

    def _about_agents(self) -> Sequence[Route]:
        return (
            Route(
                "POST", "/v1/agents", "createAgent", "Create an agent, and give it its task.", self._create,
                _AGENT, status=201, body=s.ref("TaskSpec"), needs_body=True, errors=(404, 409, 422, 507),
            ),
            Route(
                "GET", "/v1/agents", "listAgents", "The agents in the order of their ids, in pages.",
                self._list, s.ref("Agents"), query=(_STATE, _AFTER_ID, _LIMIT),
            ),
        )

    def _about_one_agent(self) -> Sequence[Route]:
        path = "/v1/agents/{id}"
        return (
            Route("GET", path, "getAgent", "One agent.", self._get, _AGENT, errors=(404,)),
            Route(
                "DELETE", path, "disposeAgent", "End an agent; its session stays.", self._dispose,
                s.ref("Done"), errors=(404, 409),
            ),
            Route(
                "POST", f"{path}/messages", "sendMessage", "Give it a message, and wake it.", self._deliver,
                s.ref("Delivered"), status=202, body=s.ref("Message"), needs_body=True,
                errors=(404, 409, 422, 507),
            ),
            Route(
                "POST", f"{path}/cancel", "cancelAgent", "End its turn, and drop what waits.", self._cancel,
                s.ref("Done"), body=s.ref("Cancel"), errors=(404, 409),
            ),
            Route(
                "POST", f"{path}/fork", "forkAgent", "A new agent with a copy of its session.", self._fork,
                _AGENT, status=201, body=s.ref("Fork"), errors=(404, 409, 422, 507),
            ),
            Route(
                "GET", f"{path}/events", "agentEvents", "Its log, replayed and then live. "
                "Besides its events: gap where history is gone, unreadable {code, message} where the log is "
                "damaged, approval.requested, approval.decided, agent.failed, agent.disposed.",
                self._agent_events, media=EVENT_STREAM, query=(_AFTER_SEQ, _FOLLOW, _LAST_SEQ), errors=(404,),
            ),
            Route(
                "GET", f"{path}/wait", "waitForAgent", "Wait until it owes nothing.", self._wait_for_one,
                s.ref("Waited"), query=(_TIMEOUT,), errors=(404,),
            ),
        )

    def _about_waiting(self) -> Sequence[Route]:
        return (
            Route(
                "POST", "/v1/wait", "wait", "Wait until all agents, or any of them, owe nothing.",
                self._wait_for_many, s.ref("WaitedAll"), body=s.ref("Wait"), needs_body=True, errors=(404,),
            ),
        )

    def _about_approvals(self) -> Sequence[Route]:
        return (
            Route(
                "GET", "/v1/approvals", "listApprovals", "The questions that wait for an answer.",
                lambda _call: Reply({"approvals": [each.to_json() for each in self._desk.open()]}),
                s.ref("Approvals"),
            ),
            Route(
                "POST", "/v1/approvals/{id}", "decide", "Answer one.", self._decide, s.ref("Decided"),
                body=s.ref("Decision"), needs_body=True, errors=(404,),
            ),
        )

    # --- the handlers ------------------------------------------------------------------------

    def _health(self, _call: Call) -> Reply:
        is_stopping = self._is_stopping()
        body: JsonObject = {
            "status": "stopping" if is_stopping else "ok",
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "connections": self._connections(),
        }
        return Reply(body)

    def _create(self, call: Call) -> Reply:
        spec = TaskSpec.from_json(call.body, "the task")
        _require_addressable(spec.session_id, spec.resume)
        return Reply(self._host.create(spec).to_json(), 201)

    def _list(self, call: Call) -> Reply:
        limit = call.query.get("limit", DEFAULT_PAGE)
        if not 1 <= limit <= MAX_PAGE:
            raise Refusal(400, "BAD_REQUEST", f"limit is 1 to {MAX_PAGE}, not {limit}")
        found = self._host.list(call.query.get("state"), call.query.get("after"), limit + 1)
        shown = found[:limit]
        following = shown[-1].id if len(found) > limit else None
        return Reply({"agents": [info.to_json() for info in shown], "next": following})

    def _get(self, call: Call) -> Reply:
        return Reply(self._host.get(call.ids["id"]).to_json())

    def _dispose(self, call: Call) -> Reply:
        self._host.dispose(call.ids["id"])
        self._streams.end_agent(call.ids["id"])
        return Reply({"ok": True})

    def _deliver(self, call: Call) -> Reply:
        how = call.body.get("how", "send")
        return Reply(self._host.deliver(call.ids["id"], call.body["text"], how), 202)

    def _cancel(self, call: Call) -> Reply:
        self._host.cancel(call.ids["id"], bool((call.body or {}).get("keep_inbox", False)))
        return Reply({"ok": True})

    def _fork(self, call: Call) -> Reply:
        body = call.body or {}
        _require_addressable(body.get("session_id"))
        forked = self._host.fork(
            call.ids["id"], body.get("at_seq"), body.get("session_id"), body.get("prompt")
        )
        return Reply(forked.to_json(), 201)

    def _agent_events(self, call: Call) -> Reply:
        agent_id = self._host.get(call.ids["id"]).id
        after = call.query.get("after", -1)
        last_id = call.headers.get("Last-Event-ID", "")
        if last_id:
            # A client that comes back repeats the address it began with: where it is now counts.
            if not (last_id.isascii() and last_id.isdigit() and len(last_id) < 19):
                raise Refusal(400, "BAD_REQUEST", "Last-Event-ID is the number of an event here")
            after = int(last_id)
        if after < -1:
            raise Refusal(400, "BAD_REQUEST", f"after is -1 or the number of an event, not {after}")
        follow = call.query.get("follow", True)
        return _streaming(self._streams.of_agent(agent_id, after, call.connection, follow=follow))

    def _all_events(self, call: Call) -> Reply:
        return _streaming(self._streams.of_all(call.headers.get("Last-Event-ID") or None, call.connection))

    def _wait_for_one(self, call: Call) -> Reply:
        agent_id = call.ids["id"]
        ends, is_over = self._wait(
            [agent_id], any_of=False, timeout=call.query.get("timeout"), seen=call.connection
        )
        return Reply({"done": is_over, "end": _end_of(ends, agent_id)})

    def _wait_for_many(self, call: Call) -> Reply:
        ids, any_of = list(dict.fromkeys(call.body["ids"])), call.body.get("any", False)
        if not ids:
            raise Refusal(400, "BAD_REQUEST", "ids is a list of at least one agent")
        found, is_over = self._wait(
            ids, any_of=any_of, timeout=call.body.get("timeout_s"), seen=call.connection
        )
        return Reply({"done": is_over, "ends": {name: _end_of(found, name) for name in ids if name in found}})

    def _wait(
        self, ids: Sequence[str], *, any_of: bool, timeout: float | None, seen: Connection
    ) -> tuple[Mapping[str, RunEnd | None], bool]:
        """The ends of those that are done, None for who was asked nothing; and whether they are enough."""
        if timeout is not None and timeout < 0:
            raise Refusal(400, "BAD_REQUEST", "a timeout is 0 or more seconds")
        give_up = None if timeout is None else time.monotonic() + min(timeout, _LONGEST_WAIT_S)
        while True:
            left = _WAIT_SLICE_S if give_up is None else min(_WAIT_SLICE_S, give_up - time.monotonic())
            ends = self._host.wait(ids, any_of, max(0.0, left))
            is_over = (any if any_of else all)(name in ends for name in ids)
            is_late = give_up is not None and time.monotonic() >= give_up
            if is_over or is_late or seen.is_gone() or self._is_stopping():
                return ends, is_over

    def _decide(self, call: Call) -> Reply:
        return Reply(self._desk.decide(call.ids["id"], call.body["decision"]))


def _end_of(ends: Mapping[str, RunEnd | None], agent_id: str) -> JsonObject | None:
    end = ends.get(agent_id)
    return None if end is None else end.to_json()


def _streaming(stream: Any) -> Reply:
    # No proxy of a reader may gather what it should pass on.
    return Reply(media=EVENT_STREAM, stream=stream, headers={"X-Accel-Buffering": "no"})


def _require_addressable(*names: str | None) -> None:
    if any(name is not None and ("/" in name or name in (".", "..")) for name in names):
        words = "an agent whose id is . or .. or has a slash could not be addressed here"
        raise Refusal(400, "INVALID_ID", words)
