"""Puts one agent together: its model, tools, prompt, policy, limits and surroundings, from its options."""

from __future__ import annotations

import difflib
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.boundary import is_parallel_call, needs_record
from dsh_actors.actors.tool_gate import ToolGate
from dsh_actors.actors.wiring import AgentParts
from dsh_actors.adapters.tools.registry import select_tools
from dsh_actors.adapters.tools.sandbox import probe_sandbox, wrap_command
from dsh_actors.config import Config
from dsh_actors.config.cost_limit import require_currency, require_price
from dsh_actors.config.subagents import outside_section
from dsh_actors.core.answers import schema_section
from dsh_actors.core.budget import Budget
from dsh_actors.core.children import AGENT_TOOLS
from dsh_actors.core.chunks import CallConfig, Usage
from dsh_actors.core.ids import CallId, SessionId
from dsh_actors.core.jobs import JobLog
from dsh_actors.core.keeping import is_new_fork, kept_prompt, with_kept_settings
from dsh_actors.core.limits import LimitWatch
from dsh_actors.core.messages import ImageBlock
from dsh_actors.core.options import AgentOptions, TitlePolicy
from dsh_actors.core.policy import require_known
from dsh_actors.core.redaction import MIN_SECRET, Redactor
from dsh_actors.core.scope import Scope
from dsh_actors.core.state import SessionState
from dsh_actors.core.text import is_well_formed
from dsh_actors.core.turn_env import Environment
from dsh_actors.errors import SubagentError, UsageError
from dsh_actors.ports import CancelToken, Clock, Jobs, LlmProvider, ProcessRunner, Tool, ToolContext, ToolSpec

__all__ = ["AgentAssembly"]

_BYTE_SUFFIX = re.compile(r"#byte=\d+\Z")


StoreImage = Callable[[bytes, str, bool], ImageBlock]
"""Stores an image under a name; False keeps it off the disk."""

TakeImage = Callable[[bytes, str], ImageBlock]


