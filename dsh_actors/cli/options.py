"""The options of a run: one table for the parser, and what they amount to.

An option that has a configuration key takes its type from the key, and overrides it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from dsh_actors.cli.places import working_directory
from dsh_actors.cli.prompt_input import argument_text, read_text_file
from dsh_actors.config import Config, parse_duration
from dsh_actors.config.keys import KEYS_BY_NAME, Key
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import DEFAULT_SCHEMA_RETRIES, AgentOptions
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import UsageError
from dsh_actors.task_spec import approval_policy, chosen_session_id, require_preset

__all__ = [
    "DURATION",
    "RUN_PARAMETERS",
    "RunArguments",
    "agent_options",
    "config_overrides",
    "duration_option",
    "inline_or_file",
    "keyed_option",
    "names_in",
    "outputs_in",
    "schema_in",
]


class _KeyType(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases
    """The type of a configuration key."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.name = key.kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.key.parse(value, param.opts[-1] if param else "option")


class _DurationType(click.ParamType):  # type: ignore[type-arg]
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _DurationType()
"""Seconds, or a number with a unit: ``90``, ``5m``."""


def keyed_option(names: Sequence[str], key_name: str, metavar: str | None = None) -> click.Option:
    """An option that sets a configuration key."""
    key = KEYS_BY_NAME[key_name]
    default = f"{key.default:g}" if isinstance(key.default, float) else key.default
    shown = "" if default is None else f" [default: {default}]"
    text = key.help[0].upper() + key.help[1:] + "." + shown
    return click.Option(names, type=_KeyType(key), metavar=metavar or key.kind.upper(), help=text)


def _text(names: Sequence[str], text: str, metavar: str = "TEXT", **more: Any) -> click.Option:
    return click.Option(names, help=text, metavar=metavar, **more)


def duration_option(names: Sequence[str], text: str) -> click.Option:
    """An option that takes a length of time, such as ``90s`` or ``2h``."""
    return _text(names, text, "DURATION", type=DURATION)


def _flag(names: Sequence[str], text: str, **more: Any) -> click.Option:
    return click.Option(names, is_flag=True, help=text, **more)


_KEY_OF_OPTION = {
    "model": "agent.model",
    "reasoning": "agent.reasoning",
    "max_output": "agent.max_output",
    "approve": "approval.policy",
    "sandbox": "approval.sandbox",
    "fail_on_denied": "approval.fail_on_denied",
    "max_steps": "limits.max_steps",
    "max_tool_calls": "limits.max_tool_calls",
    "max_tokens": "limits.max_tokens",
    "max_cost": "limits.max_cost",
    "timeout": "limits.timeout",
    "deadline": "limits.deadline",
    "tool_timeout": "limits.tool_timeout",
    "max_retries": "model.max_retries",
    "max_agents": "limits.max_agents",
    "max_concurrent_agents": "limits.max_concurrent_agents",
    "max_depth": "limits.max_depth",
}

