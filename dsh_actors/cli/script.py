"""`dsh script`: a user's Python program with a harness ready; limits, signals and exit codes as of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from dsh_actors.cli.debugging import install_debugging
from dsh_actors.cli.failures import describe_error, show_traceback
from dsh_actors.cli.lines import json_line, write_atomically
from dsh_actors.cli.options import RUN_PARAMETERS, RunArguments, agent_options, config_overrides
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.render import RunOutput
from dsh_actors.cli.script_stop import ScriptStop, TimeUp, ending_of
from dsh_actors.cli.stopping import Stopped, close_harness
from dsh_actors.config import Config, load_config
from dsh_actors.config.cost_limit import require_price
from dsh_actors.core.budget import Budget
from dsh_actors.core.exit_codes import EXIT_CODES, error_line, exit_code_of, reason_of_error
from dsh_actors.core.options import DEFAULT_SCHEMA_RETRIES, AgentOptions, Limits
from dsh_actors.core.text import JsonObject, clean_text, shorten
from dsh_actors.errors import HarnessError, UsageError
from dsh_actors.task_spec import LIMIT_NAMES

if TYPE_CHECKING:
    from dsh_actors.cli.script_program import Program
    from dsh_actors.harness import Harness

__all__ = ["COMMAND"]

_CLOSE_S = 10.0
_MAX_LAST_WORDS = 500

_TAKEN = frozenset(
    {
        "model",
        "reasoning",
        "max_output",
        "cwd",
        "add_dirs",
        "tools",
        "deny_tools",
        "approve",
        "sandbox",
        "ephemeral",
        *LIMIT_NAMES,
        "progress",
        "result_file",
        "simple_exit",
    }
)
"""The options of a run that hold for all agents of a script."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a script ended. ``code`` is its own where it chose one; ``message`` is empty on success.
    ``last_words`` are those of ``sys.exit("…")``, which are a ``traceback`` too: printed as they are."""

    reason: str
    message: str = ""
    signal: str | None = None
    code: int | None = None
    traceback: str = ""
    last_words: str = ""

    @property
    def told(self) -> str:
        """What the result says: the program's own exit code stands there where it says nothing itself."""
        silent = "completed" if self.code in (None, 0) else f"the program exited with {self.code}"
        return self.message or self.last_words or silent

    def exit_code(self, *, simple: bool) -> int:
        if self.code is not None:
            return self.code
        return exit_code_of(self.reason, self.signal, simple=simple)


def script(file: str | None, arguments: tuple[str, ...], examples: bool, **given: Any) -> int:
    """Run a program to its end; the exit code."""
    started = time.monotonic()
    if examples:
        return _list_examples()
    if file is None:
        raise UsageError("no script: give the path of a Python file", hint="see dsh script --help")
    install_debugging()
    from dsh_actors.cli.script_program import Program

    options = _run_arguments(given)
    program = Program(file, arguments)
    return ScriptRun(program, options, started).execute()


def _list_examples() -> int:
    from dsh_actors.examples import example_files

    for path in example_files():
        click.echo(path)
    return 0


def _run_arguments(given: dict[str, Any]) -> RunArguments:
    empty: dict[str, Any] = dict.fromkeys(RunArguments.__dataclass_fields__)
    return RunArguments(**empty | {"schema_retries": DEFAULT_SCHEMA_RETRIES} | given)


