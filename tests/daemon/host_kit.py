"""A host in a folder of its own, over a model that answers at once or when the test says so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.config import load_config
from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    CallConfig,
    Chunk,
    Finish,
    TextDelta,
    Usage,
    UsageChunk,
)
from dsh_actors.core.messages import TextBlock, UserSource, text_of
from dsh_actors.core.request import ModelRequest
from dsh_actors.core.retry import RetryPolicy
from dsh_actors.daemon.host import Host
from dsh_actors.daemon.info import AgentInfo
from dsh_actors.daemon.registry import Change, Registry
from dsh_actors.errors import StorageFull
from dsh_actors.harness import Harness
from dsh_actors.ports import StreamControl
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.task_spec import TaskSpec
from dsh_actors.testing.manual import ManualProvider

ROOT = Path(__file__).resolve().parents[2]


class EchoProvider:
    """Answers at once with what the user said last."""

    name = "echo"
    retry_policy = RetryPolicy()

    def prepare(self, config: CallConfig) -> Any:
        return _EchoCall(config)

    def stream(self, call: Any, body: bytes, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        yield answer(body.decode())


@dataclass(frozen=True, slots=True)
class _EchoCall:
    config: CallConfig
    adapter_defaults: frozenset[str] = frozenset()
    context_window: int | None = None
    input_modalities: tuple[str, ...] = ("text",)

    def encoder(self) -> Any:
        return self

    def encode(self, request: ModelRequest) -> bytes:
        said = [m for m in request.messages if isinstance(m.source, UserSource)]
        return f"echo: {text_of(said[-1])}".encode()


def answer(text: str) -> list[Chunk]:
    """A whole reply."""
    return [
        BlockStart(0, "text"),
        TextDelta(0, text),
        BlockEnd(0, TextBlock(text)),
        UsageChunk(Usage(10, 2)),
        Finish("stop"),
    ]


class Daemon:
    """A harness and its host, opened and closed as a process would."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.cwd = folder / "work"
        self.cwd.mkdir(exist_ok=True)
        self.home = folder / "home"
        self.manual = ManualProvider()
        self.changes: list[AgentInfo] = []
        self.options = options
        self.open()

    def open(self, **options: Any) -> None:
        config = load_config(env={"DSH_HOME": str(self.home)}, cwd=str(self.cwd))
        providers = {"manual": self.manual, "echo": EchoProvider()}
        self.harness = Harness.open(config, providers=providers)
        chosen = {"on_change": self.changes.append, "admission_wait_s": 0.0, **self.options, **options}
        self.host = Host(self.harness, config, **chosen)
        try:
            self.host.start()
        except BaseException:
            self.harness.close()
            raise

    def close(self) -> None:
        self.host.close()
        self.harness.close()

    def agent(self, prompt: str | None = None, model: str = "echo/m", **fields: Any) -> str:
        """A new agent; its id."""
        fields = {"model": model, "cwd": str(self.cwd), **fields}
        if prompt is not None:
            fields["prompt"] = prompt
        return self.host.create(TaskSpec.from_json(fields, "test")).id

    def end(self, agent_id: str) -> Any:
        """The end of its run, once it is over."""
        end = self.host.wait([agent_id], timeout=20.0).get(agent_id)
        assert end is not None, "the run is not over"
        return end

    def lay_down(self, agent_id: str) -> None:
        """Put it to sleep, which must be possible."""
        assert self.host._table.sleep_if_idle(agent_id)
        assert self.host.get(agent_id).state == "asleep"

    def states(self) -> dict[str, str]:
        return {info.id: info.state for info in self.host.list()}

    def types(self, agent_id: str) -> list[str]:
        return [event.type for event in self.host.events(agent_id)]


def no_room(*_given: object) -> None:
    """Stands in for what writes, where the disk is full."""
    raise StorageFull("no room")


def held_writes(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event, list[str]]:
    """Each write of rows says that it has begun, and waits for leave; the ids of what was written.

    In the hub's thread, so that the test may give leave.
    """
    write, began, go_on = registry.write, threading.Event(), threading.Event()
    written: list[str] = []

    def slow(changes: Sequence[Change]) -> None:
        began.set()
        go_on.wait(20)
        write(changes)
        written.extend(change.id for change in changes)

    monkeypatch.setattr("dsh_actors.daemon.row_writer.run_native", lambda work, *given: work(*given))
    monkeypatch.setattr(registry, "write", slow)
    return began, go_on, written


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run them side by side; what each returned, or the error that it raised."""
    ends: dict[int, TaskEnd[Any]] = {}
    tasks = [
        start_task(lambda _token, work=work: work(), partial(ends.__setitem__, number), name="test")
        for number, work in enumerate(works)
    ]
    for task in tasks:
        assert task.join(30.0)
    return [ends[n].error if ends[n].error is not None else ends[n].value for n in range(len(works))]


def start_program(source: str, folder: Path) -> subprocess.Popen[str]:
    """A process of its own that runs ``source`` with the folder as its argument."""
    program = folder / "program.py"
    program.write_text(source)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gevent.monkey", str(program), str(folder)],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `start_program`, to its end."""
    with start_program(source, folder) as process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
