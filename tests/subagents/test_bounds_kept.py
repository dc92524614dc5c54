"""What a sub-agent may less than its parent holds for all of its lives; so does what its time is."""

from __future__ import annotations

from dsh_actors.core.options import Limits
from dsh_actors.subagents.request import ChildRequest
from tests.subagents.kit import PATIENCE_S, Troupe, call

PARENT = ({"text": "hello"}, {"text": "got it"}, {"text": "got more"})
MORE = {"for": "more", "calls": [call("held")]}


def started(troupe: Troupe, request: ChildRequest) -> tuple[object, str]:
    """A parent, and its sub-agent that has come to rest."""
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    child = troupe.harness.subagents.start_continuable(agent.id, request).id
    assert agent.when_done(PATIENCE_S)
    return agent, child


def test_one_that_goes_on_has_no_tool_that_was_not_given_to_it(troupe: Troupe) -> None:
    troupe.play(*PARENT, {"for": "task", "text": "one"}, MORE, {"for": "more", "text": "two"})
    agent, child = started(troupe, ChildRequest("task", tools=("read",)))
    troupe.harness.subagents.followup(agent.id, child, "more")
    assert agent.when_done(PATIENCE_S)
    assert troupe.held.began.empty()
    assert {tool.name for tool in troupe.script.requests[-2].header.tools} == {"read", "report"}


def test_a_tool_that_its_parent_has_no_longer_is_none_of_one_that_goes_on(troupe: Troupe) -> None:
    troupe.play(*PARENT, {"for": "task", "text": "one"}, MORE, {"for": "more", "text": "two"})
    agent, child = started(troupe, ChildRequest("task", tools=("held", "read")))
    agent._scope.restrict(deny=frozenset({"held"}))
    troupe.harness.subagents.followup(agent.id, child, "more")
    assert agent.when_done(PATIENCE_S)
    assert troupe.held.began.empty()


def test_the_limits_of_one_that_goes_on_are_its_own(troupe: Troupe) -> None:
    steps = [{"for": "more", "calls": [call("todo_write", todos=[])]} for _ in range(3)]
    troupe.play(*PARENT, {"for": "task", "text": "one"}, *steps)
    agent, child = started(troupe, ChildRequest("task", limits=Limits(max_steps=2)))
    troupe.harness.subagents.followup(agent.id, child, "more")
    assert agent.when_done(PATIENCE_S)
    assert troupe.of("subagent/ended")[-1].data["reason"] == "max_steps"


def test_one_that_goes_on_and_stalls_is_ended_in_its_time(troupe: Troupe) -> None:
    troupe.play(*PARENT, {"for": "task", "text": "one"}, MORE)
    agent, child = started(troupe, ChildRequest("task", timeout_s=0.5))
    troupe.harness.subagents.followup(agent.id, child, "more")
    assert agent.when_done(PATIENCE_S)
    assert [event.data["reason"] for event in troupe.of("subagent/ended")] == ["completed", "timeout"]


def test_what_bounds_an_agent_is_known_after_the_process_has_ended(troupe: Troupe) -> None:
    troupe.play(*PARENT, {"for": "task", "text": "one"}, MORE, {"for": "more", "text": "two"})
    agent, child = started(troupe, ChildRequest("task", tools=("read",)))
    agent.dispose()
    agent = troupe.harness.resume(agent.id, troupe.options())
    troupe.harness.subagents.followup(agent.id, child, "more")
    assert agent.when_done(PATIENCE_S)
    assert troupe.held.began.empty()
