"""`dsh batch`: many tasks, a line of JSON each, in one process; a result line for each of them."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from dsh_actors.cli.batch_input import LineReader
from dsh_actors.cli.batch_output import Earlier, ResultFile, StandardOutput, printable_name
from dsh_actors.cli.batch_tasks import LineReading, TaskPlanner
from dsh_actors.cli.debugging import install_debugging
from dsh_actors.cli.options import RUN_PARAMETERS, RunArguments, config_overrides, duration_option
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.stopping import CLOSE_S, SignalWatch, close_harness
from dsh_actors.cli.streams import STREAMS
from dsh_actors.config import load_config
from dsh_actors.core.batch import SCHEMA_VERSION, BatchStop, Spending
from dsh_actors.core.exit_codes import EXIT_CODES, error_line, exit_code_of
from dsh_actors.core.ids import dated_session_id
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import HarnessError, UsageError
from dsh_actors.runtime.output import Writer
from dsh_actors.runtime.timers import after

if TYPE_CHECKING:
    from dsh_actors.cli.batch_run import Batch, BatchSettings
    from dsh_actors.harness import Harness

__all__ = ["COMMAND"]

DEFAULT_JOBS = 8

_PIECE = 1 << 20
_ERROR_LINE_PATIENCE_S = 5.0
_OF_ONE_RUN = {
    *("prompt", "prompt_file", "files", "stdin_max_bytes", "stdin_timeout"),
    *("session_id", "resume", "continue_", "fork", "sub_agent_of"),
    *("json_lines", "heartbeat", "output_last_message", "result_file", "print_session_id", "partial_ok"),
}
"""What the options of `dsh run` say of its one prompt, session or output."""

BATCH_PARAMETERS: list[click.Parameter] = [
    click.Argument(["tasks"], metavar="TASKS.jsonl"),
    click.Option(
        ["-j", "--jobs"],
        type=click.IntRange(min=1),
        default=DEFAULT_JOBS,
        show_default=True,
        metavar="N",
        help="So many tasks at a time.",
    ),
    click.Option(["-o", "--output"], metavar="FILE", help="Append the result lines to a file, durably."),
    click.Option(["--resume"], is_flag=True, help="Leave out what is done, go on with what was interrupted."),
    click.Option(["--retry-failed"], is_flag=True, help="Resume, and run again what failed."),
    click.Option(["--name"], metavar="NAME", help="The batch's name, a part of its sessions' ids."),
    click.Option(["--strict"], is_flag=True, help="Start nothing if any line is wrong."),
    click.Option(["--fail-fast"], is_flag=True, help="Stop at the first task that does not complete."),
    duration_option(["--batch-timeout"], "Stop the whole batch after this time."),
    click.Option(
        ["--max-total-tokens"], type=click.IntRange(min=1), help="Stop when all tasks have used so many."
    ),
    click.Option(
        ["--max-total-cost"],
        type=click.FloatRange(min=0, min_open=True),
        help="Stop when all tasks have cost so much.",
    ),
    *(each for each in RUN_PARAMETERS if each.name not in _OF_ONE_RUN),
]


@dataclass(frozen=True, slots=True)
class BatchArguments:
    """What is asked of the batch as a whole. ``run`` are the options of every task."""

    tasks: str
    jobs: int
    output: str | None
    resume: bool
    retry_failed: bool
    name: str | None
    strict: bool
    fail_fast: bool
    batch_timeout: float | None
    max_total_tokens: int | None
    max_total_cost: float | None
    run: RunArguments

    @staticmethod
    def of(options: dict[str, Any]) -> BatchArguments:
        own = {each.name: options.pop(each.name) for each in fields(BatchArguments) if each.name in options}
        rest: dict[str, Any] = dict.fromkeys(each.name for each in fields(RunArguments))
        rest |= {"files": (), "continue_": False, "json_lines": False}
        rest |= {"print_session_id": False, "partial_ok": False}
        own["resume"] = own["resume"] or own["retry_failed"]
        return BatchArguments(**own, run=RunArguments(**(rest | options)))


def batch(**options: Any) -> int:
    """Run all tasks; the exit code."""
    began = time.monotonic()
    install_debugging()
    arguments = BatchArguments.of(options)
    if arguments.resume and arguments.output is None and arguments.name is None:
        hint = "without them nothing tells what is done"
        raise UsageError("--resume needs -o FILE or --name NAME", hint=hint)
    with ExitStack() as stack:
        return _execute(arguments, stack, began)


def _execute(arguments: BatchArguments, stack: ExitStack, began: float) -> int:
    from dsh_actors.cli.batch_attempts import Attempts
    from dsh_actors.cli.batch_run import Batch
    from dsh_actors.harness import Harness

    run = arguments.run
    config = load_config(cwd=working_directory(run.cwd), options=config_overrides(run))
    if not run.ephemeral:
        config.require_home(writable=True, or_ephemeral=True)
    descriptor = _open_tasks(arguments, stack)
    harness = Harness.open(config, ephemeral=run.ephemeral and config.home is None)
    signals: SignalWatch | None = None
    problem: str | None = None
    try:
        needs_price = arguments.max_total_cost is not None
        planner = TaskPlanner(run, config, harness.storage, needs_price=needs_price)
        if arguments.strict:
            _require_all_good(descriptor, planner, harness)
        output, earlier = _results(arguments, stack)
        settings = _settings(arguments, earlier)
        attempts = Attempts(harness, settings.name, planner.plan, looks=arguments.resume)
        reader = LineReader(descriptor)
        stack.callback(reader.close)
        signals = SignalWatch(simple_exit=run.simple_exit)
        stack.callback(signals.close)
        sink = output or StandardOutput(lambda: whole.stop(_PIPE))
        limits = Spending(arguments.max_total_tokens, arguments.max_total_cost)
        whole = Batch(harness, settings, attempts, sink, earlier, limits)
        sink.put({"type": "batch.start", "schema_version": SCHEMA_VERSION, "name": settings.name})
        _drive(whole, reader, LineReading(planner), sink, arguments, signals)
    finally:
        problem = close_harness(harness, None if signals is None else signals.deadline, CLOSE_S)
    return _finish(whole, settings, sink, problem, began)


_PIPE = BatchStop("pipe", "the reader of standard output went away")


def _drive(
    whole: Batch,
    reader: LineReader,
    reading: LineReading,
    sink: ResultFile | StandardOutput,
    arguments: BatchArguments,
    signals: SignalWatch,
) -> None:
    """Run the batch with its display, its time limit and the signals that end it."""
    from dsh_actors.cli.batch_table import BatchDisplay

    def stop_by_signal() -> None:
        name = signals.name or "SIGTERM"
        if isinstance(sink, StandardOutput):
            sink.give_up_at = signals.deadline
        whole.stop(BatchStop("interrupted", f"stopped by {name}", name))

    signals.on_first = stop_by_signal
    if signals.name is not None:
        stop_by_signal()
    limit_s = arguments.batch_timeout
    passed = BatchStop("timeout", "--batch-timeout passed")
    timer = None if limit_s is None else after(limit_s, lambda: whole.stop(passed))
    # Lines on the terminal say what is done, and would be in a table's way.
    has_room = arguments.output is not None or not STREAMS.stdout_is_terminal()
    display = BatchDisplay(whole, arguments.run.progress, has_room=has_room)
    try:
        whole.run(reader, reading)
    except OSError as error:
        whole.stop(BatchStop("internal", f"cannot read {arguments.tasks}: {error.strerror}"))
    finally:
        if timer is not None:
            timer.cancel()
        display.close()


def _finish(
    whole: Batch,
    settings: BatchSettings,
    sink: ResultFile | StandardOutput,
    problem: str | None,
    began: float,
) -> int:
    """The last line, and the one on standard error where not all is well; the exit code."""
    end = whole.tally.end(settings.name, whole.stopped, round((time.monotonic() - began) * 1000))
    if problem is not None:
        end["warnings"] = [problem]
    try:
        sink.put(end)
        is_delivered = sink.finish()
    except HarnessError as error:
        end, is_delivered = _changed(end, "internal", error.message, settings), True
    if not is_delivered:
        end = _undelivered(end, sink, settings)
    if end["exit_code"]:
        stderr = Writer(2)
        stderr.write(error_line(end["status"], end["message"]).encode() + b"\n")
        stderr.flush(_ERROR_LINE_PATIENCE_S)
    code: int = end["exit_code"]
    return code


def _undelivered(end: JsonObject, sink: ResultFile | StandardOutput, settings: BatchSettings) -> JsonObject:
    error = getattr(sink, "error", None)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return _changed(end, "internal", f"cannot write standard output: {error.strerror}", settings)
    return _changed(end, "pipe", _PIPE.message, settings) if end["exit_code"] == 0 else end


def _changed(end: JsonObject, reason: str, message: str, settings: BatchSettings) -> JsonObject:
    code = exit_code_of(reason, simple=settings.simple_exit)
    status = EXIT_CODES[reason].name
    return end | {"reason": reason, "status": status, "exit_code": code, "message": message}


# --- what the arguments name ----------------------------------------------------------------------


def _open_tasks(arguments: BatchArguments, stack: ExitStack) -> int:
    """A descriptor of the tasks. Under ``--strict`` one that can be read twice."""
    path = arguments.tasks
    if path == "-":
        if not STREAMS.has_stdin:
            raise UsageError("standard input is closed")
        descriptor = 0
    else:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            if os.path.isdir(path):
                raise UsageError(f"{path} is a directory, not a file of tasks")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if arguments.strict and not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return _spooled(descriptor, stack)
    return descriptor


def _spooled(descriptor: int, stack: ExitStack) -> int:
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
    while piece := os.read(descriptor, _PIECE):
        file.write(piece)
    file.flush()
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return file.fileno()


def _require_all_good(descriptor: int, planner: TaskPlanner, harness: Harness) -> None:
    """Raises `UsageError` for the first line that is wrong, with how many there are."""
    first: HarnessError | None = None
    count, start = 0, os.lseek(descriptor, 0, os.SEEK_CUR)
    reader, reading = LineReader(descriptor), LineReading(planner)
    try:
        for line in reader:
            task = reading.task(line)
            try:
                if task.spec is None:
                    raise task.fault or UsageError(f"line {line.number} is no task")
                options = planner.plan(task.spec).options
                if options.model:
                    harness.check(options)
            except HarnessError as error:
                first, count = first or _named(error, line.number), count + 1
    finally:
        reader.close()
    if first is not None:
        more = f" ({count - 1} more lines are wrong)" if count > 1 else ""
        raise UsageError(f"{first.message}{more}", hint=first.hint) from first
    os.lseek(descriptor, start, os.SEEK_SET)


def _named(error: HarnessError, line: int) -> HarnessError:
    if error.message.startswith(f"line {line}"):
        return error
    return UsageError(f"line {line}: {error.message}", hint=error.hint)


def _results(arguments: BatchArguments, stack: ExitStack) -> tuple[ResultFile | None, Earlier]:
    """The file for the results, and what it has already."""
    if arguments.output is None:
        return None, Earlier()
    output = ResultFile(arguments.output)
    stack.callback(output.close)
    if not arguments.resume and not output.is_empty:
        raise UsageError(
            f"-o: {arguments.output} has results of a batch already",
            hint="go on with it by --resume, or name another file",
        )
    return output, output.earlier()


def _settings(arguments: BatchArguments, earlier: Earlier) -> BatchSettings:
    from dsh_actors.cli.batch_run import BatchSettings

    given = None if arguments.name is None else printable_name(arguments.name)
    if None not in (given, earlier.name) and given != earlier.name:
        raise UsageError(f"--name: the results in {arguments.output} are those of batch {earlier.name}")
    name = given or earlier.name or dated_session_id(int(time.time() * 1000), secrets.token_hex(4))
    return BatchSettings(
        name,
        arguments.jobs,
        arguments.resume,
        arguments.retry_failed,
        arguments.fail_fast,
        arguments.run.simple_exit,
    )


COMMAND = click.Command(
    "batch",
    params=BATCH_PARAMETERS,
    callback=batch,
    help="Run many tasks: TASKS.jsonl has one JSON object a line, - is standard input. Prints a JSON line "
    "for each task as it ends. Options of a task are defaults: what a line says goes before.",
    short_help="Run many tasks and print a line for each.",
)
