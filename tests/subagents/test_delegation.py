"""Agents that an agent gives tasks to and waits for."""

from __future__ import annotations

import json

import pytest

from dsh_actors.core.options import Limits
from dsh_actors.core.policy import ApprovalPolicy
from dsh_actors.errors import StorageFull, SubagentError, UsageError
from dsh_actors.handle import AgentRef
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.subagents.service import ChildRequest
from tests.actors.kit import until
from tests.subagents.kit import PATIENCE_S, Troupe, call, delegate

HELD = {"calls": [call("held")]}


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


def test_agents_of_one_reply_work_at_the_same_time(troupe: Troupe) -> None:
    troupe.play(
        delegate("first", "second"),
        {"text": "both"},
        *({"for": name, **HELD} for name in ("first", "second")),
        *({"for": name, "text": name} for name in ("first", "second")),
    )
    agent = troupe.agent()
    agent.followup("go")
    working = {troupe.held.began.get(timeout=PATIENCE_S) for _ in range(2)}
    assert working == set(troupe.children()) and len(working) == 2
    for _ in working:
        troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    assert troupe.results() == ["first", "second"]


def test_a_sub_agent_has_a_session_that_says_whose_it_is(troupe: Troupe) -> None:
    troupe.play(
        delegate("task"),
        {"text": "ok"},
        {"for": "task", **delegate("below")},
        {"for": "task", "text": "t"},
        {"for": "below", "text": "b"},
    )
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    (child,) = troupe.children()
    log = troupe.stored(child)
    (below,) = [event.data["id"] for event in log if event.type == "subagent/started"]
    headers = [troupe.harness.storage.header(name) for name in (child, below)]
    assert [header.parent_session for header in headers] == [agent.id, child]
    assert [header.delegation_depth for header in headers] == [1, 2]
    assert {header.origin for header in headers} == {"subagent"}
    (descriptor,) = [event.data for event in log if event.type == "subagent/descriptor"]
    assert (descriptor["version"], descriptor["mode"], descriptor["label"]) == (2, "one-shot", "task")
    assert [ref.id for ref in troupe.harness.agents()] == [agent.id]


def test_one_that_fails_is_an_error_with_what_it_had_said(troupe: Troupe) -> None:
    troupe.play(
        delegate("bad", "good"),
        {"text": "ok"},
        {"for": "bad", "text": "so far", **HELD},
        {"for": "bad", "error": {"code": "INVALID_REQUEST", "message": "no such thing"}},
        {"for": "good", "text": "fine"},
    )
    troupe.held.go.put("ok")
    end = troupe.agent().run("go", PATIENCE_S)
    bad, good = troupe.results()
    assert bad.startswith("Error: the agent did not finish: ") and "no such thing" in bad and "so far" in bad
    assert good == "fine" and end.reason == "completed" and end.tool_errors == 1


def test_a_stalled_agent_times_out_with_what_it_had_said_and_costs_the_others_nothing(troupe: Troupe) -> None:
    troupe.play(
        {"calls": [call("agent", prompt="slow", timeout_s=1), call("agent", prompt="quick")]},
        {"text": "ok"},
        {"for": "slow", "text": "half way", **HELD},
        {"for": "quick", "text": "there"},
    )
    assert troupe.agent().run("go", PATIENCE_S).reason == "completed"
    slow, quick = troupe.results()
    assert "not done after 1 s" in slow and slow.endswith("half way")
    assert quick == "there"
    assert [event.data["error"]["code"] for event in troupe.of("tool/result") if "error" in event.data] == [
        "SUBAGENT_TIMEOUT"
    ]


def test_an_agent_out_of_time_while_it_waits_for_its_own_is_not_done(troupe: Troupe) -> None:
    troupe.play(
        {"calls": [call("agent", prompt="task", timeout_s=1)]},
        {"text": "ok"},
        {"for": "task", "calls": [call("agent", prompt="slow", background=True, timeout_s=60)]},
        {"for": "task", "text": "waiting"},
        {"for": "slow", **HELD},
    )
    assert troupe.agent().run("go", PATIENCE_S).reason == "completed"
    (result,) = troupe.results()
    assert "not done after 1 s" in result and result.endswith("waiting")


