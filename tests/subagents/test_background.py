"""Agents that work behind the one that started them, and can be spoken to."""

from __future__ import annotations

import queue
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dsh_actors.actors.owned_work import WorkItem
from dsh_actors.core.ids import SessionId
from dsh_actors.core.messages import text_of
from dsh_actors.core.options import Limits
from dsh_actors.errors import EventRefused, SubagentError
from dsh_actors.handle import AgentRef
from dsh_actors.ports import ToolOutput, ToolSpec
from dsh_actors.runtime.tasks import start_task
from dsh_actors.subagents.request import DEFAULT_TIMEOUT_S
from tests.actors.kit import until
from tests.subagents.kit import PATIENCE_S, Troupe, call, delegate

HELD = {"calls": [call("held")]}


def said(troupe: Troupe, agent: str | None = None) -> list[str]:
    """The texts of the messages that an agent read, without tool results and the facts of the moment."""
    events = troupe.events if agent is None else troupe.stored(agent)
    found = [event.data for event in events if event.type == "user/message"]
    kinds = ("user", "coordinator", "subagent-settled", "subagent-report")
    return [data["content"][0]["text"] for data in found if data["source"]["kind"] in kinds]


def began(troupe: Troupe) -> SessionId:
    return SessionId(troupe.held.began.get(timeout=PATIENCE_S))


def test_the_answer_wakes_the_parent_for_exactly_one_turn(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "got it"},
        {"for": "task", **HELD},
        {"for": "task", "text": "the answer"},
    )
    agent = troupe.agent()
    agent.followup("go")
    child = began(troupe)
    assert agent.when_idle(PATIENCE_S) and not agent.when_done(0)
    assert troupe.results() == [f"Agent {child} is at work. Its answer will come as a message."]
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    assert said(troupe) == ["go", f"Agent {child} (task) is done. Its answer:\nthe answer"]
    assert len(troupe.of("turn/start")) == 2 and len(troupe.script.requests) == 5
    source = troupe.of("user/message")[-1].data["source"]
    assert source == {
        "kind": "subagent-settled",
        "form": "notice",
        "summary": "done",
        "senderSessionId": child,
    }
    assert [ref.id for ref in troupe.harness.agents()] == [agent.id]


def test_a_run_takes_its_answer_from_the_turn_after_the_last_notice(troupe: Troupe) -> None:
    troupe.play(
        delegate("one", "two", background=True),
        {"text": "waiting"},
        {"text": "got one"},
        {"text": "got two"},
        {"for": "one", "text": "1"},
        {"for": "two", "text": "2"},
    )
    end = troupe.agent().run("go", PATIENCE_S)
    assert end.completed and end.answer in ("got one", "got two")
    assert {text[-1] for text in said(troupe)[1:]} == {"1", "2"}


def test_several_that_settle_while_the_parent_is_busy_come_in_one_step(troupe: Troupe) -> None:
    troupe.play(
        delegate("one", "two", background=True),
        HELD,
        {"text": "got both"},
        {"for": "one", "text": "1"},
        {"for": "two", "text": "2"},
    )
    agent = troupe.agent()
    agent.followup("go")
    assert began(troupe) == agent.id
    until(lambda: len(troupe.of("subagent/ended")) == 2 and agent.status().next_step == 2)
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    assert len(said(troupe)) == 3 and len(troupe.of("turn/start")) == 1
    assert len(troupe.of("step/start")) == 3


def test_one_at_rest_goes_on_from_its_own_log(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "got it"},
        {"text": "got more"},
        {"for": "task", "text": "one"},
        {"for": "go further", "text": "two"},
    )
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    (child,) = troupe.children()
    assert troupe.harness.subagents.followup(agent.id, child, "go further") == "ready"
    assert agent.when_done(PATIENCE_S)
    assert said(troupe, child) == ["task", "go further"]
    assert said(troupe)[-1].endswith("two")
    assert [event.type for event in troupe.stored(child)].count("subagent/descriptor") == 1
    first, second = (each for each in troupe.script.requests if text_of(each.messages[0]) == "task")
    assert first.header == second.header and second.messages[: len(first.messages)] == first.messages
    assert len(troupe.of("subagent/started")) == len(troupe.of("subagent/ended")) == 2


