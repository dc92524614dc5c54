"""Actors in greenlets: the fence, death notices, deferred replies, order, and quiet ends."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pykka
import pytest

from dsh_actors.errors import ActorGone
from dsh_actors.runtime.actor import BaseActor, Died, GeventActor, HandlerFailed, live_actors, start_actor
from dsh_actors.runtime.ref import Ref

WAIT_S = 20.0


class Parent(BaseActor):
    def __init__(self) -> None:
        super().__init__(name="parent")
        self.heard: queue.Queue[Any] = queue.Queue()

    def receive(self, message: Any) -> Any:
        self.heard.put(message)


class Worker(BaseActor):
    """Calls what it is sent. Its hooks are given by the test."""

    def __init__(self, *, parent: Ref[Any] | None = None, **hooks: Callable[[], None]) -> None:
        super().__init__(name="worker", parent=parent, generation=7)
        self.hooks = hooks
        self.seen: list[Any] = []

    def started(self) -> None:
        self.hooks.get("started", int)()

    def stopped(self) -> None:
        self.seen.append(("stopped", self.failure))
        self.hooks.get("stopped", int)()

    def receive(self, message: Any) -> Any:
        self.seen.append(message)
        return message() if callable(message) else message


def fail(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


@pytest.fixture
def parent() -> Iterator[Parent]:
    actor = Parent()
    ref = start_actor(actor)
    yield actor
    ref.stop(timeout=WAIT_S)
    assert live_actors() == []
    assert pykka.ActorRegistry.get_all() == []


def the_death(parent: Parent) -> Died:
    """The one death notice; a second one would be told before the answer to the question."""
    death: Died = parent.heard.get(timeout=WAIT_S)
    parent.ref.ask("any more?", timeout=WAIT_S)
    assert parent.heard.get(timeout=WAIT_S) == "any more?"
    return death


def test_ten_thousand_tells_arrive_in_order(parent: Parent) -> None:
    worker = Worker()
    ref = start_actor(worker)
    for number in range(10_000):
        ref.tell(number)
    assert ref.ask("end", timeout=WAIT_S) == "end"
    assert worker.seen == [*range(10_000), "end"]
    ref.stop(timeout=WAIT_S)


def test_an_error_in_a_told_message_ends_the_actor_and_is_told_to_the_parent_once(parent: Parent) -> None:
    error = ValueError("broken")
    worker = Worker(parent=parent.ref)
    ref = start_actor(worker)
    ref.tell(fail(error))
    assert the_death(parent) == Died("worker", 7, error)
    assert not ref.is_alive
    assert worker.seen[-1] == ("stopped", error)


@pytest.mark.parametrize("error", [gevent.Timeout(3), gevent.GreenletExit("out"), GeneratorExit("odd")])
def test_a_base_exception_in_a_handler_ends_only_that_actor(parent: Parent, error: BaseException) -> None:
    bystander = start_actor(Worker())
    start_actor(Worker(parent=parent.ref)).tell(fail(error))
    death = the_death(parent)
    assert isinstance(death.error, HandlerFailed)
    assert death.error.__cause__ is error
    assert bystander.ask("still here", timeout=WAIT_S) == "still here"
    bystander.stop(timeout=WAIT_S)


def test_an_error_in_an_asked_message_goes_to_the_asker_and_the_actor_lives_on(parent: Parent) -> None:
    error = KeyError("mine")
    ref = start_actor(Worker(parent=parent.ref))
    with pytest.raises(KeyError) as caught:
        ref.ask(fail(error), timeout=WAIT_S)
    assert caught.value is error
    with pytest.raises(HandlerFailed, match="Timeout"):
        ref.ask(fail(gevent.Timeout(1)), timeout=WAIT_S)
    assert ref.ask("alive", timeout=WAIT_S) == "alive"
    ref.stop(timeout=WAIT_S)
    parent.ref.ask("any more?", timeout=WAIT_S)
    assert parent.heard.get(timeout=WAIT_S) == "any more?"


@pytest.mark.parametrize("error", [OSError("no disk"), gevent.GreenletExit("out")])
def test_a_failing_start_is_told_to_the_parent_and_answers_those_who_wait(
    parent: Parent, error: BaseException
) -> None:
    worker = Worker(parent=parent.ref, started=fail(error))
    ref = start_actor(worker)
    with pytest.raises(ActorGone) as gone:
        ref.ask("hello", timeout=WAIT_S)
    assert gone.value.code == "ACTOR_GONE"
    death = the_death(parent)
    assert error in (death.error, death.error.__cause__)
    assert isinstance(death.error, Exception)
    assert worker.seen == [], "neither the message nor stopped() may run after a failed start"


def test_a_failing_stop_is_told_to_the_parent(parent: Parent) -> None:
    error = OSError("cannot close")
    ref = start_actor(Worker(parent=parent.ref, stopped=fail(error)))
    ref.stop(timeout=WAIT_S)
    assert the_death(parent).error is error


def test_the_first_error_is_reported_when_cleaning_up_fails_too(parent: Parent) -> None:
    error = ValueError("first")
    start_actor(Worker(parent=parent.ref, stopped=fail(OSError("second")))).tell(fail(error))
    assert the_death(parent).error is error


def test_an_ordinary_stop_runs_stopped_once_and_tells_nobody(parent: Parent) -> None:
    worker = Worker(parent=parent.ref)
    ref = start_actor(worker)
    ref.tell("last")
    ref.stop(timeout=WAIT_S)
    ref.stop(timeout=WAIT_S)
    assert worker.seen == ["last", ("stopped", None)]
    parent.ref.ask("any more?", timeout=WAIT_S)
    assert parent.heard.get(timeout=WAIT_S) == "any more?"


def test_an_actor_can_stop_itself(parent: Parent) -> None:
    worker = Worker(parent=parent.ref)
    ref = start_actor(worker)
    ref.tell(worker.stop)
    ref.stop(timeout=WAIT_S)
    assert worker.seen[-1] == ("stopped", None)


def test_a_killed_greenlet_leaves_no_actor_that_never_answers(parent: Parent) -> None:
    ref = start_actor(Worker(parent=parent.ref))
    assert ref.ask("up", timeout=WAIT_S) == "up"
    assert ref._greenlet is not None
    ref._greenlet.kill(block=False)
    assert isinstance(the_death(parent).error, HandlerFailed)
    with pytest.raises(ActorGone):
        ref.ask("hello", timeout=WAIT_S)


def test_a_wish_to_exit_reaches_the_main_greenlet(parent: Parent) -> None:
    ref = start_actor(Worker())
    with pytest.raises(SystemExit, match="9"):
        ref.ask(fail(SystemExit(9)), timeout=WAIT_S)
    ref.stop(timeout=WAIT_S)


def test_a_deferred_reply_is_followed_and_the_mailbox_goes_on(parent: Parent) -> None:
    worker = Worker()
    ref = start_actor(worker)
    replies = [worker.promise(), worker.promise()]
    askers = [gevent.spawn(ref.ask, lambda reply=reply: reply, timeout=WAIT_S) for reply in replies]
    assert ref.ask("in between", timeout=WAIT_S) == "in between"
    replies[1].fail(LookupError("nothing"))
    replies[0].set("late")
    gevent.joinall(askers[:1], timeout=WAIT_S)
    assert askers[0].value == "late"
    with pytest.raises(LookupError, match="nothing"):
        ref.ask(lambda: replies[1], timeout=WAIT_S)
    ref.stop(timeout=WAIT_S)


@pytest.mark.parametrize("ending", ["stop", "failure"])
def test_a_promise_of_an_ended_actor_answers_with_actor_gone(parent: Parent, ending: str) -> None:
    worker = Worker(parent=parent.ref)
    ref = start_actor(worker)
    promise = worker.promise()
    asker = gevent.spawn(_outcome, ref, lambda: promise)
    assert ref.ask("asked", timeout=WAIT_S) == "asked"
    ref.tell(worker.stop if ending == "stop" else fail(ValueError("broken")))
    assert isinstance(asker.get(timeout=WAIT_S), ActorGone)
    ref.stop(timeout=WAIT_S)


def _outcome(ref: Ref[Any], message: Any) -> Any:
    try:
        return ref.ask(message, timeout=WAIT_S)
    except Exception as error:
        return error


def test_asks_that_wait_behind_a_stop_get_actor_gone(parent: Parent) -> None:
    worker = Worker()
    ref = start_actor(worker)
    ref.tell(worker.stop)
    ref.tell("the stop is next")
    with pytest.raises(ActorGone) as gone:
        for _ in range(3):
            ref.ask("hello", timeout=WAIT_S)
    assert gone.value.code == "ACTOR_GONE"


OF_PYKKA = ("start", "stop", "_stop", "_handle_receive", "_handle_failure", "_actor_loop", "_actor_loop_x")
OF_THE_RUNTIME = ("_start_actor_loop", "_create_future", "_create_actor_inbox", "actor_inbox", "actor_mine")


@pytest.mark.parametrize("name", OF_PYKKA + OF_THE_RUNTIME)
def test_reserved_names_are_refused(name: str) -> None:
    for base in (GeventActor, BaseActor):
        with pytest.raises(TypeError, match=f"Bad must not define '{name}'"):
            type("Bad", (base,), {name: lambda self: None})
    with pytest.raises(TypeError, match=name):
        type("Bad", (BaseActor,), {"__annotations__": {name: int}})


@pytest.mark.parametrize("name", ["on_receive", "on_start", "on_stop", "on_failure"])
def test_the_fence_cannot_be_overridden(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        type("Bad", (BaseActor,), {name: lambda self: None})


def test_an_actor_is_usable_without_being_started() -> None:
    worker = Worker()
    assert worker.receive("direct") == "direct"
    worker.ref.tell("queued")
    assert worker.mailbox_depth == 1
    assert live_actors() == []


QUIET = """
import gevent.monkey; gevent.monkey.patch_all()
import threading
from dsh_actors.runtime.actor import BaseActor, start_actor
from dsh_actors.runtime.timers import after
class Doomed(BaseActor):
    def started(self): 1 // 0
    def receive(self, message): 1 // 0
    def stopped(self): 1 // 0
