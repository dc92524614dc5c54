"""Actors: Pykka's, with a greenlet for a thread, and the fence and death notice that Pykka lacks.

`GeventActor` implements Pykka's three abstract methods. `BaseActor` is what the harness's actors
extend; it decides nothing about restarts, it only reports.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import get_annotations
from types import TracebackType
from typing import Any, final
from weakref import WeakSet

import pykka
from gevent import Greenlet, getcurrent
from pykka.messages import _ActorStop

from dsh_actors.errors import ActorGone, HarnessError
from dsh_actors.runtime.exits import forward_exit
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.mailbox import Mailbox, Parked
from dsh_actors.runtime.ref import Ref

__all__ = [
    "BaseActor",
    "Died",
    "GeventActor",
    "GeventFuture",
    "HandlerFailed",
    "live_actors",
    "start_actor",
]

_RESERVED = frozenset({"start", "stop", "_stop", "_handle_receive", "_handle_failure", "_start_actor_loop"})
_RESERVED_PREFIXES = ("_actor_loop", "_create_", "actor_")

_running: set[BaseActor] = set()


class HandlerFailed(HarnessError):
    """A handler was ended by `gevent.Timeout`, `GreenletExit` or the like, which is the ``__cause__``."""

    code = "HANDLER_FAILED"


@dataclass(frozen=True, slots=True)
class Died:
    """Told to the parent once, when an actor has ended by an error. Not told after an ordinary stop.

    ``unread``: what was told to the actor and not received, oldest first. The message that ended it
    is not among them.
    """

    name: str
    generation: int
    error: BaseException
    unread: tuple[Any, ...] = field(default=(), compare=False)


class GeventActor(pykka.Actor):
    """A Pykka actor that runs in a greenlet. Subclasses must not define Pykka's own names."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise `TypeError` for a name that would replace a part of Pykka: such an actor never stops."""
        super().__init_subclass__(**kwargs)
        for name in {*cls.__dict__, *get_annotations(cls)}:
            if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
                raise TypeError(f"{cls.__name__} must not define {name!r}: the actor runtime owns that name.")

    @staticmethod
    def _create_actor_inbox() -> Any:
        return Mailbox()

    @staticmethod
    def _create_future() -> GeventFuture:
        return GeventFuture()

    def _start_actor_loop(self) -> None:
        greenlet = Greenlet(self._run_loop)
        greenlet.name = type(self).__name__
        greenlet.start()

    def _run_loop(self, *, is_parked: bool = False) -> bool:
        """Run, for the first time or again; whether the actor has only parked."""
        try:
            if is_parked:
                self._actor_loop_running()
                self._actor_loop_teardown()
            else:
                self._actor_loop()
        except Parked:
            return True
        except BaseException as error:
            # Pykka fences the handlers. What gets here was thrown into the waiting greenlet, or asks
            # the process to end; either way the actor must not stay registered and silent.
            self._handle_failure(type(error), error, error.__traceback__)
            self.on_failure(type(error), error, error.__traceback__)
            self._actor_loop_teardown()
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise  # gevent raises it in the main greenlet
        return False


