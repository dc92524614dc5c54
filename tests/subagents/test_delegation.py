"""Agents that an agent gives tasks to and waits for."""

from __future__ import annotations

from tests.subagents.kit import PATIENCE_S, Troupe, delegate


def test_the_answers_of_all_agents_of_a_reply_are_in_the_next_request(troupe: Troupe) -> None:
    troupe.play(
        delegate("task one", "task two"),
        {"text": "sum"},
        {"for": "task one", "text": "answer one"},
        {"for": "task two", "text": "answer two"},
    )
    end = troupe.agent().run("go", PATIENCE_S)
    assert (end.reason, end.answer) == ("completed", "sum")
    assert troupe.results() == ["answer one", "answer two"]
    assert len(troupe.script.requests) == 4