def test_a_model_can_send_wait_and_list(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"calls": [call("agent_wait")]},
        {"text": "no id known"},
        {"for": "task", "text": "one"},
    )
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    (child,) = troupe.children()
    troupe.play(
        {"calls": [call("agent_list"), call("agent_send", id=child, message="more")]},
        {"calls": [call("agent_wait", ids=[child])]},
        {"text": "done"},
        {"for": "more", "text": "two"},
    )
    assert agent.run("on", PATIENCE_S).answer == "done"
    assert troupe.results()[1:] == [
        f"{child}: completed",
        f"{child}  ready  task",
        "It was told, and goes on.",
        f"{child}: completed",
    ]
    # The answers are messages of the step after the wait, and told once.
    assert [text.rpartition("\n")[2] for text in said(troupe)] == ["go", "one", "on", "two"]


def test_a_wait_for_one_of_several_ends_with_the_first(troupe: Troupe) -> None:
    troupe.play(
        delegate("quick", "slow", background=True),
        {"calls": [call("agent_wait", any=True)]},
        {"text": "one is there"},
        {"text": "both are"},
        {"for": "quick", "text": "1"},
        {"for": "slow", **HELD},
        {"for": "slow", "text": "2"},
    )
    agent = troupe.agent()
    agent.followup("go")
    slow = began(troupe)
    assert agent.when_idle(PATIENCE_S)
    assert f"{slow}: at work" in troupe.results()[2] and ": completed" in troupe.results()[2]
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)


def test_a_wait_has_an_end_and_a_cancel_ends_it(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"calls": [call("agent_wait", timeout_s=0.05)]},
        {"calls": [call("agent_wait")]},
        {"for": "task", **HELD},
        {"for": "task", "text": "x"},
        {"text": "later"},
    )
    agent = troupe.agent()
    agent.followup("go")
    child = began(troupe)
    until(lambda: len(troupe.of("tool/call")) == 3)
    agent.cancel()
    assert agent.when_idle(PATIENCE_S)
    assert troupe.results()[1] == f"{child}: at work"
    assert troupe.held.go.empty()  # what works behind it goes on
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)


def test_a_message_to_one_at_work_is_queued_behind_its_turn(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "got it"},
        {"for": "task", **HELD},
        {"for": "task", "text": "one"},
        {"for": "more", "text": "two"},
    )
    agent = troupe.agent()
    agent.followup("go")
    child = began(troupe)
    assert troupe.harness.subagents.followup(agent.id, child, "more") == "running"
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    assert said(troupe, child) == ["task", "more"]
    assert len(troupe.of("subagent/ended")) == 1 and said(troupe)[-1].endswith("two")


def test_an_interrupt_ends_the_turn_and_a_message_starts_another(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "heard"},
        {"text": "heard again"},
        {"for": "task", "text": "half", **HELD},
        {"for": "more", "text": "whole"},
    )
    agent = troupe.agent()
    agent.followup("go")
    child = began(troupe)
    troupe.harness.subagents.interrupt(agent.id, child)
    assert agent.when_done(PATIENCE_S)
    assert "did not finish" in said(troupe)[-1] and said(troupe)[-1].endswith("half")
    troupe.harness.subagents.interrupt(agent.id, child)  # at rest: nothing happens
    troupe.harness.subagents.followup(agent.id, child, "more")
    assert agent.when_done(PATIENCE_S)
    assert said(troupe)[-1].endswith("whole")


def test_a_report_comes_before_the_answer_and_in_order(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        HELD,
        {"text": "got it"},
        {"for": "task", "calls": [call("report", message="half way")]},
        {"for": "task", "text": "there"},
    )
    agent = troupe.agent()
    agent.followup("go")
    assert began(troupe) == agent.id
    until(lambda: agent.status().next_step == 2)
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    assert [text.rpartition("\n")[2] for text in said(troupe)] == ["go", "half way", "there"]
    with pytest.raises(SubagentError):
        troupe.harness.subagents.report(SessionId(agent.id), "to nobody")


def test_only_an_agent_behind_another_can_report(troupe: Troupe) -> None:
    troupe.play(delegate("task"), {"text": "ok"}, {"for": "task", "text": "t"})
    troupe.agent().run("go", PATIENCE_S)
    assert not [t for each in troupe.script.requests for t in each.header.tools if t.name == "report"]


