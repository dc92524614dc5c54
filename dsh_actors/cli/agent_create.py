"""`dsh agent create`: a task of `dsh run` handed to the daemon. What only makes sense here is refused."""

from __future__ import annotations

import os
from copy import copy
from typing import Any

import click

from dsh_actors.cli.agent_common import connect, socket_option
from dsh_actors.cli.options import (
    RUN_PARAMETERS,
    RunArguments,
    inline_or_file,
    names_in,
    schema_in,
)
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.printing import write_json, write_text
from dsh_actors.cli.prompt_input import read_prompt
from dsh_actors.core.policy import POLICY_NAMES
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import UsageError
from dsh_actors.task_spec import LIMIT_NAMES, chosen_session_id

__all__ = ["COMMAND", "LOCAL", "REFUSED", "SENT", "task_of"]

_LOOK = "look with: dsh agent ls --watch, or dsh agent events -f ID"
_ANSWER = "dsh agent wait ID prints the answer"

REFUSED = {
    "continue_": "name the session with --resume ID",
    "ephemeral": "an agent of the daemon lives in its session, which a restart goes on from",
    "progress": _LOOK,
    "heartbeat": _LOOK,
    "output_last_message": _ANSWER,
    "result_file": "dsh agent wait --json ID prints the run.end object",
    "print_session_id": "the id that is printed is the session's",
    "partial_ok": "dsh agent wait --json ID prints what there is",
    "fail_on_denied": "the daemon's configuration decides: approval.fail_on_denied",
    "no_wait": "nothing here waits; see dsh agent wait",
    "simple_exit": "dsh agent wait has the exit code of the agent",
    "sub_agent_of": "an agent of the daemon is nobody's sub-agent",
}
"""Options of a run that an agent of the daemon cannot have, with what to do instead."""

LOCAL = frozenset({"prompt", "prompt_file", "files", "stdin_max_bytes", "stdin_timeout", "json_lines"})
"""Options that are this command's own business: where the prompt comes from, and what is printed."""

_AS_GIVEN = ("model", "reasoning", "max_output", "sandbox", "session_id", "resume", "fork")
SENT = frozenset(
    {
        *_AS_GIVEN,
        *LIMIT_NAMES,
        *("cwd", "add_dirs", "tools", "deny_tools", "approve", "schema", "schema_retries"),
        *("system_prompt", "system_prompt_file", "append_system_prompt", "append_system_prompt_file"),
    }
)
"""Options that are part of the task."""


def create(socket: str | None, idle: bool, **options: Any) -> int:
    """Hand one task over and print the id of its agent."""
    arguments = RunArguments(**options)
    task = task_of(arguments, idle=idle)
    with connect(socket) as client:
        info = client.create(task)
    if arguments.json_lines:
        write_json(info)
    else:
        write_text(str(info.get("id")))
    return 0


def task_of(arguments: RunArguments, *, idle: bool = False) -> JsonObject:
    """The body of ``POST /v1/agents``: what was given, with every path absolute.

    Raises `UsageError` for options that have no meaning there, and for files that cannot be read.
    """
    for name, instead in REFUSED.items():
        value = getattr(arguments, name)
        if value or (value is False and name == "fail_on_denied"):
            raise UsageError(f"{_option(name)} has no meaning for an agent of the daemon", hint=instead)
    for name in ("session_id", "resume", "fork"):
        if getattr(arguments, name) is not None:
            chosen_session_id(getattr(arguments, name))
    task = {name: getattr(arguments, name) for name in _AS_GIVEN}
    task["cwd"] = _directory(arguments)
    task["add_dirs"] = [working_directory(folder) for folder in arguments.add_dirs] or None
    task["tools"] = list(names_in(arguments.tools)) if arguments.tools else None
    task["deny_tools"] = list(names_in(arguments.deny_tools)) or None
    task["approve"] = _policy(arguments.approve)
    for name in ("system_prompt", "append_system_prompt"):
        task[name] = inline_or_file(arguments, name)
    if arguments.schema is not None:
        task |= {"schema": schema_in(arguments.schema), "schema_retries": arguments.schema_retries}
    limits = {name: getattr(arguments, name) for name in LIMIT_NAMES}
    task["limits"] = {name: value for name, value in limits.items() if value is not None} or None
    task["prompt"] = _prompt(arguments, idle=idle)
    return {name: value for name, value in task.items() if value is not None}


def _directory(arguments: RunArguments) -> str | None:
    """Where to work; an agent that goes on with a session works where that did."""
    goes_on = arguments.resume is not None or arguments.fork is not None
    return None if goes_on and arguments.cwd is None else working_directory(arguments.cwd)


def _policy(word: str | None) -> str | None:
    if word is None or word in POLICY_NAMES:
        return word
    return os.path.abspath(os.path.expanduser(word))


def _prompt(arguments: RunArguments, *, idle: bool) -> str | None:
    if idle:
        if arguments.prompt is not None or arguments.prompt_file is not None or arguments.files:
            raise UsageError("--idle creates an agent without a prompt; leave the prompt out, or --idle")
        return None
    prompt = read_prompt(
        arguments.prompt,
        arguments.prompt_file,
        arguments.files,
        stdin_max_bytes=arguments.stdin_max_bytes,
        stdin_timeout_s=arguments.stdin_timeout,
    )
    if prompt.images:
        raise UsageError(
            f"--file: {prompt.images[0].name} is an image, which an agent of the daemon cannot be given",
            hint="name its path in the prompt, or use dsh run",
        )
    return prompt.text


def _option(name: str) -> str:
    found = next(each for each in RUN_PARAMETERS if each.name == name)
    return max(found.opts, key=len)


def _parameters() -> list[click.Parameter]:
    """Those of a run, with the ones that are refused left out of the help."""
    found: list[click.Parameter] = []
    for each in RUN_PARAMETERS:
        if each.name == "json_lines":
            told = "Print all of the agent, as JSON."
            each = click.Option(["--json", "json_lines"], is_flag=True, help=told)
        elif each.name in REFUSED:
            each = copy(each)
            each.hidden = True  # type: ignore[attr-defined]  # of options; the one argument is not refused
        found.append(each)
    idle = click.Option(["--idle"], is_flag=True, help="Give it no first message; see dsh agent send.")
    return [*found, idle]


COMMAND = socket_option(
    click.Command(
        "create",
        params=_parameters(),
        callback=create,
        help="Create an agent for one task: PROMPT, or - or nothing for standard input. Prints its id. "
        "The options are those of dsh run.",
        short_help="Create an agent and print its id.",
    )
)
