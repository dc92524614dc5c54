"""The measurements of the daemon's host: memory, lists, waking, many agents at work, and a day in minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.bench.measure import Bench
from tests.bench.replies import ROUTES, work_prompts

__all__ = ["AtWork", "Day", "Many", "Sleepers", "asleep", "at_work", "day", "idle", "waking"]

IDLE_MB = 400
ASLEEP_MB = 600
LISTING_S = 1.0
WAKING = 3.0
AT_WORK = 2.5
"""The bare loop's rate of steps over ours: at least 0.4 of it is promised."""
DAY = 1.1


@dataclass(frozen=True)
class Many:
    """``total_mb`` is what a process with ``agents`` idle ones has, ``each_kb`` what one of them adds."""

    agents: int
    total_mb: float
    each_kb: float


@dataclass(frozen=True)
class Sleepers:
    """``total_mb`` with a whole list of them in memory; ``listing_s`` is CPU."""

    agents: int
    total_mb: float
    listing_s: float


@dataclass(frozen=True)
class AtWork:
    """Steps a second of wall time; ``lost`` answers are wrong or missing."""

    agents: int
    ours: float
    bare: float
    lost: int

    @property
    def ratio(self) -> float:
        return self.bare / self.ours


@dataclass(frozen=True)
class Day:
    """Memory and descriptors at the end, over what they were after the first agents."""

    agents: int
    early_mb: float
    late_mb: float
    descriptors: tuple[int, int]

    @property
    def memory(self) -> float:
        return self.late_mb / self.early_mb

    @property
    def open_files(self) -> float:
        return self.descriptors[1] / self.descriptors[0]


def idle(bench: Bench, measured: int, agents: int = 10_000) -> Many:
    """``agents`` idle ones, reckoned from ``measured`` where these are fewer."""
    found = _measure(bench, "idle", agents=measured)
    each_mb = (found["with_mb"] - found["before_mb"]) / measured
    return Many(agents, found["before_mb"] + each_mb * agents, each_mb * 1024)


def asleep(bench: Bench, agents: int) -> Sleepers:
    found = _measure(bench, "asleep", agents=agents)
    return Sleepers(agents, found["with_mb"], found["listing_s"])


def waking(bench: Bench, agents: int) -> float:
    """CPU of waking an agent that has worked over that of creating one."""
    found = _measure(bench, "waking", agents=agents)
    return float(found["waking_s"] / found["creating_s"])


def at_work(bench: Bench, agents: int) -> AtWork:
    """All of them take ten steps with a tool each, at the same time; persistence is on."""
    bench.server.load(ROUTES)
    warm_up = work_prompts("warm-up", 3)
    _measure(bench, "at_work", prompts=[], warm_up=warm_up)
    members = bench.last_request("work-warm-up-0").json
    bench.server.load(ROUTES, keep_bodies=False)
    job = {"warm_up": warm_up}
    bare = bench.worker(
        "bare_at_once", url=bench.server.url, members=members, prompts=work_prompts("bare", agents), **job
    )
    ours = _measure(bench, "at_work", prompts=work_prompts("host", agents), **job)
    lost = sum(got != f"The answer of work-host-{n}." for n, got in enumerate(ours["answers"]))
    return AtWork(agents, bare["steps"] / ours["seconds"], bare["steps"] / bare["seconds"], lost)


def day(bench: Bench, agents: int, directories: int, first: int, clients: int) -> Day:
    job = {"directories": directories, "first": first, "clients": clients}
    found = _measure(bench, "day", agents=agents, **job)
    (early_mb, early), (late_mb, late) = found["early"], found["late"]
    return Day(agents, early_mb, late_mb, (early, late))


def _measure(bench: Bench, what: str, **job: Any) -> Any:
    return bench.worker("hosting", what=what, **job)
