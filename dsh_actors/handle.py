"""One live agent, as a program holds it: `AgentRef` to work with it, `AgentHandle` to end it too."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.event_stream import event_stream
from dsh_actors.actors.lifecycle import DISPOSE_MARGIN_S, AgentEntry
from dsh_actors.actors.owned_work import OwnedWork
from dsh_actors.core import turn_io as io
from dsh_actors.core.events import Event
from dsh_actors.core.ids import MessageId
from dsh_actors.core.inbox import Target
from dsh_actors.core.messages import Message, user_message
from dsh_actors.core.options import LimitBase, Limits
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.core.pricing import PriceOf
from dsh_actors.core.redaction import Redactor
from dsh_actors.core.text import JsonObject, JsonValue, clean_text, require_lossless
from dsh_actors.core.titles import normal_title
from dsh_actors.errors import ActorGone, UsageError
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.ref import ACTOR_TIMEOUT, Ref

__all__ = ["ASK_TIMEOUT_S", "OPEN_TIMEOUT_S", "AgentHandle", "AgentLinks", "AgentRef"]

ASK_TIMEOUT_S = 30.0
OPEN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class AgentLinks:
    """What every handle of a harness needs of it."""

    supervisor: Ref[Any]
    price_of: PriceOf
    redactor: Redactor
    work: OwnedWork
    subagents: Callable[[], Any]
    fork: Callable[..., AgentHandle]
    stored: Callable[[AgentEntry, int], Iterator[Event]]


class AgentRef:
    """One live agent, for whoever found it: it can be talked to, and not ended."""

    def __init__(self, entry: AgentEntry, links: AgentLinks) -> None:
        self.id = entry.id
        self.header = entry.header
        self._options = entry.options
        self._scope = entry.scope
        self._env = entry.parts.env
        self._links = links
        self._redactor = links.redactor
        self._address = entry.address
        self._supervisor = links.supervisor
        self._entry = entry

    @property
    def model(self) -> str:
        """The model it calls, as ``PROVIDER/MODEL``."""
        return f"{self._env.config.provider}/{self._env.config.model}"

    @property
    def is_up(self) -> bool:
        """Whether it takes messages now: not while it is rebuilt after a crash, nor once it is gone."""
        ref = self._address.ref
        return ref is not None and ref.is_alive

    def run(self, prompt: str | Message, timeout: float | None = None) -> RunEnd:
        """Give a task and wait until nothing is owed; the outcome as `dsh run` would judge it.

        After ``timeout`` seconds the turn is cancelled and the outcome's reason is ``timeout``; what the
        agent has started goes on, tells it of its end, and is in ``abandoned``. Raises `ActorGone` if the
        agent is gone, `UsageError` for a blank prompt.
        """
        if self._scope.closed:
            raise ActorGone(f"there is no agent {self.id}")
        if timeout is not None and type(timeout) not in (int, float):
            raise UsageError(f"timeout is a number of seconds, not {timeout!r}")
        fold, began = OutcomeFold(self._links.price_of), time.monotonic()
        undo = self._scope.observe("session/event", fold.apply)
        left: tuple[str, ...] = ()
        try:
            self.followup(prompt)
            if not self.when_done(timeout):
                left = tuple(item.id for item in self._links.work.of(self.id))
                self.cancel({"kind": "hook", "reason": "timeout"})
                self.when_idle(ASK_TIMEOUT_S)
        finally:
            undo()
        duration_ms = int((time.monotonic() - began) * 1000)
        # A turn that was over by then says nothing of the time.
        why = ("timeout", f"{timeout:g} s passed while background work went on") if left else (None, None)
        facts = Circumstances(self.id, reason=why[0], message=why[1], duration_ms=duration_ms, abandoned=left)
        return fold.end(facts)

    def spawn(
        self,
        prompt: str | Message,
        *,
        model: str | None = None,
        schema: JsonObject | None = None,
        tools: tuple[str, ...] | None = None,
        system_prompt: str | None = None,
        timeout: float | None = None,
        fork: bool = False,
        limits: Limits | None = None,
        via: str | None = None,
    ) -> RunEnd:
        """Give a task to a sub-agent of its own and wait for the outcome; many may be waited for at once.

        It works in the same directory, under the same policy and out of the same limits, and may only be
        restricted further. ``fork``: it knows what this agent knows up to its last whole turn. After
        ``timeout`` seconds it is stopped, and the outcome's reason is ``timeout``. ``via``: it is a process,
        the one of ``[subagents.NAME]``. Raises `SubagentError` where it may not be started,
        `UsageError` for options that cannot work.
        """
        more = {"model": model, "schema": schema, "tools": tools, "system_prompt": system_prompt}
        end: RunEnd = self._links.subagents().run(
            self.id, prompt, timeout_s=timeout, fork=fork, limits=limits, via=via, **more
        )
        return end

    def events(self, after: int = -1, *, follow: bool = True) -> Iterator[Event]:
        """The session's events behind seq ``after``: those so far, then each as it happens.

        Ends when the agent is disposed of, or with what there is now without ``follow``; leave it before by
        closing it. A reader may be slow: nothing is skipped, and what waits for it is bounded.
        """
        return event_stream(self._scope, partial(self._links.stored, self._entry), after, follow=follow)

    def record(self, kind: str, data: JsonObject, *, ignorable: bool = False) -> None:
        """Put a log-only fact into the session. Raises `EventRefused` for data that JSON cannot hold."""
        require_lossless(data, kind)  # before anything walks through what may have no end
        self._ask(io.Record(kind, self._redactor.json(data), ignorable))

    def record_value(self, kind: str, value: JsonValue) -> None:
        """Put a value of any size into the session, as a fact ``{"value"}`` that readers may skip.

        It has been made sure that JSON can hold it. What takes long does not hold up other agents.
        """
        data = run_native(self._redactor.json, {"value": value})
        self._ask(io.Record(kind, data, ignorable=True, is_checked=True))

    def rename(self, title: str) -> None:
        """Give the session a title; no other takes its place by itself.

        Raises `UsageError` for a text of which nothing can be seen.
        """
        normal = normal_title(title)
        if not normal:
            raise UsageError(f"{title!a} has nothing that could be seen of a title")
        self.record("session/title", {"title": normal, "messageSeqs": [], "source": {"kind": "user"}})

    def followup(self, text: str | Message) -> MessageId:
        """Queue input for a turn of its own and wake the agent."""
        return self._deliver(text, "next-turn", wake=True)

    def steer(self, text: str | Message) -> MessageId:
        """Queue input for the next step and wake the agent."""
        return self._deliver(text, "next-step", wake=True)

    def inject(self, text: str | Message) -> MessageId:
        """Queue input for the next step, whenever that is."""
        return self._deliver(text, "next-step", wake=False)

    def limit_base(self) -> LimitBase:
        """What its limits shall count from when it is resumed as another agent."""
        return self._env.watch.base()

    def wake(self) -> None:
        """Go on with what is queued; nothing happens where nothing is."""
        self._ask(io.Wake())

    def cancel(self, cause: JsonObject | None = None, *, keep_inbox: bool = False) -> None:
        """End the turn; without ``keep_inbox`` what is queued goes too. ``cause``: a person, by default.

        Raises `UsageError` for the cause of a dispose, `EventRefused` for one that is none.
        """
        if cause is not None and cause.get("kind") == "disposed":
            raise UsageError("only a dispose has the cause 'disposed'", hint="dispose of the agent's handle")
        self._ask(io.Cancel(cause or {"kind": "user"}, keep_inbox))

    def status(self) -> p.AgentStatus:
        status: p.AgentStatus = self._ask(p.GetStatus())
        return status

    def when_idle(self, timeout: float | None = None) -> bool:
        """Wait until the agent is idle, at most ``timeout`` seconds; whether it is.

        An agent that crashed and was rebuilt from its log counts on. Raises `ActorGone` if it is gone.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 3600.0 if ends is None else max(0.0, ends - time.monotonic())
            try:
                self._ask(p.WhenIdle(), timeout=left)
                return True
            except ActorGone as error:
                if error.code != ACTOR_TIMEOUT:
                    raise
                if ends is not None and time.monotonic() >= ends:
                    return False

    def when_done(self, timeout: float | None = None) -> bool:
        """Wait until the agent is idle and nothing that it started goes on, at most ``timeout`` seconds.

        What ends meanwhile tells the agent, which may set to work again. Raises what `when_idle` raises.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            if not self.when_idle(None if ends is None else max(0.0, ends - time.monotonic())):
                return False
            going_on = self._links.work.of(self.id)
            if not going_on:
                # Its notice came before the end of each: an agent that is idle now has nothing to come.
                if self.status().status == "idle":
                    return True
                continue
            left = None if ends is None else max(0.0, ends - time.monotonic())
            if not self._links.work.wait_for_release(going_on, left):
                return False

    def _deliver(self, text: str | Message, target: Target, *, wake: bool) -> MessageId:
        if isinstance(text, Message):
            message = text
        elif not isinstance(text, str):
            raise UsageError(f"a message is a text or a Message, not {text!r:.100}")
        elif not text.strip():
            raise UsageError("the message is blank")
        else:
            message = user_message(_new_id("msg"), clean_text(text))
        self._ask(io.Deliver(self._redactor.message(message), target, wake))
        return message.id

    def _ask(self, message: Any, timeout: float = ASK_TIMEOUT_S) -> Any:
        while True:
            try:
                return self._address.ask(message, timeout=timeout)
            except ActorGone as error:
                if error.code == ACTOR_TIMEOUT:
                    raise
            # It died with this unread: the supervisor says when it is back, or that it is gone.
            self._supervisor.ask(p.AwaitAgent(self.id, self._scope), timeout=OPEN_TIMEOUT_S)


class AgentHandle(AgentRef):
    """What creating or resuming an agent gives. Holding it is the right to dispose of the agent.

    As a context manager it disposes of the agent at the end of the block.
    """

    def __enter__(self) -> AgentHandle:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.dispose()

    def fork(self, at_seq: int | None = None, session_id: str | None = None) -> AgentHandle:
        """Another agent like this one, that begins with a copy of its session up to event ``at_seq``.

        Raises what `Harness.fork` raises; ``OPEN_TURN`` in the middle of a turn, without ``at_seq``.
        """
        options = replace(
            self._options, model="", session_id=session_id, system_prompt=None, append_system_prompt=None
        )
        return self._links.fork(self.id, options, at_seq)

    def dispose(self, timeout_s: float = 30.0, *, keep_inbox: bool = False) -> None:
        """Cancel, wait until quiet, make the log durable, give up the session.

        With ``keep_inbox`` what is queued is still pending for whoever resumes the session. Raises what
        kept the log from becoming durable. Disposing twice is disposing once.
        """
        message = p.DisposeAgent(self.id, timeout_s, keep_inbox, self._scope)
        self._supervisor.ask(message, timeout=timeout_s + DISPOSE_MARGIN_S)


def _new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"
