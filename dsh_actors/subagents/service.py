"""Sub-agents of a harness: who may start which, who may speak to which, and what their parents are told."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.lifecycle import AgentEntry
from dsh_actors.config import Config
from dsh_actors.config.cost_limit import require_currency
from dsh_actors.core.budget import Budget
from dsh_actors.core.children import started_fact
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId, dated_session_id
from dsh_actors.core.messages import Message
from dsh_actors.core.outcome import OutcomeFold, RunEnd
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import HarnessError, SubagentError, error_chain
from dsh_actors.handle import ASK_TIMEOUT_S, OPEN_TIMEOUT_S, AgentHandle, AgentLinks, AgentRef
from dsh_actors.ports import CancelToken, Clock
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import Slots
from dsh_actors.subagents import words
from dsh_actors.subagents.child import ChildRun, Plan
from dsh_actors.subagents.report import ReportTool
from dsh_actors.subagents.request import ChildRequest, Mode, child_limits, child_options, model_of
from dsh_actors.subagents.seat import Seat

__all__ = ["ChildInfo", "Ground", "Subagents"]


@dataclass(frozen=True, slots=True)
class Ground:
    """What of a harness its sub-agents stand on. ``pools`` is where an agent to come finds its budget."""

    config: Config
    clock: Clock
    agents: Mapping[SessionId, AgentEntry] = field(hash=False)
    links: AgentLinks
    pools: dict[SessionId, Budget] = field(hash=False)
    scope: Scope
    check: Callable[[Any], None] = field(hash=False)
    inspect: Callable[[str], Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """A sub-agent that can be spoken to. ``state`` is queued, running, waiting or, at rest, ready."""

    id: SessionId
    parent: SessionId
    label: str
    state: str
    depth: int = 1


class Subagents:
    """One of a harness. Every method blocks and may be called from any task."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._runs: dict[SessionId, ChildRun] = {}
        self._known: dict[SessionId, dict[str, JsonObject]] = {}
        self._slots: dict[SessionId, Slots] = {}
        self._waiting: set[threading.Event] = set()
        ground.scope.observe("agent/disposed", self._on_disposed)

    # --- starting ----------------------------------------------------------------------------

    def run(self, parent: SessionId, prompt: str | Message, **more: Any) -> RunEnd:
        """A one-shot sub-agent from its start to its outcome; ``more`` as `ChildRequest` has it."""
        run = self.spawn(parent, ChildRequest(prompt, **more))
        try:
            end = run.wait()
        except BaseException:
            run.stop()
            raise
        assert end is not None  # waited for without a limit
        return end

    def spawn(self, parent: SessionId, request: ChildRequest) -> ChildRun:
        """Start a sub-agent that ends with its outcome. Returns at once.

        Raises `SubagentError` for one that may not be started, `UsageError` for options that cannot
        work, with nothing started.
        """
        return self._start(parent, request, "one-shot")

    def start_continuable(self, parent: SessionId, request: ChildRequest) -> ChildRun:
        """Start a sub-agent behind its parent, which hears from it when it comes to rest, and may then let it
        go on. Raises as `spawn` does."""
        return self._start(parent, request, "continuable")

    def followup(self, parent: SessionId, child: str, text: str) -> str:
        """Tell a sub-agent something, and wake it; the state it was found in.

        Raises `SubagentError`: UNAUTHORIZED for another's, NOT_RESUMABLE for one that is unknown.
        """
        entry, fact = self._entry(parent), self._fact(parent, child)
        message = words.relayed(parent, text)
        child_id = SessionId(child)
        run = self._runs.get(child_id)
        if run is not None:
            state = run.state
            if run.tell(message):
                return state
            run.wait()  # it is just going: it comes back
        self._resume(entry, child_id, fact, message)
        return "ready"

    def interrupt(self, parent: SessionId, child: str) -> None:
        """End the turn of a sub-agent, or of one below it. Nothing happens to one at rest.

        Raises `SubagentError` with the code UNAUTHORIZED for an agent that is not below ``parent``.
        """
        target = SessionId(child)
        run = self._runs.get(target)
        above = None if run is None else run.plan.parent
        while above is not None and above != parent:
            over = self._runs.get(above)
            above = None if over is None else over.plan.parent
        if above is None:
            self._fact(parent, child)  # at rest, and nobody else's
        elif run is not None:
            run.interrupt()

    def report(self, child: SessionId, text: str, *, quiet: bool = False) -> None:
        """What a sub-agent tells its parent meanwhile; ``quiet`` wakes nobody.

        Raises `SubagentError` with the code PARENT_UNAVAILABLE where there is nobody to hear it.
        """
        run = self._runs.get(child)
        entry = None if run is None else self._ground.agents.get(run.plan.parent)
        if run is None or entry is None or entry.disposing is not None:
            raise SubagentError("there is no parent that could be told")
        message = words.report_of(child, run.plan.label, text)
        ref = AgentRef(entry, self._ground.links)
        if quiet or self._is_stopping(run.plan.parent):
            ref.inject(message)
        else:
            ref.steer(message)

    def list(self, parent: SessionId, *, descendants: bool = False) -> list[ChildInfo]:
        """The sub-agents that can be spoken to, oldest first; each followed by those below it if wanted."""
        self._entry(parent)
        return list(self._listed(parent, descendants, 1, {parent}))

    def wait(
        self,
        parent: SessionId,
        ids: Iterable[str] | None = None,
        *,
        any_of: bool = False,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
    ) -> dict[str, RunEnd | None]:
        """Wait until all (or one) of the sub-agents at work are at rest; the outcome of each that is.

        ``ids`` None means all that work behind the parent. A wait that ``cancel`` ends returns early.
        """
        if ids is None:
            runs = [run for run in self._runs.values() if self._is_behind(run, parent)]
        else:
            found = [(child, self._fact(parent, child)) for child in ids]
            runs = [run for child, _ in found if (run := self._runs.get(SessionId(child))) is not None]
        woken = threading.Event()
        self._waiting.add(woken)
        undo = cancel.on_cancel(woken.set) if cancel is not None else None
        ends_at = None if timeout_s is None else self._ground.clock.monotonic() + timeout_s
        try:
            while not _enough(runs, any_of) and (cancel is None or cancel.reason is None):
                left = None if ends_at is None else ends_at - self._ground.clock.monotonic()
                if left is not None and left <= 0:
                    break
                woken.wait(left)
                woken.clear()
        finally:
            self._waiting.discard(woken)
            if undo is not None:
                undo()
        return {run.id: run.end for run in runs}

    @contextmanager
    def place_lent(self, agent: SessionId, cancel: CancelToken) -> Iterator[None]:
        """During the block ``agent`` only waits for others, which may have its place."""
        run = self._runs.get(agent)
        with nullcontext() if run is None else run.plan.seat.lent(cancel):
            yield

    def adopt(self, entry: AgentEntry) -> None:
        """Take over the sub-agents of an agent that is resumed; it is told of those that were interrupted."""
        known = {name: dict(fact) for name, fact in entry.parts.children.items()}
        self._known[entry.id] = {name: fact for name, fact in known.items() if fact["mode"] == "continuable"}
        ref, nothing = AgentRef(entry, self._ground.links), OutcomeFold().end(_interrupted())
        for name, fact in known.items():
            if not fact.get("open"):
                continue
            ref.record("subagent/ended", words.ended_fact(name, fact["mode"], nothing, None), ignorable=True)
            if fact["mode"] == "continuable":
                ref.inject(words.interrupted_notice(name, fact["label"]))

    # --- how one comes to be -----------------------------------------------------------------

    def _start(self, parent: SessionId, request: ChildRequest, mode: Mode) -> ChildRun:
        entry, ground = self._entry(parent), self._ground
        self._admit(entry)
        child = dated_session_id(ground.clock.now_ms(), secrets.token_hex(4))
        options = child_options(entry, request, child, self._shared_tools(entry, request))
        self._check(entry, options)
        budget = self._take(entry, replace(options.limits, timeout_s=None))
        make = partial(self._birth, entry, request, options)
        try:
            task, timeout_s = (request.prompt,), request.timeout_s
            return self._launch(entry, child, request.name, mode, make, budget, task, timeout_s)
        except BaseException:
            entry.parts.env.watch.budget.give_back_agent()
            raise

    def _admit(self, entry: AgentEntry) -> None:
        most, depth = entry.options.limits.max_depth, entry.header.delegation_depth
        if depth + 1 > most:
            raise SubagentError(
                f"sub-agents may be nested {most} deep, and this one is {depth} deep"
                if most
                else "there may be no sub-agents here",
                code="DEPTH_LIMIT",
                hint="do the work yourself",
            )
        reached = entry.parts.env.watch.budget.reached()
        if reached is not None:
            raise SubagentError(
                f"--{reached['kind'].replace('_', '-')} {reached['value']} is used up", code="BUDGET_SPENT"
            )

    def _take(self, entry: AgentEntry, limits: Any) -> Budget:
        pool = entry.parts.env.watch.budget
        reached = pool.take_agent()
        if reached is not None:
            raise SubagentError(
                f"this run may have {reached['value']} sub-agents in all, and has had them",
                code="AGENT_LIMIT",
                hint="do the work yourself",
            )
        return Budget(limits, pool, model=pool.model)

    def _check(self, entry: AgentEntry, options: Any) -> None:
        self._ground.check(options)
        if options.limits.max_cost is not None:
            own = entry.parts.env.watch.budget.model or model_of(entry)
            require_currency(self._ground.config, own, options.model)

    def _shared_tools(self, entry: AgentEntry, request: ChildRequest) -> Mapping[str, Any]:
        above = entry.scope.parent or self._ground.scope
        return above.visible_tools()

    def _birth(self, entry: AgentEntry, request: ChildRequest, options: Any, setup: p.Setup) -> Any:
        """What the supervisor is asked for."""
        child = SessionId(options.session_id)
        at_seq = self._last_turn(entry) if request.fork else None
        if at_seq is not None:
            return p.ForkAgent(options, entry.id, child, at_seq, setup)
        header = SessionHeader(
            child,
            self._ground.clock.now_ms(),
            entry.header.cwd or options.cwd,
            parent_session=entry.id,
            origin="subagent",
            delegation_depth=options.depth,
            agent_preset=options.preset,
        )
        return p.CreateAgent(options, header, setup)

    def _last_turn(self, entry: AgentEntry) -> int | None:
        """The last event before the turn that is open; None where no turn has ended."""
        status = AgentRef(entry, self._ground.links).status()
        if status.status == "idle":
            return status.next_seq - 1 if status.turn else None
        return status.turn_seq - 1 if status.turn > 1 and status.turn_seq else None

    def _resume(self, entry: AgentEntry, child: SessionId, fact: JsonObject, message: Message) -> None:
        request = ChildRequest("")
        options = child_options(entry, request, child, self._shared_tools(entry, request))
        options = replace(options, model="", system_prompt=None, append_system_prompt=None, max_output=None)
        pool = entry.parts.env.watch.budget
        budget = Budget(child_limits(entry, request), pool, model=pool.model)

        def make(setup: p.Setup) -> p.ResumeAgent:
            return p.ResumeAgent(options, child, setup)

        self._launch(entry, child, fact["label"], "continuable", make, budget, (message,), None, is_new=False)

    def _launch(
        self,
        entry: AgentEntry,
        child: SessionId,
        label: str,
        mode: Mode,
        make: Callable[[p.Setup], Any],
        budget: Budget,
        messages: tuple[str | Message, ...],
        timeout_s: float | None,
        *,
        is_new: bool = True,
    ) -> ChildRun:
        ground, root = self._ground, self._root(entry.id)
        slots = self._slots.get(root)
        if slots is None:
            slots = self._slots[root] = Slots(entry.options.limits.max_concurrent_agents)

        def open_agent(observe: Callable[[Event], None]) -> AgentHandle:
            ground.pools[child] = budget
            try:
                message = make(partial(self._set_up, entry, child, mode, observe))
                up = ground.links.supervisor.ask(message, timeout=OPEN_TIMEOUT_S + ASK_TIMEOUT_S)
            finally:
                ground.pools.pop(child, None)
            handle = AgentHandle(up, ground.links)
            if is_new:
                handle.record("subagent/descriptor", _descriptor(label, mode, up.header))
            return handle

        fold = OutcomeFold(ground.links.price_of)
        work, seat = ground.links.work, Seat(slots)
        plan = Plan(
            child,
            entry.id,
            label,
            mode,
            timeout_s,
            mode == "one-shot",
            fold,
            seat,
            work,
            open_agent,
            partial(self._settle, entry),
            lambda run: self._release(run, item),
        )
        run = ChildRun(plan, messages)
        item = work.add(entry.id, child, "agent", label, run.stop)
        try:
            AgentRef(entry, ground.links).record(
                "subagent/started", started_fact(child, label, mode), ignorable=True
            )
        except BaseException:
            work.release(item)
            raise
        self._runs[child] = run
        if mode == "continuable":
            self._known.setdefault(entry.id, {})[child] = {"label": label, "mode": mode}
        run.start()
        return run

    def _set_up(
        self,
        entry: AgentEntry,
        child: SessionId,
        mode: Mode,
        observe: Callable[[Event], None],
        scope: Scope,
    ) -> None:
        scope.observe("session/event", observe)
        above = entry.scope.guards
        if above:
            # What its parent may not do, it may not do either.
            scope.guard(lambda call: next((why for guard in above if (why := guard(call)) is not None), None))
        if mode == "continuable":
            scope.tool(ReportTool(self))

    # --- how one ends ------------------------------------------------------------------------

    def _settle(self, entry: AgentEntry, run: ChildRun, end: RunEnd) -> None:
        """Tell the parent, if it is still there: its log, and of what went on behind it its model."""
        plan, ref = run.plan, AgentRef(entry, self._ground.links)
        try:
            fact = words.ended_fact(run.id, plan.mode, end, plan.fold.currency)
            ref.record("subagent/ended", fact, ignorable=True)
            if plan.mode == "continuable":
                limit = self._ground.config.tools.output_limit_bytes
                message = words.notice(run.id, plan.label, end, limit)
                (ref.inject if self._is_stopping(entry.id) else ref.steer)(message)
        except HarnessError as error:
            LOGGER.warning("agent %s was not told of %s: %s", entry.id, run.id, error_chain(error))

    def _release(self, run: ChildRun, item: Any) -> None:
        self._runs.pop(run.id, None)
        self._ground.links.work.release(item)
        for woken in tuple(self._waiting):
            woken.set()

    def _is_stopping(self, agent: SessionId) -> bool:
        run = self._runs.get(agent)
        return run is not None and run.stopped.reason is not None

    def _on_disposed(self, payload: Mapping[str, Any]) -> None:
        agent = SessionId(payload["session"])
        self._known.pop(agent, None)
        if agent not in self._runs:
            self._slots.pop(agent, None)

    # --- who is whose ------------------------------------------------------------------------

    def _entry(self, agent: SessionId) -> AgentEntry:
        entry = self._ground.agents.get(agent)
        if entry is None or entry.disposing is not None:
            raise SubagentError(f"there is no agent {agent} that could have sub-agents")
        return entry

    def _root(self, agent: SessionId) -> SessionId:
        while (run := self._runs.get(agent)) is not None:
            agent = run.plan.parent
        return agent

    def _fact(self, parent: SessionId, child: str) -> JsonObject:
        """What is known of a sub-agent that can be spoken to."""
        fact = self._known.get(parent, {}).get(child)
        if fact is not None:
            return fact
        elsewhere = child in self._ground.agents or any(child in each for each in self._known.values())
        if elsewhere:
            raise SubagentError(f"{child} is not an agent of yours to speak to", code="UNAUTHORIZED")
        raise SubagentError(
            f"there is no agent {child}",
            code="NOT_RESUMABLE",
            hint="agent_list names those that can be spoken to",
        )

    def _is_behind(self, run: ChildRun, parent: SessionId) -> bool:
        return run.plan.parent == parent and run.plan.mode == "continuable"

    def _listed(
        self, parent: SessionId, descendants: bool, depth: int, seen: set[SessionId]
    ) -> Iterator[ChildInfo]:
        known = self._known.get(parent)
        for child, fact in tuple((self._stored(parent) if known is None else known).items()):
            child_id = SessionId(child)
            if child_id in seen:
                continue
            seen.add(child_id)
            run = self._runs.get(child_id)
            state = "ready" if run is None or run.state == "over" else run.state
            yield ChildInfo(child_id, parent, fact["label"], state, depth)
            if descendants:
                yield from self._listed(child_id, descendants, depth + 1, seen)

    def _stored(self, agent: SessionId) -> Mapping[str, JsonObject]:
        """The sub-agents of one at rest, by its log."""
        if agent in self._ground.agents:
            return {}
        try:
            state = self._ground.inspect(agent).state
        except HarnessError:
            return {}
        return {name: fact for name, fact in state.children.items() if fact["mode"] == "continuable"}


def _enough(runs: list[ChildRun], any_of: bool) -> bool:
    ended = [run.end is not None for run in runs]
    return not ended or (any(ended) if any_of else all(ended))


def _interrupted() -> Any:
    from dsh_actors.core.outcome import Circumstances

    return Circumstances(reason="interrupted", message="the process that ran it ended")


def _descriptor(label: str, mode: Mode, header: SessionHeader) -> JsonObject:
    provider = "fork" if header.seed_length is not None else "spawn"
    return {"version": 2, "mode": mode, "provider": provider, "label": label}
