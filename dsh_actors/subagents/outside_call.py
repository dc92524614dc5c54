"""What a sub-agent in a process of its own is started with: command, surroundings, and what is left to it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dsh_actors
from dsh_actors.config import Config
from dsh_actors.config.subagents import OutsideAgent
from dsh_actors.core.budget import Budget
from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import ImageBlock, Message, text_of
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import SubagentError
from dsh_actors.ports import ProcessRunner, ToolContext, ToolSpec
from dsh_actors.runtime.cancel import CancelSource

if TYPE_CHECKING:
    from dsh_actors.actors.lifecycle import AgentEntry
    from dsh_actors.subagents.request import ChildRequest

__all__ = ["OutsideCall", "outside_call"]

_HEARTBEAT_S = 20
_SCHEMA_FILE = "{schema_file}"
# The user's files are not ours to import: nothing but this package is added to the path.
_BOOT = (
    "import sys; sys.path.insert(0, {root!r}); import runpy; "
    "runpy.run_module('dsh_actors', run_name='__main__')"
)


@dataclass(frozen=True, slots=True)
class OutsideCall:
    """One call of a configured sub-agent, checked; nothing is started yet."""

    agent: OutsideAgent
    options: AgentOptions
    prompt: str = field(repr=False)
    context: ToolContext = field(hash=False, repr=False)
    env: Mapping[str, str] = field(hash=False, repr=False)

    @property
    def processes(self) -> ProcessRunner:
        return self.context.processes

    def argv(self, budget: Budget, folder: str) -> tuple[str, ...]:
        """The command, with what is left of ``budget``. Long texts are put into files in ``folder``."""
        if not self.agent.command:
            return (*_dsh(), *self._dsh_options(budget, folder), "-")
        values = {
            "{session_id}": self.options.session_id or "",
            "{model}": self.options.model,
            "{cwd}": self.options.cwd,
        }
        if self.options.schema is not None:
            values[_SCHEMA_FILE] = _written(folder, "schema.json", json.dumps(self.options.schema))
        argv = tuple(_filled(word, values) for word in self.agent.command)
        return tuple(self.context.wrap(argv, self.options.cwd)) if self.agent.sandbox else argv

    def _dsh_options(self, budget: Budget, folder: str) -> Iterator[str]:
        options, limits = self.options, self.options.limits
        yield from ("run", "--json", "--heartbeat", str(_HEARTBEAT_S), "--no-fail-on-denied")
        given: dict[str, object | None] = {
            "--session-id": options.session_id,
            "-C": options.cwd,
            "-m": options.model or None,
            "--reasoning": options.reasoning,
            "--max-output": options.max_output,
            "--approve": _policy_word(options),
            "--sandbox": options.sandbox,
            "--tools": None if options.tools is None else ",".join(options.tools),
            "--timeout": limits.timeout_s,
            "--tool-timeout": limits.tool_timeout_s,
            "--max-retries": limits.max_retries,
            "--max-concurrent-agents": limits.max_concurrent_agents,
            "--max-depth": limits.max_depth,
            "--sub-agent-of": f"{self.context.session_id}:{options.depth}",
        }
        given |= _left(budget)
        for name, text in (
            ("--system-prompt-file", options.system_prompt),
            ("--append-system-prompt-file", options.append_system_prompt),
        ):
            given[name] = None if text is None else _written(folder, name.strip("-"), text)
        if options.schema is not None:
            given["--schema"] = _written(folder, "schema.json", json.dumps(options.schema))
            given["--schema-retries"] = options.schema_retries
        for name, value in given.items():
            if value is not None:
                yield from (name, str(value))
        for place in options.add_dirs:
            yield from ("--add-dir", place)
        if options.ephemeral:
            yield "--ephemeral"


def outside_call(
    agent: OutsideAgent, config: Config, entry: AgentEntry, request: ChildRequest, options: AgentOptions
) -> OutsideCall:
    """Check what is asked of a configured sub-agent. Raises `SubagentError` with the code
    UNSUPPORTED_CAPABILITY for what the process could not be held to, `UsageError` for a wrong schema.
    """
    _require_possible(agent, entry, request, options)
    if options.schema is not None:
        from dsh_actors.adapters.json_schema import AnswerSchema  # most answer in words

        AnswerSchema.of(options.schema)
    tool: Any = SimpleNamespace(spec=ToolSpec("agent", "", {}))
    context = entry.parts.make_context(CallId(""), CancelSource().token, tool)
    env = dict(context.env)
    if agent.command:
        env |= {name: os.environ[name] for name in agent.env_keys if name in os.environ}
    else:
        env |= _own_environment(config, options.model)
    prompt = request.prompt if isinstance(request.prompt, str) else text_of(request.prompt)
    return OutsideCall(agent, options, prompt, context, env)


def _require_possible(
    agent: OutsideAgent, entry: AgentEntry, request: ChildRequest, options: AgentOptions
) -> None:
    refusals = {
        "begin with what its parent knows": request.fork,
        "be shown images": isinstance(request.prompt, Message)
        and any(isinstance(block, ImageBlock) for block in request.prompt.content),
        # Guards are code of this program.
        "be kept to the guards of its parent": bool(entry.scope.guards_of()),
    }
    if agent.command:
        refusals |= {
            "be kept from changing anything": options.policy.mode == "read-only",
            "be kept to some tools": request.tools is not None,
            "be given a system prompt": request.system_prompt is not None,
            "be held to a schema": options.schema is not None
            and not any(_SCHEMA_FILE in word for word in agent.command),
        }
    else:
        refusals["be kept to rules that are in no file"] = _policy_word(options) is None
    for what, is_asked in refusals.items():
        if is_asked:
            raise SubagentError(
                f"the sub-agent {agent.name} is a process of its own and cannot {what}",
                code="UNSUPPORTED_CAPABILITY",
            )


def _policy_word(options: AgentOptions) -> str | None:
    policy = options.policy
    if policy.mode != "rules":
        return policy.mode
    path = os.path.abspath(policy.name)  # as it was read: this process never changes its directory
    return path if os.path.isfile(path) else None


def _own_environment(config: Config, model: str) -> JsonObject:
    """What ``dsh`` needs beside what every command gets: the key of its provider, if a variable holds it."""
    provider = model.partition("/")[0]
    found: JsonObject = {} if config.home is None else {"DSH_HOME": config.home}
    settings = config.providers.get(provider)
    if settings is not None and settings.api_key_env and config.key_origin(provider) == settings.api_key_env:
        found[settings.api_key_env] = config.api_key(provider)
    return found


def _dsh() -> tuple[str, ...]:
    root = os.path.dirname(os.path.dirname(os.path.abspath(dsh_actors.__file__)))
    return (sys.executable, "-I", "-X", "utf8", "-c", _BOOT.format(root=root))


def _left(budget: Budget) -> dict[str, object | None]:
    """What is left of each limit, by its option; the nearest of all pools counts."""
    left: dict[str, Any] = {}
    for pool in budget.chain():
        limits = pool.limits
        for name, most, used in (
            ("--max-steps", limits.max_steps, pool.steps),
            ("--max-tool-calls", limits.max_tool_calls, pool.tool_calls),
            ("--max-tokens", limits.max_tokens, pool.tokens),
            ("--max-cost", limits.max_cost, pool.cost),
            ("--max-agents", limits.max_agents, pool.agents),
        ):
            if most is not None and used is not None:
                least = 0 if name in ("--max-cost", "--max-agents") else 1
                left[name] = min(left.get(name, most), max(least, most - used))
    return left


def _written(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return path


def _filled(word: str, values: Mapping[str, str]) -> str:
    for mark, value in values.items():
        word = word.replace(mark, value)
    return word
