"""Tasks end in exactly one message; deadlines raise for themselves only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from dsh_actors.ports import CancelToken
from dsh_actors.runtime.tasks import (
    DeadlinePassed,
    Task,
    TaskEnd,
    TaskKilled,
    deadline,
    live_tasks,
    start_task,
)

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    assert live_tasks() == []


def ended(task: Task, ends: list[TaskEnd[Any]]) -> TaskEnd[Any]:
    """The one end. Waits for the greenlet too, so that a second end would be seen."""
    assert task.join(WAIT_S)
    gevent.sleep(0)
    assert len(ends) == 1
    return ends[0]


def wait_for_cancel(token: CancelToken) -> str:
    thrown = threading.Event()
    token.on_cancel(thrown.set)
    assert thrown.wait(WAIT_S)
    return f"gave up: {token.reason}"


def test_a_returning_task_ends_in_its_value() -> None:
    ends: list[TaskEnd[int]] = []
    task = start_task(lambda token: 42, ends.append, name="answer")
    assert live_tasks() == ["answer"]
    assert not task.ended
    assert ended(task, ends) == TaskEnd(42, None)
    assert task.ended


@pytest.mark.parametrize(
    "error", [ValueError("no"), gevent.Timeout(2), gevent.GreenletExit("out"), SystemExit(3), GeneratorExit()]
)
def test_a_raising_task_ends_in_its_error(error: BaseException, capfd: pytest.CaptureFixture[str]) -> None:
    ends: list[TaskEnd[None]] = []

    def work(token: CancelToken) -> None:
        raise error

    end = ended(start_task(work, ends.append, name="raises"), ends)
    assert end.value is None
    assert end.error is error
    assert capfd.readouterr().err == ""


def test_a_keyboard_interrupt_in_a_task_reaches_the_program_too() -> None:
    ends: list[TaskEnd[None]] = []

    def work(token: CancelToken) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_task(work, ends.append, name="interrupted").join(WAIT_S)
    assert isinstance(ends[0].error, KeyboardInterrupt)


def test_a_cancelled_task_decides_how_it_ends() -> None:
    ends: list[TaskEnd[str]] = []
    task = start_task(wait_for_cancel, ends.append, name="patient")
    task.cancel("user")
    task.cancel("second")
    assert ended(task, ends) == TaskEnd("gave up: user", None)


def test_a_killed_task_that_obeys_its_token_is_not_killed() -> None:
    ends: list[TaskEnd[str]] = []
    task = start_task(wait_for_cancel, ends.append, name="patient")
    gevent.sleep(0)
    task.kill(WAIT_S)
    task.kill(0)
    assert ended(task, ends).value == "gave up: killed"


def test_a_killed_task_that_ignores_its_token_is_ended() -> None:
    ends: list[TaskEnd[Any]] = []
    begun, never = threading.Event(), threading.Event()

    def deaf(token: CancelToken) -> None:
        begun.set()
        while True:
            try:
                never.wait()
            except Exception:  # what work in the wild does around its waiting
                continue

    task = start_task(deaf, ends.append, name="deaf")
    assert begun.wait(WAIT_S)
    task.kill(0.01)
    task.kill(0.01)
    assert isinstance(ended(task, ends).error, TaskKilled)


def test_a_task_killed_before_it_began_never_begins() -> None:
    ends: list[TaskEnd[Any]] = []
    begun: list[bool] = []
    task = start_task(lambda token: begun.append(True), ends.append, name="unborn")
    task.kill(WAIT_S)
    assert task.ended
    assert isinstance(ended(task, ends).error, TaskKilled)
    assert begun == []


def test_an_ended_task_can_be_cancelled_and_killed_without_effect() -> None:
    ends: list[TaskEnd[int]] = []
    task = start_task(lambda token: 1, ends.append, name="done")
    ended(task, ends)
    task.cancel("late")
    task.kill(0)
    assert ended(task, ends) == TaskEnd(1, None)


def test_a_failing_delivery_is_logged_and_not_repeated(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[TaskEnd[int]] = []

    def deliver(end: TaskEnd[int]) -> None:
        calls.append(end)
        raise OSError("mailbox on fire")

    ended(start_task(lambda token: 1, deliver, name="unlucky"), calls)
    assert "unlucky" in caplog.text
    assert "mailbox on fire" in caplog.text
    assert capfd.readouterr().err == ""


def test_a_deadline_ends_the_block_with_an_ordinary_error() -> None:
    with pytest.raises(DeadlinePassed, match=r"longer than 0\.01 s") as passed, deadline(0.01):
        threading.Event().wait()
    assert passed.value.code == "TIMEOUT"


def test_a_deadline_that_is_kept_does_nothing() -> None:
    with deadline(WAIT_S):
        pass
    with pytest.raises(KeyError), deadline(WAIT_S):
        raise KeyError


@pytest.mark.parametrize("outer_s, inner_s, place", [(0.01, WAIT_S, "outer"), (WAIT_S, 0.01, "inner")])
def test_nested_deadlines_raise_for_themselves_only(outer_s: float, inner_s: float, place: str) -> None:
    caught: list[str] = []

    def guarded(seconds: float, name: str, block: Callable[[], Any]) -> None:
        try:
            with deadline(seconds):
                block()
        except DeadlinePassed:
            caught.append(name)

    guarded(outer_s, "outer", lambda: guarded(inner_s, "inner", threading.Event().wait))
    assert caught == [place]
