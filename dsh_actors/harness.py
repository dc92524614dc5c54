"""The composition root and the public face: `Harness` starts the actors and hands out `AgentHandle`s.

The only place that builds adapters and starts actors. Start order is rank order, from the bottom.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.approvals import Answerer
from dsh_actors.actors.jobs import JobGround
from dsh_actors.actors.lifecycle import AgentEntry, Lifecycle
from dsh_actors.actors.owned_work import OwnedWork
from dsh_actors.actors.projector import watch_sessions
from dsh_actors.actors.store_books import StoreBooks
from dsh_actors.actors.supervisor import SupervisorActor
from dsh_actors.actors.telemetry_sink import TelemetryFeed
from dsh_actors.actors.wiring import AgentParts, Wiring
from dsh_actors.adapters.storage.backend import open_index, open_storage
from dsh_actors.adapters.storage.lock import this_process
from dsh_actors.adapters.storage.memory import MemoryStorage
from dsh_actors.adapters.storage.shelf import AttachmentShelf
from dsh_actors.adapters.tools.registry import builtin_tools
from dsh_actors.assembly import AgentAssembly
from dsh_actors.closing import Closing
from dsh_actors.config import Config, prepare_home
from dsh_actors.core.budget import Budget
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId, dated_session_id
from dsh_actors.core.messages import ImageBlock
from dsh_actors.core.options import AgentOptions, require_sound
from dsh_actors.core.prompt import PERSONA
from dsh_actors.core.redaction import Redactor
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import UsageError
from dsh_actors.handle import ASK_TIMEOUT_S, OPEN_TIMEOUT_S, AgentHandle, AgentLinks, AgentRef
from dsh_actors.ports import Clock, LlmProvider, SessionStorage
from dsh_actors.providers import LazyProviders
from dsh_actors.runtime.actor import start_actor
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.patching import require_patched, stop_birth_records
from dsh_actors.runtime.process import Processes
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.timers import SystemClock
from dsh_actors.sessions import PreparedSession, SessionView, StoredSessions
from dsh_actors.subagents.tools import agent_tools
from dsh_actors.workers import Addresses, WorkerParts, worker_specs

if TYPE_CHECKING:
    from dsh_actors.subagents.service import Subagents

__all__ = ["AgentHandle", "AgentRef", "Harness"]


class Harness:
    """A process's agents and what they share. Use it as a context manager, or `close` it.

    ``scope`` is the global scope: what plugins register there holds for every agent. ``storage`` is
    for reading; agents write through their actors. ``pool`` limits all agents together; they count in it.
    ``answerer`` is asked where a policy says so, and has ``approval_timeout_s`` seconds; without one every
    such question is answered with no.
    """

    _closed = False

    def __init__(
        self,
        config: Config,
        *,
        providers: Mapping[str, LlmProvider] | None = None,
        clock: Clock | None = None,
        ephemeral: bool = False,
        pool: Budget | None = None,
        answerer: Answerer | None = None,
        approval_timeout_s: float = 300.0,
    ) -> None:
        require_patched()
        stop_birth_records()
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.memory = MemoryStorage(this_process(), self.clock.now_ms)
        self.storage: SessionStorage = self.memory if ephemeral else open_storage(config, self.clock.now_ms)
        self.scope = self._global_scope()
        self._presets: dict[str, Scope] = {}
        place = None if ephemeral else config.home
        self._shelf = AttachmentShelf(place, lambda: prepare_home(config.require_home()))
        self.providers = LazyProviders(config, providers or {}, lambda r: run_native(self._shelf.read, r))
        self._redactor = Redactor(config.secrets())
        # Carried by every child, so that whatever escapes its group is still found.
        self.processes = Processes(f"dsh-{os.getpid()}-{secrets.token_hex(4)}")
        self.work = OwnedWork()
        self._agents: dict[SessionId, AgentEntry] = {}
        self._assembly = AgentAssembly(
            config,
            self.clock,
            self.scope,
            self.providers,
            self.processes,
            self._redactor,
            lambda data, name, keep: ImageBlock(self._shelf.put(data, name, ephemeral=not keep)),
            JobGround(self.work, self.processes, self._redactor, self._agents).jobs_of,
        )
        self._assembly.pool = pool
        self._at = Addresses()
        self._books = StoreBooks()
        self._feed = TelemetryFeed(self._at.telemetry, config.price)
        self._lifecycle = self._wire()
        watch_sessions(self.scope, self._at.projector)
        self._feed.watch(self.scope)
        self._supervisor = self._start(answerer, approval_timeout_s)
        self._sessions = StoredSessions(self.storage, self._at.store, self._supervisor)
        self._links = self._link()
        self._subagents: Subagents | None = None

    def _global_scope(self) -> Scope:
        scope = Scope("global")
        scope.section("persona", 0, PERSONA)
        for tool in (*builtin_tools(), *agent_tools(lambda: self.subagents)):
            scope.tool(tool)
        scope.listen("agent/session-start", self._on_session_start)
        return scope

    @classmethod
    def open(cls, config: Config, **options: Any) -> Harness:
        """Start a harness. Raises `HarnessError` in an unpatched process, `ConfigError` without a home."""
        return cls(config, **options)

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def sandbox(self) -> str | None:
        """``bwrap``, ``none`` or ``off``: what shell commands ran in; None where none ran."""
        return self._assembly.sandbox

    @property
    def subagents(self) -> Subagents:
        """What agents do with their sub-agents."""
        if self._subagents is None:
            from dsh_actors.subagents.service import Ground, Subagents  # most runs have none

            ground = Ground(
                config=self.config,
                clock=self.clock,
                agents=self._agents,
                links=self._links,
                pools=self._assembly.pools,
                scope=self.scope,
                check=self._check,
                bring_up=self._bring_up,
                inspect=self.inspect,
            )
            self._subagents = Subagents(ground)
        return self._subagents

    def image(self, data: bytes, name: str | None = None, *, ephemeral: bool = False) -> ImageBlock:
        """Store an image (PNG, JPEG, GIF, WebP), for a message to an agent; ``ephemeral``: not on the disk.

        Raises `ImageRefused` for what is none or too large, `StorageError` or `ConfigError`.
        """
        return ImageBlock(run_native(self._shelf.put, data, name, ephemeral=ephemeral))

    def takes_images(self, model: str) -> bool:
        """Whether ``PROVIDER/MODEL`` is known to read images. Raises `UsageError` or `CredentialError`."""
        return self._assembly.takes_images(model)

    def check(self, options: AgentOptions) -> None:
        """Raises what `create` would raise for these options. Nothing is made."""
        self._check(options)

    def create(self, options: AgentOptions, setup: p.Setup | None = None) -> AgentHandle:
        """Create an agent with a new session. ``setup`` may register on the agent's scope.

        Nothing is on disk before the first input. Raises `UsageError`, `CredentialError`,
        `SessionExists`, `ActorGone` in a harness that is closing or has failed, and what ``setup`` or an
        ``agent/created`` observer raises, with nothing left behind.
        """
        self._check(options, has_model=True)
        session_id = self._id_for(options)
        header = options.header(session_id, self.clock.now_ms())
        header.require_valid()
        self._prepare_home(options)
        return self._bring_up(p.CreateAgent(options, header, setup))

    def resume(self, session_id: str, options: AgentOptions, setup: p.Setup | None = None) -> AgentHandle:
        """Go on with a stored session, in its recorded directory; an empty ``model`` means the recorded one.

        It keeps its system prompt, whole, its choice of built-in tools and, for the same model, effort and
        output limit, unless ``options`` give others. Raises `SessionNotFound`, `SessionBusy`,
        `SessionCorrupt`, `SessionUnsupported` and what `create` raises; the session is free again then,
        and at most an interrupted turn of it has been closed.
        """
        self._check(options)
        return self._bring_up(p.ResumeAgent(options, SessionId(session_id), setup))

    def fork(
        self,
        session_id: str,
        options: AgentOptions,
        at_seq: int | None = None,
        setup: p.Setup | None = None,
    ) -> AgentHandle:
        """An agent that begins with a copy of a session, live or stored, up to event ``at_seq`` or its end.

        It works in that session's directory; an empty ``model`` means its model. Nothing that was
        pending there is inherited. Raises `SessionExists`, `SessionNotFound`, `UsageError` with the code
        ``INVALID_BOUNDARY`` or ``OPEN_TURN``, `SessionBusy` with the code ``SESSION_NOT_LIVE`` for a
        session that is just being disposed of, and what `resume` raises; nothing stays then.
        """
        self._check(options)
        child_id = self._id_for(options)
        SessionHeader(child_id, 0).require_valid()
        self._prepare_home(options)
        return self._bring_up(p.ForkAgent(options, SessionId(session_id), child_id, at_seq, setup))

    def inspect(self, session_id: str) -> SessionView:
        """What a session comes to, with an interrupted turn closed in memory; writes nothing, locks nothing.

        A live session is shown as it is, also in the middle of a turn. Raises what reading raises.
        """
        return self._sessions.inspect(SessionId(session_id))

    def prepare(self, session_id: str) -> PreparedSession:
        """Read and lock a session for a `resume` to come. Raises what `resume` raises for the session."""
        return self._sessions.prepare(SessionId(session_id))

    def load(self, session_id: str) -> SessionView:
        """As `inspect`, with the closing of an interrupted turn written to the session.

        Raises `SessionBusy` for a session that another process writes or whose turn is under way here.
        """
        return self._sessions.load(SessionId(session_id))

    def read_from(self, session_id: str, seq: int = 0) -> Iterator[Event]:
        """Stream the stored events from ``seq`` on, without repair; none where there are none."""
        return self._sessions.read_from(SessionId(session_id), seq)

    def flush(self, session_id: str, timeout_s: float = ASK_TIMEOUT_S) -> None:
        """Make everything durable that a live agent has logged so far.

        Raises `HarnessError` with the code of what kept it from that, `ActorGone` when time is up.
        """
        self._sessions.flush(SessionId(session_id), timeout_s)

    def preset(self, name: str) -> Scope:
        """The scope of a preset, made when first asked for: what registers there holds for its agents."""
        if name not in self._presets:
            self._presets[name] = Scope("preset", self.scope)
        return self._presets[name]

    def agents(self) -> list[AgentRef]:
        """The live agents, oldest first. Ending one is up to whoever has its handle."""
        entries = self._supervisor.ask(p.GetAgents(), timeout=ASK_TIMEOUT_S)
        return [AgentRef(entry, self._links) for entry in entries]

    def metrics(self) -> dict[str, list[JsonObject]]:
        """What was counted since the start, by metric: ``{"labels": {…}, "value": …}`` each.

        `core.metrics.render` makes the text of Prometheus of it.
        """
        return self._feed.report(self._supervisor)

    def actor_tree(self) -> str:
        """The supervisor, the shared workers and the agents, one line each, as they are at this moment."""
        from dsh_actors.runtime.debug import actor_tree  # only where somebody looks

        return actor_tree(self._supervisor)

    def close(self, timeout_s: float = 30.0) -> None:
        """Dispose of every agent, stop the actors from the top, end every child process.

        Agents have ``timeout_s`` seconds to come to rest, and so have setups that still run. Works in a
        harness that has failed, too: every session is given up.
        """
        if self._closed:
            return
        self._closed = True
        closing = Closing(
            self._supervisor, self._at, self._sessions, self._lifecycle, self._agents, self._books, timeout_s
        )
        try:
            closing.run(self.processes.close)
        finally:
            for scope in (*self._presets.values(), self.scope):
                scope.close()

    def _project(self, session_id: SessionId) -> None:
        """Native: bring the index up to date for one session. Nothing is imported for it before."""
        open_index(self.config.require_home(), self.storage).project(session_id)

    def _check(self, options: AgentOptions, *, has_model: bool = False) -> None:
        """Refuse what cannot work. ``has_model``: an empty name of a model is a wrong one."""
        require_sound(options)
        if options.schema is not None:
            from dsh_actors.adapters.answer_desk import require_schema  # most agents answer in words

            require_schema(options)
        if options.model or has_model:
            self._scope_above(options.preset)
            self._assembly.check(options)

    def _scope_above(self, preset: str | None) -> Scope:
        """The scope an agent of this preset hangs below."""
        if preset is None:
            return self.scope
        if preset not in self._presets:
            known = ", ".join(sorted(self._presets)) or "none"
            raise UsageError(f"there is no preset {preset!r}", hint=f"presets are: {known}")
        return self._presets[preset]

    def _id_for(self, options: AgentOptions) -> SessionId:
        if options.session_id:
            return SessionId(options.session_id)
        return dated_session_id(self.clock.now_ms(), secrets.token_hex(4))

    def _on_session_start(self, payload: Mapping[str, str]) -> None:
        """An agent is held to its schema; a resumed one hears which of its sub-agents were interrupted."""
        entry = self._agents.get(SessionId(payload["session"]))
        if entry is not None and entry.options.schema is not None:
            from dsh_actors.adapters.answer_desk import hold_to_schema

            agent, work = AgentRef(entry, self._links), self.work
            hold_to_schema(entry.scope, entry.options, agent, lambda: bool(work.of(agent.id)))
        if payload["source"] == "resume" and entry is not None and entry.parts.children:
            self.subagents.adopt(entry)

    def _prepare_home(self, options: AgentOptions) -> None:
        if not options.ephemeral and self.storage is not self.memory:
            # Only now: a task that is refused leaves no folder behind.
            prepare_home(self.config.require_home())

    def _bring_up(self, message: p.CreateAgent | p.ResumeAgent | p.ForkAgent) -> AgentHandle:
        entry = self._supervisor.ask(message, timeout=OPEN_TIMEOUT_S + ASK_TIMEOUT_S)
        return AgentHandle(entry, self._links)

    def _link(self) -> AgentLinks:
        return AgentLinks(
            self._supervisor,
            self.config.price,
            self._redactor,
            self.work,
            lambda: self.subagents,
            self.fork,
            partial(self._sessions.of_agent, self.memory),
        )

    def _wire(self) -> Lifecycle:
        wiring = Wiring(
            self.clock,
            self._at.store,
            self._at.gateway,
            self._at.pool,
            self._at.approvals,
            self.providers,
            self.work,
            self.config.session.checkpoint_events,
            self.config.session.checkpoint_max_events,
        )
        return Lifecycle(wiring, self._scope_above, self._build)

    def _build(self, options: AgentOptions, opened: p.Opened, scope: Scope) -> AgentParts:
        parts = self._assembly.build(options, opened, scope, self._at.approvals.tell)
        self._feed.meter(scope, parts.env.config)
        return parts

    def _start(self, answerer: Answerer | None, approval_timeout_s: float) -> Ref[Any]:
        parts = WorkerParts(
            self.storage,
            self.memory,
            self.providers,
            self._redactor,
            self.clock,
            self._books,
            self._project,
            self._feed,
            answerer,
            approval_timeout_s,
        )
        supervisor = SupervisorActor(
            name="supervisor",
            lifecycle=self._lifecycle,
            workers=worker_specs(self.config, parts, self._at),
            agents=self._agents,
            dispensable=frozenset({self._at.projector.name, self._at.telemetry.name}),
            count=self._feed.count,
        )
        ref = start_actor(supervisor)
        ref.ask(p.GetAgents(), timeout=ASK_TIMEOUT_S)  # all workers are up after this
        return ref
