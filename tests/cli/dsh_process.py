"""Running the real program: `python -m dsh_actors` in a home, a directory and an environment of its own.

Nothing here waits by time: it waits for output lines, requests and ends of processes, with a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import zstandard

from tests.model_server import (
    ModelServer,
    Request,
    marked_pids,
    prefix_faults,
    request_faults,
    wait_until_unmarked,
)

__all__ = [
    "ONE_LINE",
    "SECRET",
    "Dsh",
    "Event",
    "Fifo",
    "Result",
    "Running",
    "assert_failed",
    "assert_refused",
    "read_some",
    "stream_faults",
]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0
"""How long a test waits for what should come within a second or two, on a slow machine."""

SECRET = "sk-canary-5f0c9b1e7a"
"""The key that the program gets; it must not turn up anywhere but in the Authorization header."""

ONE_LINE = re.compile(r"\Adsh: [a-z_]+: [^\n]+\n\Z")
"""The whole of standard error when a run fails."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """How a run ended. ``duration_s`` is wall time from start to the end of the process."""

    code: int
    out: str
    err: str
    duration_s: float

    @property
    def events(self) -> list[Event]:
        """The lines of `--json`; each must be one JSON object."""
        return [json.loads(line) for line in self.out.split("\n")[:-1]]

    @property
    def end(self) -> Event:
        last = self.events[-1]
        assert last["type"] == "run.end"
        return last

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]


@dataclass
class Running:
    """A started program. ``events`` grows while it writes `--json` lines."""

    process: subprocess.Popen[bytes]
    mark: str
    started: float = field(default_factory=time.monotonic)
    events: list[Event] = field(default_factory=list)
    _out: bytearray = field(default_factory=bytearray)
    _err: bytearray = field(default_factory=bytearray)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _pumps: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        for pipe, sink in ((self.process.stdout, self._out), (self.process.stderr, self._err)):
            if pipe is not None:
                pump = threading.Thread(target=self._pump, args=(pipe, sink), daemon=True)
                pump.start()
                self._pumps.append(pump)

    def _pump(self, pipe: IO[bytes], sink: bytearray) -> None:
        with pipe:
            for line in pipe:
                with self._changed:
                    sink += line
                    if sink is self._out and line.startswith(b"{"):
                        with contextlib.suppress(ValueError):  # cut by a kill, or no --json run
                            self.events.append(json.loads(line))
                    self._changed.notify_all()

    def wait_for(self, found: Callable[[Running], bool], timeout_s: float = PATIENCE_S) -> None:
        """Wait until ``found`` holds; it is asked again after each line of output."""
        with self._changed:
            done = self._changed.wait_for(lambda: found(self), timeout_s)
        assert done, (
            f"it did not happen in {timeout_s} s; stdout: {self._out[-2000:]!r} stderr: {self._err!r}"
        )

    def wait_for_event(self, kind: str, count: int = 1, timeout_s: float = PATIENCE_S) -> Event:
        """The ``count``-th `--json` line of this type."""
        self.wait_for(lambda run: sum(e["type"] == kind for e in run.events) >= count, timeout_s)
        return [event for event in self.events if event["type"] == kind][count - 1]

    @property
    def stderr(self) -> str:
        return self._err.decode()

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> Result:
        """Wait for the end and all output. Raises AssertionError (and kills) when it takes longer."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            out, err = bytes(self._out[-2000:]), bytes(self._err)
            self.kill()
            raise AssertionError(
                f"still running after {timeout_s} s; stdout: {out!r} stderr: {err!r}"
            ) from None
        duration = time.monotonic() - self.started
        for pump in self._pumps:
            pump.join(PATIENCE_S)
        return Result(code, self._out.decode(), self._err.decode(), duration)

    def kill(self) -> None:
        """`kill -9` of the program alone; its children must follow by themselves."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()


class Dsh:
    """The program in one sandboxed place: own HOME, DSH_HOME, TMPDIR and working directory."""

    model = "openai/test"

    def __init__(self, root: Path, server: ModelServer) -> None:
        self.server = server
        self.mark = f"dsh-test-{uuid.uuid4().hex}"
        self.home, self.cwd, self.user_home, self.tmp = (
            root / name for name in ("dsh-home", "work", "user", "tmp")
        )
        for directory in (self.cwd, self.user_home, self.tmp):
            directory.mkdir()
        self.running: list[Running] = []
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user_home),
            "DSH_HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "DSH_TEST_MARK": self.mark,
            "OPENAI_API_KEY": SECRET,
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "DEEPSEEK_API_KEY": SECRET,
            "DEEPSEEK_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": SECRET,
            "ANTHROPIC_BASE_URL": server.url,
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "dsh_actors", *arguments]

    def start(
        self,
        *arguments: str,
        env: dict[str, str | None] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        command: Sequence[str] | None = None,
        cwd: Path | None = None,
    ) -> Running:
        """Start `dsh ARGUMENTS` (or ``command``). ``env`` adds to the environment; None takes away."""
        whole = {name: value for name, value in {**self.env, **(env or {})}.items() if value is not None}
        process = subprocess.Popen(
            list(command) if command is not None else self.command(*arguments),
            env=whole,
            cwd=cwd or self.cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        running = Running(process, self.mark)
        self.running.append(running)
        return running

    def begin(self, *arguments: str, **options: Any) -> Running:
        """Start `dsh run` with the test model."""
        return self.start("run", *self._model(arguments), *arguments, **options)

    def run(self, *arguments: str, text: str | bytes | None = None, **options: Any) -> Result:
        """`dsh run` with the test model to its end; ``text`` is its standard input."""
        return self.call("run", *self._model(arguments), *arguments, text=text, **options)

    def call(self, *arguments: str, text: str | bytes | None = None, **options: Any) -> Result:
        """`dsh ARGUMENTS` to its end."""
        timeout_s = options.pop("timeout_s", PATIENCE_S)
        if text is None:
            return self.start(*arguments, **options).wait(timeout_s)
        running = self.start(*arguments, stdin=subprocess.PIPE, **options)
        assert running.process.stdin is not None
        # A program that refuses before it reads closes the pipe: that is its right.
        with contextlib.suppress(BrokenPipeError), running.process.stdin as pipe:
            pipe.write(text.encode() if isinstance(text, str) else text)
        return running.wait(timeout_s)

    def _model(self, arguments: Sequence[str]) -> tuple[str, ...]:
        chosen = any(argument in ("-m", "--model", "--resume", "--continue") for argument in arguments)
        return () if chosen else ("-m", self.model)

    # --- what it left behind -------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """Every request so far, each checked to be well-formed."""
        requests = self.server.requests()
        for request in requests:
            assert request_faults(request.body) == [], f"request {request.index}: {request.text[:2000]}"
        return requests

    def requests_with_stable_prefix(self) -> list[Request]:
        requests = self.requests()
        assert prefix_faults([request.body for request in requests]) == []
        return requests

    def session_ids(self) -> list[str]:
        """The directories of stored sessions; what a kill left half-made (``.new-…``) is none."""
        names = (path.parent.name for path in self.home.glob("sessions/*/*/log"))
        return sorted(name for name in names if not name.startswith("."))

    def stored_text(self) -> str:
        """Everything that is on disk under DSH_HOME, decompressed."""
        texts = []
        for path in sorted(self.home.rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                texts.append(_decompress(data) if path.suffix == ".zst" else data)
        return b"\n".join(texts).decode("utf-8", "replace")

    def survivors(self, timeout_s: float = 5.0) -> list[int]:
        """Processes of this place that are left ``timeout_s`` seconds from now."""
        return wait_until_unmarked(self.mark, timeout_s)

    def clean_up(self) -> None:
        for running in self.running:
            running.kill()
        for pid in marked_pids(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _decompress(data: bytes) -> bytes:
    """All complete zstd frames of a file."""
    whole = bytearray()
    with contextlib.suppress(zstandard.ZstdError):  # a torn tail is not this function's business
        while data:
            one = zstandard.ZstdDecompressor().decompressobj()
            whole += one.decompress(data)
            data = one.unused_data
    return bytes(whole)


def assert_refused(result: Result, dsh: Dsh) -> None:
    """A usage error: exit 2 with one clear line, no request, nothing created."""
    assert result.code == 2, result.err
    assert result.out == ""
    assert ONE_LINE.match(result.err), result.err
    assert dsh.server.count() == 0
    assert dsh.session_ids() == []


def assert_failed(result: Result, code: int) -> None:
    """A failure in text mode: its code, no output, one line on standard error."""
    assert (result.code, result.out) == (code, ""), result.err
    assert ONE_LINE.match(result.err), result.err


class Fifo:
    """A named pipe between a test and a command of the model; opening it never blocks."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def __enter__(self) -> Fifo:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, timeout_s: float = PATIENCE_S) -> str:
        """What the command writes next."""
        return read_some(self._fd, timeout_s).decode()

    def write(self, text: str) -> None:
        os.write(self._fd, text.encode())