over = threading.Event()
after(0, lambda: 1 // 0)
after(0.01, over.set)
start_actor(Doomed(name="one"))
Doomed.started = lambda self: None
start_actor(Doomed(name="two")).tell("now")
assert over.wait(5)
"""


def test_failing_actors_and_callbacks_print_nothing() -> None:
    out = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=30)
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


def test_the_traceback_of_a_failed_actor_is_in_the_log(
    parent: Parent, caplog: pytest.LogCaptureFixture
) -> None:
    start_actor(Worker(parent=parent.ref)).tell(fail(ValueError("quiet please")))
    the_death(parent)
    assert "ValueError: quiet please" in caplog.text


def test_two_hundred_actors_start_and_stop_and_leave_no_greenlet(parent: Parent) -> None:
    refs = [start_actor(Worker()) for _ in range(200)]
    greenlets = [ref.ask(gevent.getcurrent, timeout=WAIT_S) for ref in refs]
    for ref in refs:
        ref.stop(timeout=WAIT_S)
    assert [greenlet for greenlet in greenlets if not greenlet.dead] == []


@pytest.mark.parametrize("asked", [True, False])
def test_an_actor_that_cannot_trust_itself_dies_though_its_message_succeeded(
    parent: Parent, asked: bool
) -> None:
    worker = Worker(parent=parent.ref)
    ref = start_actor(worker)
    error = RuntimeError("out of step")

    def give_up() -> str:
        ref.tell("unread")
        worker.die(error)
        return "done"

    if asked:
        assert ref.ask(give_up, timeout=WAIT_S) == "done"
    else:
        ref.tell(give_up)
    death = the_death(parent)
    assert (death.error, death.unread) == (error, ("unread",))
    assert worker.seen == [give_up, ("stopped", error)]
    assert not ref.is_alive


def test_an_actor_that_dies_and_raises_tells_its_asker_and_its_parent_once(parent: Parent) -> None:
    worker = Worker(parent=parent.ref)
    ref = start_actor(worker)

    def give_up() -> None:
        worker.die(gevent.Timeout(1))
        raise LookupError("for the asker")

    with pytest.raises(LookupError):
        ref.ask(give_up, timeout=WAIT_S)
    assert isinstance(the_death(parent).error, HandlerFailed)
