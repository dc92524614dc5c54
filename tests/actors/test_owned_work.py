"""What agents have started: it is ended with them, newest first, and waited for."""

from __future__ import annotations

import pytest

from dsh_actors.actors.owned_work import OwnedWork
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import ActorGone
from dsh_actors.runtime.tasks import start_task
from tests.actors.kit import until

OWNER = SessionId("owner")


def ignored() -> None:
    return None


def test_what_was_released_is_gone_and_the_others_stay():
    work = OwnedWork()
    one = work.add(OWNER, "bash-1", "bash", "make", ignored)
    two = work.add(OWNER, "bash-2", "bash", "make", ignored)
    work.release(one)
    work.release(one)
    assert work.of(OWNER) == (two,)
    assert work.of(SessionId("another")) == ()


def test_a_release_wakes_whoever_waits_also_where_more_was_started_meanwhile():
    work = OwnedWork()
    known = (work.add(OWNER, "bash-1", "bash", "make", ignored),)

    def change(_token):
        work.add(OWNER, "bash-2", "bash", "make", ignored)
        work.release(known[0])

    start_task(change, lambda end: None, name="change")
    assert work.wait_for_release(known, 10)
    assert not work.wait_for_release(work.of(OWNER), 0)


def test_an_owner_that_goes_takes_everything_with_it_newest_first():
    work, ended = OwnedWork(), []

    def start(name, *, fails=False):
        def cancel():
            ended.append(name)
            if fails:
                raise RuntimeError("it does not stop like this")
            work.release(item)

        item = work.add(OWNER, name, "agent", "look", cancel)
        return item

    start("first")
    hanging = start("second", fails=True)
    start("third")
    assert work.end_all(OWNER, 0.01) == (hanging,)
    assert ended == ["third", "second", "first"]
    with pytest.raises(ActorGone):
        start("fourth")
    work.forget(OWNER)
    assert start("fifth") in work.of(OWNER)


def test_the_end_of_one_work_wakes_only_who_waits_for_it():
    work, woken = OwnedWork(), []
    items = [work.add(SessionId(f"owner-{n}"), "bash-1", "bash", "make", ignored) for n in range(50)]
    first = work.add(OWNER, "bash-1", "bash", "make", ignored)
    tasks = [
        start_task(lambda _token, it=it: work.wait_for_release((it,), 10), woken.append, name="wait")
        for it in (first, *items)
    ]
    until(lambda: len(work._waiting) == 51)
    others = [event for item in items for event in work._waiting[item]]
    work.release(first)
    assert tasks[0].join(10)
    assert not any(event.is_set() for event in others)
    assert work.end_all(items[0].owner, 0.0) == (items[0],), "who waits for what is given up hears of it"
    for item in items[1:]:
        work.release(item)
    assert all(task.join(10) for task in tasks)
    assert [end.value for end in woken] == [True] * 51
    assert work._waiting == {}


def test_an_owner_that_goes_is_set_to_work_by_nothing_that_ends_with_it():
    work, quiet = OwnedWork(), []

    def cancel():
        quiet.append(work.is_quiet(OWNER))
        work.release(item)

    item = work.add(OWNER, "one", "agent", "look", cancel)
    assert not work.is_quiet(OWNER)
    assert work.end_all(OWNER, 1.0) == ()
    assert quiet == [True]
    work.forget(OWNER)
    assert not work.is_quiet(OWNER)