def test_only_the_parent_may_speak_to_an_agent(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "heard"},
        {"for": "task", **HELD},
        {"for": "task", "text": "x"},
    )
    agent, other = troupe.agent(), troupe.agent()
    agent.followup("go")
    child = began(troupe)
    service = troupe.harness.subagents
    acts = (partial(service.followup, other.id, text="hi"), partial(service.interrupt, other.id))
    for act in acts:
        with pytest.raises(SubagentError) as refused:
            act(child=child)
        assert refused.value.code == "UNAUTHORIZED"
        with pytest.raises(SubagentError) as refused:
            act(child="nobody")
        assert refused.value.code == "NOT_RESUMABLE"
    with pytest.raises(SubagentError):
        service.wait(other.id, [child])
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)


def test_an_agent_that_waits_for_its_own_is_not_done(troupe: Troupe) -> None:
    troupe.play(
        delegate("upper", background=True),
        {"text": "waiting"},
        {"text": "got it"},
        {"for": "upper", **delegate("lower", background=True)},
        {"for": "upper", "text": "started it"},
        {"for": "upper", "text": "and it says 7"},
        {"for": "lower", **HELD},
        {"for": "lower", "text": "7"},
    )
    agent = troupe.agent(limits=Limits(max_concurrent_agents=1))
    agent.followup("go")
    began(troupe)
    listed = troupe.harness.subagents.list(agent.id, descendants=True)
    assert [(each.label, each.state, each.depth) for each in listed] == [
        ("upper", "waiting", 1),
        ("lower", "running", 2),
    ]
    assert [each.label for each in troupe.harness.subagents.list(agent.id)] == ["upper"]
    troupe.held.go.put("ok")
    assert agent.when_done(PATIENCE_S)
    assert said(troupe)[-1].endswith("and it says 7")
    (upper,) = troupe.children()
    at_rest = troupe.harness.subagents.list(agent.id, descendants=True)
    assert [(each.label, each.state, each.parent) for each in at_rest] == [
        ("upper", "ready", agent.id),
        ("lower", "ready", upper),
    ]


def test_foreground_work_is_not_listed(troupe: Troupe) -> None:
    troupe.play(delegate("task"), {"text": "ok"}, {"for": "task", "text": "t"})
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    assert troupe.harness.subagents.list(agent.id) == []


def test_a_dispose_ends_what_works_behind_an_agent_and_its_next_life_knows(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True), {"text": "waiting"}, {"for": "task", "text": "half", **HELD}
    )
    agent = troupe.agent()
    agent.followup("go")
    child = began(troupe)
    assert agent.when_idle(PATIENCE_S)
    agent.dispose()
    assert troupe.harness.agents() == [] and troupe.harness.work.of(agent.id) == ()
    troupe.play({"text": "I see"})
    again = troupe.harness.resume(agent.id, troupe.options(model=""))
    assert again.run("on", PATIENCE_S).answer == "I see"
    assert any(child in text and "half" in text for text in said(troupe, agent.id))
    assert [each.state for each in troupe.harness.subagents.list(again.id)] == ["ready"]


def test_nothing_below_a_dispose_is_set_to_work_again(troupe: Troupe) -> None:
    troupe.play(
        delegate("upper", background=True),
        {"text": "waiting"},
        {"for": "upper", **delegate("lower", background=True)},
        {"for": "upper", "text": "started it"},
        {"for": "lower", **HELD},
        {"for": "upper", "text": "never"},
    )
    agent = troupe.agent()
    agent.followup("go")
    began(troupe)
    until(lambda: len(troupe.script.requests) == 5)
    assert agent.when_idle(PATIENCE_S)
    agent.dispose()
    assert len(troupe.script.requests) == 5 and troupe.harness.agents() == []


