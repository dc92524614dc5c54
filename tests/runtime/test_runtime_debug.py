"""Looking into a running process."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from typing import Any

import gevent
import gevent.event
import pytest
from gevent.local import local

from dsh_actors.runtime.actor import BaseActor, start_actor
from dsh_actors.runtime.debug import actor_tree, install_blocking_detection, install_sigusr1, show_errors
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.ref import Ref

WAIT_S = 20.0


class Node(BaseActor):
    def receive(self, message: Any) -> Any:
        return message() if callable(message) else message


def family() -> list[Ref[Any]]:
    top = Node(name="top")
    child = Node(name="child", parent=top.ref, generation=2)
    leaf = Node(name="leaf", parent=child.ref)
    refs = [start_actor(actor) for actor in (top, child, leaf)]
    for ref in refs:
        ref.ask("up", timeout=WAIT_S)
    return refs


def stop(refs: list[Ref[Any]]) -> None:
    for ref in reversed(refs):
        ref.stop(timeout=WAIT_S)


def test_the_tree_shows_each_live_actor_below_its_parent() -> None:
    refs = family()
    go_on, busy = threading.Event(), threading.Event()
    refs[1].tell(busy.set)
    refs[1].tell(go_on.wait)
    assert busy.wait(WAIT_S)
    gevent.sleep(0)
    refs[1].tell("waiting")
    assert actor_tree().splitlines() == [
        "top (Node) generation=0 mailbox=0",
        "  child (Node) generation=2 mailbox=1",
        "    leaf (Node) generation=0 mailbox=0",
    ]
    go_on.set()
    stop(refs)
    assert actor_tree() == ""


def test_an_actor_outlives_its_parent_in_the_tree() -> None:
    refs = family()
    refs[0].stop(timeout=WAIT_S)
    assert actor_tree().splitlines()[0] == "child (Node) generation=2 mailbox=0"
    stop(refs)


class Child(Node):
    """Belongs to another actor than the parent that supervises it."""

    @property
    def belongs_to(self) -> str | None:
        return "older"

    @property
    def condition(self) -> str:
        return "playing" if self.generation else str(1 // 0)


def test_the_tree_shows_what_an_actor_is_doing_below_the_one_it_belongs_to() -> None:
    top = Node(name="top")
    actors = [top, Node(name="older", parent=top.ref), Child(name="younger", parent=top.ref, generation=1)]
    actors += [Child(name="broken", parent=top.ref), Node(name="other")]
    refs = [start_actor(actor) for actor in actors]
    for ref in refs:
        ref.ask("up", timeout=WAIT_S)
    assert actor_tree(top.ref).splitlines() == [
        "top (Node) generation=0 mailbox=0",
        "  older (Node) generation=0 mailbox=0",
        "    broken (Child) generation=0 mailbox=0 (ZeroDivisionError)",
        "    younger (Child) generation=1 mailbox=0 playing",
    ]
    assert actor_tree().splitlines()[0] == "other (Node) generation=0 mailbox=0"
    stop(refs)


def test_sigusr1_prints_the_tree_and_the_greenlets(capfd: pytest.CaptureFixture[str]) -> None:
    refs, undo = family(), install_sigusr1()
    heard = threading.Event()
    os.kill(os.getpid(), signal.SIGUSR1)
    with gevent.Timeout(WAIT_S):
        text = ""
        while "greenlets" not in text:
            heard.wait(0.002)
            text += capfd.readouterr().err
    assert "  child (Node) generation=2" in text
    assert int(text.split()[-2]) >= 3
    undo()
    stop(refs)


def test_code_that_holds_the_hub_is_reported_with_its_stack() -> None:
    reports: list[str] = []
    undo = install_blocking_detection(20, reports.append)
    try:
        give_up = time.monotonic() + WAIT_S
        gevent.spawn(lambda: hold_the_hub(reports, give_up)).join()
    finally:
        undo()
    assert "hold_the_hub" in reports[0]
    count = len(reports)
    hold_for(0.06)
    assert len(reports) == count, "nothing is reported after the undo"


class Secretive:
    """Has a form in its own greenlet only, as the request of a web framework has."""

    def __repr__(self) -> str:
        raise RuntimeError("not here")


def test_what_other_greenlets_keep_to_themselves_is_not_reported() -> None:
    kept, over, reports = local(), gevent.event.Event(), []

    def keep() -> None:
        kept.value = Secretive()
        over.wait()

    keeper = gevent.spawn(keep)
    gevent.sleep(0)
    undo = install_blocking_detection(20, reports.append)
    try:
        give_up = time.monotonic() + WAIT_S
        gevent.spawn(lambda: hold_the_hub(reports, give_up)).join()
    finally:
        undo()
        over.set()
        keeper.join()
    assert "hold_the_hub" in reports[0] and "Greenlet Locals" not in reports[0]


def hold_the_hub(reports: list[str], give_up: float) -> None:
    while not reports and time.monotonic() < give_up:
        pass


def hold_for(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_native_work_does_not_count_as_holding_the_hub() -> None:
    reports: list[str] = []
    reader, writer = os.pipe()
    undo = install_blocking_detection(20, reports.append)
    waiting = gevent.spawn(run_native, os.read, reader, 1)
    waiting.join(0.08)
    os.write(writer, b"x")
    waiting.get(timeout=WAIT_S)
    undo()
    # A machine that halts this process between two turns of the hub has a report of its own.
    assert not any("in run_native" in report for report in reports)
    os.close(reader)
    os.close(writer)


def test_the_errors_kept_quiet_can_be_shown() -> None:
    records: queue.Queue[str] = queue.Queue()

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.put(self.format(record))

    undo = show_errors(Collect())
    ref = start_actor(Node(name="doomed"))
    ref.tell(lambda: 1 // 0)
    assert "ZeroDivisionError" in records.get(timeout=WAIT_S)
    undo()
    start_actor(Node(name="doomed")).tell(lambda: 1 // 0)
    ref.stop(timeout=WAIT_S)
    gevent.sleep(0)
    assert records.empty()
