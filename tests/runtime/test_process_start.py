"""Commands that go on: their output is handed on as it comes, their input is whole, their errors apart."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dsh_actors.errors import ToolError
from dsh_actors.ports import ProcessResult
from dsh_actors.runtime.cancel import CancelSource
from dsh_actors.runtime.process import Processes

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes(f"start-{os.getpid()}-{time.monotonic_ns()}", grace_s=0.2)
    yield processes
    processes.close()


def run(processes: Processes, command: str, source: CancelSource | None = None, **more: Any) -> ProcessResult:
    started = processes.start(["sh", "-c", command], cwd="/", env=ENV, **more)
    return started.wait(timeout_s=20, cancel=(source or CancelSource()).token)


def test_output_is_handed_on_while_the_command_runs(processes: Processes) -> None:
    source, seen = CancelSource(), bytearray()

    def take(piece: bytes) -> None:
        seen.extend(piece)
        source.cancel("seen")  # the command is there for 99 s: this ends it

    result = run(processes, "echo first; exec sleep 99", source, on_output=take)
    assert (bytes(seen), result.ended_by, result.exit_code) == (b"first\n", "cancelled", None)
    assert result.output == b""


def test_errors_are_apart_only_where_somebody_takes_them(processes: Processes) -> None:
    both, out, errors = bytearray(), bytearray(), bytearray()
    assert run(processes, "echo a; echo b >&2; exit 3", on_output=both.extend).exit_code == 3
    assert both == b"a\nb\n"
    run(processes, "echo a; echo b >&2", on_output=out.extend, on_errors=errors.extend)
    assert (out, errors) == (b"a\n", b"b\n")


@pytest.mark.parametrize("size", [0, 5_000_000])
def test_the_input_is_whole_however_large_and_need_not_be_read(processes: Processes, size: int) -> None:
    counted = bytearray()
    run(processes, "wc -c", on_output=counted.extend, stdin=b"x" * size)
    assert int(counted) == size
    assert run(processes, "exit 0", on_output=counted.extend, stdin=b"x" * size).exit_code == 0


def test_without_an_input_there_is_none(processes: Processes) -> None:
    out = bytearray()
    run(processes, "cat; echo end", on_output=out.extend)
    assert out == b"end\n"


def test_a_taker_that_fails_does_not_keep_the_command_from_ending(processes: Processes) -> None:
    def fail(_piece: bytes) -> None:
        raise ValueError("I cannot take that")

    assert run(processes, "echo a; echo b", on_output=fail).exit_code == 0


def test_nothing_is_left_open_where_the_start_fails(processes: Processes) -> None:
    run(processes, "true", on_output=bytearray().extend)
    before = len(os.listdir("/proc/self/fd"))
    for argv in (["no-such-program"], ["sh", "x" * 3_000_000]) * 5:
        with pytest.raises(ToolError):
            processes.start(
                argv, cwd="/", env=ENV, on_output=print, on_errors=print, stdin=b"some"
            )
    # Fewer where what ran before had descriptors that are closed in a later turn of the hub.
    assert len(os.listdir("/proc/self/fd")) <= before
