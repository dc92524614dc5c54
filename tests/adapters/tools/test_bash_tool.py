"""The bash tool on real processes: what the model reads of a command's end."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.adapters.tools.bash import BashTool
from dsh_actors.adapters.tools.sandbox import probe_sandbox, wrap_command
from dsh_actors.core.ids import CallId, SessionId
from dsh_actors.errors import ToolError
from dsh_actors.ports import CancelToken, ProcessResult, ToolContext, ToolOutput
from dsh_actors.runtime.cancel import CancelSource
from dsh_actors.runtime.process import Processes
from tests.process_kit import HeardProcesses

Bash = Callable[..., ToolOutput]


class CannedRunner:
    """A `ports.ProcessRunner` that answers with ``result`` and keeps what it was asked."""

    def __init__(self, result: ProcessResult) -> None:
        self.result = result
        self.asked: dict[str, Any] = {}

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float,
        cancel: CancelToken,
        output_limit_bytes: int,
    ) -> ProcessResult:
        self.asked = {"argv": argv, "cwd": cwd, "env": env, "timeout_s": timeout_s}
        return self.result


def context_for(processes: Any, cwd: str = "/") -> ToolContext:
    return ToolContext(
        session_id=SessionId("s"),
        call_id=CallId("c"),
        cwd=cwd,
        roots=(cwd,),
        env={"PATH": os.environ["PATH"], "HOME": cwd, "PAGER": "less"},
        cancel=CancelSource().token,
        timeout_s=20.0,
        output_limit_bytes=4000,
        processes=processes,
        wrap=lambda argv, cwd: argv,
    )


def canned(result: ProcessResult, arguments: dict[str, Any] | None = None, **changes: Any) -> ToolOutput:
    context = replace(context_for(CannedRunner(result)), **changes)
    return BashTool().execute({"command": "x", **(arguments or {})}, context)


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Bash]:
    processes = Processes(f"bash-{os.getpid()}-{time.monotonic_ns()}", grace_s=0.2)

    def call(command: str, changes: dict[str, Any] | None = None, **arguments: Any) -> ToolOutput:
        context = replace(context_for(processes, str(tmp_path)), **(changes or {}))
        return BashTool().execute({"command": command, **arguments}, context)

    yield call
    processes.close()


@pytest.fixture
def heard() -> Iterator[HeardProcesses]:
    processes = HeardProcesses(f"heard-{os.getpid()}-{time.monotonic_ns()}", grace_s=10.0)
    yield processes
    processes.close()


def test_the_output_is_the_result(bash: Bash, tmp_path: Path) -> None:
    result = bash("pwd; echo é >&2", description="say where")
    assert result.text == f"{tmp_path}\né\n"
    assert (result.is_error, result.code) == (False, None)
    assert result.meta is not None
    assert set(result.meta) == {"exitCode", "durationMs"}
    assert result.meta["exitCode"] == 0


def test_silence_is_said(bash: Bash) -> None:
    assert bash("true").text == "(no output)"


@pytest.mark.parametrize(
    ("command", "text", "exit_code"),
    [
        ("false", "[exit code 1]", 1),
        ("printf x; exit 7", "x\n[exit code 7]", 7),
        ("kill -9 $$", "[ended by signal SIGKILL]", -9),
        ("kill -40 $$", "[ended by signal 40]", -40),
    ],
)
def test_a_failure_is_a_result_with_its_code(bash: Bash, command: str, text: str, exit_code: int) -> None:
    result = bash(command)
    assert (result.text, result.is_error, result.code) == (text, True, "EXIT_STATUS")
    assert result.meta is not None
    assert result.meta["exitCode"] == exit_code


@pytest.mark.parametrize("asked", [-1, 0, 10**400, float("nan"), float("inf"), 21])
def test_a_timeout_that_is_not_possible_becomes_the_highest(asked: float) -> None:
    runner = CannedRunner(ProcessResult(None, b"a\n", 0, "timeout", False, 20.0))
    result = BashTool().execute({"command": "x", "timeout_s": asked}, context_for(runner))
    assert runner.asked["timeout_s"] == 20.0
    first, note = result.text.splitlines()
    assert first == "a"
    assert note.startswith("[timed out after 20 s and was stopped (a timeout_s of ")
    assert "20 s is the most" in note
    assert len(note) < 250


def test_a_timeout_keeps_the_output_and_says_how_to_go_on(bash: Bash, heard: HeardProcesses) -> None:
    began = time.monotonic()
    result = bash("echo a; sleep 99", {"processes": heard}, timeout_s=0.2)
    assert time.monotonic() - began < 10
    assert result.text.splitlines() == [
        "a",
        "[timed out after 0.2 s and was stopped; set timeout_s to allow more time, at most 20]",
    ]
    assert (result.is_error, result.code) == (True, "TIMEOUT")
    assert result.meta is not None
    assert (result.meta["timedOut"], result.meta["exitCode"]) == (True, None)


def test_a_cancel_ends_the_command_and_keeps_its_output(bash: Bash, heard: HeardProcesses) -> None:
    source = CancelSource()
    heard.on_heard = lambda: gevent.spawn(source.cancel, "user")
    result = bash("echo a; sleep 99", {"cancel": source.token, "processes": heard})
    assert re.fullmatch(r"a\n\[cancelled after \d\.\d s\]", result.text)
    assert (result.is_error, result.code) == (True, "CANCELLED")


def test_a_server_in_the_background_does_not_hold_the_call(bash: Bash) -> None:
    began = time.monotonic()
    result = bash("sleep 600 & echo hi")
    assert time.monotonic() - began < 10
    assert result.text.startswith("hi\n[a process it started is still running")
    assert not result.is_error
    assert result.meta is not None
    assert result.meta["leftRunning"] is True


def test_a_background_job_is_refused_clearly(bash: Bash, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="not available in this run") as caught:
        bash("touch made", background=True)
    assert caught.value.code == "UNSUPPORTED"
    assert not (tmp_path / "made").exists()
    assert bash("touch made", background=False).is_error is False


def test_binary_output_becomes_readable_text(bash: Bash) -> None:
    result = bash("printf 'a\\0b\\033[1m\\377\\n'; head -c 4096 /dev/urandom")
    assert result.text.startswith("a\\x00b\\x1b[1m\ufffd\n")
    assert not re.search("[\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", result.text)
    result.text.encode()


def test_a_long_output_is_cut_in_the_middle_and_counted(bash: Bash) -> None:
    result = bash("seq 1 100000")
    assert result.meta is not None
    head, note, tail = re.split(r"\n(\[\d+ bytes omitted here\])\n", result.text)
    assert head.startswith("1\n2\n3\n")
    assert tail.endswith("\n99999\n100000\n")
    assert note == f"[{result.meta['omittedBytes']} bytes omitted here]"
    assert len(head) + len(tail) + result.meta["omittedBytes"] == sum(len(f"{n}\n") for n in range(1, 100001))


@given(
    output=st.one_of(
        st.binary(max_size=120), st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))
    ),
    limit=st.integers(8, 60),
)
def test_the_text_is_bounded_whatever_the_output_is(output: bytes, limit: int) -> None:
    kept, omitted = output, 0
    if len(output) > limit:
        kept = output[: limit // 2] + output[len(output) - (limit - limit // 2) :]
        omitted = len(output) - limit
    result = canned(ProcessResult(0, kept, omitted, None, False, 0.1), output_limit_bytes=limit)
    text = re.sub(r"\n\[\d+ bytes omitted here\]\n", "", result.text, count=1)
    assert len(text.encode()) <= max(limit, len("(no output)"))
    assert result.meta is not None
    if "omittedBytes" in result.meta:
        assert omitted <= result.meta["omittedBytes"] <= len(output)
        valid = output.decode("utf-8", "replace").encode() == output
        # Cutting never makes a replacement character out of a good one.
        assert not valid or "\ufffd" in output.decode() or "\ufffd" not in result.text


def test_the_environment_is_the_given_one_made_unattended(bash: Bash) -> None:
    lines = bash("env").text.splitlines()
    for expected in ("PAGER=cat", "GIT_PAGER=cat", "GIT_TERMINAL_PROMPT=0", "TERM=dumb"):
        assert expected in lines
    assert any(line.startswith("HOME=") for line in lines)
    assert not any(line.startswith("USER=") for line in lines)


@pytest.mark.parametrize("variable", ["EDITOR", "VISUAL", "GIT_EDITOR"])
def test_an_editor_fails_at_once_with_a_word_of_advice(bash: Bash, variable: str) -> None:
    result = bash(f'eval "${variable} file"')
    assert result.text.startswith("no editor can be opened here")
    assert result.meta is not None
    assert result.meta["exitCode"] == 1


def test_the_command_goes_through_the_sandbox(tmp_path: Path) -> None:
    runner = CannedRunner(ProcessResult(0, b"", 0, None, False, 0.1))
    context = replace(context_for(runner, str(tmp_path)), wrap=lambda argv, cwd: ["box", cwd, *argv])
    BashTool().execute({"command": "echo 'a b'"}, context)
    assert runner.asked["argv"] == ["box", str(tmp_path), shutil.which("bash"), "-c", "echo 'a b'"]
    assert runner.asked["cwd"] == str(tmp_path)


def test_sh_takes_over_where_there_is_no_bash(tmp_path: Path) -> None:
    runner = CannedRunner(ProcessResult(0, b"", 0, None, False, 0.1))
    BashTool().execute({"command": "x"}, replace(context_for(runner), env={"PATH": str(tmp_path)}))
    assert runner.asked["argv"][0] == "sh"


def test_a_sandboxed_command_is_ended_and_left_like_any_other(
    bash: Bash, heard: HeardProcesses, tmp_path: Path
) -> None:
    for kind in filter(None, [probe_sandbox()]):
        changes = {"wrap": lambda argv, cwd, kind=kind: wrap_command(kind, argv, cwd, [cwd])}
        command = "trap 'touch cleaned; exit' TERM; echo a; sleep 99 & wait"
        result = bash(command, {**changes, "processes": heard}, timeout_s=0.05)
        assert (result.code, result.text.splitlines()[0]) == ("TIMEOUT", "a")
        assert (tmp_path / "cleaned").exists()
        result = bash("setsid sleep 600 >/dev/null 2>&1 & exit 3", changes)
        assert result.text.startswith("[exit code 3]\n[a process it started is still running")


_ON_A_TERMINAL = """
from gevent import monkey; monkey.patch_all()
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
from test_bash_tool import BashTool, Processes, context_for
open("/dev/tty").close()  # the harness does have a terminal
processes = Processes(f"tty-{os.getpid()}")
for command in sys.argv[3:]:
    began = time.monotonic()
    result = BashTool().execute({"command": command}, context_for(processes, sys.argv[2]))
    print(json.dumps([time.monotonic() - began, result.text]), flush=True)
