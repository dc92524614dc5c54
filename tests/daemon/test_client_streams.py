"""Streams of the daemon's client: nothing is missed or seen twice over cuts, gaps and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.core.exit_codes import reason_of_error
from dsh_actors.daemon.client import DaemonClient, ServerEvent
from dsh_actors.errors import HarnessError, ProtocolError
from tests.daemon.fake_daemon import CUT, Asked, fake_daemon, sse

GONE = (404, {"error": {"code": "AGENT_NOT_FOUND", "message": "no agent a"}})


def play(answers: Iterable[object]) -> Callable[[Asked], Any]:
    """Answers in order, one a request."""
    rest = iter(answers)
    return lambda asked: next(rest)


def followed(tmp_path: Path, *answers: object, **options: object) -> tuple[list[ServerEvent], list[Asked]]:
    with fake_daemon(tmp_path / "socket", play(answers)) as fake, DaemonClient(fake.path) as client:
        return list(client.events("a", **options)), fake.asked  # type: ignore[arg-type]


def seqs(events: Iterable[ServerEvent]) -> list[int | None]:
    return [event.seq for event in events]


def test_a_cut_stream_goes_on_behind_the_last_whole_event(tmp_path: Path) -> None:
    first = [b": hello\n\n", sse("x", {"n": 0}, 0), sse("x", {"n": 1}, 1) + b"id: 2\nevent: x\ndata: {", CUT]
    second = [sse("x", {"n": 1}, 1), sse("x", {"n": 2}, 2)]
    events, asked = followed(tmp_path, first, second, GONE)
    assert [event.data["n"] for event in events] == [0, 1, 2]
    assert [each.headers.get("last-event-id") for each in asked] == [None, "1", "2"]


def test_an_event_that_the_end_cut_is_waited_for_again(tmp_path: Path) -> None:
    # A proxy or a kill may end a stream properly in the middle of an event.
    first = [sse("x", {"n": 0}, 0), b'id: 1\nevent: x\ndata: {"n": 1}\n']
    events, _ = followed(tmp_path, first, [sse("x", {"n": 1, "whole": True}, 1)], GONE)
    assert [event.data for event in events] == [{"n": 0}, {"n": 1, "whole": True}]


def test_events_that_are_in_no_log_do_not_move_the_place(tmp_path: Path) -> None:
    first = [sse("x", {}, 5), sse("approval.requested", {"id": "q"})]
    events, asked = followed(tmp_path, first, GONE, after=4)
    assert [(event.name, event.seq) for event in events] == [("x", 5), ("approval.requested", None)]
    assert [each.headers["last-event-id"] for each in asked] == ["4", "5"]


def test_a_gap_is_told_once(tmp_path: Path) -> None:
    gap = sse("gap", {"from": 1, "to": 7})
    events, asked = followed(tmp_path, [sse("x", {}, 0), gap, CUT], [sse("x", {}, 8)], GONE)
    assert [event.name for event in events] == ["x", "gap", "x"]
    assert events[1].data == {"from": 1, "to": 7}
    assert asked[1].headers["last-event-id"] == "7"


def test_a_replay_ends_with_the_log_but_not_with_a_cut(tmp_path: Path) -> None:
    events, asked = followed(tmp_path, [sse("x", {}, 0), CUT], [sse("x", {}, 1)], follow=False)
    assert seqs(events) == [0, 1]
    assert all("follow=0" in each.path for each in asked)


def test_garbage_is_an_error_and_no_event(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="no daemon of dsh"):
        followed(tmp_path, [b"id: 0\nevent: x\ndata: {]\n\n"])
    with pytest.raises(ProtocolError, match="no daemon of dsh"):
        followed(tmp_path, [b"id: first\nevent: x\ndata: {}\n\n"])


def test_an_agent_that_never_was_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HarnessError) as caught:
        followed(tmp_path, GONE)
    assert caught.value.code == "AGENT_NOT_FOUND"


def test_a_daemon_that_stays_away_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    with fake_daemon(tmp_path / "socket", lambda asked: [sse("x", {}, 0)]) as fake:
        client = DaemonClient(fake.path, patience_s=0.0)
        events = client.events("a")
        assert next(events).seq == 0
    with client, pytest.raises(HarnessError) as caught:
        list(events)
    assert caught.value.code == "DAEMON_LOST" and "did not come back in 0 s" in caught.value.message
    assert reason_of_error(caught.value) == "internal"  # what was asked for was right


def test_changes_say_when_what_came_before_has_to_be_asked_for(tmp_path: Path) -> None:
    answer = [sse("agent", {"id": "a"}), CUT]
    with fake_daemon(tmp_path / "socket", lambda asked: answer) as fake, DaemonClient(fake.path) as client:
        names = [event.name for event in islice(client.changes(), 5)]
    assert names == ["connected", "agent", "lost", "connected", "agent"]
