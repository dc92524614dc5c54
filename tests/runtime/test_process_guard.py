"""The guard: whatever way a harness ends, nothing that it started goes on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from dsh_actors.runtime.cancel import CancelSource
from dsh_actors.runtime.process import Processes
from dsh_actors.runtime.process_guard import find_processes, pids_since, read_process

_HARNESS = """
from gevent import monkey; monkey.patch_all()
import gevent, os, sys
from dsh_actors.runtime.process import Processes
from dsh_actors.runtime.cancel import CancelSource
processes = Processes(sys.argv[1])
def run(script):
    processes.run(["bash", "-c", script], cwd="/", env=os.environ, timeout_s=60,
                  cancel=CancelSource().token, output_limit_bytes=1000)
    print("over", flush=True)
gevent.joinall([gevent.spawn(run, script) for script in sys.argv[2:]])
"""


def guards(parent: int) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b") ", 1)[1].split()
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == parent and stat[0] != b"Z" and b"process_guard.py" in line:
            found.append(int(pid))
    return found


def await_end(pid: int, limit_s: float) -> bool:
    """Whether the process is gone within the time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], limit_s)[0])
    finally:
        os.close(fd)


def run(processes: Processes, script: str) -> int | None:
    return processes.run(
        ["bash", "-c", script],
        cwd="/",
        env={"PATH": os.environ["PATH"]},
        timeout_s=10,
        cancel=CancelSource().token,
        output_limit_bytes=1000,
    ).exit_code


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes(f"guard-{os.getpid()}-{time.monotonic_ns()}", grace_s=0.3)
    yield made
    made.close()


def test_no_process_survives_the_kill_of_its_harness(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    hold = f"exec 3>{fifo}; echo up >&3; "
    scripts = [
        f"trap 'touch {tmp_path}/cleaned; exit' TERM; {hold} sleep 600 & wait",
        f"trap '' TERM; {hold} sleep 600; sleep 600",
        f"setsid bash -c '{hold} sleep 600' >/dev/null 2>&1 &",
        f"env -i $(type -P bash) -c '{hold} $(type -P sleep) 600; true' &",
        f"nohup bash -c '{hold} sleep 600' >/dev/null 2>&1 & sleep 600",
        # Nothing but the tag says whose these are: no environment, no parent, no common session.
        f"env -i $(type -P setsid) -f $(type -P bash) -c '{hold} $(type -P sleep) 600; true'; sleep 600",
        f"(env -i $(type -P setsid) -f $(type -P bash) -c '{hold} $(type -P sleep) 600; true')",
    ]
    harness = subprocess.Popen(
        [sys.executable, "-c", _HARNESS, f"killed-{os.getpid()}", *scripts], stdout=subprocess.PIPE
    )
    try:
        seen = b""
        while seen.count(b"up") < len(scripts):
            assert select.select([reader], [], [], 20)[0], f"only {seen!r}"
            seen += os.read(reader, 100)
        assert harness.stdout is not None
        assert [harness.stdout.readline() for _ in range(3)] == [b"over\n"] * 3  # those that left a process
        (guard,) = guards(harness.pid)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(guard, number)  # none of them moves it
        began = time.monotonic()
    finally:
        harness.kill()
        harness.communicate(timeout=10)
    # The end of the pipe means that the last process that held it is gone.
    while select.select([reader], [], [], max(0.0, began + 20 - time.monotonic()))[0]:
        if not os.read(reader, 100):
            break
    else:
        pytest.fail("a process survived for 20 s")
    os.close(reader)
    assert (tmp_path / "cleaned").exists()
    assert await_end(guard, 20)


def test_a_clean_close_sends_the_guard_home_at_once(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsh_actors.runtime.process._REAP_S", 60.0)  # after which it would be killed
    assert guards(os.getpid()) == []
    assert run(processes, "exit 4") == 4
    assert len(guards(os.getpid())) == 1
    began = time.monotonic()
    processes.close()
    assert guards(os.getpid()) == []
    assert time.monotonic() - began < 30


def test_a_close_without_any_command_starts_nothing(processes: Processes) -> None:
    processes.close()
    assert guards(os.getpid()) == []


def test_the_next_command_replaces_a_dead_guard(processes: Processes) -> None:
    run(processes, "true")
    (first,) = guards(os.getpid())
    os.kill(first, signal.SIGKILL)
    assert await_end(first, 20)
    assert run(processes, "exit 5") == 5
    assert run(processes, "exit 6") == 6
    (second,) = guards(os.getpid())
    assert second != first


def test_a_guard_that_reads_nothing_is_replaced_and_harms_nobody(processes: Processes) -> None:
    run(processes, "true")
    (first,) = guards(os.getpid())
    os.kill(first, signal.SIGSTOP)
    deadline = time.monotonic() + 20
    # Until then it still reads, perhaps so much that its pipe never fills.
    while " T " not in Path(f"/proc/{first}/stat").read_text() and time.monotonic() < deadline:
        gevent.sleep(0)
    for pid in range(10**5, 10**5 + 8000):
        processes._guard.add(pid, 1)
    assert await_end(first, 20)
    assert run(processes, "exit 7") == 7
    assert len(guards(os.getpid())) == 1


def test_the_guard_holds_no_directory_and_no_descriptor(processes: Processes) -> None:
    run(processes, "true")
    (guard,) = guards(os.getpid())
    deadline = time.monotonic() + 20
    while os.readlink(f"/proc/{guard}/cwd") != "/" and time.monotonic() < deadline:
        gevent.sleep(0)
    assert os.readlink(f"/proc/{guard}/cwd") == "/"
    assert sorted(os.listdir(f"/proc/{guard}/fd")) == ["0", "1", "2"]
    assert os.getsid(guard) == guard


def test_only_marked_processes_and_their_kin_are_found() -> None:
    env = {"PATH": os.environ["PATH"], "DSH_PROCESS_MARKER": "outer.1/mine.12"}
    marked = subprocess.Popen(["sleep", "600"], env={"A": "1", **env}, start_new_session=True)
    other = subprocess.Popen(
        ["sleep", "600"], env={**env, "DSH_PROCESS_MARKER": "mine.1"}, start_new_session=True
    )
    plain = subprocess.Popen(
        ["sleep", "600"], env={"X": "DSH_PROCESS_MARKER=mine.12"}, start_new_session=True
    )
    try:
        for needle, expected in [
            (b"/mine.12/", {marked.pid}),
            (b"/mine.1/", {other.pid}),
            (b"/mine.", {marked.pid, other.pid}),
            (b"/outer.1/", {marked.pid}),
            (b"/outer.2/", set()),
        ]:
            assert {process.pid for process in find_processes(needle, (), {})} == expected
        shown = read_process(plain.pid, b"/mine.12/")
        assert shown is not None
        assert (shown.group, shown.session, shown.parent, shown.marked) == (
            plain.pid,
            plain.pid,
            os.getpid(),
            False,
        )
        assert [p.pid for p in find_processes(b"/no.1/", {plain.pid}, {})] == [plain.pid]
        assert [p.pid for p in find_processes(b"/no.1/", (), {plain.pid: shown.started})] == [plain.pid]
        assert find_processes(b"/no.1/", (), {plain.pid: shown.started + 1}) == []
        assert {other.pid, plain.pid} <= set(pids_since(marked.pid))
        assert marked.pid not in pids_since(marked.pid)
    finally:
        for process in (marked, other, plain):
            process.kill()
            process.wait(10)
    assert read_process(marked.pid, b"/mine.12/") is None