RUN_PARAMETERS: list[click.Parameter] = [
    click.Argument(["prompt"], required=False),
    _text(["--prompt-file"], "Read the prompt from a file (- for standard input).", "FILE"),
    _text(["--file", "files"], "Attach a text file, quoted, or an image; may repeat.", "PATH", multiple=True),
    click.Option(
        ["--stdin-max-bytes"],
        type=click.IntRange(min=1),
        help="Read no more of standard input; the run notes the cut.",
    ),
    _text(["--stdin-timeout"], "Go on with what standard input gave by then.", "DURATION", type=DURATION),
    keyed_option(["-m", "--model"], "agent.model", "PROVIDER/MODEL"),
    keyed_option(["--reasoning"], "agent.reasoning", "EFFORT"),
    keyed_option(["--max-output"], "agent.max_output"),
    _text(["-C", "--cwd"], "Work in this directory.", "DIR"),
    _text(["--add-dir", "add_dirs"], "Another directory it may write in; may repeat.", "DIR", multiple=True),
    _text(["--system-prompt"], "Replace the built-in system prompt."),
    _text(["--system-prompt-file"], "The same, from a file.", "FILE"),
    _text(["--append-system-prompt"], "Add to the system prompt."),
    _text(["--append-system-prompt-file"], "The same, from a file.", "FILE"),
    _text(["--schema"], "The answer must be JSON that fits the JSON Schema in this file.", "FILE"),
    click.Option(
        ["--schema-retries"],
        type=click.IntRange(min=0),
        default=DEFAULT_SCHEMA_RETRIES,
        show_default=True,
        metavar="N",
        help="How often an answer that does not fit is sent back.",
    ),
    _text(["--tools"], "The only tools there are, by comma; may repeat.", "NAMES", multiple=True),
    _text(["--deny-tools"], "Tools to take away, by comma; may repeat.", "NAMES", multiple=True),
    keyed_option(["--approve"], "approval.policy", "POLICY|FILE"),
    keyed_option(["--sandbox"], "approval.sandbox", "auto|require|off"),
    _text(["--session-id"], "The id of the new session.", "ID"),
    _text(["--resume"], "Go on with a session.", "ID"),
    _flag(["--continue", "continue_"], "Go on with the newest session of this directory."),
    _text(["--fork"], "Begin with a copy of a session, whole or up to event SEQ.", "ID[@SEQ]"),
    # For the parent of a sub-agent that is a process.
    _text(["--sub-agent-of"], "Whose sub-agent it is, and how deep.", "ID:DEPTH", hidden=True),
    _flag(["--ephemeral"], "Keep nothing on disk."),
    keyed_option(["--max-steps"], "limits.max_steps"),
    keyed_option(["--max-tool-calls"], "limits.max_tool_calls"),
    keyed_option(["--max-tokens"], "limits.max_tokens"),
    keyed_option(["--max-cost"], "limits.max_cost"),
    keyed_option(["--timeout"], "limits.timeout"),
    keyed_option(["--deadline"], "limits.deadline"),
    keyed_option(["--tool-timeout"], "limits.tool_timeout"),
    keyed_option(["--max-retries"], "model.max_retries"),
    keyed_option(["--max-agents"], "limits.max_agents"),
    keyed_option(["--max-concurrent-agents"], "limits.max_concurrent_agents"),
    keyed_option(["--max-depth"], "limits.max_depth"),
    _flag(["--json", "json_lines"], "Print events as JSON lines instead of the answer."),
    _flag(["--progress/--no-progress"], "A live line on standard error [terminal: on].", default=None),
    _text(["--heartbeat"], "Write a sign of life this often.", "DURATION", type=DURATION),
    _text(["-o", "--output-last-message"], "Also write the answer to a file.", "FILE"),
    _text(["--result-file"], "Write the run.end object to a file, atomically.", "FILE"),
    _flag(["--print-session-id"], "Write the session's id to standard error."),
    _flag(["--partial-ok"], "Print an incomplete answer too; the exit code stays."),
    _flag(
        ["--fail-on-denied/--no-fail-on-denied"],
        "Exit 6 when a policy denied a call. [default: on]",
        default=None,
    ),
    _flag(["--no-wait"], "Do not wait for work in the background: end it, and exit 4."),
    _flag(["--simple-exit"], "Exit 1 for every failure."),
]


@dataclass(frozen=True, slots=True)
class RunArguments:
    """What was given on the command line, parsed but not yet checked against the world."""

    prompt: str | None
    prompt_file: str | None
    files: tuple[str, ...]
    stdin_max_bytes: int | None
    stdin_timeout: float | None
    model: str | None
    reasoning: str | None
    max_output: int | None
    cwd: str | None
    add_dirs: tuple[str, ...]
    system_prompt: str | None
    system_prompt_file: str | None
    append_system_prompt: str | None
    append_system_prompt_file: str | None
    schema: str | None
    schema_retries: int
    tools: tuple[str, ...]
    deny_tools: tuple[str, ...]
    approve: str | None
    sandbox: str | None
    session_id: str | None
    resume: str | None
    continue_: bool
    fork: str | None
    sub_agent_of: str | None
    ephemeral: bool
    max_steps: int | None
    max_tool_calls: int | None
    max_tokens: int | None
    max_cost: float | None
    timeout: float | None
    deadline: float | None
    tool_timeout: float | None
    max_retries: int | None
    max_agents: int | None
    max_concurrent_agents: int | None
    max_depth: int | None
    json_lines: bool
    progress: bool | None
    heartbeat: float | None
    output_last_message: str | None
    result_file: str | None
    print_session_id: bool
    partial_ok: bool
    fail_on_denied: bool | None
    no_wait: bool
    simple_exit: bool


