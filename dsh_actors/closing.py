"""The end of a harness: its agents come to rest, its actors stop from the top. Every step is taken, whatever
becomes of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.lifecycle import DISPOSE_MARGIN_S, AgentEntry, Lifecycle
from dsh_actors.actors.store_books import StoreBooks
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import ActorGone, HarnessError, error_chain
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.ref import ACTOR_TIMEOUT, Ref
from dsh_actors.sessions import StoredSessions
from dsh_actors.workers import Addresses

__all__ = ["Closing", "settle_index"]

INDEX_TIMEOUT_S = 1.0
"""How long closing waits for the index, which can do without."""


@dataclass(frozen=True, slots=True)
class Closing:
    """What ends, and ``timeout_s``, the seconds that agents have to come to rest."""

    supervisor: Ref[Any]
    addresses: Addresses
    sessions: StoredSessions
    lifecycle: Lifecycle
    agents: dict[SessionId, AgentEntry] = field(hash=False)
    books: StoreBooks
    timeout_s: float

    def run(self, end_processes: Callable[[], None]) -> None:
        """All of it. Raises what kept the agents from coming to rest, with everything stopped."""
        try:
            self._dispose_all()
            settle_index(self.addresses.projector, min(self.timeout_s, INDEX_TIMEOUT_S))
        finally:
            end_processes()
            for ref in (self.supervisor, *self._workers()):
                _contained(partial(ref.stop, timeout=self.timeout_s))
            self.books.release_all()

    def _dispose_all(self) -> None:
        _contained(self.sessions.close)
        try:
            self.supervisor.ask(p.Shutdown(self.timeout_s), timeout=self.timeout_s + DISPOSE_MARGIN_S)
        except ActorGone as error:
            if error.code == ACTOR_TIMEOUT:
                raise
            # It has died: what its books have is closed without it.
            for entry in tuple(self.agents.values()):
                _contained(partial(self.lifecycle.drain, entry, self.timeout_s))
            self.agents.clear()

    def _workers(self) -> Iterator[Ref[Any]]:
        for address in self.addresses.all():
            if address.ref is not None:
                yield address.ref


def settle_index(projector: Address, timeout_s: float) -> None:
    """Wait until the index has every session that is no longer live, where there is one."""
    if projector.ref is None:
        return
    try:
        projector.ask(p.SettleIndex(), timeout=timeout_s)
    except ActorGone:
        return  # the index stays stale, which those who read it see


def _contained(work: Callable[[], None]) -> None:
    try:
        work()
    except HarnessError as error:
        LOGGER.error("closing: %s", error_chain(error))
