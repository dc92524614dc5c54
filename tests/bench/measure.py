"""The measurements, from outside: workers are started against a scripted server, ratios are made.

All figures are CPU seconds unless the name says otherwise. Ratios carry over between machines.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.replies import ROUTES, STEPS, gate_route, prompt
from tests.model_server import ModelServer, Request

__all__ = ["Bench", "Many", "Startup", "Steps"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
PACKAGES = ["pykka", "requests", "sseclient", "zstandard", "click"]


@dataclass(frozen=True)
class Steps:
    """CPU a step, in ms."""

    harness_ms: float
    bare_ms: float

    @property
    def ratio(self) -> float:
        return self.harness_ms / self.bare_ms


@dataclass(frozen=True)
class Startup:
    """CPU from the start of `dsh run` to its first request, and of importing the same packages."""

    run_s: float
    imports_s: float

    @property
    def ratio(self) -> float:
        return self.run_s / self.imports_s


@dataclass(frozen=True)
class Many:
    """CPU of many agents at once and one after another; ``lost`` answers are wrong or missing."""

    agents: int
    at_once_s: float
    in_turn_s: float
    lost: int

    @property
    def ratio(self) -> float:
        return self.at_once_s / self.in_turn_s


class Bench:
    """Needs a scripted server and an empty directory; leaves the server's script changed."""

    def __init__(self, server: ModelServer, root: Path) -> None:
        self.server = server
        self.cwd = root / "work"
        self.cwd.mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "DSH_HOME": str(root / "dsh-home"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "OPENAI_API_KEY": "sk-bench-key",
            "OPENAI_BASE_URL": server.url,
        }

    def steps(self, tool: str, repeats: int = 6) -> Steps:
        """A turn of 20 tool steps, persistence on, against the bare loop. ``tool``: "note" or "bash".

        Both run ``repeats`` turns in one process; the first warms up, the quickest of the rest counts: what
        the rest of the machine does can only add.
        """
        self.server.load(ROUTES)
        names = [f"{tool}-harness-{n}" for n in range(repeats)]
        marks = self._worker("steps", prompts=[prompt(name) for name in names])["marks"]
        members = self._last_request(names[0]).json
        harness = [(turn[-1] - turn[0]) / (len(turn) - 1) for turn in marks[1:]]
        assert [len(turn) for turn in marks] == [STEPS + 2] * repeats
        self.server.load(ROUTES, keep_bodies=False)
        prompts = [prompt(f"{tool}-bare-{n}") for n in range(repeats)]
        bare = self._worker("bare", url=self.server.url, members=members, prompts=prompts)["cpu_s"][1:]
        return Steps(1000 * min(harness), 1000 * min(bare))

    def growth(self) -> float:
        """CPU of a step near the 1,000th over that of one of the first 50, in one turn.

        A request of step 1,000 has some 400 kB; copying and sending them is most of the difference.
        """
        self.server.load(ROUTES, keep_bodies=False)
        prompts = [prompt("note-warm-up"), prompt("long-1")]
        marks = self._worker("steps", prompts=prompts)["marks"][1]
        each: list[float] = [after - before for before, after in itertools.pairwise(marks)]
        assert len(each) == 1001
        return statistics.median(each[900:1000]) / statistics.median(each[5:55])

    def startup(self, repeats: int = 3) -> Startup:
        """CPU of `dsh run` when its first request arrives, in a home that exists."""
        runs = [self._first_request_cpu_s() for _ in range(repeats + 1)][1:]
        imports = [self._worker("imports", modules=PACKAGES)["cpu_s"] for _ in range(repeats)]
        return Startup(statistics.median(runs), statistics.median(imports))

    def many(self, agents: int = 200) -> Many:
        """Agents that all stream at the same time, against the same number one after another."""
        names = [f"stream-{n}" for n in range(agents)]
        job = {"prompts": [prompt(name) for name in names], "warm_up": [prompt("default")] * 5}
        self.server.load(ROUTES, keep_bodies=False)
        in_turn = self._worker("in_turn", **job)
        self.server.load({**ROUTES, "stream-*": gate_route("all")}, keep_bodies=False)
        worker = self._start("at_once", **job)
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"started\n", "the worker failed"
        self.server.wait_for_requests(agents + len(job["warm_up"]), PATIENCE_S)
        self.server.release("all")
        at_once = self._finish(worker)
        expected = ["".join(f"word{n} " for n in range(20)) + f"of {name}" for name in names]
        lost = sum(got != want for got, want in zip(at_once["answers"], expected, strict=True))
        assert in_turn["answers"] == expected
        return Many(agents, at_once["cpu_s"], in_turn["cpu_s"], lost)

    def _last_request(self, route: str) -> Request:
        return [request for request in self.server.requests() if request.route == route][-1]

    def _first_request_cpu_s(self) -> float:
        self.server.load({"default": {"entries": [{"text": "ok", "hold": "gate"}]}})
        command = [sys.executable, "-m", "dsh_actors", "run", "-m", "openai/test", "x"]
        with subprocess.Popen(
            command, env=self.env, cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            self.server.wait_for_requests(1)
            # utime and stime, in clock ticks, are the 14th and 15th field; the 2nd may hold blanks.
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            self.server.release("gate")
            assert process.wait(PATIENCE_S) == 0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _worker(self, kind: str, **job: Any) -> Any:
        return self._finish(self._start(kind, **job))

    def _start(self, kind: str, **job: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.worker", kind],
            env=self.env,
            cwd=self.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps({"cwd": str(self.cwd), **job}).encode() + b"\n")
        return process

    def _finish(self, process: subprocess.Popen[bytes]) -> Any:
        assert process.stdout is not None
        with process.stdout as pipe:
            output = pipe.read()
        assert process.wait(PATIENCE_S) == 0
        return json.loads(output)
