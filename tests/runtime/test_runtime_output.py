"""The writer: in order, complete, and nobody's slowness or death blocks the hub."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import gevent
import pytest
from gevent.monkey import get_original

from dsh_actors.errors import ProtocolError
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.output import MAX_QUEUED_BYTES, Writer

WAIT_S = 20.0

# The patched one closes when the hub comes round: too late for a test of what follows a close.
close_now = get_original("os", "close")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        with suppress(OSError):  # the test has closed it itself
            close_now(fd)


def read_all(fd: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        parts += run_native(os.read, fd, min(1 << 20, size - len(parts)))
    return bytes(parts)


def test_many_small_writes_arrive_complete_and_in_order(pipe: tuple[int, int]) -> None:
    writer = Writer(pipe[1])
    lines = [f"line {number}\n".encode() for number in range(20_000)]
    for line in lines:
        writer.write(line)
    assert read_all(pipe[0], sum(map(len, lines))) == b"".join(lines)
    assert writer.flush(WAIT_S)
    assert writer.queued_bytes == 0
    writer.close()


def test_a_full_pipe_blocks_neither_the_writing_greenlet_nor_the_hub(pipe: tuple[int, int]) -> None:
    writer, data = Writer(pipe[1]), os.urandom(300_000)
    writer.write(data)
    assert not writer.flush(0.01)
    assert run_native(len, "the native pool is free") == 23
    assert read_all(pipe[0], len(data)) == data
    assert writer.flush(WAIT_S)
    assert os.get_blocking(pipe[1]), "an inherited descriptor must keep its flags"
    writer.close()


def test_above_the_bound_a_waiting_write_blocks_its_own_greenlet_only(pipe: tuple[int, int]) -> None:
    writer, piece = Writer(pipe[1]), b"z" * (1 << 20)
    count = MAX_QUEUED_BYTES // len(piece) + 3
    for _ in range(count):
        writer.write(piece)
    patient = gevent.spawn(writer.write, b"end", wait=True)
    assert not writer.flush(0.01)
    assert not patient.dead
    size = count * len(piece) + 3
    assert read_all(pipe[0], size)[-4:] == b"zend"
    patient.get(timeout=WAIT_S)
    assert writer.flush(WAIT_S)
    writer.close()


def test_a_reader_that_goes_away_breaks_the_output_once(pipe: tuple[int, int]) -> None:
    broken: list[str] = []
    writer = Writer(pipe[1], on_broken=lambda: broken.append("once"))
    close_now(pipe[0])
    writer.write(b"anyone?")
    assert not writer.flush(WAIT_S)
    assert writer.broken
    assert isinstance(writer.error, BrokenPipeError)
    writer.write(b"dropped", wait=True)
    assert writer.queued_bytes == 0
    assert not writer.flush(WAIT_S)
    assert broken == ["once"]
    writer.close()


def test_a_reader_that_goes_away_frees_a_write_that_waits(pipe: tuple[int, int]) -> None:
    writer = Writer(pipe[1])
    patient = gevent.spawn(writer.write, b"z" * (MAX_QUEUED_BYTES + 100_000), wait=True)
    gevent.sleep(0)
    assert not writer.flush(0.01)
    close_now(pipe[0])
    patient.get(timeout=WAIT_S)
    assert writer.broken
    writer.close()


def test_a_failing_callback_is_contained(pipe: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(pipe[1], on_broken=lambda: 1 // 0)
    close_now(pipe[0])
    writer.write(b"anyone?")
    assert not writer.flush(WAIT_S)
    assert "ZeroDivisionError" in caplog.text
    writer.close()


def test_a_descriptor_that_others_made_non_blocking_works_too(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    writer, data = Writer(pipe[1]), os.urandom(500_000)
    writer.write(data)
    assert not writer.flush(0.01)
    assert read_all(pipe[0], len(data)) == data
    assert writer.flush(WAIT_S)
    writer.close()


def test_files_are_written_too(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        writer = Writer(file.fileno())
        for _ in range(3):
            writer.write(b"abc")
            writer.write(b"")
        assert writer.flush(WAIT_S)
        writer.close()
    assert path.read_bytes() == b"abc" * 3


def test_terminals_are_written_too() -> None:
    main, terminal = os.openpty()
    writer = Writer(terminal)
    writer.write(b"hello")
    assert read_all(main, 5) == b"hello"
    assert writer.flush(WAIT_S)
    writer.close()
    close_now(main)
    close_now(terminal)


def test_what_was_queued_before_the_close_is_written_and_nothing_after(pipe: tuple[int, int]) -> None:
    writer = Writer(pipe[1])
    writer.write(b"before")
    writer.close()
    with pytest.raises(ProtocolError, match="closed"):
        writer.write(b"after")
    assert read_all(pipe[0], 6) == b"before"
    assert writer.flush(WAIT_S)
    writer.close()


def test_greenlets_that_write_at_once_do_not_mix_their_pieces(pipe: tuple[int, int]) -> None:
    writer, go = Writer(pipe[1]), threading.Event()

    def client(letter: bytes) -> None:
        go.wait()
        for _ in range(100):
            writer.write(letter * 10 + b"\n", wait=True)

    clients = [gevent.spawn(client, letter) for letter in (b"a", b"b", b"c")]
    go.set()
    gevent.joinall(clients, timeout=WAIT_S)
    lines = read_all(pipe[0], 3 * 100 * 11).splitlines()
    assert len(lines) == 300
    assert {len(set(line)) for line in lines} == {1}
    assert writer.flush(WAIT_S)
    writer.close()


def test_without_a_thread_to_be_had_the_output_is_still_written(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer_fd = os.pipe()
    writer = Writer(writer_fd)

    def no_thread(*_arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(writer._pool, "run", no_thread)
    try:
        writer.write(b"answer\n")
        assert writer.flush(5)
        assert os.read(reader, 100) == b"answer\n"
    finally:
        os.close(reader)
        os.close(writer_fd)
