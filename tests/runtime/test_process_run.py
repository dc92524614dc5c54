"""Commands as real processes: how they end, what is kept of their output, what they leave behind."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.pool import Pool
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.bounded_output import BoundedOutput
from dsh_actors.errors import ToolError
from dsh_actors.ports import ProcessResult
from dsh_actors.runtime import process_guard
from dsh_actors.runtime.cancel import CancelSource
from dsh_actors.runtime.process import MARKER_NAME, Processes
from dsh_actors.testing.memory import peak_kib, reset_peak
from tests.process_kit import HeardProcesses, wait_until

_COUNT = iter(range(10**6))


def unique_seconds() -> str:
    """A duration for `sleep` that no other process on the machine has in its arguments."""
    return f"600.{os.getpid()}{next(_COUNT):06}"


def command_lines() -> list[str]:
    """The arguments of every live process."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/stat").read_bytes().rsplit(b") ", 1)[1][:1] != b"Z":
                found.append(
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
        except OSError:
            continue
    return found


def is_running(text: str) -> bool:
    return any(text in line for line in command_lines())


def sleepers(seconds: str) -> int:
    """How many processes sleep so long by now. A shell whose script says so has not come to it yet."""
    words = [line.split() for line in command_lines()]
    return sum(os.path.basename(each[0]) == "sleep" and each[1:] == [seconds] for each in words if each)


def is_stopped(seconds: str) -> bool:
    """Whether a process with this in its arguments is stopped by a signal."""
    states = children()
    return any(
        states[pid] == "T" and seconds.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in states
    )


def descriptors(at_most: int = 0) -> int:
    """How many are open; gevent closes some in a later turn of the hub, so wait a little for ``at_most``."""
    deadline = time.monotonic() + 10 if at_most else 0
    while (count := len(os.listdir("/proc/self/fd"))) > at_most and time.monotonic() < deadline:
        gevent.sleep(0)
    return count


def children() -> dict[int, str]:
    """Pid and state of every child of this process, zombies included."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b") ", 1)[1].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid():
            found[int(pid)] = state.decode()
    return found


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes(f"test-{os.getpid()}-{next(_COUNT)}", grace_s=0.2)
    yield made
    made.close()


@pytest.fixture
def heard() -> Iterator[HeardProcesses]:
    """With time to act on a TERM, however slow the machine: a command that uses it does not need it all."""
    made = HeardProcesses(f"heard-{os.getpid()}-{next(_COUNT)}", grace_s=10.0)
    yield made
    made.close()


@pytest.fixture
def hasty() -> Iterator[HeardProcesses]:
    """With hardly any time after a TERM."""
    made = HeardProcesses(f"hasty-{os.getpid()}-{next(_COUNT)}", grace_s=0.2)
    yield made
    made.close()


def run(processes: Processes, script: str, **changes: Any) -> ProcessResult:
    options: dict[str, Any] = {
        "cwd": os.getcwd(),
        "env": {"PATH": os.environ["PATH"]},
        "timeout_s": 20.0,
        "cancel": CancelSource().token,
        "output_limit_bytes": 10_000,
    }
    return processes.run(["bash", "-c", script], **{**options, **changes})


def test_output_of_both_streams_keeps_its_order(processes: Processes) -> None:
    result = run(processes, "echo a; echo b >&2; echo c; exit 3")
    assert (result.output, result.exit_code, result.ended_by) == (b"a\nb\nc\n", 3, None)
    assert not result.left_running


def test_a_death_by_signal_is_a_negative_exit_code(processes: Processes) -> None:
    assert run(processes, "kill -9 $$").exit_code == -9


def test_a_command_gets_no_descriptor_but_the_first_three(processes: Processes) -> None:
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        result = run(processes, "ls /proc/$$/fd; readlink /proc/$$/fd/0", env={"PATH": os.environ["PATH"]})
    finally:
        os.close(inherited)
    assert result.output.split() == [b"0", b"1", b"2", b"/dev/null"]


def test_a_command_starts_with_default_signals_in_its_own_session(processes: Processes) -> None:
    result = run(processes, "grep -E 'SigBlk|SigIgn' /proc/self/status; ps -o sid= -p $$; echo $$")
    blocked, ignored, session, pid = (line.split()[-1] for line in result.output.splitlines())
    in_use = 0x7FFFFFFF  # the C library keeps the next two signals to itself
    assert (int(blocked, 16) & in_use, int(ignored, 16) & in_use) == (0, 0)
    assert session == pid


def test_the_directory_and_environment_are_the_given_ones(processes: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "-n it's a $(dir)"
    folder.mkdir()
    before = os.getcwd()
    result = run(
        processes, 'pwd; echo "$PWD"; env', cwd=str(folder), env={"PATH": os.environ["PATH"], "A": "é"}
    )
    assert result.output.decode().splitlines()[:2] == [str(folder)] * 2
    assert "A=é" in result.output.decode().splitlines()
    assert "HOME=" not in result.output.decode()
    assert os.getcwd() == before


def test_a_directory_that_vanished_is_a_clear_error(processes: Processes, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no such directory") as caught:
        run(processes, "true", cwd=str(tmp_path / "gone"))
    assert caught.value.code == "START_FAILED"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["no-such-program-here"], "not found"),
        (["bash", "-c", "a\0b"], "null"),
        (["bash", "-c", "\ud800"], "not valid text"),
        (["bash", "-c", ":" * 200_000], "too long"),
    ],
)
def test_what_cannot_be_started_is_one_clear_line(processes: Processes, argv: list[str], text: str) -> None:
    run(processes, "true")
    fds = descriptors()
    token = CancelSource().token
    for cwd in (os.getcwd(), "/"):
        with pytest.raises(ToolError, match=text) as caught:
            processes.run(argv, cwd=cwd, env=os.environ, timeout_s=9, cancel=token, output_limit_bytes=9)
        assert len(caught.value.message) < 200
    assert descriptors(at_most=fds) <= fds


@pytest.mark.parametrize(
    ("holder", "closed"),
    [
        ("sleep {} &", False),
        ("sleep {} >/dev/null &", False),
        ("setsid sleep {} &", False),
        ("setsid sleep {} >/dev/null 2>&1 &", True),
        ("(setsid sleep {} >/dev/null 2>&1 &) &", True),
        ("env -i $(type -P sleep) {} &", False),
    ],
)
def test_a_process_left_behind_is_reported_and_ended_at_the_close(
    processes: Processes, holder: str, closed: bool
) -> None:
    seconds = unique_seconds()
    began = time.monotonic()
    result = run(processes, holder.format(seconds) + " echo hi")
    assert time.monotonic() - began < 10  # and not the 600 s of the other
    assert (result.output, result.exit_code, result.left_running) == (b"hi\n", 0, True)
    assert is_running(seconds)
    assert run(processes, "echo on").left_running is False
    processes.close()
    assert not is_running(seconds)


def test_a_flood_from_a_process_left_behind_neither_hangs_nor_spins(processes: Processes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    result = run(processes, "echo hi; yes >&2 &")
    assert result.exit_code == 0
    assert b"hi\n" in result.output
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 0.5
    assert len(result.output) + result.omitted < 3_000_000
    assert not result.left_running  # the closed pipe ended it


def test_output_written_shortly_after_the_exit_is_kept(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsh_actors.runtime.process._DRAIN_S", 20.0)  # "shortly" on any machine
    result = run(processes, "exec > >(cat; echo late); echo early")
    assert result.output == b"early\nlate\n"
    assert not result.left_running


def test_a_process_that_only_the_kernel_still_holds_is_not_left_running(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = process_guard._read

    def exiting(path: str) -> bytes:
        data = read(path)
        if not path.endswith("/stat"):
            return data
        name, _, rest = data.rpartition(b") ")
        fields = rest.split(b" ")
        if name.endswith(b"(sleep"):
            fields[6] = b"%d" % (int(fields[6]) | 4)
        return name + b") " + b" ".join(fields)

    monkeypatch.setattr(process_guard, "_read", exiting)
    left = f"exec sleep {unique_seconds()} >/dev/null 2>&1"
    wait = "until read -r name </proc/$!/comm && [ $name = sleep ]; do :; done"
    assert not run(processes, f"{left} & {wait}").left_running
    monkeypatch.undo()
    assert run(processes, f"{left} & {wait}").left_running


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("sleep {}", "timeout"),
        ("(trap '' TERM; sleep {}) | cat", "cancelled"),
        ("setsid -w sleep {}", "timeout"),
        ("setsid sleep {} & wait", "cancelled"),
        ("nohup sleep {} >/dev/null 2>&1 & sleep {}", "timeout"),
        ("kill -STOP $$; sleep {}", "cancelled"),
        ("trap '' TERM INT HUP; env -i $(type -P setsid) -w $(type -P sleep) {}", "timeout"),
        (
            sys.executable
            + ' -c \'import os; os.fork() and os.wait(); os.setpgrp(); os.execlp("sleep", "sleep", "{}")\'',
            "cancelled",
        ),
    ],
)
def test_an_ended_command_leaves_nothing_and_keeps_its_output(
    hasty: HeardProcesses, script: str, how: str
) -> None:
    seconds, source = unique_seconds(), CancelSource()

    def heard() -> None:
        wait_until(lambda: is_stopped(seconds) or sleepers(seconds) == script.count("{}"))
        if how == "cancelled":
            gevent.spawn(source.cancel, "user")

    hasty.on_heard = heard
    result = run(
        hasty,
        f"echo started; {script.replace('{}', seconds)}",
        timeout_s=0.05 if how == "timeout" else 20.0,
        cancel=source.token,
    )
    assert not is_running(seconds)
    assert result.ended_by == how
    assert result.exit_code is None
    assert result.output.startswith(b"started\n")
    assert not result.left_running
    assert 0 < result.duration_s < 20


def test_a_command_may_use_the_grace_period(heard: HeardProcesses) -> None:
    result = run(heard, "trap 'echo bye; exit 7' TERM; echo hi; sleep 60 & wait", timeout_s=0.05)
    assert result.output == b"hi\nbye\n"
    assert (result.ended_by, result.exit_code) == ("timeout", None)


def test_a_stopped_command_may_use_it_too(heard: HeardProcesses) -> None:
    heard.on_heard = lambda: wait_until(lambda: is_stopped("echo hi; kill -STOP"))
    result = run(
        heard, "trap 'echo bye; exit' TERM; echo hi; kill -STOP $$; sleep 60 & wait", timeout_s=0.05
    )
    assert result.output == b"hi\nbye\n"


def test_a_thrown_token_starts_nothing(processes: Processes, tmp_path: Path) -> None:
    source = CancelSource()
    source.cancel("user")
    result = run(processes, f"touch {tmp_path}/made", cancel=source.token)
    assert result.ended_by == "cancelled"
    assert not (tmp_path / "made").exists()


def test_a_killed_waiter_takes_its_command_along(processes: Processes) -> None:
    seconds = unique_seconds()
    waiter = gevent.spawn(run, processes, f"echo $$; sleep {seconds}; true")
    wait_until(lambda: sleepers(seconds))
    waiter.kill()
    assert run(processes, "true").exit_code == 0
    assert not is_running(seconds)


def test_closing_ends_what_runs_with_a_chance_to_clean_up(heard: HeardProcesses, tmp_path: Path) -> None:
    seconds = unique_seconds()
    waiter = gevent.spawn(run, heard, f"trap 'touch {tmp_path}/ok; exit' TERM; echo; sleep {seconds} & wait")
    wait_until(lambda: sleepers(seconds))
    heard.close()
    assert (tmp_path / "ok").exists()
    assert not is_running(seconds)
    assert waiter.get(timeout=10).ended_by == "cancelled"
    with pytest.raises(ToolError, match="stopping"):
        run(heard, "true")


def test_closing_ends_what_does_not_heed_it(processes: Processes) -> None:
    seconds = unique_seconds()
    waiter = gevent.spawn(run, processes, f"trap '' TERM; setsid -w sleep {seconds}")
    wait_until(lambda: sleepers(seconds))
    processes.close()
    assert not is_running(seconds)
    assert waiter.get(timeout=10).ended_by == "cancelled"


def test_two_hundred_at_once_keep_their_exit_codes_and_leak_nothing(processes: Processes) -> None:
    run(processes, "true")
    fds, kids = descriptors(), children()
    pool = Pool(200)
    results = pool.map(lambda n: run(processes, f"read x </dev/null; echo {n}; exit {n}"), range(200))
    assert [result.exit_code for result in results] == list(range(200))
    assert [result.output for result in results] == [b"%d\n" % n for n in range(200)]
    assert descriptors(at_most=fds) <= fds
    assert children().keys() == kids.keys()


def test_a_huge_output_neither_grows_memory_nor_starves_the_hub(processes: Processes) -> None:
    run(processes, "true")
    before = reset_peak()
    ticks: list[float] = []
    timer = gevent.get_hub().loop.timer(0.001, 0.001)
    timer.start(lambda: ticks.append(time.monotonic()))
    try:
        result = run(processes, "echo first; head -c 200000000 /dev/zero; echo last")
    finally:
        timer.stop()
        timer.close()
    assert len(result.output) == 10_000
    assert len(result.output) + result.omitted == 200_000_000 + len("first\nlast\n")
    assert result.output.startswith(b"first\n")
    assert result.output.endswith(b"last\n")
    assert peak_kib() - before < 8_000
    assert len(ticks) > 10


@given(pieces=st.lists(st.binary(max_size=40), max_size=12), limit=st.integers(0, 50))
def test_the_head_and_the_tail_are_kept_and_the_rest_is_counted(pieces: list[bytes], limit: int) -> None:
    output = BoundedOutput(limit)
    for piece in pieces:
        output.add(piece)
    whole = b"".join(pieces)
    kept, omitted = output.parts()
    assert len(kept) + omitted == len(whole)
    if len(whole) <= limit:
        assert kept == whole
    else:
        assert len(kept) == limit
        assert kept == whole[: limit // 2] + whole[len(whole) - (limit - limit // 2) :]


def test_a_nested_harness_keeps_the_mark_of_the_outer_one(processes: Processes) -> None:
    env = {"PATH": os.environ["PATH"], MARKER_NAME: "outer.1"}
    result = run(processes, f"echo ${MARKER_NAME}", env=env)
    assert result.output.startswith(b"outer.1/test-")
    # What an inner harness starts carries its own mark behind the outer one, and is still found.
    seconds = unique_seconds()
    assert run(
        processes, f"{MARKER_NAME}=${MARKER_NAME}/inner.1 setsid sleep {seconds} >/dev/null 2>&1 &"
    ).left_running
    processes.close()
    assert not is_running(seconds)


@pytest.mark.parametrize("marker", ["", "a/b", "a=b", "a b", "a\0"])
def test_a_marker_that_could_be_mistaken_is_refused(marker: str) -> None:
    with pytest.raises(ValueError, match="marker"):
        Processes(marker)


_CLEARED = "env -i $(type -P setsid) -f $(type -P sleep) {0}"
_TWICE = "(env -i $(type -P setsid) $(type -P setsid) -f $(type -P sleep) {0} >/dev/null 2>&1 &) ; true"
_FORKS = (
    "env -i {python} -c 'import os\n"
    "for _ in range(2):\n if os.fork(): os._exit(0)\n os.setsid()\n"
    'os.execv("{sleep}", ["sleep", "{0}"])\''
)


@pytest.mark.parametrize("script", [_CLEARED, _TWICE, _FORKS])
def test_a_daemon_without_environment_or_parent_does_not_outlive_the_timeout_or_the_run(
    processes: Processes, script: str
) -> None:
    for ends_by_timeout in (True, False):
        seconds = unique_seconds()
        body = script.format(seconds, python=sys.executable, sleep=shutil.which("sleep"))
        wait = f"until pgrep -f 'sleep {seconds[:-1]}[{seconds[-1]}]$' >/dev/null; do :; done; "
        if ends_by_timeout:
            result = run(processes, f"{body}; {wait} sleep 600", timeout_s=1.0)
            assert result.ended_by == "timeout"
        else:
            result = run(processes, f"{body}; {wait}")
            assert (result.exit_code, result.left_running) == (0, True)
            assert is_running(seconds)
            processes.close()
        assert not is_running(seconds)


def test_the_tag_of_a_command_stays_off_the_harness(processes: Processes) -> None:
    before = resource.getrlimit(resource.RLIMIT_RTTIME)
    first, second = (int(run(processes, "ulimit -S -R").output) for _ in range(2))
    assert second == first + 1
    assert first > 10**18
    assert resource.getrlimit(resource.RLIMIT_RTTIME) == before