class BaseActor(GeventActor):
    """An actor of the harness. Subclasses define `receive`, and `started`/`stopped` where needed.

    ``__init__`` of a subclass only stores its collaborators: an actor can be built, and its `receive`
    called, without being started. An error in a told message or in `started` ends the actor, and
    ``parent`` is told `Died`. An error in an asked message goes to the asker, and the actor lives on.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("on_receive", "on_start", "on_stop", "on_failure"):
            if name in cls.__dict__:
                raise TypeError(f"{cls.__name__} must not define {name!r}: define receive, started, stopped.")

    def __init__(self, *, name: str, parent: Ref[Any] | None = None, generation: int = 0) -> None:
        super().__init__()
        self.name = name
        self.parent = parent
        self.generation = generation
        self.failure: BaseException | None = None
        """The error that ended the actor; `None` while it lives and after an ordinary stop."""
        self._is_started = False
        self._unread: tuple[Any, ...] = ()
        self._promises: WeakSet[GeventFuture] | None = None
        self._ref: Ref[Any] = Ref(self.actor_ref, name)
        self.actor_inbox.may_park = self.may_park  # type: ignore[attr-defined]  # it is a `Mailbox`

    @abstractmethod
    def receive(self, message: Any) -> Any:
        """Handle one message, quickly. The value returned is the reply to an `ask`."""

    def started(self) -> None:
        """Run in the actor's greenlet before the first message."""

    def stopped(self) -> None:
        """Run once as the actor ends, stopped or failed (see ``failure``), if `started` had returned.

        Must not wait for long: the parent hears of a failure after it.
        """

    def may_park(self) -> bool:
        """Whether it may give its greenlet back now, with no message left, until the next one comes.

        For actors of which there are many and most are idle: a greenlet is the larger part of them.
        """
        return False

    @property
    @final
    def ref(self) -> Ref[Any]:
        """The one handle to this actor."""
        return self._ref

    @property
    @final
    def mailbox_depth(self) -> int:
        """How many messages wait."""
        return int(self.actor_inbox.qsize())  # type: ignore[attr-defined]  # Pykka's protocol has no size

    @property
    def condition(self) -> str:
        """What it is doing, in a few words. Looked at from outside: quick, and changes nothing."""
        return ""

    @property
    def belongs_to(self) -> str | None:
        """The name of another actor below which people look for this one; None: its parent."""
        return None

    @final
    def promise(self) -> GeventFuture:
        """A reply to give later: return it from `receive`, then `set` or `fail` it.

        If the actor ends first, the asker gets `ActorGone`.
        """
        future = GeventFuture()
        if self._promises is None:
            self._promises = WeakSet()
        self._promises.add(future)
        return future

    @final
    def die(self, error: BaseException) -> None:
        """End by ``error`` as soon as the message in hand is handled, also where somebody asked it.

        For an actor whose own state cannot be trusted any more. The parent is told `Died`.
        """
        kept = _ordinary(error)
        self._handle_failure(type(kept), kept, kept.__traceback__)
        self.on_failure(type(kept), kept, kept.__traceback__)

    def on_receive(self, message: Any) -> Any:
        try:
            return self.receive(message)
        except Exception:
            raise
        except BaseException as error:
            # The fence: a stray `gevent.Timeout` or `GreenletExit` would stop every actor of the process.
            failure = self._fenced(error)
            raise failure from failure.__cause__

    def on_start(self) -> None:
        # Pykka logs a failed start and calls no hook, so the failure is kept here.
        try:
            self._call(self.started)
        except BaseException:
            self._keep_unread()
            raise
        self._is_started = True

    def on_stop(self) -> None:
        if self._is_started:
            self._is_started = False
            self._call(self.stopped)

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.failure is None and exception_value is not None:
            self.failure = _ordinary(exception_value)
        self._keep_unread()
        try:
            self.on_stop()
        except Exception:
            # Whatever the subclass's cleaning up raises. The first error is the one to report.
            LOGGER.exception("%s failed again while it ended", self.name)

    def _call(self, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception as error:
            self.failure = self.failure or error
            raise
        except BaseException as error:
            # The fence: a stray `gevent.Timeout` or `GreenletExit` would stop every actor of the process.
            failure = self._fenced(error)
            self.failure = self.failure or failure
            raise failure from failure.__cause__

    def _fenced(self, error: BaseException) -> BaseException:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            forward_exit(error)
        return _ordinary(error)

    def _run_loop(self, *, is_parked: bool = False) -> bool:
        greenlet = getcurrent()
        greenlet.name = self.name
        self._ref.bind(greenlet)
        _running.add(self)
        is_over = True
        try:
            is_over = not super()._run_loop(is_parked=is_parked)
        finally:
            if is_over:
                self._loop_over()
            else:
                self._ref.bind(None)
                self.actor_inbox.on_message(self._unpark)  # type: ignore[attr-defined]  # it is a `Mailbox`
        return not is_over

    def _unpark(self) -> None:
        Greenlet.spawn(self._run_loop, is_parked=True)

    def _loop_over(self) -> None:
        _running.discard(self)
        self.actor_inbox.may_park = None  # type: ignore[attr-defined]  # a ref keeps the mailbox, not the actor
        for promise in list(self._promises or ()):
            if not promise.is_set:
                promise.fail(ActorGone(f"{self.name} stopped before it answered."))
        if self.failure is not None and self.parent is not None:
            self.parent.tell(Died(self.name, self.generation, self.failure, self._unread))

    def _keep_unread(self) -> None:
        """Set aside what was told and not received; asks stay, to be answered with `ActorGone`."""
        told: list[Any] = []
        asked: list[Any] = []
        while not self.actor_inbox.empty():
            envelope = self.actor_inbox.get()
            if envelope.reply_to is not None:
                asked.append(envelope)
            elif not isinstance(envelope.message, _ActorStop):
                told.append(envelope.message)
        for envelope in asked:
            self.actor_inbox.put(envelope)
        self._unread += tuple(told)


def _ordinary(error: BaseException) -> BaseException:
    """An ordinary error for one that would end more than its actor; a wish to exit stays what it is."""
    if isinstance(error, Exception | KeyboardInterrupt | SystemExit):
        return error
    failure = HandlerFailed(f"The handler was ended by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def start_actor(actor: BaseActor) -> Ref[Any]:
    """Start a built actor: register it with Pykka, run its loop in a greenlet. Returns its ref."""
    pykka.ActorRegistry.register(actor.actor_ref)
    actor._start_actor_loop()
    return actor.ref


def live_actors() -> list[BaseActor]:
    """The actors whose loop runs, by name."""
    return sorted(_running, key=lambda actor: (actor.name, actor.generation))
