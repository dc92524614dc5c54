"""Ends that are hard to deliver: blocked readers, signals at any moment, files that cannot be written."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.cli.dsh_process import ONE_LINE, ROOT, Dsh, Fifo, assert_failed, assert_refused, read_some
from tests.model_server import C, T

LARGE = "0123456789abcdef" * 20_000
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def blocked_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    return reader, writer


# --- readers that do not read -------------------------------------------------------------------


def test_output_cut_by_a_signal_is_no_success(dsh: Dsh, tmp_path: Path) -> None:
    dsh.server.script(T(LARGE))
    end = tmp_path / "end.json"
    reader, writer = os.pipe()
    try:
        running = dsh.begin("--result-file", str(end), "x", stdout=writer)
        deadline = time.monotonic() + 20
        while not end.exists() and time.monotonic() < deadline:
            os.sched_yield()
        running.send_signal(signal.SIGTERM)
        result = running.wait()
    finally:
        os.close(reader)
        os.close(writer)
    assert result.code == 143
    assert ONE_LINE.match(result.err) and "output" in result.err
    told = json.loads(end.read_text())
    assert (told["reason"], told["exit_code"]) == ("interrupted", result.code)


def test_signs_of_life_that_nobody_reads_do_not_hold_a_run(dsh: Dsh) -> None:
    dsh.server.script(T(["o", "k"], hold="gate"))
    reader, writer = blocked_pipe()
    try:
        running = dsh.begin("--heartbeat", "0.05", "x", stderr=writer)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            os.sched_yield()
        dsh.server.release("gate")
        result = running.wait(10)
    finally:
        os.close(reader)
        os.close(writer)
    assert (result.code, result.out) == (0, "ok\n")


# --- signals ------------------------------------------------------------------------------------


def test_a_second_signal_still_tells_how_the_run_ended(dsh: Dsh, tmp_path: Path) -> None:
    command = "trap 'echo on > gate' TERM; echo up > gate; while :; do sleep 9; done"
    dsh.server.script(C("bash", {"command": command}))
    end = tmp_path / "end.json"
    with Fifo(dsh.cwd / "gate") as gate:
        running = dsh.begin("--json", "--result-file", str(end), "x")
        gate.read()
        running.send_signal(signal.SIGTERM)
        assert gate.read() == "on\n"
        running.send_signal(signal.SIGTERM)
        result = running.wait(4)
    assert result.code == 143
    assert ONE_LINE.match(result.err) and "signal" in result.err
    assert result.end["reason"] == "interrupted" and result.end["exit_code"] == 143
    assert json.loads(end.read_text())["signal"] == "SIGTERM"


SIGNAL_AT_IMPORT = """
import posix, sys

class SignalAt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            posix.kill(posix.getpid(), {number})

sys.path.insert(0, {root!r})
sys.meta_path.insert(0, SignalAt())
with open({root!r} + "/dsh_actors/__main__.py") as file:
    exec(compile(file.read(), "main", "exec"))