def test_a_cancel_of_the_parents_turn_ends_what_it_waits_for(troupe: Troupe) -> None:
    troupe.play(delegate("task"), {"for": "task", **HELD})
    agent = troupe.agent()
    agent.followup("go")
    child = troupe.held.began.get(timeout=PATIENCE_S)
    agent.cancel()
    assert agent.when_done(PATIENCE_S)
    ends = [event.data["reason"] for event in troupe.stored(child) if event.type == "turn/end"]
    assert ends == [{"kind": "aborted", "reason": {"kind": "parent"}}]
    (ended,) = troupe.of("subagent/ended")
    assert ended.data["reason"] == "interrupted"


def test_a_dispose_of_the_parent_ends_everything_below_it(troupe: Troupe) -> None:
    troupe.play(delegate("task"), {"for": "task", **delegate("below")}, {"for": "below", **HELD})
    agent = troupe.agent()
    agent.followup("go")
    troupe.held.began.get(timeout=PATIENCE_S)
    assert len(troupe.harness.agents()) == 3
    agent.dispose()
    assert troupe.harness.agents() == []
    assert len(troupe.of("subagent/ended")) == 1


# --- limits ---------------------------------------------------------------------------------------


def test_nesting_ends_at_the_depth_limit(troupe: Troupe) -> None:
    troupe.play(
        delegate("one"),
        {"text": "ok"},
        {"for": "one", **delegate("two")},
        {"for": "one", "text": "alone"},
    )
    agent = troupe.agent(limits=Limits(max_depth=1))
    agent.run("go", PATIENCE_S)
    (child,) = troupe.children()
    results = [event.data for event in troupe.stored(child) if event.type == "tool/result"]
    assert [result["error"]["code"] for result in results] == ["DEPTH_LIMIT"]
    assert troupe.results() == ["alone"]


def test_no_request_widens_what_its_parent_may(troupe: Troupe) -> None:
    troupe.play({"for": "one", **delegate("two")}, {"for": "one", "text": "alone"})
    agent = troupe.agent(limits=Limits(max_depth=1))
    assert agent.spawn("one", limits=Limits(max_depth=5)).answer == "alone"
    (child,) = troupe.children()
    results = [event.data for event in troupe.stored(child) if event.type == "tool/result"]
    assert [result["error"]["code"] for result in results] == ["DEPTH_LIMIT"]


def test_an_agent_that_could_not_be_started_is_not_counted(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch
) -> None:
    troupe.play({"for": "one", "text": "1"})
    agent = troupe.agent(limits=Limits(max_agents=1))

    def full(*_arguments: object, **_more: object) -> None:
        raise StorageFull("no room")

    with monkeypatch.context() as patches:
        patches.setattr(AgentRef, "record", full)
        with pytest.raises(StorageFull):
            agent.spawn("one")
    assert troupe.harness.work.of(agent.id) == ()
    assert agent.spawn("one").answer == "1"


def test_without_any_depth_there_are_no_tools_for_it(troupe: Troupe) -> None:
    troupe.play({"text": "ok"})
    agent = troupe.agent(limits=Limits(max_depth=0))
    agent.run("go", PATIENCE_S)
    (request,) = troupe.script.requests
    assert not [tool.name for tool in request.header.tools if tool.name.startswith("agent")]
    with pytest.raises(SubagentError) as refused:
        agent.spawn("task")
    assert refused.value.code == "DEPTH_LIMIT"


def test_the_number_of_agents_counts_for_the_whole_tree(troupe: Troupe) -> None:
    troupe.play(
        delegate("one", "three"),
        {"text": "ok"},
        {"for": "one", **delegate("two")},
        {"for": "one", "text": "1"},
        {"for": "two", "text": "2"},
        {"for": "three", "text": "3"},
    )
    troupe.agent(limits=Limits(max_agents=2)).run("go", PATIENCE_S)
    one, three = troupe.results()
    child = troupe.children()[0]
    (below,) = [event.data for event in troupe.stored(child) if event.type == "tool/result"]
    assert (one, three) == ("1", "3")
    assert below["error"]["code"] == "AGENT_LIMIT"


def test_no_more_work_at_once_than_there_are_places(troupe: Troupe) -> None:
    names = ["a1", "b2", "c3"]
    troupe.play(
        delegate(*names),
        {"text": "ok"},
        *({"for": name, **HELD} for name in names),
        *({"for": name, "text": name} for name in names),
    )
    agent = troupe.agent(limits=Limits(max_concurrent_agents=1))
    agent.followup("go")
    for count, child in enumerate(3 * [None], 1):
        troupe.held.began.get(timeout=PATIENCE_S)
        assert troupe.held.began.empty() and len(troupe.harness.agents()) == 2
        assert child is None and count <= 3
        troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    assert troupe.results() == names


