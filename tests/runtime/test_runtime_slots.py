"""Slots: never more than the limit, first come first served, none lost to a cancel or a kill."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.runtime.cancel import Cancelled, CancelSource
from dsh_actors.runtime.tasks import Slots


class Client:
    """Takes a slot in a greenlet and holds it until told to leave."""

    def __init__(self, slots: Slots) -> None:
        self.source = CancelSource()
        self.leave = Event()
        self.state = "waiting"
        self.greenlet = gevent.spawn(self._run, slots)

    def _run(self, slots: Slots) -> None:
        try:
            with slots.taken(self.source.token):
                self.state = "holding"
                self.leave.wait()
            self.state = "left"
        except Cancelled:
            self.state = "cancelled"
        except gevent.GreenletExit:
            self.state = "killed"


def settle() -> None:
    for _ in range(6):
        gevent.sleep(0)


def test_the_next_slot_goes_to_whoever_waits_longest() -> None:
    slots = Slots(1)
    clients = [Client(slots) for _ in range(3)]
    settle()
    for first, client in enumerate(clients):
        assert [other.state for other in clients[first:]] == ["holding"] + ["waiting"] * (2 - first)
        client.leave.set()
        settle()
    assert (slots.in_use, slots.waiting) == (0, 0)


def test_a_thrown_token_gets_no_slot() -> None:
    slots, source = Slots(1), CancelSource()
    source.cancel("user")
    with pytest.raises(Cancelled), slots.taken(source.token):
        raise AssertionError("entered")
    assert slots.in_use == 0


def test_a_slot_given_to_a_waiter_that_is_cancelled_at_that_moment_is_passed_on() -> None:
    slots = Slots(1)
    with slots.taken(CancelSource().token):
        unlucky, last = Client(slots), Client(slots)
        settle()
    assert (slots.in_use, slots.waiting) == (1, 1), "the slot has been given to the first in the row"
    unlucky.source.cancel("user")
    settle()
    assert (unlucky.state, last.state) == ("cancelled", "holding")
    last.leave.set()
    settle()
    assert slots.in_use == 0


def test_an_error_in_the_block_frees_the_slot() -> None:
    slots = Slots(1)
    with pytest.raises(KeyError), slots.taken(CancelSource().token):
        assert slots.in_use == 1
        raise KeyError
    assert slots.in_use == 0


@pytest.mark.parametrize("n", [0, -1])
def test_there_is_at_least_one_slot(n: int) -> None:
    with pytest.raises(ValueError, match=str(n)):
        Slots(n)


ACTIONS = st.tuples(
    st.sampled_from(["enter", "enter", "leave", "cancel", "kill"]), st.integers(0, 9), st.booleans()
)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3), st.lists(ACTIONS, min_size=4, max_size=30))
def test_no_slot_is_lost_whatever_happens(limit: int, actions: list[tuple[str, int, bool]]) -> None:
    slots = Slots(limit)
    clients: list[Client] = []
    for action, index, is_settled in actions:
        if action == "enter" or not clients:
            clients.append(Client(slots))
        else:
            client = clients[index % len(clients)]
            if action == "leave":
                client.leave.set()
            elif action == "cancel":
                client.source.cancel("user")
            else:
                client.greenlet.kill(block=False)
        if is_settled:
            settle()
        assert sum(client.state == "holding" for client in clients) <= limit
    settle()
    holding = sum(client.state == "holding" for client in clients)
    waiting = sum(client.state == "waiting" for client in clients if not client.greenlet.dead)
    assert (slots.in_use, slots.waiting) == (holding, waiting)
    assert waiting == 0 or holding == limit
    for client in clients:
        client.leave.set()
    gevent.joinall([client.greenlet for client in clients], timeout=5)
    assert (slots.in_use, slots.waiting) == (0, 0)
