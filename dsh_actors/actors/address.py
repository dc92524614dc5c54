"""An address stays valid while the actor behind it is replaced."""

from __future__ import annotations

from time import monotonic
from typing import Any

from dsh_actors.errors import ActorGone
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.ref import ACTOR_TIMEOUT, Ref

__all__ = ["Address"]


class Address:
    """Where to send messages for a role, whichever incarnation fills it now."""

    __slots__ = ("_gone", "_kept", "_moved", "_ref", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._ref: Ref[Any] | None = None
        self._kept: list[Any] = []
        self._gone: str | None = None
        self._moved: GeventFuture | None = None
        """Set at the next move; there while somebody waits for one."""

    def move_to(self, ref: Ref[Any] | None, unread: tuple[Any, ...] = ()) -> None:
        """The supervisor's: a new incarnation is up, or (None) there will be none.

        ``unread`` is what the last incarnation left in its mailbox; it comes before what was told since.
        """
        kept, self._kept = self._kept, []
        self._ref = ref
        if ref is not None:
            for message in (*unread, *kept):
                ref.tell(message)
        self._tell_moved()

    def give_up(self, reason: str) -> None:
        """Nobody comes after the present incarnation: once it is dead, an ask fails with ``reason``."""
        self._gone = reason
        self._kept.clear()
        self._tell_moved()

    def _tell_moved(self) -> None:
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.set(None)

    @property
    def ref(self) -> Ref[Any] | None:
        return self._ref

    def tell(self, message: Any) -> None:
        """Kept for the next incarnation if this one has died; dropped where there will be none."""
        ref = self._ref
        if ref is None:
            return
        if ref.is_alive:
            ref.tell(message)
        elif self._gone is None:
            self._kept.append(message)

    def ask(self, message: Any, *, timeout: float) -> Any:
        """Raises `ActorGone` while nobody is there, and whatever `Ref.ask` raises."""
        ref = self._ref
        if self._gone is not None and (ref is None or not ref.is_alive):
            raise ActorGone(self._gone)
        if ref is None:
            raise ActorGone(f"{self.name} is not running", hint="try again")
        return ref.ask(message, timeout=timeout)

    def ask_again(self, message: Any, *, timeout: float) -> Any:
        """As `ask`; when the one who was asked dies, the next incarnation is asked. All within ``timeout``.

        For what may be asked twice: the first one may have done a part of it.
        """
        ends = monotonic() + timeout
        while True:
            ref = self._ref
            moved = self._moved = self._moved or GeventFuture()
            try:
                return self.ask(message, timeout=max(0.0, ends - monotonic()))
            except ActorGone as error:
                will_come = self._gone is None and ref is not None and not ref.is_alive
                if error.code == ACTOR_TIMEOUT or not will_come:
                    raise
                if not moved.wait(max(0.0, ends - monotonic())):
                    raise