def test_an_agent_that_waits_for_others_lends_them_its_place(troupe: Troupe) -> None:
    troupe.play(
        delegate("one"),
        {"text": "ok"},
        {"for": "one", **delegate("two")},
        {"for": "one", "text": "1"},
        {"for": "two", **delegate("three")},
        {"for": "two", "text": "2"},
        {"for": "three", "text": "3"},
    )
    assert troupe.agent(limits=Limits(max_concurrent_agents=1)).run("go", PATIENCE_S).reason == "completed"
    assert troupe.results() == ["1"]


def test_time_in_the_queue_counts_for_a_call_that_waits(troupe: Troupe) -> None:
    troupe.play(
        {"calls": [call("agent", prompt="holds"), call("agent", prompt="waits", timeout_s=0.1)]},
        {"text": "ok"},
        {"for": "holds", **HELD},
        {"for": "holds", "text": "held"},
    )
    agent = troupe.agent(limits=Limits(max_concurrent_agents=1))
    agent.followup("go")
    troupe.held.began.get(timeout=PATIENCE_S)
    until(lambda: len(troupe.of("subagent/ended")) == 1)
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    held, waited = troupe.results()
    assert held == "held" and "not done after 0.1 s" in waited


@pytest.mark.parametrize(("kind", "most"), [("max_steps", 5), ("max_tokens", 500)])
def test_what_agents_spend_comes_out_of_one_pool(troupe: Troupe, kind: str, most: int) -> None:
    step = {"calls": [call("todo_write", todos=[])], "usage": {"input": 90, "output": 10}}
    troupe.play(
        delegate("one", "two") | {"usage": {"input": 90, "output": 10}},
        {"text": "never"},
        *({"for": name, **step, "text": f"{name} {n}"} for n in range(9) for name in ("one", "two")),
    )
    end = troupe.agent(limits=Limits(**{kind: most})).run("go", PATIENCE_S)
    assert end.reason == kind and end.limit == {"kind": kind, "value": most}
    # What is under way when tokens run out comes to its end; a step that there is no room for does not begin.
    assert end.exit_code == 4 and len(troupe.script.requests) in ((5,) if kind == "max_steps" else (5, 6))
    assert all(f"{kind.replace('_', '-')} {most} reached" in text for text in troupe.results())
    assert all("What it said so far" in text for text in troupe.results())


def test_tool_calls_come_out_of_one_pool(troupe: Troupe) -> None:
    todo = [call("todo_write", todos=[])]
    troupe.play(
        delegate("one"),
        {"text": "never"},
        {"for": "one", "calls": todo * 2},
        {"for": "one", "calls": todo * 2},
        {"for": "one", "text": "never"},
    )
    end = troupe.agent(limits=Limits(max_tool_calls=4)).run("go", PATIENCE_S)
    assert end.limit == {"kind": "max_tool_calls", "value": 4}
    (child,) = troupe.children()
    results = [event for event in troupe.stored(child) if event.type == "tool/result"]
    assert [bool(event.data.get("error")) for event in results] == [False, False, False, True]


def test_a_sub_agent_may_have_less_of_its_own(troupe: Troupe) -> None:
    step = {"calls": [call("todo_write", todos=[])]}
    troupe.play(step, step, step, {"text": "never"})
    end = troupe.agent(limits=Limits(max_steps=50)).spawn("task", limits=Limits(max_steps=2, max_depth=9))
    assert end.limit == {"kind": "max_steps", "value": 2} and end.steps == 2


def test_limits_are_only_ever_tightened() -> None:
    own = Limits(max_steps=5, timeout_s=9, tool_timeout_s=600)
    limits = own.tightened(Limits(max_steps=7, timeout_s=3, max_depth=1, max_cost=2))
    assert limits == Limits(max_steps=5, timeout_s=3, tool_timeout_s=600, max_depth=1, max_cost=2)


def test_the_use_of_agents_below_is_in_the_outcome_once(troupe: Troupe) -> None:
    used = {"input": 100, "output": 7, "cache_read": 3}
    troupe.play(
        delegate("one") | {"usage": used},
        {"text": "ok", "usage": used},
        {"for": "one", "error": {"code": "RATE_LIMIT", "retry_after_ms": 0}},
        {"for": "one", **delegate("two"), "usage": used},
        {"for": "one", "text": "1", "usage": used},
        {"for": "two", "text": "2", "usage": used},
    )
    end = troupe.agent().run("go", PATIENCE_S)
    assert end.usage["own"]["input"] == 200 and end.usage["children"]["input"] == 300
    assert end.usage["children"]["output"] == 21 and end.usage["children"]["cache_read"] == 9