class ScriptRun:
    """One script from its configuration to its exit code."""

    def __init__(self, program: Program, arguments: RunArguments, started: float) -> None:
        self._program = program
        self._arguments = arguments
        self._started = started
        self._is_simple = arguments.simple_exit
        self._pool = Budget(Limits())
        self._counts: Any = None
        self._harness: Harness | None = None

    def execute(self) -> int:
        """Raises what kept it from starting; what happens in the script is in the exit code."""
        program, arguments = self._program, self._arguments
        program.load()
        RunOutput(arguments).check_files()
        config = load_config(cwd=working_directory(arguments.cwd), options=config_overrides(arguments))
        config.require_home(writable=not arguments.ephemeral, or_ephemeral=True)
        defaults = self._share_limits(agent_options(arguments, config, config.agent.model))
        if self._pool.limits.max_cost is not None:
            require_price(config, defaults.model, int(time.time() * 1000))
        stop = ScriptStop(self._started, self._last_words, simple_exit=self._is_simple)
        try:
            ending = self._run(stop, config, defaults)
        except (Stopped, TimeUp) as error:  # it came outside of the script itself
            ending = self._ended_by(error)
        finally:
            stop.close()
        ending = self._write_result(ending)
        self._tell(ending)
        return ending.exit_code(simple=self._is_simple)

    def _share_limits(self, options: AgentOptions) -> AgentOptions:
        """What the whole script may use is in one pool; its agents have no limits of their own then."""
        limits = options.limits
        self._pool = Budget(replace(limits, timeout_s=None, deadline_s=None), model=options.model)
        own = replace(
            limits,
            max_steps=None,
            max_tool_calls=None,
            max_tokens=None,
            max_cost=None,
            timeout_s=None,
            deadline_s=None,
        )
        self._times = (limits.timeout_s, limits.deadline_s)
        return replace(options, limits=own)

    def _run(self, stop: ScriptStop, config: Config, defaults: AgentOptions) -> Ending:
        from dsh_actors.cli.script_progress import AgentCounts, ScriptProgress
        from dsh_actors.harness import Harness
        from dsh_actors.scripting import stage

        harness = Harness.open(config, ephemeral=self._arguments.ephemeral, pool=self._pool)
        self._harness = harness
        self._counts = AgentCounts(harness.scope)
        progress = ScriptProgress(self._counts, self._pool, self._started, self._arguments.progress)
        given = [seconds for seconds in self._times if seconds is not None]
        ends = self._started + min(given) if given else None
        try:
            stop.watch(harness, *self._times)
            with stage(harness, defaults, ends=ends):
                ending = self._run_program()
        finally:
            stop.is_over = True
            progress.close()
            problem = close_harness(harness, stop.deadline, _CLOSE_S)
        if problem is not None and not ending.message:
            return Ending("internal", problem)
        return ending

    def _run_program(self) -> Ending:
        try:
            self._program.run()
        except SystemExit as leave:
            return _left(leave)
        except (Stopped, TimeUp) as error:
            return self._ended_by(error)
        except BaseException as error:  # it is somebody's program: anything may come out of it
            show_traceback(error)
            return self._failed(error)
        finally:
            self._program.finish()
        return Ending("completed")

    def _failed(self, error: BaseException) -> Ending:
        from dsh_actors.scripting import RunFailed

        place = self._program.place_of(error)
        if isinstance(error, RunFailed):
            return Ending(error.end.reason, f"{place}: {error.message}", error.end.signal)
        if isinstance(error, HarnessError):
            return Ending(reason_of_error(error), f"{place}: {describe_error(error)}")
        if isinstance(error, BrokenPipeError):
            return Ending("pipe", describe_error(error))
        message = f"{place}: {type(error).__name__}: {error}".rstrip(": ")
        return Ending("internal", message, traceback=self._program.traceback_of(error))

    def _ended_by(self, error: Stopped | TimeUp) -> Ending:
        reason, name = ending_of(error)
        return Ending(reason, str(error) if name is None else f"stopped by {name}", name)

    # --- what is said of the end -------------------------------------------------------------

    def _tell(self, ending: Ending) -> None:
        text = ending.traceback
        if ending.message:
            text += error_line(EXIT_CODES[ending.reason].name, ending.message) + "\n"
        if text:
            click.echo(text, nl=False, err=True)

    def _write_result(self, ending: Ending) -> Ending:
        path = self._arguments.result_file
        try:
            if path is not None:
                write_atomically(path, json_line(self._result(ending)))
        except OSError as error:
            if not ending.message:
                return Ending("internal", f"cannot write {path}: {error.strerror}")
        return ending

    def _result(self, ending: Ending) -> JsonObject:
        pool, counts = self._pool, self._counts
        return {
            "type": "script.end",
            "status": EXIT_CODES[ending.reason].name,
            "reason": ending.reason,
            "exit_code": ending.exit_code(simple=self._is_simple),
            "message": ending.told,
            "agents": 0 if counts is None else counts.started,
            "steps": pool.steps,
            "tool_calls": pool.tool_calls,
            "tokens": pool.tokens,
            "cost": pool.cost,
            "duration_ms": round((time.monotonic() - self._started) * 1000),
        }

    def _last_words(self, error: Stopped | TimeUp) -> None:
        """Before the process is left at once; the guard ends the children that remain."""
        ending = self._ended_by(error)
        self._write_result(ending)
        self._tell(ending)


def _left(leave: SystemExit) -> Ending:
    """What Python itself makes of a `SystemExit`."""
    if leave.code is None:
        return Ending("completed")
    if isinstance(leave.code, int):
        code = leave.code & 0xFF
        return Ending("completed" if code == 0 else "internal", code=code)
    words = shorten(" ".join(clean_text(str(leave.code)).split()), _MAX_LAST_WORDS)
    return Ending("internal", code=1, traceback=f"{leave.code}\n", last_words=words)


class ScriptCommand(click.Command):
    """Options end at the script: what follows is its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)


def _parameters() -> Sequence[click.Parameter]:
    taken = [each for each in RUN_PARAMETERS if each.name in _TAKEN]
    return [
        *taken,
        click.Option(["--examples"], is_flag=True, help="Print the paths of the shipped examples."),
        click.Argument(["file"], required=False, metavar="FILE"),
        click.Argument(["arguments"], nargs=-1, metavar="[ARG]...", type=click.UNPROCESSED),
    ]


COMMAND = ScriptCommand(
    "script",
    params=list(_parameters()),
    callback=script,
    help="Run the Python program FILE with a harness ready (dsh_actors.scripting). The limits hold for all "
    "its agents together; standard output is its own.",
    short_help="Run a Python program of many agents.",
)