"""
"""The program as bin/dsh starts it, and a signal at the moment that it begins to import a module."""


@pytest.mark.parametrize("number", list(SIGNALS))
@pytest.mark.parametrize("module", ["os", "site", "gevent", "click", "dsh_actors.cli.run", "select"])
def test_an_early_signal_leaves_no_traceback(dsh: Dsh, number: signal.Signals, module: str) -> None:
    program = SIGNAL_AT_IMPORT.format(module=module, number=int(number), root=str(ROOT))
    result = dsh.call(command=[sys.executable, "-I", "-S", "-c", program, "run", "-m", dsh.model, "x"])
    assert (result.code, result.out) == (SIGNALS[number], "")
    assert result.err in ("", f"dsh: signal: stopped by {number.name}\n")
    assert dsh.session_ids() == []


def test_a_signal_while_the_prompt_is_read_gives_an_end(dsh: Dsh, tmp_path: Path) -> None:
    reader, writer = blocked_pipe()
    end = tmp_path / "end.json"
    try:
        running = dsh.begin("--json", "--result-file", str(end), "-", stdin=reader)
        # It has begun to read once the pipe takes something again.
        os.write(writer, b"more")
        running.send_signal(signal.SIGTERM)
        result = running.wait(10)
    finally:
        os.close(reader)
        os.close(writer)
    assert result.code == 143
    assert (result.end["reason"], result.end["signal"]) == ("interrupted", "SIGTERM")
    assert json.loads(end.read_text())["exit_code"] == 143


# --- wrong options ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [("--max-steps", "0"), ("--bogus",), ("--heartbeat", "0"), ("a", "b"), ("--max-steps",)]
)
def test_a_wrong_option_has_an_end_that_can_be_read(dsh: Dsh, wrong: tuple[str, ...], tmp_path: Path) -> None:
    end = tmp_path / "end.json"
    result = dsh.call("run", "--json", f"--result-file={end}", "x", *wrong)
    assert (result.code, result.end["reason"], result.end["exit_code"]) == (2, "usage", 2)
    assert [event["type"] for event in result.events] == ["run.start", "run.end"]
    assert ONE_LINE.match(result.err)
    assert json.loads(end.read_text()) == result.end
    assert dsh.call("run", "--simple-exit", *wrong, "x").code == 1


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-o", "--result-file"])
@pytest.mark.parametrize("path", ["/nonexistent/x", "/proc/x"])
def test_a_place_that_takes_no_file_is_found_before_any_request(dsh: Dsh, option: str, path: str) -> None:
    assert_refused(dsh.run(option, path, "x"), dsh)


def test_a_file_that_cannot_be_written_is_named(dsh: Dsh) -> None:
    dsh.server.script(T("ok"))
    result = dsh.run("-o", "/dev/full", "x")
    assert result.code == 1 and "cannot write /dev/full: No space left" in result.err


def test_the_answer_of_an_earlier_run_does_not_stay_behind(dsh: Dsh) -> None:
    answer = dsh.cwd / "answer"
    answer.write_text("old")
    dsh.server.script(C("bash", {"command": "echo x"}), T("never"))
    assert_failed(dsh.run("-o", "answer", "--max-steps", "1", "x"), 4)
    assert answer.read_text() == ""
    answer.write_text("old")
    assert dsh.run("-o", "answer", "-m", "nope/x", "x").code == 2
    assert answer.read_text() == "old"


# --- terminals ----------------------------------------------------------------------------------


def test_a_terminal_is_not_obeyed_by_an_answer(dsh: Dsh) -> None:
    answer = "a\x1b[31mred\x07\x9b2J"
    dsh.server.script(T(answer))
    assert dsh.run("x").out == answer + "\n"
    leader, follower = pty.openpty()
    dsh.server.script(T(answer))
    try:
        running = dsh.begin("--no-progress", "x", stdout=follower)
        os.close(follower)
        shown = read_some(leader).decode()
        assert running.wait().code == 0
    finally:
        os.close(leader)
    assert shown == "a\\x1b[31mred\\x07\\x9b2J\r\n"


# --- standard output that takes nothing ---------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [("session", "ls"), ("help",), ("config", "show"), ("doctor",), ("--version",)]
)
def test_every_command_says_that_its_output_was_lost(dsh: Dsh, arguments: tuple[str, ...]) -> None:
    dsh.server.script(T("ok"))
    assert dsh.run("x").code == 0
    with open("/dev/full", "wb") as full:
        result = dsh.call(*arguments, stdout=full)
    assert result.code == 1
    assert result.err == "dsh: failed: cannot write standard output: No space left on device\n"
    closed = dsh.call(command=["sh", "-c", 'exec "$@" >&-', "sh", *dsh.command(*arguments)])
    assert closed.code == 141 and ONE_LINE.match(closed.err)