def outputs_in(words: Sequence[str]) -> RunArguments:
    """Where the outcome goes, of a command line that is wrong: nothing else is taken from it."""
    values = {name for each in RUN_PARAMETERS if not getattr(each, "is_flag", True) for name in each.opts}
    found: dict[str, Any] = dict.fromkeys(RunArguments.__dataclass_fields__)
    found |= {"json_lines": False, "simple_exit": False, "partial_ok": False}
    rest = iter(words)
    for word in rest:
        name, joined, value = word.partition("=")
        if word == "--":
            break
        if name in values and not joined:
            value = next(rest, "")
        if name == "--result-file" and value:
            found["result_file"] = value
        elif word in ("--json", "--simple-exit"):
            found["json_lines" if word == "--json" else "simple_exit"] = True
    return RunArguments(**found)


def config_overrides(arguments: RunArguments) -> dict[str, Any]:
    """The configuration keys that options set."""
    given = {key: getattr(arguments, name) for name, key in _KEY_OF_OPTION.items()}
    return {key: value for key, value in given.items() if value is not None}


def agent_options(arguments: RunArguments, config: Config, model: str) -> AgentOptions:
    """What the agent is asked to be. An empty ``model`` is the one that the session used last.

    Raises `UsageError` for files and names that do not exist.
    """
    require_preset(config)
    parent, depth = _agent_above(arguments.sub_agent_of)
    return AgentOptions(
        model=model,
        cwd=config.cwd,
        session_id=arguments.session_id,
        reasoning=config.agent.reasoning,
        max_output=config.agent.max_output,
        system_prompt=inline_or_file(arguments, "system_prompt"),
        append_system_prompt=inline_or_file(arguments, "append_system_prompt"),
        tools=names_in(arguments.tools) if arguments.tools else None,
        deny_tools=names_in(arguments.deny_tools),
        add_dirs=tuple(working_directory(folder) for folder in arguments.add_dirs),
        policy=approval_policy(config.approval.policy),
        limits=config.limits,
        sandbox=config.approval.sandbox,
        ephemeral=arguments.ephemeral,
        depth=depth,
        parent=parent,
        schema=None if arguments.schema is None else schema_in(arguments.schema),
        schema_retries=arguments.schema_retries,
    )


def _agent_above(text: str | None) -> tuple[SessionId | None, int]:
    """The session of the parent of a sub-agent, and how many agents stand above it. Raises `UsageError`."""
    if text is None:
        return None, 0
    parent, _, depth = text.rpartition(":")
    if not (depth.isascii() and depth.isdigit() and 0 < int(depth) < 1_000):
        raise UsageError(f"--sub-agent-of: {text!r} is no ID:DEPTH")
    return chosen_session_id(parent), int(depth)


def schema_in(path: str) -> JsonObject:
    """A JSON Schema as far as a file shows; the harness checks it. Raises `UsageError`."""
    from dsh_actors.core.answers import AnswerRefused, parse_json

    try:
        schema = parse_json(read_text_file(path, "--schema"))
    except AnswerRefused as error:
        raise UsageError(f"--schema: {path}: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError(f"--schema: {path} does not hold a JSON object")
    return schema


def inline_or_file(arguments: RunArguments, name: str) -> str | None:
    """The text of an option ``name``, or of its ``_file``. Raises `UsageError` where both are given."""
    inline, path = getattr(arguments, name), getattr(arguments, f"{name}_file")
    option = "--" + name.replace("_", "-")
    if inline is not None and path is not None:
        raise UsageError(f"give {option} or {option}-file, not both")
    if path is not None:
        return read_text_file(path, f"{option}-file")
    return None if inline is None else argument_text(inline)


def names_in(values: Sequence[str]) -> tuple[str, ...]:
    """The names that stand in options, by comma."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())
