"""Sub-agents whose answers must fit a schema, which is theirs and not their parent's."""

from __future__ import annotations

import pytest

from dsh_actors.errors import UsageError
from tests.subagents.kit import PATIENCE_S, Troupe, call

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_a_program_gets_the_value_of_a_sub_agent(troupe: Troupe) -> None:
    troupe.play({"for": "count", "text": "three"}, {"for": "count", "text": '```\n{"n": 3}\n```'})
    parent = troupe.agent()
    end = parent.spawn("count", schema=NUMBER, timeout=PATIENCE_S)
    assert (end.reason, end.structured, end.answer, end.steps) == ("completed", {"n": 3}, '{"n": 3}', 2)


def test_a_model_gets_the_json_of_an_agent_that_it_gave_a_schema(troupe: Troupe) -> None:
    troupe.play(
        {"calls": [call("agent", prompt="count", schema=NUMBER)]},
        {"text": "ok"},
        {"for": "count", "text": "no"},
        {"for": "count", "text": '{"n": 4}'},
    )
    assert troupe.agent().run("go", PATIENCE_S).exit_code == 0
    assert troupe.results() == ['{"n": 4}']


def test_the_schema_of_a_parent_does_not_bind_its_sub_agents(troupe: Troupe) -> None:
    troupe.play(
        {"calls": [call("agent", prompt="count")]},
        {"text": '{"n": 5}'},
        {"for": "count", "text": "five"},
    )
    end = troupe.agent(schema=NUMBER).run("go", PATIENCE_S)
    assert (end.exit_code, end.structured) == (0, {"n": 5})
    assert troupe.results() == ["five"]
    assert "<answer_schema>" not in troupe.script.requests[1].header.system


def test_a_sub_agent_with_a_schema_that_cannot_be_used_is_not_started(troupe: Troupe) -> None:
    parent = troupe.agent()
    with pytest.raises(UsageError, match="not a valid JSON Schema"):
        parent.spawn("count", schema={"type": "colour"})
    assert troupe.children() == []
