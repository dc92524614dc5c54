"""`dsh run`: one task. Reads its input, checks everything that can be checked, then drives the agent."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dsh_actors.cli.debugging import install_debugging
from dsh_actors.cli.failures import as_known, describe_error, show_traceback
from dsh_actors.cli.options import (
    RUN_PARAMETERS,
    RunArguments,
    agent_options,
    config_overrides,
    outputs_in,
)
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.prompt_input import Prompt, read_prompt
from dsh_actors.cli.render import RunOutput
from dsh_actors.cli.stopping import CLOSE_S, SignalWatch, Stopped, close_harness
from dsh_actors.config import Config, load_config
from dsh_actors.core.exit_codes import reason_of_error
from dsh_actors.core.ids import SessionId
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.errors import HarnessError, UsageError
from dsh_actors.task_spec import chosen_session_id

if TYPE_CHECKING:
    from dsh_actors.runs import RunPlan

__all__ = ["COMMAND"]


def run(**options: Any) -> int:
    """Run one task to its end; the exit code."""
    started = time.monotonic()
    arguments = RunArguments(**options)
    output = RunOutput(arguments)
    signals: SignalWatch | None = None
    install_debugging()
    try:
        check(arguments)
        output.check_files()
        prompt = read_prompt(
            arguments.prompt,
            arguments.prompt_file,
            arguments.files,
            stdin_max_bytes=arguments.stdin_max_bytes,
            stdin_timeout_s=arguments.stdin_timeout,
        )
        config, plan = prepare(arguments, prompt)
        # From here on a signal ends the run with its last words; until now, while files are read that may
        # keep their reader waiting, it ended the process.
        signals = SignalWatch(simple_exit=arguments.simple_exit)
        signals.on_second = lambda: output.last_words(
            not_started(Stopped(signals.name or "SIGTERM"), arguments)
        )
        end = execute(arguments, config, plan, output, signals, started)
    except (Exception, KeyboardInterrupt) as error:
        # A user's mistake, or a fault of ours: either way the run has an end that can be read.
        show_traceback(error)
        end = not_started(error, arguments)
    if signals is None:
        return output.finish(end)
    watch_delivery(output, end, signals)
    try:
        return output.finish(end)
    finally:
        signals.close()


def watch_delivery(output: RunOutput, end: RunEnd, signals: SignalWatch) -> None:
    """Let a signal end the waiting for readers. The run itself is over."""

    def stop() -> None:
        output.give_up_at, output.stopped_by = signals.deadline, signals.name

    def leave() -> None:
        output.last_words(output.cut_short(end))

    signals.on_first, signals.on_second = stop, leave
    if signals.name is not None:
        stop()


def not_started(error: BaseException, arguments: RunArguments) -> RunEnd:
    """The end of a run that an error kept from beginning."""
    facts = Circumstances(
        reason=reason_of_error(error),
        message=describe_error(error),
        signal=getattr(error, "signal", "SIGINT") if isinstance(error, KeyboardInterrupt) else None,
        session_id=arguments.resume,
        simple_exit=arguments.simple_exit,
    )
    return OutcomeFold().end(facts)


def check(arguments: RunArguments) -> None:
    """Refuse what cannot mean anything. Raises `UsageError`."""
    if arguments.continue_ and (arguments.resume or arguments.session_id):
        raise UsageError("--continue chooses the session itself; leave out --resume and --session-id")
    if arguments.resume and arguments.session_id not in (None, arguments.resume):
        raise UsageError("--resume and --session-id name different sessions")
    if arguments.fork is not None and (arguments.resume or arguments.continue_):
        raise UsageError("--fork begins a new session; leave out --resume and --continue")
    if arguments.ephemeral and (arguments.resume or arguments.continue_):
        raise UsageError("--ephemeral keeps nothing, so it cannot go on with a session")
    for name in (arguments.resume, arguments.session_id, arguments.fork):
        if name is not None:
            chosen_session_id(name)


def prepare(arguments: RunArguments, prompt: Prompt) -> tuple[Config, RunPlan]:
    """What the run is to be, from all that is read for it. Raises what `settle` and `make_plan` raise."""
    config, session, at_seq, model = settle(arguments, has_images=bool(prompt.images))
    return config, make_plan(arguments, prompt, config, session, at_seq, model)


def execute(
    arguments: RunArguments,
    config: Config,
    plan: RunPlan,
    output: RunOutput,
    signals: SignalWatch,
    started: float,
) -> RunEnd:
    """Open the harness, run, close it. Raises what kept the run from starting."""
    from dsh_actors.cli.driver import RunDriver
    from dsh_actors.harness import Harness

    # A copy that shall not be kept is still made of a session on the disk.
    harness = Harness.open(config, ephemeral=arguments.ephemeral and arguments.fork is None)
    end: RunEnd | None = None
    try:
        end = RunDriver(harness, plan, arguments, output, signals, started).execute()
    finally:
        problem = close_harness(harness, signals.deadline, CLOSE_S)
    return replace(end, warnings=(*end.warnings, problem)) if problem else end


def settle(
    arguments: RunArguments, *, has_images: bool = False
) -> tuple[Config, SessionId | None, int | None, str | None]:
    """The configuration of the directory to work in, the session to resume or to fork (and where), the model.

    An empty model is the one that the session used last.

    Raises `UsageError`, `SessionNotFound` or `SessionBusy` before anything exists.
    """
    overrides = config_overrides(arguments)
    goes_on = bool(arguments.resume or arguments.continue_ or arguments.fork)
    # Where a session is found does not depend on the project at hand, which need not be its own.
    config = load_config(cwd=working_directory(arguments.cwd), options=overrides, project_file=not goes_on)
    if arguments.ephemeral and arguments.fork is None:
        return config, None, None, config.agent.model
    config.require_home(writable=not arguments.ephemeral, or_ephemeral=True)
    if not goes_on:
        return config, None, None, config.agent.model
    from dsh_actors.cli.stored import newest_session, open_storage, recorded_model
    from dsh_actors.task_spec import fork_point

    storage, at_seq = open_storage(config), None
    if arguments.fork is not None:
        session, at_seq = fork_point(storage, arguments.fork)
    else:
        session = SessionId(arguments.resume or newest_session(storage, config.cwd))
    recorded = storage.header(session).cwd or config.cwd
    if arguments.cwd is not None and config.cwd != recorded:
        raise UsageError(f"session {session} works in {recorded}, not in {config.cwd}")
    if not os.path.isdir(recorded):
        raise UsageError(f"session {session} works in {recorded}, which is not a directory here")
    config = load_config(cwd=working_directory(recorded), options=overrides)
    if config.origins["agent.model"] == "option":
        return config, session, at_seq, config.agent.model
    # The harness finds the recorded model by itself; only its price, or what it reads, must be known before.
    needs_model = config.limits.max_cost is not None or has_images
    model = recorded_model(storage, session) if needs_model else ""
    return config, session, at_seq, model


def make_plan(
    arguments: RunArguments,
    prompt: Prompt,
    config: Config,
    session: SessionId | None,
    at_seq: int | None,
    model: str | None,
) -> RunPlan:
    """What to run, checked as far as possible without a harness. Raises `UsageError`."""
    from dsh_actors.runs import RunPlan

    options = agent_options(arguments, config, model or "")
    now_ms = int(time.time() * 1000)
    if options.limits.max_cost is not None and config.price_at(options.model, now_ms) is None:
        raise UsageError(
            f"--max-cost needs the price of {options.model or 'the model'}, which is not known",
            hint="set it in [[providers.NAME.models]], or use --max-tokens",
        )
    fork = (session, at_seq) if arguments.fork is not None and session is not None else None
    return RunPlan(
        prompt.text,
        options,
        session if fork is None else None,
        config.price,
        prompt.notes,
        config.approval.fail_on_denied,
        fork,
        prompt.images,
        no_wait=arguments.no_wait,
        simple_exit=arguments.simple_exit,
    )


class RunCommand(click.Command):
    """The command whose every end can be read, also that of a wrong option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except (click.UsageError, HarnessError) as error:
            arguments = outputs_in(words)
            raise click.exceptions.Exit(
                RunOutput(arguments).finish(not_started(as_known(error), arguments))
            ) from error


COMMAND = RunCommand(
    "run",
    params=RUN_PARAMETERS,
    callback=run,
    help="Run one task: PROMPT, or - or nothing for standard input. Prints the final answer.",
    short_help="Run one task and print the answer.",
)
