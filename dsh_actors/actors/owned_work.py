"""What agents have started and what still goes on behind them: jobs and background agents.

It holds a run open, and nothing of it outlives its owner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dsh_actors.actors.boundary import let_exits_pass
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import ActorGone, error_chain
from dsh_actors.runtime.log import LOGGER

__all__ = ["OwnedWork", "WorkItem"]


@dataclass(frozen=True, eq=False, slots=True)
class WorkItem:
    """``id`` is what the model calls it by, ``kind`` says what it is (``agent``, ``bash``).

    ``cancel`` begins to end it and returns at once; whoever added the item releases it when it is over.
    """

    owner: SessionId
    id: str
    kind: str
    label: str
    cancel: Callable[[], None]


class OwnedWork:
    """One of a harness. Every method may be called from any task."""

    def __init__(self) -> None:
        self._items: dict[SessionId, list[WorkItem]] = {}
        self._ending: set[SessionId] = set()
        self._quiet: set[SessionId] = set()
        self._changed = threading.Condition()

    def add(
        self, owner: SessionId, item_id: str, kind: str, label: str, cancel: Callable[[], None]
    ) -> WorkItem:
        """Take in what ``owner`` has started. Raises `ActorGone` for an owner that is being disposed of."""
        item = WorkItem(owner, item_id, kind, label, cancel)
        with self._changed:
            if owner in self._ending:
                raise ActorGone(f"agent {owner} is being disposed of: it can start nothing more")
            self._items.setdefault(owner, []).append(item)
        return item

    def release(self, item: WorkItem) -> None:
        """It is over, and its owner has been told. Releasing twice is releasing once."""
        with self._changed:
            items = self._items.get(item.owner)
            if items is None or item not in items:
                return
            items.remove(item)
            if not items:
                del self._items[item.owner]
            self._changed.notify_all()

    def of(self, owner: SessionId) -> tuple[WorkItem, ...]:
        """What goes on, oldest first."""
        return tuple(self._items.get(owner, ()))

    def wait_for_release(self, known: tuple[WorkItem, ...], timeout_s: float | None) -> bool:
        """Wait until one of the ``known`` items is over; False after ``timeout_s`` seconds without."""
        owners = {item.owner for item in known}

        def is_one_over() -> bool:
            going_on = {item for owner in owners for item in self._items.get(owner, ())}
            return not known or not going_on.issuperset(known)

        with self._changed:
            return self._changed.wait_for(is_one_over, timeout_s)

    def quieten(self, owner: SessionId) -> None:
        """The owner is stopped: the end of what it has started sets it to work no more, until `forget`."""
        self._quiet.add(owner)

    def hear(self, owner: SessionId) -> None:
        """What had to be over for `quieten` is: the owner may be set to work again."""
        self._quiet.discard(owner)

    def is_quiet(self, owner: SessionId) -> bool:
        return owner in self._quiet or owner in self._ending

    def cancel_all(self, owner: SessionId) -> None:
        """Begin to end everything of an owner, newest first; returns at once."""
        for item in reversed(self.of(owner)):
            try:
                item.cancel()
            except BaseException as error:  # whoever started it may be foreign code
                let_exits_pass(error)
                LOGGER.warning("%s %s could not be cancelled: %s", item.kind, item.id, error_chain(error))

    def end_all(self, owner: SessionId, timeout_s: float) -> tuple[WorkItem, ...]:
        """End everything of an owner that goes, newest first; what was not over in time is returned.

        Nothing more is taken in for it until `forget`.
        """
        self._ending.add(owner)
        self.cancel_all(owner)
        ends = time.monotonic() + timeout_s
        while items := self.of(owner):
            left = ends - time.monotonic()
            if left <= 0 or not self.wait_for_release(items, left):
                break
        with self._changed:
            left_over = tuple(self._items.pop(owner, ()))
            self._changed.notify_all()
        return left_over

    def forget(self, owner: SessionId) -> None:
        """The owner is gone; an agent of the same session may come."""
        self._ending.discard(owner)
        self._quiet.discard(owner)