class AgentAssembly:
    """Turns `AgentOptions` into `AgentParts`. `check` refuses what cannot work, before anything exists."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        scope: Scope,
        providers: Mapping[str, LlmProvider],
        processes: ProcessRunner,
        redactor: Redactor,
        store_image: StoreImage | None = None,
        jobs_of: Callable[[SessionId, Scope, JobLog], Jobs] | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._scope = scope
        self._providers = providers
        self._processes = processes
        self._redactor = redactor
        self._store_image = store_image
        self._jobs_of = jobs_of
        self._builtin = frozenset(scope.visible_tools())
        self.pools: dict[SessionId, Budget] = {}
        """What agents to come share with those that start them; taken up when they are built."""
        self.pool: Budget | None = None
        """What all agents that no other one starts share, besides the limits of each."""
        self._probed: str | None = None
        self.sandbox: str | None = None
        self._shared_env: dict[str, str] = {}

    def check(self, options: AgentOptions) -> None:
        """Raises `UsageError`, `ConfigError` or `CredentialError`."""
        self._call_config(options, None)
        if not is_well_formed(options.cwd):
            raise UsageError(f"the name of the directory {options.cwd!a} is not UTF-8: no log could hold it")
        if not os.path.isdir(options.cwd):
            raise UsageError(f"there is no directory {options.cwd}")
        for directory in options.add_dirs:
            if not os.path.isdir(directory):
                raise UsageError(f"there is no directory {directory}")
        tools: list[Any] = list(self._scope.visible_tools().values())
        select_tools(tools, options.tools, options.deny_tools)
        self._check_rules(options)
        self._title_policy(options)
        self._check_price(options, options.model)
        self._check_sandbox(options)

    def _check_price(self, options: AgentOptions, model: str) -> None:
        if options.limits.max_cost is not None:
            require_price(self._config, model, self._clock.now_ms())
            require_currency(self._config, options.model, model)

    def build(
        self,
        options: AgentOptions,
        opened: p.Opened,
        scope: Scope,
        ask_approval: Callable[[Any], None],
    ) -> AgentParts:
        """Register the agent's own things on its scope and collect its parts. Raises what `check` raises."""
        state, header = opened.state, opened.header
        cwd = header.cwd or options.cwd
        if not os.path.isdir(cwd):
            raise UsageError(f"the directory of the session, {cwd}, is gone")
        call = self._call_config(options, state)
        self._check_sandbox(options)
        self._check_rules(options)
        self._register(options, state, scope, cwd)
        locate = _locator(cwd, os.environ.get("HOME", ""))
        gate = ToolGate(header.id, options.policy, cwd, scope, locate, ask_approval)
        own_model = f"{call.provider}/{call.model}"
        budget = self.pools.pop(header.id, None) or self._root_budget(options, own_model)
        env = Environment(
            config=call,
            is_parallel=lambda each: is_parallel_call(scope, each),
            needs_flush=lambda each: needs_record(scope, each),
            cost_of=self._cost_in(budget.model or own_model),
            watch=LimitWatch(options.limits, state.counters, budget, options.limit_base),
            max_parallel=self._config.tools.max_parallel,
            titles=TitlePolicy() if header.origin == "subagent" else self._title_policy(options),
        )
        return AgentParts(
            scope,
            env,
            gate,
            self._context_maker(
                options,
                header.id,
                cwd,
                self._image_taker(options, call),
                self._jobs_of and self._jobs_of(header.id, scope, state.jobs.copy()),
            ),
            self._time_left(options, scope),
            dict(state.children),
        )

    def _root_budget(self, options: AgentOptions, model: str) -> Budget:
        """Raises `SubagentError` with the code AGENT_LIMIT where the pool of all has no more agents."""
        pool = self.pool
        if pool is None:
            return Budget.of(options, model)
        if pool.limits.max_cost is not None:
            require_price(self._config, model, self._clock.now_ms())
            require_currency(self._config, pool.model, model)
        reached = pool.take_agent()
        if reached is not None:
            raise SubagentError(f"--max-agents {reached['value']} is used up", code="AGENT_LIMIT")
        return Budget(options.limits, pool, model=pool.model)

    def takes_images(self, model: str) -> bool:
        """Whether ``PROVIDER/MODEL`` is known to read images. Raises `UsageError` or `CredentialError`."""
        return self._reads_images(self._call_config(AgentOptions(model, ""), None))

    def _reads_images(self, config: CallConfig) -> bool:
        call: Any = self._providers[config.provider].prepare(config)
        # A provider of an embedding program may not know of images.
        return "image" in getattr(call, "input_modalities", ())

    def _image_taker(self, options: AgentOptions, call: CallConfig) -> TakeImage | None:
        store = self._store_image
        if store is None or not self._reads_images(call):
            return None
        return lambda data, name: store(data, name, not options.ephemeral)

    def _check_rules(self, options: AgentOptions) -> None:
        tools = self._scope.visible_tools().values()
        require_known(options.policy, {tool.spec.name: _conditions(tool.spec) for tool in tools})

    def _check_sandbox(self, options: AgentOptions) -> None:
        if options.sandbox == "require" and self._probe() == "none":
            raise UsageError(
                "no sandbox works here", hint="install bubblewrap (bwrap), or use --sandbox auto"
            )

    def _call_config(self, options: AgentOptions, state: SessionState | None) -> CallConfig:
        """Which model to call. An empty ``options.model`` is the one the session used last."""
        logged = state.request_header if state is not None else None
        if not options.model and logged is not None:
            name, model = logged.config.provider, logged.config.model
        else:
            name, model = self._split_model(options.model or self._config.agent.model)
        self._require_provider(name)
        asked = CallConfig(name, model, options.reasoning, max_tokens=options.max_output)
        config = with_kept_settings(asked, logged)
        self._providers[name].prepare(config)
        return config

    def _split_model(self, text: str) -> tuple[str, str]:
        name, slash, model = text.partition("/")
        if not slash or not model or not name:
            raise UsageError(
                f"a model is named PROVIDER/MODEL, not {text!r}",
                code="UNKNOWN_MODEL", hint=f"providers are: {', '.join(sorted(self._providers))}",
            )
        return name, model

    def _require_provider(self, name: str) -> None:
        if name not in self._providers:
            near = difflib.get_close_matches(name, self._providers, 1, 0.5)
            known = ", ".join(sorted(self._providers))
            raise UsageError(
                f"there is no provider {name!r}",
                code="UNKNOWN_MODEL",
                hint=f"did you mean {near[0]!r}?" if near else f"providers are: {known}",
            )

    def _title_policy(self, options: AgentOptions) -> TitlePolicy:
        """Where titles come from. Raises what `check` raises for a model that cannot be asked."""
        settings = self._config.session
        if settings.title == "fallback" or options.ephemeral:
            return TitlePolicy()
        if settings.title_model is None:
            return TitlePolicy(settings.title)
        from dsh_actors.actors.titling import prepare_title  # only where a model writes titles

        name, model = self._split_model(settings.title_model)
        self._require_provider(name)
        self._check_price(options, settings.title_model)
        prepare_title(self._providers[name], CallConfig(name, model, "off"))
        return TitlePolicy(settings.title, (name, model))

    def _register(self, options: AgentOptions, state: SessionState, scope: Scope, cwd: str) -> None:
        if options.tools is not None or options.deny_tools:
            allow = frozenset(options.tools) if options.tools is not None else None
            scope.restrict(allow, frozenset(options.deny_tools))
        elif left_out := self._tools_left_out(options, state) & scope.visible_tools().keys():
            scope.restrict(deny=left_out)
        if options.limits.max_depth == 0:
            scope.restrict(deny=AGENT_TOOLS & scope.visible_tools().keys())
        if options.system_prompt is not None:
            scope.section("persona", 0, self._literal(options.system_prompt))
        appended = self._redactor.text(options.append_system_prompt or "")
        form = "" if options.schema is None else self._redactor.text(schema_section(options.schema))
        scope.kept_prompt = kept_prompt(options, state, appended, form)
        if form:
            scope.section("answer-schema", 100, self._literal(form))
        if options.append_system_prompt is not None:
            scope.section("appended", 10, self._literal(options.append_system_prompt))
        if self._config.subagents and "agent" in scope.visible_tools():
            scope.section("sub-agents", 110, self._literal(outside_section(self._config.subagents)))
        scope.variable("brace", "{{")
        scope.context("environment", 0, lambda: self._environment(cwd))

    def _tools_left_out(self, options: AgentOptions, state: SessionState) -> frozenset[str]:
        """The built-in tools that a session does without: what it was begun with is a part of its prefix.

        None for one that knows no tool of ours, such as a session from elsewhere. Tools of plugins are
        registered on purpose, and seen.
        """
        if state.request_header is None or (is_new_fork(state) and options.preset is not None):
            return frozenset()
        known = {tool.name for tool in state.request_header.tools}
        return self._builtin - known if not known or known & self._builtin else frozenset()

    def _literal(self, text: str) -> str:
        """A person's text as a prompt section: its braces are not variables, its secrets stay out."""
        return self._redactor.text(text).replace("{{", "{{brace}}")

    def _environment(self, cwd: str) -> str:
        day = time.strftime("%Y-%m-%d", time.localtime(self._clock.now_ms() / 1000))
        return f"Working directory: {cwd}\nSystem: {platform.system()}\nDate: {day}"

    def _context_maker(
        self,
        options: AgentOptions,
        session_id: Any,
        cwd: str,
        attach: TakeImage | None,
        jobs: Jobs | None,
    ) -> Callable[[CallId, CancelToken, Tool], ToolContext]:
        roots = tuple(os.path.realpath(path) for path in (cwd, *options.add_dirs))
        if options.policy.mode == "all":
            roots = ("/",)
        own_places = protected, secret_files = self._own_places()
        limit = options.limits.tool_timeout_s
        env = self._child_environment()

        def make(call_id: CallId, cancel: CancelToken, tool: Tool) -> ToolContext:
            return ToolContext(
                session_id=session_id,
                call_id=call_id,
                cwd=cwd,
                roots=roots,
                env=env | {"PWD": cwd},
                cancel=cancel,
                timeout_s=tool.spec.timeout_s or limit,
                output_limit_bytes=self._config.tools.output_limit_bytes,
                processes=self._processes,
                wrap=lambda argv, place: self._wrap(options, roots, own_places, argv, place),
                protected=protected,
                secret_files=secret_files,
                attach=attach,
                jobs=jobs,
            )

        return make

    def _child_environment(self) -> dict[str, str]:
        """The user's environment without the harness's keys, whatever variable they stand in. Not changed."""
        names = self._config.secret_variables()
        # A shorter one, such as the "none" of a server without keys, is the value of other variables too.
        values = {value for value in self._config.secrets().values() if len(value) >= MIN_SECRET}
        env = {k: v for k, v in os.environ.items() if k not in names and v not in values}
        self._shared_env = env if env != self._shared_env else self._shared_env
        return self._shared_env

    def _wrap(
        self,
        options: AgentOptions,
        roots: tuple[str, ...],
        own_places: tuple[tuple[str, ...], tuple[str, ...]],
        argv: Sequence[str],
        cwd: str,
    ) -> Sequence[str]:
        if options.sandbox == "off":
            self.sandbox = self.sandbox or "off"
            return argv
        kind = self._probe()
        return wrap_command(kind, argv, cwd, roots, *own_places) if kind != "none" else argv

    def _own_places(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The directories of the harness that no tool may write, and its files that none may read."""
        home = self._config.home
        if home is None:
            return (), ()
        return (os.path.realpath(home),), (os.path.realpath(os.path.join(home, "credentials.toml")),)

    def _probe(self) -> str:
        if self._probed is None:
            self._probed = probe_sandbox() or "none"
        self.sandbox = self._probed
        return self._probed

    def _cost_in(self, own_model: str) -> Callable[[str, Usage, int], float | None]:
        """What calls cost in the currency of the agent's own model; in another it is not known."""
        rates = self._config.price(own_model)

        def cost(model: str, usage: Usage, time_ms: int) -> float | None:
            price = self._config.price_at(model, time_ms)
            if price is None or rates is None or price.currency != rates.currency:
                return None
            return price.cost(usage)

        return cost

    def _time_left(self, options: AgentOptions, scope: Scope) -> Callable[[], int | None]:
        """What is left of the run, which goes on from when the agent sets to work until it is idle."""
        limits = [s for s in (options.limits.timeout_s, options.limits.deadline_s) if s is not None]
        if not limits:
            return lambda: None
        limit_s, clock = min(limits), self._clock
        began = clock.monotonic()

        def on_status(payload: Mapping[str, Any]) -> None:
            nonlocal began
            if payload["status"] == "running":
                began = clock.monotonic()

        scope.observe("agent/status", on_status)
        return lambda: max(0, int((began + limit_s - clock.monotonic()) * 1000))


def _conditions(spec: ToolSpec) -> set[str]:
    """What a rule can look at in the calls of a tool."""
    found = {"command"} & set(spec.parameters.get("properties", {}))
    return found | {"path"} if spec.path_argument else found


def _locator(cwd: str, home: str) -> Callable[[str], str]:
    """Where a path argument leads: ``~``, links and the byte suffix of `read` resolved."""

    def locate(path: str) -> str:
        path = _BYTE_SUFFIX.sub("", path)
        if path == "~" or path.startswith("~/"):
            path = home + path[1:]
        return os.path.realpath(os.path.join(cwd, path))

    return locate
