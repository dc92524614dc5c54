"""Timers fire once or not at all; the clock is the system's."""

from __future__ import annotations

import queue
import time

import pytest

from dsh_actors.ports import Clock
from dsh_actors.runtime.timers import MAX_DELAY_S, SystemClock, after

WAIT_S = 20.0


def test_timers_fire_in_the_order_of_their_times_and_not_early() -> None:
    fired: queue.Queue[str] = queue.Queue()
    began = time.monotonic()
    after(0.02, lambda: fired.put("late"))
    after(0, lambda: fired.put("now"))
    assert fired.get(timeout=WAIT_S) == "now"
    assert fired.get(timeout=WAIT_S) == "late"
    assert time.monotonic() - began >= 0.019


def test_a_busy_hub_does_not_make_a_timer_early() -> None:
    fired: queue.Queue[float] = queue.Queue()
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        pass
    began = time.monotonic()
    after(0.02, lambda: fired.put(time.monotonic()))
    assert fired.get(timeout=WAIT_S) - began >= 0.019


def test_a_cancelled_timer_does_not_fire() -> None:
    fired: queue.Queue[str] = queue.Queue()
    timer = after(0.001, lambda: fired.put("cancelled"))
    timer.cancel()
    timer.cancel()
    last = after(0.01, lambda: fired.put("last"))
    assert fired.get(timeout=WAIT_S) == "last"
    last.cancel()
    assert fired.empty()


def test_a_failing_callback_is_logged_and_other_timers_go_on(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    fired: queue.Queue[str] = queue.Queue()
    after(0, lambda: 1 // 0)
    after(0.001, lambda: fired.put("next"))
    assert fired.get(timeout=WAIT_S) == "next"
    assert "ZeroDivisionError" in caplog.text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("seconds", [MAX_DELAY_S, 1e12, float("inf")])
def test_a_delay_beyond_the_bound_does_not_fire_at_once(seconds: float) -> None:
    fired: queue.Queue[str] = queue.Queue()
    timer = after(seconds, lambda: fired.put("overflow"))
    after(0.01, lambda: fired.put("sane"))
    assert fired.get(timeout=WAIT_S) == "sane"
    timer.cancel()


def test_a_negative_delay_fires_at_once() -> None:
    fired: queue.Queue[str] = queue.Queue()
    after(-5, lambda: fired.put("now"))
    assert fired.get(timeout=WAIT_S) == "now"


def test_the_system_clock_tells_milliseconds_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 2000
    first = clock.monotonic()
    assert clock.monotonic() >= first
