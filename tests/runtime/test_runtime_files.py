"""Native calls: the hub goes on, errors arrive whole, nobody can wedge the pool."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import gevent
import pytest
from gevent.monkey import get_original

from dsh_actors.runtime.files import TOOL_POOL_SIZE, NativePool, run_native, run_tool_native
from dsh_actors.runtime.tasks import DeadlinePassed, deadline

WAIT_S = 20.0


def read_one(fd: int) -> bytes:
    return os.read(fd, 1)


def refuse(path: str) -> None:
    raise PermissionError(13, "not yours", path)


def test_other_greenlets_run_while_a_native_call_blocks() -> None:
    reader, writer = os.pipe()
    waiting = gevent.spawn(run_native, read_one, reader)
    gevent.sleep(0)
    run_native(os.write, writer, b"x")
    assert waiting.get(timeout=WAIT_S) == b"x"
    os.close(reader)
    os.close(writer)


def test_tools_that_all_hang_leave_the_threads_of_the_files_alone() -> None:
    reader, writer = os.pipe()
    hanging = [gevent.spawn(run_tool_native, read_one, reader) for _ in range(TOOL_POOL_SIZE + 4)]
    gevent.sleep(0)
    with gevent.Timeout(WAIT_S):
        run_native(os.write, writer, b"x" * len(hanging))
    assert [greenlet.get(timeout=WAIT_S) for greenlet in hanging] == [b"x"] * len(hanging)
    os.close(reader)
    os.close(writer)


def test_a_native_call_runs_in_another_thread_with_its_arguments() -> None:
    get_ident = get_original("_thread", "get_ident")
    assert run_native(get_ident) != get_ident()
    assert run_native(sorted, [2, 3, 1], reverse=True) == [3, 2, 1]


def test_an_error_arrives_with_its_type_and_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PermissionError) as caught:
        run_native(refuse, "/etc")
    assert caught.value.filename == "/etc"
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "refuse"
    assert capfd.readouterr().err == ""


def test_a_base_exception_of_a_native_call_arrives_too() -> None:
    with pytest.raises(SystemExit, match="4"):
        run_native(sys.exit, 4)
    assert run_native(len, "alive") == 5


def test_a_waiter_that_gives_up_loses_nothing_silently_and_frees_its_place(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = NativePool(1)
    reader, writer = os.pipe()

    def fail_later() -> None:
        os.read(reader, 1)
        raise OSError("the disk is gone")

    with pytest.raises(DeadlinePassed), deadline(0.01):
        pool.run(fail_later)
    os.write(writer, b"x")
    assert pool.run(len, "next") == 4
    assert "fail_later failed after its caller had gone" in caplog.text
    assert "the disk is gone" in caplog.text
    assert capfd.readouterr().err == ""
    pool.close()
    os.close(reader)
    os.close(writer)


def test_killed_waiters_do_not_use_up_the_pool() -> None:
    pool = NativePool(2)
    reader, writer = os.pipe()
    waiters = [gevent.spawn(pool.run, read_one, reader) for _ in range(8)]
    gevent.sleep(0)
    gevent.killall(waiters, timeout=WAIT_S)
    os.write(writer, b"x" * 8)
    assert [pool.run(len, "ok") for _ in range(8)] == [2] * 8
    pool.close()
    os.close(reader)
    os.close(writer)


def test_more_calls_than_threads_all_get_their_own_answer() -> None:
    pool = NativePool(3)
    greenlets = [gevent.spawn(pool.run, divmod, number, 7) for number in range(100)]
    gevent.joinall(greenlets, timeout=WAIT_S)
    assert [greenlet.value for greenlet in greenlets] == [divmod(number, 7) for number in range(100)]
    pool.close()


def test_a_native_call_inside_a_native_call_runs_right_there() -> None:
    pool = NativePool(1)
    assert pool.run(lambda: pool.run(len, "nested")) == 6
    pool.close()


def test_file_work_on_real_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert run_native(path.write_bytes, b"data") == 4
    assert run_native(path.read_bytes) == b"data"


def test_calls_from_many_greenlets_overlap() -> None:
    reader, writer = os.pipe()
    arrived: list[int] = []

    def meet(number: int) -> int:
        """Returns only when four of them run at once."""
        arrived.append(number)
        if len(arrived) == 4:
            os.write(writer, b"xxxx")
        os.read(reader, 1)
        return number

    greenlets = [gevent.spawn(run_native, meet, number) for number in range(4)]
    assert [greenlet.get(timeout=WAIT_S) for greenlet in greenlets] == [0, 1, 2, 3]
    os.close(reader)
    os.close(writer)


def test_a_start_never_waits_not_even_in_the_hub_while_every_thread_is_busy() -> None:
    pool = NativePool(2)
    reader, writer = os.pipe()
    busy = [gevent.spawn(pool.run, os.read, reader, 1) for _ in range(2)]
    ended: list[tuple[int | None, BaseException | None]] = []

    def begin() -> None:
        for number in range(5):
            pool.start(lambda number=number: number, lambda value, error: ended.append((value, error)))
        ended.append((-1, None))

    gevent.sleep(0)  # both are at it
    gevent.get_hub().loop.run_callback(begin)
    with deadline(WAIT_S):
        while not ended:
            gevent.sleep(0)
    assert ended == [(-1, None)]
    os.write(writer, b"xx")
    gevent.joinall(busy, timeout=WAIT_S, raise_error=True)
    with deadline(WAIT_S):
        while len(ended) < 6:
            gevent.sleep(0)
    assert sorted(ended[1:]) == [(number, None) for number in range(5)]
    pool.close()
    os.close(reader)
    os.close(writer)


CONFIGURE = """
import gevent.monkey; gevent.monkey.patch_all()
from dsh_actors.errors import ProtocolError
from dsh_actors.runtime.files import configure_native_pool, run_native
for bad in (0, -3):
    try: configure_native_pool(bad)
    except ValueError as error: print(error)
configure_native_pool(2)
configure_native_pool(2)
print(run_native(len, "ok"))
try: configure_native_pool(5)
except ProtocolError as error: print(error)
"""


def test_the_shared_pool_is_configured_once() -> None:
    out = subprocess.run([sys.executable, "-c", CONFIGURE], capture_output=True, text=True, timeout=30)
    assert out.stderr == ""
    assert out.stdout.splitlines() == [
        "the native pool needs at least 1 thread, not 0",
        "the native pool needs at least 1 thread, not -3",
        "2",
        "The native pool has 2 threads already.",
    ]