processes.close()
"""


def test_nothing_waits_for_the_terminal_of_the_harness(tmp_path: Path) -> None:
    git = "git -c user.name=a -c user.email=a@b"
    commands = {
        "read x </dev/tty": "No such device or address",
        f"{git} init -q . && echo 1 > f && git add f && {git} commit": "no editor can be opened",
        f"{git} commit -qm first && {git} log -p": "first",
        f"{sys.executable} -c 'input()'": "EOFError",
        "git ls-remote https://127.0.0.1:1/x": "[exit code",
    }
    script = [sys.executable, "-c", _ON_A_TERMINAL, str(Path(__file__).parent), str(tmp_path), *commands]
    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            ["setsid", "--ctty", "--wait", *script],
            stdin=slave,
            stdout=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    finally:
        os.close(master)
        os.close(slave)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(commands)
    for (took_s, text), (command, expected) in zip(results, commands.items(), strict=True):
        assert expected in text, command
        assert took_s < 3, command


def test_the_schema_is_small_and_closed() -> None:
    spec = BashTool().spec
    assert (spec.name, spec.changes, spec.native) == ("bash", True, False)
    assert len(json.dumps(spec.parameters)) + len(spec.description) < 1200
    assert list(spec.parameters["properties"]) == ["command", "timeout_s", "background", "description"]
    assert BashTool().is_parallel({"command": "true"}) is False