def test_after_the_death_of_the_process_a_resumed_agent_is_told_and_can_go_on(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True), {"text": "waiting"}, {"for": "task", "text": "half", **HELD}
    )
    agent = troupe.agent()
    agent.followup("go")
    child = began(troupe)
    assert agent.when_idle(PATIENCE_S)
    until(lambda: any(event.type == "tool/call" for event in troupe.stored(child)))
    # The disk as a process that is gone at this moment would leave it.
    copy = Path(f"{troupe.home}-copy")
    shutil.copytree(troupe.home, copy)
    agent.dispose()
    troupe.harness.close()
    shutil.rmtree(troupe.home)
    copy.rename(troupe.home)
    troupe.harness = troupe.open()
    troupe.play(
        {"calls": [call("agent_send", id=child, message="go on")]},
        {"text": "waiting"},
        {"text": "got it"},
        {"for": "go on", "text": "whole"},
    )
    again = troupe.harness.resume(agent.id, troupe.options(model=""))
    assert again.run("and now?", PATIENCE_S).answer == "got it"
    told = said(troupe, agent.id)
    assert told[1].startswith(f"Agent {child} (task) was interrupted together with you")
    assert told[-1].endswith("whole")
    ends = [event.data["reason"] for event in troupe.stored(agent.id) if event.type == "subagent/ended"]
    assert ends == ["interrupted", "completed"]


def test_a_fork_of_a_parent_has_none_of_its_agents(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "got it"},
        {"for": "task", "text": "x"},
        {"text": "who?"},
    )
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    fork = agent.fork()
    assert fork.header.parent_session == agent.id and fork.header.origin is None
    assert troupe.harness.subagents.list(fork.id) == []
    assert fork.run("?", PATIENCE_S).answer == "who?"


def test_a_copy_keeps_what_was_known_of_agents_in_its_checkpoint(troupe: Troupe) -> None:
    troupe.play(delegate("task", background=True), {"text": "w"}, {"text": "g"}, {"for": "task", "text": "x"})
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    live = troupe.harness.inspect(agent.id).state
    agent.dispose()
    (child,) = troupe.children()
    known = {"label": "task", "mode": "continuable", "bounds": {"timeout_s": DEFAULT_TIMEOUT_S}}
    expected = {child: {**known, "open": False, "reason": "completed"}}
    assert live.children == troupe.harness.inspect(agent.id).state.children == expected


def test_a_race_of_messages_with_the_end_of_an_agent_loses_none(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        *({"text": f"p{number}"} for number in range(60)),
        {"for": "task", "text": "x"},
        *({"for": f"m{number};", "text": "y"} for number in range(30)),
    )
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    (child,) = troupe.children()
    told: list[str] = []

    def send(number: int) -> None:
        troupe.harness.subagents.followup(agent.id, child, f"m{number};")

    for number in range(30):
        name = f"send {number}"
        start_task(lambda _token, n=number: send(n), lambda end, n=number: told.append(f"m{n};"), name=name)
    until(lambda: len(told) == 30)
    assert agent.when_done(PATIENCE_S)
    assert sorted(said(troupe, child)[1:]) == sorted(f"m{number};" for number in range(30))
    assert all(text_of(message) for request in troupe.script.requests for message in request.messages[:1])


def test_an_answer_reaches_its_parent_though_the_fact_of_it_cannot_be_logged(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = AgentRef.record

    def full(self: AgentRef, kind: str, *more: object, **named: object) -> None:
        if kind == "subagent/ended":
            raise EventRefused("no log holds it")
        record(self, kind, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(AgentRef, "record", full)
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "got it"},
        {"for": "task", "text": "one"},
    )
    assert troupe.agent().run("go", PATIENCE_S).answer == "got it"
    assert said(troupe)[-1].endswith("one")


def test_many_messages_at_the_moment_of_its_end_bring_an_agent_back_once(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch
) -> None:
    troupe.play(delegate("task", background=True), {"text": "waiting"}, {"for": "task", **HELD})
    agent, service = troupe.agent(), troupe.harness.subagents
    agent.followup("go")
    child = began(troupe)
    run = service._roster.runs[child]
    settle, wait, said_so, entered = run.plan.settle, run.wait_until_released, [], []
    gate = threading.Event()

    def settle_late(*told: object) -> None:
        gate.wait(PATIENCE_S)
        settle(*told)

    monkeypatch.setattr(run, "plan", replace(run.plan, settle=settle_late))
    monkeypatch.setattr(run, "wait_until_released", lambda: (entered.append(1), wait()))
    troupe.play({"for": "task", "text": "one"}, {"for": "and", "text": "two"}, {"for": "so", "text": "three"})
    troupe.held.go.put("go")
    until(lambda: run.state == "over")
    for text in ("and", "so"):
        say = partial(service.followup, agent.id, child, text)
        start_task(lambda _token, say=say: say(), said_so.append, name="say")
    until(lambda: len(entered) == 2)
    gate.set()
    until(lambda: len(said_so) == 2)
    assert [end.error for end in said_so] == [None, None]
    assert agent.when_done(PATIENCE_S)
    assert {"and", "so"} <= {text.rpartition("\n")[2] for text in said(troupe, child)}
    lives = [event for event in troupe.of("subagent/started") if event.data["id"] == child]
    assert len(lives) == 2, "its first life, and one for both messages"


