"""Which sessions have had their time: by age, by rank, by size, and by family."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.ids import SessionId
from dsh_actors.core.retention import KeptSession, Retention, choose

NOW = 1000


def kept(
    name: str, updated: int, size: int = 10, parent: str | None = None, status: str = "ok"
) -> KeptSession:
    return KeptSession(SessionId(name), parent and SessionId(parent), updated, size, status)


def chosen(sessions: list[KeptSession], **rule: int) -> list[str]:
    return [session.id for session in choose(sessions, Retention(**rule), NOW)]


FIVE = [kept(name, updated) for name, updated in zip("eabdc", (500, 100, 200, 400, 300), strict=True)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"older_than_ms": 700}, "ab"),
        ({"older_than_ms": 899}, "a"),
        ({"older_than_ms": 900}, ""),
        ({"keep": 2}, "abc"),
        ({"keep": 0}, "abcde"),
        ({"keep": 9}, ""),
        ({"older_than_ms": 0, "keep": 4}, "a"),
        ({"max_bytes": 50}, ""),
        ({"max_bytes": 49}, "a"),
        ({"max_bytes": 25}, "abc"),
        ({"max_bytes": 0, "keep": 1}, "abcd"),
        ({"older_than_ms": 850, "max_bytes": 35}, "ab"),
        ({"older_than_ms": 650, "max_bytes": 45}, "abc"),
    ],
)
def test_the_oldest_go_first_and_the_newest_are_kept(rule: dict[str, int], expected: str) -> None:
    assert chosen(FIVE, **rule) == list(expected)


def test_sub_agents_go_with_their_parent_and_before_it() -> None:
    family = [kept("p", 100), kept("x", 150, parent="p"), kept("y", 120, parent="x")]
    assert chosen([*family, kept("z", 400)], older_than_ms=800) == ["y", "x", "p"]


def test_a_family_is_as_young_as_its_youngest() -> None:
    family = [kept("p", 100), kept("x", 900, parent="p")]
    assert chosen(family, older_than_ms=500) == []
    assert chosen([*family, kept("z", 400)], keep=1) == ["z"]


def test_a_sub_agent_without_its_parent_stands_for_itself() -> None:
    assert chosen([kept("x", 100, parent="gone")], older_than_ms=500) == ["x"]


def test_a_live_session_keeps_its_whole_family_and_counts_as_size() -> None:
    family = [kept("p", 100), kept("x", 100, parent="p", status="live")]
    assert chosen([*family, kept("z", 200)], max_bytes=20) == ["z"]
    assert chosen(family, keep=0) == []


def test_parents_in_a_circle_end() -> None:
    assert sorted(chosen([kept("a", 1, parent="b"), kept("b", 2, parent="a")], keep=0)) == ["a", "b"]


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50), st.booleans()), max_size=8),
    st.integers(0, 300),
)
def test_a_size_is_met_with_the_fewest_of_the_oldest(rows: list[tuple[int, int, bool]], limit: int) -> None:
    sessions = [
        kept(f"{i}", age, size, None, "live" if live else "ok") for i, (age, size, live) in enumerate(rows)
    ]
    gone = choose(sessions, Retention(max_bytes=limit), NOW)
    left = sum(s.size for s in sessions) - sum(s.size for s in gone)
    free = [s for s in sessions if s.status != "live"]
    assert left <= limit or len(gone) == len(free)
    assert not gone or left + gone[-1].size > limit
    assert [s.updated for s in gone] == sorted(s.updated for s in gone)
