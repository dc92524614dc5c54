"""Named pipes in the place of files: a signal ends the waiting for whoever should write or read them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

import pytest

from tests.cli.dsh_process import Dsh, Running
from tests.model_server import T


def _turn_is_over(events: list[dict[str, object]]) -> bool:
    return any(event["type"] == "turn/end" for event in events)


def _stop(running: Running) -> None:
    """A signal that comes just before the system call that waits is heeded with the next one only."""
    for _ in range(20):
        running.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(1.0)
            return


@pytest.mark.parametrize("option", ["--schema", "--system-prompt-file", "--prompt-file", "--file"])
def test_a_signal_ends_the_reading_of_a_file_that_never_comes(dsh: Dsh, option: str) -> None:
    os.mkfifo(dsh.cwd / "pipe")
    prompt = () if option == "--prompt-file" else ("x",)
    running = dsh.begin("--json", option, "pipe", *prompt)
    with open(dsh.cwd / "pipe", "wb"):  # it opens when the program does
        _stop(running)
        ended = running.wait()
    assert ended.code == 143
    assert dsh.server.count() == 0


@pytest.mark.parametrize("option", ["-o", "--result-file"])
def test_a_signal_ends_the_waiting_for_the_reader_of_a_result(dsh: Dsh, option: str) -> None:
    dsh.server.script(T("done"))
    os.mkfifo(dsh.cwd / "pipe")
    running = dsh.begin("--json", option, "pipe", "x")
    running.wait_for(lambda seen: _turn_is_over(seen.events))
    running.send_signal(signal.SIGTERM)
    ended = running.wait()
    assert (ended.code, ended.end["exit_code"]) == (143, 143)
    assert ended.err.count("\n") == 1


def test_a_result_waits_for_a_reader_that_comes_late(dsh: Dsh) -> None:
    dsh.server.script(T("done"))
    os.mkfifo(dsh.cwd / "pipe")
    running = dsh.begin("-o", "pipe", "x")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((dsh.cwd / "pipe").read_text()))
    reader.start()
    ended = running.wait()
    reader.join(20.0)
    assert (ended.code, ended.err, read) == (0, "", ["done\n"])


def test_a_script_of_a_model_that_is_a_pipe_is_refused(dsh: Dsh) -> None:
    os.mkfifo(dsh.cwd / "pipe")
    refused = dsh.call("run", "-m", "scripted/pipe", "x")
    assert refused.code == 2 and "is not a regular file" in refused.err