# --- what it may do -------------------------------------------------------------------------------


def test_what_is_denied_to_a_sub_agent_counts_for_the_root(troupe: Troupe) -> None:
    troupe.play(
        delegate("one"),
        {"text": "ok"},
        {"for": "one", "calls": [call("write", path="f", content="x")]},
        {"for": "one", "text": "could not"},
    )
    end = troupe.agent(policy=ApprovalPolicy("read-only")).run("go", PATIENCE_S)
    (child,) = troupe.children()
    assert end.reason == "denied" and not (troupe.cwd / "f").exists()
    assert [(each["tool"], each["agent"]) for each in end.denied] == [("write", child)]
    assert troupe.results() == ["could not"]


def test_a_call_that_needs_an_answer_is_refused_where_nobody_gives_one(troupe: Troupe) -> None:
    troupe.play(
        {"for": "one", "calls": [call("write", path="f", content="x")]},
        {"for": "one", "text": "no"},
        {"text": "ok"},
    )
    policy = ApprovalPolicy.from_toml({"default": "ask"}, "rules.toml")
    end = troupe.agent(policy=policy).spawn("one")
    assert end.reason == "completed" and end.answer == "no" and len(end.denied) == 1


def test_where_somebody_answers_a_sub_agents_call_waits_for_the_answer(troupe: Troupe) -> None:
    asked = []

    class Answerer:
        def ask(self, request, answer) -> None:
            asked.append((request.owner, request.tool))
            answer("allowed-once")

        def withdraw(self, approval_id, outcome) -> None:
            raise AssertionError("nobody withdrew it")

    troupe.harness.close()
    troupe.answerer = Answerer()
    troupe.harness = troupe.open()
    troupe.play(
        delegate("one"),
        {"text": "ok"},
        {"for": "one", "calls": [call("write", path="f", content="x")]},
        {"for": "one", "text": "done"},
    )
    rules = {"default": "ask", "rule": [{"tool": "agent", "decision": "allow"}]}
    policy = ApprovalPolicy.from_toml(rules, "rules.toml")
    assert troupe.agent(policy=policy).run("go", PATIENCE_S).completed
    assert asked == [(troupe.children()[0], "write")] and (troupe.cwd / "f").read_text() == "x"


def test_a_guard_of_the_parent_binds_what_is_below_it(troupe: Troupe) -> None:
    troupe.play(
        delegate("one"),
        {"text": "ok"},
        {"for": "one", **delegate("two")},
        {"for": "one", "text": "1"},
        {"for": "two", "calls": [call("bash", command="true")]},
        {"for": "two", "text": "2"},
    )

    def setup(scope):
        scope.guard(lambda each: "not here" if each.name == "bash" else None)

    end = troupe.agent(setup=setup).run("go", PATIENCE_S)
    assert [(each["tool"], each["reason"]) for each in end.denied] == [("bash", "not here")]


def test_a_sub_agent_has_no_tool_that_its_parent_has_not(troupe: Troupe) -> None:
    troupe.play(delegate("one"), {"text": "ok"}, {"for": "one", "text": "1"}, {"for": "few", "text": "2"})
    agent = troupe.agent(tools=("agent", "read", "glob"))
    agent.run("go", PATIENCE_S)
    assert agent.spawn("few", tools=("read",)).completed
    tools = [[tool.name for tool in request.header.tools] for request in troupe.script.requests]
    assert tools[0] == tools[1] == ["agent", "glob", "read"] and tools[-1] == ["read"]
    with pytest.raises(UsageError):
        agent.spawn("one", tools=("bash",))


def test_a_request_that_cannot_work_starts_nothing(troupe: Troupe) -> None:
    calls = [call("agent", prompt=" "), call("agent", prompt="x", preset="none")]
    calls.append(call("agent", prompt="x", timeout=5))  # it is timeout_s: the limit would be lost
    troupe.play({"calls": calls}, {"text": "ok"})
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    assert all(text.startswith("Error: ") for text in troupe.results()) and troupe.children() == []
    assert len(troupe.results()) == 3 and "timeout" in troupe.results()[-1]
    with pytest.raises(UsageError):
        agent.spawn("x", model="nobody/knows")
    assert troupe.harness.agents()[0].id == agent.id and len(troupe.harness.agents()) == 1


