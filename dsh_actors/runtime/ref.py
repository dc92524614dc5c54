"""Typed handles to actors. `tell` never waits; `ask` always has a timeout."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pykka
from gevent import getcurrent
from pykka._envelope import Envelope

from dsh_actors.errors import ActorGone, ProtocolError
from dsh_actors.runtime.future import GeventFuture

if TYPE_CHECKING:
    from gevent import Greenlet

__all__ = ["ACTOR_TIMEOUT", "Ref"]

ACTOR_TIMEOUT = "ACTOR_TIMEOUT"
"""The code of an `ActorGone` for an actor that did not answer in time; its work may still finish."""

M = TypeVar("M", contravariant=True)


class Ref(Generic[M]):
    """A handle to one actor; ``M`` is the union of the messages it accepts.

    Each actor has exactly one, so two refs are equal if they name the same actor. A ref does not keep
    its actor in memory. Use it in the thread of the hub only, not in native threads.
    """

    # What a tell needs is bound once: Pykka's own call looks up and checks twice as much each time.
    __slots__ = ("__weakref__", "_actor_ref", "_greenlet", "_is_stopped", "_put", "name")

    def __init__(self, actor_ref: pykka.ActorRef[Any], name: str) -> None:
        self.name = name
        self._actor_ref = actor_ref
        self._put = actor_ref.actor_inbox.put
        self._is_stopped = actor_ref.actor_stopped.is_set
        self._greenlet: Greenlet | None = None

    def __repr__(self) -> str:
        return f"<Ref {self.name}>"

    @property
    def is_alive(self) -> bool:
        """Whether messages are still accepted."""
        return not self._is_stopped()

    @property
    def mailbox_depth(self) -> int:
        """How many messages wait."""
        return int(self._actor_ref.actor_inbox.qsize())  # type: ignore[attr-defined]  # Pykka's has no size

    def tell(self, message: M) -> None:
        """Put ``message`` into the mailbox and return at once. A dead actor drops it."""
        if not self._is_stopped():
            self._put(Envelope(message))

    def ask(self, message: M, *, timeout: float) -> Any:
        """Send ``message`` and wait at most ``timeout`` seconds for the reply.

        A handler that replies with a future has it followed within the same time. Raises the handler's
        error; `ActorGone` with code ACTOR_GONE when the actor is or becomes dead, and with code
        ACTOR_TIMEOUT when time is up: then the work goes on and its outcome is unknown.
        """
        if self._is_stopped():
            raise self._gone()
        if self._greenlet is not None and getcurrent() is self._greenlet:
            raise ProtocolError(f"{self.name} cannot ask itself: it would wait until the timeout.")
        began = monotonic()
        future = GeventFuture()
        self._put(Envelope(message, future))
        if not future.wait(timeout):
            raise self._late(timeout)
        try:
            reply = future.outcome()
        except pykka.ActorDeadError:
            raise self._gone() from None
        while isinstance(reply, pykka.Future):
            try:
                reply = reply.get(timeout=max(0.0, began + timeout - monotonic()))
            except pykka.Timeout:
                raise self._late(timeout) from None
        return reply

    def stop(self, *, timeout: float) -> None:
        """Stop the actor after the messages it has now, and wait until it has ended.

        Nothing happens if it is dead. Raises `ActorGone` with code ACTOR_TIMEOUT if it has not ended
        after ``timeout`` seconds. An actor that stops itself calls ``self.stop()`` instead.
        """
        if self._greenlet is not None and getcurrent() is self._greenlet:
            raise ProtocolError(f"{self.name} cannot wait for its own end: call self.stop().")
        began = monotonic()
        try:
            self._actor_ref.stop(block=True, timeout=timeout)
        except pykka.Timeout:
            raise self._late(timeout) from None
        greenlet = self._greenlet
        if greenlet is not None and not greenlet.dead:
            greenlet.join(max(0.0, began + timeout - monotonic()))
            if not greenlet.dead:
                raise self._late(timeout)

    def bind(self, greenlet: Greenlet | None) -> None:
        """For the actor: the greenlet it runs in, None while it has none."""
        self._greenlet = greenlet

    def _gone(self) -> ActorGone:
        return ActorGone(f"{self.name} is not running any more.")

    def _late(self, timeout: float) -> ActorGone:
        return ActorGone(f"{self.name} did not answer within {timeout:g} s.", code=ACTOR_TIMEOUT)