def read_some(fd: int, timeout_s: float = PATIENCE_S) -> bytes:
    """One read; b"" at the end. Raises AssertionError when nothing comes in time."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(timeout_s * 1000), f"nothing to read in {timeout_s} s"
    return os.read(fd, 65536)


def stream_faults(events: Sequence[Event]) -> list[str]:
    """What is wrong with the lines of a `--json` run: first, last, and every start with its end."""
    faults = []
    kinds = [event["type"] for event in events]
    if kinds[:1] != ["run.start"] or kinds.count("run.start") != 1:
        faults.append(f"run.start is not the one first line: {kinds[:3]}")
    if kinds[-1:] != ["run.end"] or kinds.count("run.end") != 1:
        faults.append(f"run.end is not the one last line: {kinds[-3:]}")
    for start, end, keys in (
        ("turn/start", "turn/end", ("turn",)),
        ("step/start", "step/end", ("turn", "step")),
        ("tool/call", "tool/result", ()),
    ):
        opened = sorted(_identity(event, keys) for event in events if event["type"] == start)
        closed = sorted(_identity(event, keys) for event in events if event["type"] == end)
        if opened != closed and not (start == "tool/call" and set(opened) <= set(closed)):
            faults.append(f"{start} {opened} against {end} {closed}")
    sequence = [event["seq"] for event in events if "seq" in event]
    if sequence != list(range(sequence[0] if sequence else 0, (sequence[-1] + 1) if sequence else 0)):
        faults.append(f"seq has gaps: {sequence}")
    return faults


def _identity(event: Event, keys: tuple[str, ...]) -> tuple[str, ...]:
    data = event["data"]
    if keys:
        return tuple(str(data[key]) for key in keys)
    if event["type"] == "tool/result":
        return (str(data["message"]["content"][0]["toolCallId"]),)
    return (str(data["callId"]),)
