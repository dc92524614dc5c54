"""Signals arrive as calls in a greenlet, and the old handling comes back."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys

import gevent
import pytest

from dsh_actors.runtime.signals import on_signals

WAIT_S = 20.0


def test_each_signal_calls_its_handler_with_its_number_in_a_greenlet() -> None:
    heard: queue.Queue[tuple[int, bool]] = queue.Queue()

    def hear(number: int) -> None:
        gevent.sleep(0)  # a handler may wait
        heard.put((number, gevent.getcurrent() is gevent.get_hub()))

    undo = on_signals({signal.SIGUSR2: hear, signal.SIGHUP: hear})
    for number in (signal.SIGUSR2, signal.SIGHUP):
        os.kill(os.getpid(), number)
        assert heard.get(timeout=WAIT_S) == (number, False)
    undo()


def test_a_failing_handler_is_logged_and_the_next_signal_is_heard(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: queue.Queue[int] = queue.Queue()

    def hear(number: int) -> None:
        heard.put(number)
        raise LookupError("no plan")

    undo = on_signals({signal.SIGUSR2: hear})
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR2)
        assert heard.get(timeout=WAIT_S) == signal.SIGUSR2
    undo()
    assert "no plan" in caplog.text
    assert capfd.readouterr().err == ""


def test_the_undo_puts_the_previous_handler_back() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    undo = on_signals({signal.SIGUSR2: lambda number: seen.append(-1)})
    undo()
    undo()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert seen == [signal.SIGUSR2]
    signal.signal(signal.SIGUSR2, before)


PROGRAM = """
import gevent.monkey; gevent.monkey.patch_all()
import os, signal, threading
from dsh_actors.runtime.signals import on_signals
stop = threading.Event()
undo = on_signals({signal.SIGINT: lambda number: stop.set()})
os.kill(os.getpid(), signal.SIGINT)
assert stop.wait(5)
print("handled", flush=True)
undo()
try:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(5)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_is_handled_and_after_the_undo_interrupts_again() -> None:
    out = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)
    assert (out.stdout, out.stderr) == ("handled\ninterrupted\n", "")