# --- what it knows --------------------------------------------------------------------------------


def test_a_fork_knows_the_turns_before_and_a_fresh_one_nothing(troupe: Troupe) -> None:
    troupe.play(
        {"text": "the word is pear"},
        {"calls": [call("agent", prompt="fresh one"), call("agent", prompt="forked", context="fork")]},
        {"text": "ok"},
        {"for": "fresh one", "text": "f"},
        {"for": "forked", "text": "k"},
    )
    agent = troupe.agent()
    agent.run("remember", PATIENCE_S)
    agent.run("now delegate", PATIENCE_S)
    fresh, forked = (troupe.prompt_with(name) for name in ("fresh one", "forked"))
    assert "pear" not in fresh
    assert "pear" in forked and "now delegate" not in forked
    _, child = troupe.children()
    header = troupe.harness.storage.header(child)
    assert header.seed_length and (header.parent_session, header.origin) == (agent.id, "subagent")


def test_a_fork_of_an_agent_without_a_whole_turn_begins_with_nothing(troupe: Troupe) -> None:
    troupe.play(delegate("forked", context="fork"), {"text": "ok"}, {"for": "forked", "text": "k"})
    troupe.agent().run("secret", PATIENCE_S)
    (child,) = troupe.children()
    assert troupe.harness.storage.header(child).seed_length is None
    assert "secret" not in troupe.prompt_with("forked")


def test_a_fork_that_says_nothing_has_no_answer_of_its_parents(troupe: Troupe) -> None:
    troupe.play(
        {"text": "mine"},
        {"for": "forked", "error": {"code": "INVALID_REQUEST", "message": "no"}},
        {"text": "-"},
    )
    agent = troupe.agent()
    agent.run("one", PATIENCE_S)
    end = agent.spawn("forked", fork=True)
    assert end.reason == "provider_error" and end.answer is None


def test_a_fork_begins_with_the_bytes_that_its_parent_sent(troupe: Troupe) -> None:
    troupe.play({"text": "one"}, {"for": "forked", "text": "two"})
    agent = troupe.agent(append_system_prompt="Be brief.")
    agent.run("begin", PATIENCE_S)
    agent.spawn("forked", fork=True)
    first, second = troupe.script.requests
    assert first.header == second.header
    assert second.messages[: len(first.messages)] == first.messages


# --- from a program -------------------------------------------------------------------------------


def test_many_tasks_of_a_program_can_wait_at_once(troupe: Troupe) -> None:
    troupe.play(*({"for": f"<{n}>", "text": str(n)} for n in range(20)), {"text": "-"})
    agent, ends = troupe.agent(), {}

    def keep(number: int):
        def deliver(end: TaskEnd) -> None:
            ends[number] = end.value

        return deliver

    for number in range(20):
        start_task(lambda _token, n=number: agent.spawn(f"<{n}>"), keep(number), name=f"spawn {number}")
    until(lambda: len(ends) == 20)
    assert [ends[number].answer for number in range(20)] == [str(number) for number in range(20)]


def test_a_spawn_that_takes_too_long_has_an_outcome(troupe: Troupe) -> None:
    troupe.play(HELD)
    end = troupe.agent().spawn("task", timeout=0.1)
    assert (end.reason, end.exit_code, end.answer) == ("timeout", 124, None)


def test_an_outcome_that_is_none_has_what_was_said_last(troupe: Troupe) -> None:
    troupe.play({"text": "so far", **HELD}, {"calls": [call("held")]})
    run = troupe.harness.subagents.spawn(troupe.agent().id, ChildRequest("task"))
    troupe.held.began.get(timeout=PATIENCE_S)
    troupe.held.go.put("ok")
    troupe.held.began.get(timeout=PATIENCE_S)
    run.stop("timeout")
    end = run.result()
    assert (end.reason, end.exit_code, end.answer, end.partial) == ("timeout", 124, "so far", True)


