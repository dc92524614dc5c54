"""The host: every agent of the daemon, live or asleep, behind plain blocking calls.

Messages wake sleeping agents; idle ones fall asleep. What the HTTP interface does, it does through here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from dsh_actors.actors.protocol import Setup
from dsh_actors.config import Config, prepare_home
from dsh_actors.core.events import Event
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.info import AgentInfo, end_from_json
from dsh_actors.daemon.kept_options import options_from_json
from dsh_actors.daemon.listing import list_agents
from dsh_actors.daemon.live import LiveAgent, Subscriber, info_of
from dsh_actors.daemon.live_table import DISPOSE_S, LiveTable, OnChange, in_background
from dsh_actors.daemon.registry import AgentRow, Registry
from dsh_actors.daemon.restart import Restart, put_to_sleep
from dsh_actors.daemon.sleeper import Sleeper
from dsh_actors.daemon.waits import Wait
from dsh_actors.daemon.waking import awake, create
from dsh_actors.errors import HarnessError, SessionExists, UsageError, error_chain
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.memory import settle_memory
from dsh_actors.task_spec import TaskSpec, chosen_session_id, fork_point

if TYPE_CHECKING:
    from dsh_actors.core.ids import MessageId
    from dsh_actors.handle import AgentHandle
    from dsh_actors.harness import Harness

__all__ = ["Host"]

Infos = list[AgentInfo]
How = Literal["send", "steer", "inject"]


class Host:
    """Hosts agents in ``harness``, which its owner closes after it. One process a home.

    At most ``max_live`` agents are live; one that was idle for ``idle_after_s`` seconds is put to sleep,
    or earlier where another needs the place. ``on_change`` is called with an `AgentInfo` whenever an
    agent has changed; it must be quick. ``restart`` says what `start` does with runs that the last
    process did not finish: ``resume`` them, or let them ``sleep``.
    """

    def __init__(
        self,
        harness: Harness,
        config: Config,
        *,
        max_live: int = 10_000,
        idle_after_s: float = 300.0,
        on_change: OnChange | None = None,
        restart: str = "resume",
        admission_wait_s: float = 5.0,
    ) -> None:
        self._harness = harness
        self._config = config
        self._registry = Registry(config.require_home())
        self._restart = restart
        self._table = LiveTable(
            harness, self._registry, max_live=max_live, admission_wait_s=admission_wait_s, on_change=on_change
        )
        self._sleeper = Sleeper(self._table, idle_after_s)
        self._resuming: Restart | None = None
        self._table.on_left_over = self._rouse

    # --- the life of the host ----------------------------------------------------------------

    def start(self) -> None:
        """Take the table of agents; runs that were cut go on in the background, as configured.

        Raises `SessionBusy` where another daemon serves this home, `StorageError`.
        """
        settle_memory()
        prepare_home(self._config.require_home())
        run_native(self._registry.open)
        run_native(self._registry.settle)
        owed = run_native(self._registry.owed)
        if self._restart == "sleep":
            put_to_sleep(self._table, owed)
        else:
            self._resuming = Restart(self._table, owed)
            self._resuming.start()
        self._sleeper.start()

    def close(self, timeout_s: float = 30.0, *, drain_s: float = 0.0) -> None:
        """Let runs come to their end for ``drain_s`` seconds, then cut the rest, which `start` resumes.

        Everything is durable after this. Nothing new is taken in from its beginning on.
        """
        table = self._table
        if table.closing:
            return
        table.closing = True
        self._sleeper.close()
        if self._resuming is not None:
            self._resuming.close()
        table.room.close()
        self._drain(drain_s)
        self._end_all(timeout_s)
        table.waits.release_all()
        table.writer.flush()
        table.writer.close()
        table.close()
        run_native(self._registry.close)

    def _drain(self, drain_s: float) -> None:
        ends = time.monotonic() + drain_s
        running = [live.row.id for live in self._table.live.values() if live.fold is not None]
        if running and drain_s > 0:
            self.wait(running, timeout=max(0.0, ends - time.monotonic()))

    def _end_all(self, timeout_s: float) -> None:
        self._sleeper.end(tuple(self._table.live), timeout_s)

    # --- agents ------------------------------------------------------------------------------

    def create(self, spec: TaskSpec) -> AgentInfo:
        """A new agent; with a prompt it sets to work. Its session may be new, a stored one, or a fork.

        Raises `SessionExists` for the id of another agent, `HostFull`, and what the harness raises.
        """
        if spec.prompt is not None:
            _require_words(spec.prompt)
        options = spec.options(self._config)
        if options.ephemeral:
            raise UsageError(
                "an agent of the daemon keeps its session, or it could not sleep", hint="leave out ephemeral"
            )
        name = spec.resume or options.session_id
        if spec.resume is not None:
            bring_up = partial(self._harness.resume, spec.resume, options)
        elif spec.fork is not None:
            point = run_native(fork_point, self._harness.storage, spec.fork)
            bring_up = partial(self._fork_of, point, options)
        else:
            bring_up = partial(self._harness.create, options)
        with self._table.doors.through(name) if name else nullcontext():
            self._require_new(name)
            live = create(self._table, options, bring_up)
            if spec.prompt is not None:
                self._begin(live, spec.prompt)
        return self._table.info(live)

    def get(self, agent_id: str) -> AgentInfo:
        """Raises `AgentNotFound`."""
        live = self._table.live.get(agent_id)
        return self._table.info(live) if live is not None else info_of(self._table.read(agent_id))

    def list(self, state: str | None = None, after: str | None = None, limit: int | None = None) -> Infos:
        """The agents in the order of their ids, from behind the id ``after`` on. Raises `UsageError`."""
        return list_agents(self._table, state, after, limit)

    def counts(self) -> dict[str, int]:
        """How many agents are in each state, as of the last half second."""
        return run_native(self._registry.counts)

    def deliver(self, agent_id: str, text: str, how: How = "send") -> JsonObject:
        """Give a message, waking the agent; it is durable on return. ``{"message_id": …}``.

        ``send``: for a turn of its own; ``steer``: for the next step; ``inject``: for the next step,
        whenever that is. Raises `UsageError`, `AgentNotFound`, `HostFull`, `SessionBusy`, and what waking
        raises.
        """
        if how not in ("send", "steer", "inject"):
            raise UsageError(f"{how!r} is no way to deliver", hint="ways are: send, steer, inject")
        _require_words(text)
        with self._table.doors.through(agent_id):
            live = awake(self._table, agent_id)
            live.pins += 1
            try:
                message_id = self._hand_over(live, text, how)
            except BaseException:
                self._table.unpin(live)
                raise
        try:
            self._harness.flush(agent_id)
        finally:
            self._table.unpin(live)
        return {"message_id": message_id}

    def cancel(self, agent_id: str, keep_inbox: bool = False) -> None:
        """End the turn; without ``keep_inbox`` what is queued goes too, which alone wakes an agent here.

        Raises what waking raises.
        """
        with self._table.doors.through(agent_id):
            live = self._table.live.get(agent_id)
            if live is not None:
                live.handle.cancel(keep_inbox=keep_inbox)
                return
            row = self._table.read(agent_id)
            if row.run_from is not None:
                put_to_sleep(self._table, [agent_id], "cancelled")
            if not keep_inbox and (row.next_turn or row.next_step):
                awake(self._table, agent_id).handle.cancel()

    def fork(
        self,
        agent_id: str,
        at_seq: int | None = None,
        session_id: str | None = None,
        prompt: str | None = None,
    ) -> AgentInfo:
        """A new agent that begins with a copy of this one's session, under the same options.

        Raises what `create` and `Harness.fork` raise.
        """
        if session_id is not None:
            chosen_session_id(session_id)
        if prompt is not None:
            _require_words(prompt)
        with self._table.doors.through(agent_id):
            live = self._table.live.get(agent_id)
            if live is None:
                self._table.read(agent_id)
            kept = run_native(self._registry.options, agent_id)
            options = replace(options_from_json(kept or "{}"), session_id=session_id)
            self._require_new(session_id)
            child = create(self._table, options, partial(self._fork_of, (agent_id, at_seq), options))
            if prompt is not None:
                self._begin(child, prompt)
        return self._table.info(child)

    def wait(
        self, ids: Sequence[str], any: bool = False, timeout: float | None = None
    ) -> dict[str, RunEnd | None]:
        """Wait until the runs of all (or ``any``) of the agents are over, at most ``timeout`` seconds.

        The end of the last run of each that owes nothing, None where none ever began; whoever is not done
        is left out. Nobody waits beyond the end of the host. Raises `AgentNotFound`.
        """
        wait = Wait(ids, for_any=any)
        with self._table.waits.entered(wait):
            for agent_id in tuple(wait.open):
                is_over, end = self._end_of(agent_id)
                if is_over:
                    wait.settle(agent_id, end)
            wait.wait(timeout)
        return {agent_id: wait.ends[agent_id] for agent_id in ids if agent_id in wait.ends}

    def dispose(self, agent_id: str, timeout_s: float = 30.0) -> None:
        """End the agent and forget it; the session stays. Raises `AgentNotFound`, `StorageError`."""
        with self._table.doors.through(agent_id):
            self._table.dispose(agent_id, timeout_s)
        self._table.subscribers.pop(agent_id, None)

    # --- events ------------------------------------------------------------------------------

    def events(self, agent_id: str, after: int = -1) -> Iterator[Event]:
        """The events of an agent behind ``after``, from the log, with all that has happened until now.

        Subscribe first and read then: what comes in between comes twice, and nothing is missed. Raises
        `AgentNotFound`, and what reading a session raises.
        """
        live = self._table.live.get(agent_id)
        if live is None:
            row = self._table.read(agent_id)
            return self._stored(agent_id, after) if _has_session(row) else iter(())
        if live.next_seq and not live.going:
            self._harness.flush(agent_id)
        return self._stored(agent_id, after) if live.next_seq else iter(())

    def subscribe(self, agent_id: str, callback: Subscriber) -> Callable[[], None]:
        """Call back with each event of an agent as it happens, also after it slept; returns the undo.

        The callback must be quick. Raises `AgentNotFound`. The agent is not woken.
        """
        table = self._table
        if agent_id not in table.live:
            table.read(agent_id)
        callbacks = table.subscribers.setdefault(agent_id, [])
        callbacks.append(callback)
        live = table.live.get(agent_id)
        if live is not None:
            live.subscribers = callbacks

        def undo() -> None:
            if callback in callbacks:
                callbacks.remove(callback)
            if not callbacks and table.subscribers.get(agent_id) is callbacks:
                del table.subscribers[agent_id]

        return undo

    def approval_opened(self, agent_id: str) -> None:
        """A question of this agent is open: it does not sleep, and its `AgentInfo` says so. Quick."""
        self._count_approval(agent_id, 1)

    def approval_closed(self, agent_id: str) -> None:
        """The question is answered, or over. Quick."""
        self._count_approval(agent_id, -1)

    def _count_approval(self, agent_id: str, change: int) -> None:
        approvals = self._table.approvals
        approvals[agent_id] = approvals.get(agent_id, 0) + change
        if approvals[agent_id] <= 0:
            del approvals[agent_id]
        live = self._table.live.get(agent_id)
        if live is not None:
            self._table.tell(live)

    # --- parts of the above ------------------------------------------------------------------

    def _rouse(self, agent_id: str) -> None:
        def rouse() -> None:
            with self._table.doors.through(agent_id):
                awake(self._table, agent_id).handle.wake()

        in_background(rouse, f"daemon/rouse {agent_id}")

    def _require_new(self, name: str | None) -> None:
        if name is None:
            return
        table = self._table
        row = table.writer.newest(name) or run_native(self._registry.read, name)
        if name in table.live or row is not None:
            raise SessionExists(f"there is an agent {name} already", hint="send it a message")

    def _fork_of(self, fork: tuple[str, int | None], options: AgentOptions, setup: Setup) -> AgentHandle:
        return self._harness.fork(fork[0], options, fork[1], setup)

    def _begin(self, live: LiveAgent, prompt: str) -> None:
        """Give a new agent its task; nothing stays of the agent where that fails."""
        live.pins += 1
        try:
            self._hand_over(live, prompt, "send")
            self._harness.flush(live.row.id)
        except BaseException as error:
            self._undo(live, error)
            raise
        finally:
            self._table.unpin(live)

    def _undo(self, live: LiveAgent, error: BaseException) -> None:
        try:
            self._table.dispose(live.row.id, DISPOSE_S)
        except HarnessError as failure:
            LOGGER.warning(
                "agent %s is left over after %s: %s", live.row.id, error_chain(error), error_chain(failure)
            )

    def _hand_over(self, live: LiveAgent, text: str, how: How) -> MessageId:
        if how == "inject":
            return live.handle.inject(text)
        self._table.begin_run(live)
        try:
            return live.handle.followup(text) if how == "send" else live.handle.steer(text)
        except BaseException:
            self._table.drop_run(live)
            raise

    def _stored(self, agent_id: str, after: int) -> Iterator[Event]:
        return self._harness.read_from(agent_id, after + 1)

    def _end_of(self, agent_id: str) -> tuple[bool, RunEnd | None]:
        """Whether nothing is owed, and the end of the last run then."""
        live = self._table.live.get(agent_id)
        row = live.row if live is not None else self._table.read(agent_id)
        if live.fold is not None if live is not None else row.state == "running":
            return False, None
        return True, end_from_json(row.last_end) if row.last_end else None


def _require_words(text: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise UsageError("the message is empty")


def _has_session(row: AgentRow) -> bool:
    """Whether anything was ever said to an agent: there is no session before."""
    return bool(row.turn or row.next_turn or row.next_step or row.run_from is not None)
