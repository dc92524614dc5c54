"""Sub-agents of a harness, as tools and programs use them: start, speak to, interrupt, wait for, list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from dsh_actors.actors.lifecycle import AgentEntry
from dsh_actors.core.ids import SessionId
from dsh_actors.core.messages import Message
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.errors import SubagentError
from dsh_actors.handle import AgentRef
from dsh_actors.ports import CancelToken
from dsh_actors.subagents import words
from dsh_actors.subagents.child import ChildRun
from dsh_actors.subagents.launch import Launcher
from dsh_actors.subagents.request import ChildRequest
from dsh_actors.subagents.roster import ChildInfo, Ground, Roster

__all__ = ["ChildInfo", "ChildRequest", "ChildRun", "Ground", "Subagents"]


class Subagents:
    """One of a harness. Every method blocks and may be called from any task."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._roster = Roster(ground)
        self._launcher = Launcher(ground, self._roster, self.report)

    def run(self, parent: SessionId, prompt: str | Message, **more: Any) -> RunEnd:
        """A one-shot sub-agent from its start to its outcome; ``more`` as `ChildRequest` has it."""
        return self.spawn(parent, ChildRequest(prompt, **more)).result()

    def spawn(self, parent: SessionId, request: ChildRequest) -> ChildRun:
        """Start a sub-agent that ends with its outcome. Returns at once.

        Raises `SubagentError` for one that may not be started, `UsageError` for options that cannot
        work, with nothing started.
        """
        return self._launcher.start(parent, request, "one-shot")

    def start_continuable(self, parent: SessionId, request: ChildRequest) -> ChildRun:
        """Start a sub-agent behind its parent, which hears from it when it comes to rest, and may then let it
        go on. Raises as `spawn` does."""
        return self._launcher.start(parent, request, "continuable")

    def followup(self, parent: SessionId, child: str, text: str) -> str:
        """Tell a sub-agent something, and wake it; the state it was found in.

        Raises `SubagentError`: UNAUTHORIZED for another's, NOT_RESUMABLE for one that is unknown.
        """
        self._roster.entry(parent)
        fact, message = self._roster.fact(parent, child), words.relayed(parent, text)
        if fact.get("via") is not None:
            raise SubagentError(
                f"{child} is a process of its own ({fact['via']}) and hears nothing after its task",
                code="NOT_RESUMABLE",
                hint="start another one",
            )
        # Others may speak to it at the same time: whoever is first lets it come back, for all of them.
        while (run := self._roster.runs.get(SessionId(child))) is not None:
            state = run.state
            if run.tell(message):
                return state
            run.wait_until_released()  # it is just going
        self._launcher.resume(parent, SessionId(child), fact, message)
        return "ready"

    def interrupt(self, parent: SessionId, child: str) -> None:
        """End the turn of a sub-agent, or of one further below. Nothing happens to one at rest.

        Raises `SubagentError` with the code UNAUTHORIZED for an agent that is not below ``parent``.
        """
        target = SessionId(child)
        if self._roster.is_below(target, parent):
            self._roster.runs[target].interrupt()
        else:
            self._roster.fact(parent, child)

    def report(self, child: SessionId, text: str, *, quiet: bool = False) -> None:
        """What a sub-agent tells its parent meanwhile; ``quiet`` wakes nobody.

        Raises `SubagentError` with the code PARENT_UNAVAILABLE where there is nobody to hear it.
        """
        run = self._roster.runs.get(child)
        entry = None if run is None else self._ground.agents.get(run.plan.parent)
        if run is None or entry is None or entry.disposing is not None:
            raise SubagentError("there is no parent that could be told")
        message = words.report_of(child, run.plan.label, text)
        ref = AgentRef(entry, self._ground.links)
        (ref.inject if quiet or self._roster.is_stopping(entry.id) else ref.steer)(message)

    def list(self, parent: SessionId, *, descendants: bool = False) -> list[ChildInfo]:
        """The sub-agents that can be spoken to, oldest first; each followed by those below it if wanted."""
        self._roster.entry(parent)
        return [*self._roster.listed(parent, descendants)]

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

        ``ids`` None means all that work behind the parent; of those that are named, what is at rest
        already is left out. A wait that ``cancel`` ends returns early. Raises as `followup` does.
        """
        roster = self._roster
        if ids is None:
            runs = roster.behind(parent)
        else:
            names = list(ids)
            for name in names:
                roster.fact(parent, name)
            runs = [run for name in names if (run := roster.runs.get(SessionId(name))) is not None]
        roster.wait(runs, any_of, timeout_s, cancel)
        return {run.id: run.end for run in runs}

    @property
    def outside(self) -> frozenset[str]:
        """The names of configured sub-agents that are processes of their own."""
        return frozenset(self._ground.config.subagents)

    @contextmanager
    def place_lent(self, agent: SessionId, cancel: CancelToken) -> Iterator[None]:
        """During the block ``agent`` only waits for others, which may have its place."""
        run = self._roster.runs.get(agent)
        with nullcontext() if run is None else run.plan.seat.lent(cancel):
            yield

    def adopt(self, entry: AgentEntry) -> None:
        """Take over the sub-agents of an agent that is resumed; it is told of those that were interrupted."""
        ref = AgentRef(entry, self._ground.links)
        ended = Circumstances(reason="interrupted", message="the process that ran it ended")
        for child, fact in entry.parts.children.items():
            mode, via = fact["mode"], fact.get("via")
            if mode == "continuable":
                self._roster.learn(entry.id, child, fact)
            if fact.get("open"):
                end = OutcomeFold().end(ended)
                ref.record("subagent/ended", words.ended_fact(child, mode, end, None), ignorable=True)
                if mode == "continuable":
                    ref.inject(words.interrupted_notice(child, fact["label"], may_go_on=via is None))
