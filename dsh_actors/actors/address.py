"""An address stays valid while the actor behind it is replaced."""

from __future__ import annotations

from typing import Any

from dsh_actors.errors import ActorGone
from dsh_actors.runtime.ref import Ref

__all__ = ["Address"]


class Address:
    """Where to send messages for a role, whichever incarnation fills it now."""

    __slots__ = ("_kept", "_ref", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._ref: Ref[Any] | None = None
        self._kept: list[Any] = []

    def move_to(self, ref: Ref[Any] | None, unread: tuple[Any, ...] = ()) -> None:
        """The supervisor's: a new incarnation is up, or (None) there will be none.

        ``unread`` is what the last incarnation left in its mailbox; it comes before what was told since.
        """
        kept, self._kept = self._kept, []
        self._ref = ref
        if ref is not None:
            for message in (*unread, *kept):
                ref.tell(message)

    @property
    def ref(self) -> Ref[Any] | None:
        return self._ref

    def tell(self, message: Any) -> None:
        """Kept for the next incarnation if this one has died; dropped where there is none at all."""
        ref = self._ref
        if ref is None:
            return
        if ref.is_alive:
            ref.tell(message)
        else:
            self._kept.append(message)

    def ask(self, message: Any, *, timeout: float) -> Any:
        """Raises `ActorGone` while nobody is there, and whatever `Ref.ask` raises."""
        if self._ref is None:
            raise ActorGone(f"{self.name} is not running", hint="try again")
        return self._ref.ask(message, timeout=timeout)