def test_one_that_goes_on_still_answers_in_its_form(troupe: Troupe) -> None:
    schema = {"type": "object", "required": ["n"]}
    troupe.play(
        delegate("task", background=True, schema=schema),
        {"text": "waiting"},
        {"text": "got it"},
        {"text": "got more"},
        {"for": "task", "text": '{"n": 1}'},
        {"for": "more", "text": "two"},
        {"for": "more", "text": '{"n": 2}'},
    )
    agent = troupe.agent()
    agent.run("go", PATIENCE_S)
    (child,) = troupe.children()
    troupe.harness.subagents.followup(agent.id, child, "more")
    assert agent.when_done(PATIENCE_S)
    assert said(troupe)[-1].endswith('{"n": 2}')


def test_an_agent_is_not_done_while_a_job_of_it_goes_on(troupe: Troupe) -> None:
    troupe.play(
        delegate("task"),
        {"text": "sum"},
        {"for": "task", "calls": [call("job")]},
        {"for": "task", "text": "started"},
        {"for": "task", "text": "the job says 42"},
    )
    jobs: queue.SimpleQueue[WorkItem] = queue.SimpleQueue()

    class Job:
        spec = ToolSpec("job", "starts something", {"type": "object"}, changes=False)

        def is_parallel(self, arguments) -> bool:
            return False

        def execute(self, arguments, context) -> ToolOutput:
            jobs.put(troupe.harness.work.add(context.session_id, "job-1", "bash", "job", lambda: None))
            return ToolOutput("started")

    troupe.harness.scope.tool(Job())
    agent = troupe.agent()
    agent.followup("go")
    item = jobs.get(timeout=PATIENCE_S)
    until(lambda: len(troupe.script.requests) == 3)
    child = next(ref for ref in troupe.harness.agents() if ref.id == item.owner)
    assert child.when_idle(PATIENCE_S) and agent.status().tool == "agent"
    child.steer("the job of the task is done: 42")
    troupe.harness.work.release(item)
    assert agent.when_done(PATIENCE_S)
    assert troupe.results() == ["the job says 42"]


def test_a_sub_agent_of_one_that_leaves_nothing_behind_goes_on_and_leaves_nothing(troupe: Troupe) -> None:
    troupe.play(
        delegate("task", background=True),
        {"text": "waiting"},
        {"text": "got it"},
        {"text": "got more"},
        {"for": "task", "text": "one"},
        {"for": "further", "text": "two"},
    )
    agent = troupe.agent(ephemeral=True)
    agent.run("go", PATIENCE_S)
    (child,) = troupe.children()
    troupe.harness.subagents.followup(agent.id, child, "further")
    assert agent.when_done(PATIENCE_S)
    assert said(troupe)[-1].endswith("two")
    assert list(troupe.harness.storage.list()) == []


def test_a_fork_behind_its_parent_shares_its_prefix_and_goes_on_with_it(troupe: Troupe) -> None:
    troupe.play(
        {"text": "the word is pear"},
        delegate("task", background=True, context="fork"),
        {"text": "waiting"},
        {"text": "got it"},
        {"text": "got more"},
        {"for": "task", "text": "one"},
        {"for": "further", "text": "two"},
    )
    agent = troupe.agent(append_system_prompt="Be brief.")
    agent.run("remember", PATIENCE_S)
    agent.run("go", PATIENCE_S)
    (child,) = troupe.children()
    troupe.harness.subagents.followup(agent.id, child, "further")
    assert agent.when_done(PATIENCE_S)
    assert said(troupe)[-1].endswith("two")
    assert {request.header for request in troupe.script.requests} == {troupe.script.requests[0].header}
