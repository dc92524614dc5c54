"""Old shapes become today's, today's stay as they are, retired formats are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.events import Event, Replace, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.legacy import LegacyUpgrade
from dsh_actors.core.state import SessionState
from dsh_actors.errors import SessionUnsupported
from tests.session_logs import turns

SESSION = SessionId("old")


def upgraded(kind: str, data: dict[str, Any], seq: int = 3, **envelope: Any) -> Event:
    return LegacyUpgrade(SESSION).upgrade(Event(kind, seq, 7, data, **envelope))


def result(call: str, text: str, message_id: str | None = None) -> dict[str, Any]:
    block = {"type": "tool-result", "toolCallId": call, "content": [{"type": "text", "text": text}]}
    message = {"role": "user", "content": [block], "source": {"kind": "tool", "callId": call}}
    return {"turn": 1, "step": 1, "message": message if message_id is None else {"id": message_id, **message}}


def test_events_of_today_are_passed_on_untouched() -> None:
    upgrade = LegacyUpgrade(SESSION).upgrade
    assert all(upgrade(event) is event for event in turns())


def test_a_turn_loses_its_trigger() -> None:
    assert upgraded("turn/start", {"turn": 4, "trigger": {"kind": "user"}}).data == {"turn": 4}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"kind": "aborted"}, {"kind": "aborted", "reason": {"kind": "legacy"}}),
        ({"kind": "disposed"}, {"kind": "aborted", "reason": {"kind": "disposed"}}),
        (
            {"kind": "error", "step": 2, "message": "lost", "code": "SERVER"},
            {"kind": "error", "error": {"message": "lost", "code": "SERVER"}},
        ),
        (
            {"kind": "error", "step": 2, "error": {"message": "lost", "code": "TIMEOUT"}},
            {"kind": "error", "error": {"message": "lost", "code": "TIMEOUT"}},
        ),
        (
            {"kind": "error", "error": "lost"},
            {"kind": "error", "error": {"message": "lost", "code": "UNKNOWN"}},
        ),
    ],
)
def test_the_end_of_a_turn_gets_the_reason_it_would_have_today(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert upgraded("turn/end", {"turn": 1, "reason": old}).data == {"turn": 1, "reason": new}


@pytest.mark.parametrize(
    "reason",
    [
        {"kind": "completed"},
        {"kind": "aborted", "reason": {"kind": "user"}},
        {"kind": "error", "error": {"message": "m", "code": "SERVER", "status": 500}},
    ],
)
def test_a_reason_of_today_stays(reason: dict[str, Any]) -> None:
    assert upgraded("turn/end", {"turn": 1, "reason": reason}).data["reason"] == reason


def test_a_steering_message_is_a_user_message_on_the_surface() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "left"}], "source": {"kind": "user"}}
    for data in (message, {"turn": 1, "message": message}):
        event = upgraded("steering/message", data)
        assert (event.type, event.surface_op) == ("user/message", "append")
        assert event.data == {"id": "legacy-message:old:3", **message}


def test_messages_without_an_id_get_one_that_is_the_same_on_every_reading() -> None:
    reply = {"role": "assistant", "content": [], "source": {"kind": "model", "provider": "p", "model": "m"}}
    data = {"turn": 1, "step": 1, "message": reply}
    event = upgraded("assistant/message", data, 12, surface_op="append")
    assert event.data["message"]["id"] == "legacy-message:old:12"
    assert "id" not in reply


@pytest.mark.parametrize("first_id", [None, "own"])
def test_a_result_that_replaces_another_has_the_id_of_the_first(first_id: str | None) -> None:
    upgrade = LegacyUpgrade(SESSION).upgrade
    state = SessionState(SessionHeader(SESSION, 0))
    expected = first_id or "legacy-message:old:0"
    long = Event("tool/result", 0, 0, result("c", "long", first_id), "append")
    short = Event("tool/result", 1, 0, result("c", "short"), Replace(0, 0), (0,))
    shorter = Event("tool/result", 2, 0, result("c", "s"), Replace(1, 1), (1,))
    for event in map(upgrade, (long, short, shorter)):
        state.apply(event)  # it refuses a replacement that changes more than the content
        assert event.data["message"]["id"] == expected


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("request/header-delta", {}),
        ("mode/set", {"mode": "plan"}),
        ("request/header", {"header": {}, "reason": "fallback"}),
    ],
)
def test_a_retired_format_is_refused_with_its_name(kind: str, data: dict[str, Any]) -> None:
    with pytest.raises(SessionUnsupported, match="retired") as refusal:
        upgraded(kind, data)
    assert "event 3" in refusal.value.message and "newer" not in str(refusal.value.hint)


@given(
    st.sampled_from(["turn/start", "turn/end", "steering/message", "user/message", "tool/result"]),
    st.dictionaries(
        st.sampled_from(["reason", "message", "turn", "id"]),
        st.none()
        | st.integers()
        | st.text(max_size=2)
        | st.lists(st.none(), max_size=1)
        | st.dictionaries(st.sampled_from(["kind", "step", "error", "id"]), st.none() | st.just("error")),
    ),
)
def test_no_shape_makes_it_fail(kind: str, data: dict[str, Any]) -> None:
    assert upgraded(kind, data).seq == 3
