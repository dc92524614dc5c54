"""A place that is lent, also for two things at once, and taken back when nothing is waited for any more."""

from __future__ import annotations

from dsh_actors.runtime.cancel import CancelSource
from dsh_actors.runtime.tasks import Slots, deadline, start_task
from dsh_actors.subagents.seat import Seat
from tests.actors.kit import until

TOKEN = CancelSource().token


def test_whoever_waits_for_two_things_takes_its_place_back_after_both() -> None:
    slots = Slots(1)
    seat = Seat(slots)
    seat.take(TOKEN)
    with deadline(10.0):
        with seat.lent(TOKEN):
            with seat.lent(TOKEN):
                slots.acquire(TOKEN)  # another one has the place
            assert not seat.is_held
            slots.release()
        assert seat.is_held
    seat.close()


def test_a_place_that_comes_when_it_is_lent_again_goes_on_to_others() -> None:
    slots = Slots(1)
    seat = Seat(slots)
    seat.take(TOKEN)
    done: list[object] = []

    def lend(_token: object) -> None:
        with seat.lent(TOKEN):
            slots.acquire(TOKEN)  # another one has the place

    with deadline(10.0):
        start_task(lend, done.append, name="lend")
        until(lambda: slots.waiting == 1)
        with seat.lent(TOKEN):
            slots.release()
            until(lambda: bool(done))
            assert not seat.is_held
            assert slots.in_use == 0
        assert seat.is_held
    seat.close()
    assert slots.in_use == 0
