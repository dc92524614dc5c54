"""Listing the newest of many sessions, against a bare loop that looks at the date of each.

The bare loop is what cannot be spared: which sessions are the newest is in the dates of their folders.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dsh_actors.adapters.storage.backend import open_disk_storage, open_index
from dsh_actors.adapters.storage.frames import compress_frame
from dsh_actors.adapters.storage.segments import SegmentHeader
from dsh_actors.config import SessionConfig, load_config
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId

__all__ = ["Listing"]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "srv-shop"
SHOWN = 20


def _settings(backend: str) -> SessionConfig:
    return replace(load_config(env={"HOME": "/"}).session, backend=backend)


@dataclass(frozen=True)
class Listing:
    """CPU, in ms, of a warm list of the newest, of the bare loop, and of the whole program."""

    sessions: int
    ours_ms: float
    bare_ms: float
    program_ms: float

    @property
    def ratio(self) -> float:
        return self.ours_ms / self.bare_ms

    @staticmethod
    def measure(root: Path, sessions: int = 20_000, repeats: int = 5) -> Listing:
        """Makes so many sessions below ``root``; the quickest of each counts."""
        home = root / "listing-home"
        folder = home / "sessions" / PROJECT
        _make(folder, sessions)
        storage = open_disk_storage(str(home), _settings("segments"), "bench", lambda: 0)
        index = open_index(str(home), storage)

        def ours() -> None:
            assert [one.turns for one in index.listings(limit=SHOWN)] == [1] * SHOWN

        ours()  # builds the rows
        assert len(list((home).glob("index.sqlite3"))) == 1
        ours_ms = min(_cpu_ms(ours) for _ in range(repeats))
        bare_ms = min(_cpu_ms(lambda: _bare(folder)) for _ in range(repeats))
        return Listing(sessions, ours_ms, bare_ms, min(_program_ms(home) for _ in range(repeats)))


def _make(folder: Path, sessions: int) -> None:
    data = {"turn": 1}
    end = {"turn": 1, "reason": {"kind": "completed"}}
    lines = encode_batch([Event("turn/start", 0, 1, data), Event("turn/end", 1, 2, end)])
    batch = compress_frame(lines)
    for number in range(sessions):
        name = f"s{number:06d}"
        header = SessionHeader(SessionId(name), 1_700_000_000_000, "/srv/shop")
        head = SegmentHeader(name, 0, None, header).encode()
        (folder / name / "log").mkdir(parents=True)
        (folder / name / "lock").touch()
        (folder / name / "log" / "000000000000.jsonl.zst").write_bytes(compress_frame(head) + batch)
        os.utime(folder / name, (1_700_000_000 + number, 1_700_000_000 + number))


def _bare(folder: Path) -> None:
    with os.scandir(folder) as entries:
        dates = [(entry.stat().st_mtime_ns, entry.name) for entry in entries]
    assert dates


def _cpu_ms(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def _program_ms(home: Path) -> float:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "DSH_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dsh_actors", "session", "ls", "-n", str(SHOWN)]
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, check=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.count(b"\n") == SHOWN
    return (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) * 1000
