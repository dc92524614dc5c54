"""A sub-agent's place among those that work at once. One that only waits for others lends it to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsh_actors.ports import CancelToken
from dsh_actors.runtime.tasks import Cancelled, Slots

__all__ = ["Seat"]


class Seat:
    """One of ``slots``. Without lending, agents that wait for agents below them would wait for ever."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._is_held = False
        self._is_closed = False
        self._lent = 0

    @property
    def is_held(self) -> bool:
        return self._is_held

    def take(self, cancel: CancelToken) -> None:
        """Wait for a place. Raises `Cancelled` if ``cancel`` is thrown before."""
        self._slots.acquire(cancel)
        self._keep()

    @contextmanager
    def lent(self, cancel: CancelToken) -> Iterator[None]:
        """Others may have the place during the block; its end waits until there is one again, unless
        ``cancel`` is thrown."""
        self._lent += 1
        if self._is_held:
            self._is_held = False
            self._slots.release()
        try:
            yield
        finally:
            self._lent -= 1
            if not (self._lent or self._is_held or self._is_closed):
                self._regain(cancel)

    def _regain(self, cancel: CancelToken) -> None:
        try:
            self._slots.acquire(cancel)
        except Cancelled:
            return  # whoever waited is to end, which needs no place
        self._keep()

    def _keep(self) -> None:
        if self._is_closed or self._lent or self._is_held:
            self._slots.release()
        else:
            self._is_held = True

    def close(self) -> None:
        """The work is over."""
        self._is_closed = True
        if self._is_held:
            self._is_held = False
            self._slots.release()
