"""How a sub-agent comes to be: what it may have, what the supervisor is asked for, who hears of its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.lifecycle import AgentEntry
from dsh_actors.config.cost_limit import require_currency
from dsh_actors.config.subagents import OutsideAgent
from dsh_actors.core.budget import Budget
from dsh_actors.core.children import started_fact
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId, dated_session_id
from dsh_actors.core.messages import Message
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.outcome import OutcomeFold, RunEnd
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import HarnessError, SubagentError, UsageError, error_chain
from dsh_actors.handle import AgentHandle, AgentRef
from dsh_actors.runtime.log import LOGGER
from dsh_actors.subagents import words
from dsh_actors.subagents.child import ChildRun, Plan
from dsh_actors.subagents.outside_call import outside_call
from dsh_actors.subagents.outside_run import OutsideRun
from dsh_actors.subagents.report import Report, ReportTool
from dsh_actors.subagents.request import ChildRequest, Mode, child_options, model_of, resumed_request
from dsh_actors.subagents.roster import Ground, Roster
from dsh_actors.subagents.seat import Seat

__all__ = ["Launcher"]

MakeRun = Callable[[Plan, "str | Message", Callable[[ChildRun], None]], ChildRun]
Make = Callable[[p.Setup], p.CreateAgent | p.ForkAgent | p.ResumeAgent]


class Launcher:
    """``report`` is what the tool of that name does."""

    def __init__(self, ground: Ground, roster: Roster, report: Report) -> None:
        self._ground = ground
        self._links = ground.links
        self._roster = roster
        self._report = report

    def start(self, parent: SessionId, request: ChildRequest, mode: Mode) -> ChildRun:
        """Raises `SubagentError` or `UsageError`, with nothing started."""
        entry = self._roster.entry(parent)
        self._admit(entry)
        child = dated_session_id(self._ground.clock.now_ms(), secrets.token_hex(4))
        outside = self._outside(request)
        if outside is not None and request.model is None:
            request = replace(request, model=outside.model)
        options = child_options(entry, request, child, self._shared_tools(entry))
        config = self._ground.config
        call = None if outside is None else outside_call(outside, config, entry, request, options)
        if outside is None or not outside.command:
            self._check(entry, options)
        pool = entry.parts.env.watch.budget
        reached = pool.take_agent()
        if reached is not None:
            raise SubagentError(
                f"this run may have {reached['value']} sub-agents in all, and has had them",
                code="AGENT_LIMIT",
                hint="do the work yourself",
            )
        make = partial(self._birth, entry, request, options)
        plan = self._plan(entry, options, request, request.name, mode, make, is_new=True)
        make_run: MakeRun = ChildRun
        if call is not None:
            plan = replace(plan, via=request.via)
            budget = Budget(replace(options.limits, timeout_s=None), pool, model=pool.model)
            make_run = partial(OutsideRun, call, budget)
        try:
            return self._launch(entry, plan, request.prompt, make_run)
        except BaseException:
            pool.give_back_agent()
            raise

    def resume(self, parent: SessionId, child: SessionId, fact: JsonObject, message: Message) -> ChildRun:
        """Let a sub-agent that came to rest go on with a message; ``fact`` is what is known of it."""
        entry, label = self._roster.entry(parent), fact["label"]
        shared = self._shared_tools(entry)
        request = resumed_request(fact, entry.scope.visible_tools().keys() & shared.keys())
        options = child_options(entry, request, child, shared)
        # What it says and calls it has from its own log, and its output limit from its model.
        options = replace(options, model="", system_prompt=None, append_system_prompt=None, max_output=None)
        make = partial(p.ResumeAgent, options, child)
        plan = self._plan(entry, options, request, label, "continuable", make, is_new=False)
        return self._launch(entry, plan, message)

    # --- what it may have --------------------------------------------------------------------

    def _outside(self, request: ChildRequest) -> OutsideAgent | None:
        if request.via is None:
            return None
        known = self._ground.config.subagents
        if request.via not in known:
            names = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"there is no sub-agent {request.via!r} in the configuration", hint=f"there are: {names}"
            )
        return known[request.via]

    def _admit(self, entry: AgentEntry) -> None:
        most, depth = entry.options.limits.max_depth, entry.header.delegation_depth
        if depth >= most:
            deep = f"sub-agents may be nested {most} deep, and you are that deep"
            raise SubagentError(
                deep if most else "there may be none", code="DEPTH_LIMIT", hint="do the work yourself"
            )
        reached = entry.parts.env.watch.budget.reached()
        if reached is not None:
            limit = f"--{reached['kind'].replace('_', '-')} {reached['value']}"
            raise SubagentError(f"{limit} is used up", code="BUDGET_SPENT")

    def _check(self, entry: AgentEntry, options: AgentOptions) -> None:
        self._ground.check(options)
        if options.limits.max_cost is not None:
            own = entry.parts.env.watch.budget.model or model_of(entry)
            require_currency(self._ground.config, own, options.model)

    def _shared_tools(self, entry: AgentEntry) -> Any:
        return (entry.scope.parent or self._ground.scope).visible_tools()

    # --- bringing it up ----------------------------------------------------------------------

    def _plan(
        self,
        entry: AgentEntry,
        options: AgentOptions,
        request: ChildRequest,
        label: str,
        mode: Mode,
        make: Make,
        *,
        is_new: bool,
    ) -> Plan:
        child = SessionId(options.session_id or "")
        pool = entry.parts.env.watch.budget
        # Its time is watched by itself; the rest counts for all that stand above it.
        budget = Budget(replace(options.limits, timeout_s=None), pool, model=pool.model)

        # One more tool than its parent has would cost a fork the prefix that it shares with it.
        reports = mode == "continuable" and not request.fork

        def open_agent(observe: Callable[[Event], None]) -> AgentHandle:
            self._ground.pools[child] = budget
            try:
                handle = self._ground.bring_up(make(partial(self._set_up, entry, reports, observe)))
            finally:
                self._ground.pools.pop(child, None)
            if is_new:
                handle.record("subagent/descriptor", _descriptor(label, mode, handle.header))
            return handle

        return Plan(
            id=child,
            parent=entry.id,
            label=label,
            mode=mode,
            timeout_s=request.timeout_s,
            counts_waiting=mode == "one-shot",
            fold=OutcomeFold(self._links.price_of),
            seat=Seat(self._roster.slots(entry)),
            work=self._links.work,
            open=open_agent,
            settle=partial(self._settle, entry),
            is_fork=request.fork,
            schema=options.schema,
            bounds=request.bounds(),
        )

    def _launch(
        self, entry: AgentEntry, plan: Plan, message: str | Message, make_run: MakeRun = ChildRun
    ) -> ChildRun:
        run = make_run(plan, message, self._released)
        # Whoever speaks to it from here on reaches this life of it, and starts no other one.
        self._roster.joined(run)
        fact = started_fact(
            plan.id,
            plan.label,
            plan.mode,
            is_fork=plan.is_fork,
            schema=plan.schema,
            via=plan.via,
            bounds=plan.bounds if plan.mode == "continuable" else None,
        )
        try:
            run.item = self._links.work.add(entry.id, plan.id, "agent", plan.label, run.stop)
            AgentRef(entry, self._links).record("subagent/started", fact, ignorable=True)
        except BaseException:
            self._released(run)
            raise
        if plan.mode == "continuable":
            self._roster.learn(entry.id, plan.id, fact)
        run.start()
        return run

    def _birth(
        self, entry: AgentEntry, request: ChildRequest, options: AgentOptions, setup: p.Setup
    ) -> p.CreateAgent | p.ForkAgent:
        child = SessionId(options.session_id or "")
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
        status = AgentRef(entry, self._links).status()
        if status.status == "idle":
            return status.next_seq - 1 if status.turn else None
        return status.turn_seq - 1 if status.turn > 1 and status.turn_seq else None

    def _set_up(
        self, entry: AgentEntry, reports: bool, observe: Callable[[Event], None], scope: Scope
    ) -> None:
        scope.observe("session/event", observe)
        above = entry.scope.guards
        if above:
            # What its parent may not do, it may not do either.
            scope.guard(lambda call: next((why for guard in above if (why := guard(call)) is not None), None))
        if reports:
            scope.tool(ReportTool(self._report))

    # --- its end -----------------------------------------------------------------------------

    def _settle(self, entry: AgentEntry, run: ChildRun, end: RunEnd) -> None:
        """Tell the parent, if it is still there: its log, and of what went on behind it its model."""
        plan, ref = run.plan, AgentRef(entry, self._links)
        fact = words.ended_fact(run.id, plan.mode, end, plan.fold.currency)
        words_of_it: list[Callable[[], object]] = [
            partial(ref.record, "subagent/ended", fact, ignorable=True)
        ]
        if plan.mode == "continuable":
            limit = self._ground.config.tools.output_limit_bytes
            message = words.notice(run.id, plan.label, end, limit)
            # Below something that is ending nobody sets to work again.
            is_ending = self._roster.is_stopping(entry.id) or self._links.work.is_quiet(entry.id)
            tell = ref.inject if is_ending else ref.steer
            words_of_it.append(partial(tell, message))
        for tell_it in words_of_it:
            try:
                tell_it()
            except HarnessError as error:
                LOGGER.warning("agent %s was not told of %s: %s", entry.id, run.id, error_chain(error))

    def _released(self, run: ChildRun) -> None:
        self._roster.left(run)
        if run.item is not None:
            self._links.work.release(run.item)
            run.item = None


def _descriptor(label: str, mode: Mode, header: SessionHeader) -> JsonObject:
    provider = "fork" if header.seed_length is not None else "spawn"
    return {"version": 2, "mode": mode, "provider": provider, "label": label}