def test_an_agent_goes_on_after_a_crash(troupe: Troupe) -> None:
    troupe.play({"text": "begun", **HELD}, {"text": "done"})
    agent = troupe.agent()
    results = []
    start_task(lambda _token: agent.spawn("task"), lambda end: results.append(end), name="spawn")
    child = troupe.held.began.get(timeout=PATIENCE_S)
    troupe.harness._agents[child].address.ref.tell(object())
    until(lambda: bool(results))
    assert results[0].value.answer == "done" and results[0].value.reason == "completed"
    reasons = [event.data["reason"]["kind"] for event in troupe.stored(child) if event.type == "turn/end"]
    assert reasons == ["interrupted", "completed"]


def test_what_the_log_says_of_agents_survives_its_checkpoint(troupe: Troupe) -> None:
    troupe.play(delegate("one"), {"text": "ok"}, {"for": "one", "text": "1"})
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    agent.dispose()
    view = troupe.harness.inspect(agent.id)
    assert view.state.children == {}
    assert json.dumps([event.to_json() for event in troupe.stored(agent.id)])


# --- answers that are values ----------------------------------------------------------------------

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_an_answer_can_be_asked_to_fit_a_schema(troupe: Troupe) -> None:
    troupe.play(
        delegate("count", "never", schema=NUMBER),
        {"text": "ok"},
        {"for": "count", "text": "many"},
        {"for": "count", "text": '```json\n{"n": 3}\n```'},
        *({"for": "never", "text": "no"} for _ in range(3)),
    )
    agent = troupe.agent(schema={"type": "object"}, schema_retries=2)
    agent.followup("go")
    assert agent.when_done(PATIENCE_S)
    count, never = troupe.results()
    assert count == '{"n": 3}'
    assert never.startswith("Error: the agent did not finish: ") and never.endswith("no")
    troupe.play({"for": "again", "text": '{"n": 4}'})
    assert agent.spawn("again", schema=NUMBER).structured == {"n": 4}
    troupe.play({"for": "free", "text": "in words"})
    assert agent.spawn("free").answer == "in words"
    with pytest.raises(UsageError):
        agent.spawn("again", schema={"type": "nonsense"})


# --- faults ---------------------------------------------------------------------------------------


def test_a_parent_that_crashes_while_it_waits_does_not_end_well_without_its_results(troupe: Troupe) -> None:
    troupe.play(delegate("task"), {"text": "sum"}, {"for": "task", **HELD})
    agent = troupe.agent()
    agent.followup("go")
    child = troupe.held.began.get(timeout=PATIENCE_S)
    agent._address.ref.tell(object())
    assert agent.when_done(PATIENCE_S)
    until(lambda: len(troupe.of("subagent/ended")) == 1)
    reasons = [event.data["reason"]["kind"] for event in troupe.of("turn/end")]
    assert reasons == ["interrupted"] and [ref.id for ref in troupe.harness.agents()] == [agent.id]
    assert [e.data["reason"]["kind"] for e in troupe.stored(child) if e.type == "turn/end"] == ["aborted"]


def test_a_harness_that_closes_leaves_nothing_of_any_agent(troupe: Troupe) -> None:
    troupe.play(
        {"calls": [call("agent", prompt="one"), call("agent", prompt="two", background=True)]},
        *({"for": name, **HELD} for name in ("one", "two")),
    )
    troupe.agent().followup("go")
    for _ in range(2):
        troupe.held.began.get(timeout=PATIENCE_S)
    troupe.harness.close()
    assert {event.data["reason"] for event in troupe.of("subagent/ended")} == {"interrupted"}


def test_a_parent_that_is_given_up_takes_what_works_behind_it_along(troupe: Troupe) -> None:
    troupe.play(delegate("task", background=True), {"text": "waiting"}, {"for": "task", **HELD})
    agent = troupe.agent()
    agent.followup("go")
    troupe.held.began.get(timeout=PATIENCE_S)
    assert agent.when_idle(PATIENCE_S)
    for _ in range(4):
        ref = agent._address.ref
        ref.tell(object())
        until(lambda ref=ref: agent._address.ref is not ref or not troupe.harness._agents)
    until(lambda: troupe.harness.agents() == [])
    assert troupe.harness.work.of(agent.id) == ()


def test_what_works_behind_a_parent_that_crashes_goes_on_and_tells_it(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "got it"},
        {"for": "task", **HELD},
        {"for": "task", "text": "t"},
    )
    agent = troupe.agent()
    agent.followup("go")
    troupe.held.began.get(timeout=PATIENCE_S)
    assert agent.when_idle(PATIENCE_S)
    agent._address.ref.tell(object())
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    assert troupe.events[-1].type == "turn/end" and len(troupe.of("turn/start")) == 2
