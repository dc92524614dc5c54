"""An address stays valid while the actor behind it is replaced."""

from __future__ import annotations

from typing import Any

from dsh_actors.errors import ActorGone
from dsh_actors.runtime.ref import Ref

__all__ = ["Address"]


class Address:
    """Where to send messages for a role, whichever incarnation fills it now."""

    __slots__ = ("_ref", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._ref: Ref[Any] | None = None

    def move_to(self, ref: Ref[Any] | None) -> None:
        """The supervisor's: a new incarnation is up, or (None) there is none."""
        self._ref = ref

    @property
    def ref(self) -> Ref[Any] | None:
        return self._ref

    def tell(self, message: Any) -> None:
        """Dropped while nobody is there."""
        if self._ref is not None:
            self._ref.tell(message)

    def ask(self, message: Any, *, timeout: float) -> Any:
        """Raises `ActorGone` while nobody is there, and whatever `Ref.ask` raises."""
        if self._ref is None:
            raise ActorGone(f"{self.name} is not running", hint="try again")
        return self._ref.ask(message, timeout=timeout)
