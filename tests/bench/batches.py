"""What a task of `dsh batch` costs beside a `dsh run` of its own, and beside an agent that a program runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from tests.bench.measure import Bench
from tests.bench.replies import ROUTES, prompt

__all__ = ["Batches"]


@dataclass(frozen=True)
class Batches:
    """CPU of one task, in ms. A batch's is what more tasks add: its start is paid once."""

    batch_ms: float
    run_ms: float
    agent_ms: float

    @property
    def against_runs(self) -> float:
        return self.batch_ms / self.run_ms

    @property
    def against_agents(self) -> float:
        return self.batch_ms / self.agent_ms

    @staticmethod
    def measure(bench: Bench, tasks: int = 200, runs: int = 5) -> Batches:
        """Tasks of one short answer each, persistence on; ``runs`` programs stand for as many tasks."""
        bench.server.load(ROUTES, keep_bodies=False)
        common = ("-m", "openai/test", "--approve", "all", "--sandbox", "off")
        _cpu_s(bench, "run", *common, "warm up")
        alone = sum(_cpu_s(bench, "run", *common, prompt("default")) for _ in range(runs)) / runs
        few = _cpu_s(bench, "batch", *common, _tasks(bench, 1))
        many = _cpu_s(bench, "batch", *common, _tasks(bench, tasks + 1))
        job = {"prompts": [prompt("default")] * tasks, "warm_up": [prompt("default")] * 5}
        in_turn = bench.worker("in_turn", **job)
        return Batches(1000 * (many - few) / tasks, 1000 * alone, 1000 * in_turn["cpu_s"] / tasks)


def _tasks(bench: Bench, count: int) -> str:
    path = bench.cwd / f"tasks-{count}.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt("default")}) + "\n" for _ in range(count)))
    return str(path)


def _cpu_s(bench: Bench, *arguments: str) -> float:
    """CPU of one program, with the processes that it has waited for."""
    command = [sys.executable, "-m", "dsh_actors", *arguments]
    process = subprocess.Popen(
        command, env=bench.env, cwd=bench.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return used.ru_utime + used.ru_stime
