"""The daemon's host under measurement, in this process. For `tests.bench.worker` only.

The model is in the process too, where the figures are memory, descriptors or the host's own CPU.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsh_actors.closing import settle_index
from dsh_actors.config import load_config
from dsh_actors.daemon.host import Host
from dsh_actors.daemon.kept_options import options_to_json
from dsh_actors.daemon.registry import Change, Registry
from dsh_actors.daemon.server import Daemon
from dsh_actors.daemon.waking import awake
from dsh_actors.harness import Harness
from dsh_actors.task_spec import TaskSpec
from tests.bench.harness_loop import PATIENCE_S, NoteTool
from tests.daemon.host_kit import EchoProvider

__all__ = ["run_asleep", "run_at_work", "run_day", "run_idle", "run_waking"]

AT_ONCE = 16
WARM_UP = 100


class _Hosting:
    """A harness and its host that is never in want of room."""

    def __init__(self, cwd: str, *, in_process: bool = True) -> None:
        self.config = load_config(cwd=cwd)
        self.harness = Harness.open(self.config, providers={"echo": EchoProvider()} if in_process else None)
        self.host = Host(self.harness, self.config, max_live=1_000_000, idle_after_s=1e6)
        self.host.start()

    def create(self, cwd: str, prompt: str | None = None, model: str = "echo/m") -> str:
        fields = {"model": model, "cwd": cwd, "approve": "all", "sandbox": "off", "prompt": prompt}
        return self.host.create(TaskSpec.from_json(fields, "bench")).id

    def finish(self, ids: Iterable[str]) -> list[Any]:
        ends = self.host.wait(list(ids), timeout=PATIENCE_S)
        assert all(end is not None and end.reason == "completed" for end in ends.values()), ends
        return list(ends.values())

    def close(self) -> None:
        self.host.close()
        self.harness.close()


def run_idle(cwd: str, agents: int) -> dict[str, Any]:
    """Agents that have answered once and are idle: MB of the process before and with them."""
    hosting = _Hosting(cwd)

    def add(count: int) -> None:
        hosting.finish(_side_by_side(range(count), lambda n: hosting.create(cwd, f"hello {n}")))

    add(WARM_UP)
    before = _memory_mb()
    add(agents)
    with_mb = _memory_mb()
    hosting.close()
    return {"before_mb": before, "with_mb": with_mb}


def run_asleep(cwd: str, agents: int) -> dict[str, Any]:
    """Sleeping agents, each with the row of one that has worked: MB, and CPU seconds of a whole list."""
    hosting = _Hosting(cwd)
    agent_id = hosting.create(cwd, "hello")
    hosting.finish([agent_id])
    live = hosting.host._table.live[agent_id]
    kept = options_to_json(TaskSpec(prompt="hello").options(hosting.config))
    row = replace(live.row, state="asleep")
    hosting.close()
    registry = Registry(hosting.config.require_home())
    registry.open()
    for first in range(0, agents, 10_000):
        numbers = range(first, min(first + 10_000, agents))
        registry.write(Change.of(replace(row, id=f"agent-{n:08}"), kept) for n in numbers)
    registry.close()
    hosting = _Hosting(cwd)
    before = _memory_mb()
    start = time.process_time()
    found = hosting.host.list()
    listing_s = time.process_time() - start
    assert len(found) > agents  # what was measured before has rows, too
    with_mb = _memory_mb()
    hosting.close()
    return {"before_mb": before, "with_mb": with_mb, "listing_s": listing_s}


def run_waking(cwd: str, agents: int) -> dict[str, Any]:
    """Seconds of CPU for creating agents, and for waking as many that have answered once."""
    hosting = _Hosting(cwd)
    hosting.finish([hosting.create(cwd, "warm up") for _ in range(20)])
    start = time.process_time()
    ids = [hosting.create(cwd) for _ in range(agents)]
    creating_s = time.process_time() - start
    for agent_id in ids:
        hosting.host.deliver(agent_id, "hello")
    hosting.finish(ids)
    assert all(hosting.host._table.sleep_if_idle(agent_id) for agent_id in ids)
    start = time.process_time()
    for agent_id in ids:
        awake(hosting.host._table, agent_id)
    waking_s = time.process_time() - start
    hosting.close()
    return {"creating_s": creating_s, "waking_s": waking_s}


def run_at_work(cwd: str, prompts: list[str], warm_up: list[str]) -> dict[str, Any]:
    """Agents that all work at the same time on a model across a socket: seconds, and their answers."""
    hosting = _Hosting(cwd, in_process=False)
    hosting.harness.scope.tool(NoteTool())
    hosting.finish([hosting.create(cwd, prompt, "openai/test") for prompt in warm_up])
    ids = [hosting.create(cwd, model="openai/test") for _ in prompts]
    start = time.monotonic()
    work = list(zip(ids, prompts, strict=True))
    _side_by_side(work, lambda each: hosting.host.deliver(*each), len(work))
    ends = hosting.finish(ids)
    seconds = time.monotonic() - start
    hosting.close()
    return {"seconds": seconds, "answers": [end.answer for end in ends]}


class _Daemon(_Hosting):
    """A whole daemon, with a door that clients come to and are never heard of again."""

    def __init__(self, cwd: str) -> None:
        self.config = load_config(cwd=cwd)
        self.daemon = Daemon(self.config, providers={"echo": EchoProvider()})
        self.daemon.start()
        self.harness, self.host = self.daemon._harness, self.daemon._host
        self._abandoned: list[socket.socket] = []

    def abandon(self, path: str) -> None:
        """Ask for a stream of events and read nothing of it."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(self.daemon.socket_path)
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._abandoned.append(client)

    def close(self) -> None:
        for client in self._abandoned:
            client.close()
        self.daemon.close(PATIENCE_S)


def run_day(cwd: str, agents: int, directories: int, first: int, clients: int) -> dict[str, Any]:
    """Agents that come, work and go: MB and descriptors after the first and after all of them.

    Among the first, ``clients`` event clients come that nobody hears of again.

    """
    hosting = _Daemon(cwd)
    folders = [Path(cwd, f"project-{n}") for n in range(directories)]
    for folder in folders:
        folder.mkdir()

    def live(number: int) -> None:
        agent_id = hosting.create(str(folders[number % directories]), f"task {number}")
        if number < clients:
            hosting.abandon(f"/v1/agents/{agent_id}/events" if number % 2 else "/v1/events")
        hosting.finish([agent_id])
        if number % 4 == 0:
            assert hosting.host._table.sleep_if_idle(agent_id)
            hosting.host.deliver(agent_id, "and this")
            hosting.finish([agent_id])
        hosting.host.dispose(agent_id)

    def held() -> tuple[float, int]:
        settle_index(hosting.harness._at.projector, PATIENCE_S)  # it is behind, and has the index open
        hosting.host._table.writer.flush()
        return _memory_mb(), _descriptors()

    _side_by_side(range(first), live)
    early = held()
    _side_by_side(range(first, agents), live)
    late = held()
    hosting.close()
    return {"early": early, "late": late}


def _side_by_side(items: Iterable[Any], work: Callable[[Any], Any], at_once: int = AT_ONCE) -> list[Any]:
    waiting, results, errors = iter(items), [], []

    def worker() -> None:
        try:
            results.extend(work(item) for item in waiting)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=worker) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return results


def _memory_mb() -> float:
    gc.collect()
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
