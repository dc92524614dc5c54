"""A live agent: it answers in the middle of everything, and what it does is in its log."""

from __future__ import annotations

import queue
import time

import pytest

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import Failure, Finish, TextDelta
from dsh_actors.core.messages import text_of
from dsh_actors.core.policy import ApprovalPolicy, Decision
from dsh_actors.core.retry import GiveUp
from dsh_actors.errors import ActorGone, EventRefused, ProtocolError, SessionBusy, SessionExists, UsageError
from dsh_actors.ports import ToolOutput, ToolSpec
from dsh_actors.runtime.tasks import start_task
from dsh_actors.testing.machine import call_chunks, text_chunks


class HeldTool:
    """A tool that waits until the test lets it go; ``began`` says that it runs."""

    def __init__(self, name: str = "held", parallel: bool = False) -> None:
        self.spec = ToolSpec(name, "waits", {"type": "object"}, changes=False)
        self.began: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.go: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._parallel = parallel

    def is_parallel(self, arguments) -> bool:
        return self._parallel

    def execute(self, arguments, context) -> ToolOutput:
        self.began.put(context)
        undo = context.cancel.on_cancel(lambda: self.go.put("cancelled"))
        try:
            return ToolOutput(self.go.get())
        finally:
            undo()


def test_a_turn_runs_and_its_log_is_on_disk(stage):
    agent = stage.agent()
    agent.followup("hello")
    stage.model.next_stream().send(*text_chunks("hi"))
    assert agent.when_idle(10)
    agent.dispose()
    assert stage.stored(agent.id) == stage.events
    assert stage.types()[-1] == "turn/end"


def test_the_mailbox_answers_in_the_middle_of_a_stream(stage):
    agent = stage.agent()
    agent.followup("hello")
    stream = stage.model.next_stream()
    stream.send(TextDelta(0, "half"))
    assert agent.status().phase == "streaming"
    agent.steer("and this")
    agent.inject("and that")
    assert agent.status().next_step == 2
    began = time.monotonic()
    agent.cancel()
    assert time.monotonic() - began < 5
    assert agent.when_idle(10)
    assert stream.request.messages[0].content[0].text == "hello"
    ends = [e.data["reason"] for e in stage.events if e.type == "turn/end"]
    assert ends == [{"kind": "aborted", "reason": {"kind": "user"}}]


def test_an_aborted_stream_is_told_so(stage):
    agent = stage.agent()
    agent.followup("hello")
    stream = stage.model.next_stream()
    agent.cancel()
    agent.followup("again")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    assert stream.aborted == "cancelled"


def test_steering_during_a_tool_is_in_the_next_request(stage):
    tool = HeldTool()
    agent = stage.agent(lambda scope: scope.tool(tool) and None)
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("held", "{}")))
    tool.began.get(timeout=10)
    assert agent.status().tool == "held"
    agent.steer("mind the gap")
    tool.go.put("done")
    stream = stage.model.next_stream()
    assert text_of(stream.request.messages[-1]) == "mind the gap"
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)


def test_cancel_reaches_a_running_tool_and_every_call_is_answered(stage):
    tool = HeldTool()
    agent = stage.agent(lambda scope: scope.tool(tool) and None)
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("held", "{}"), ("held", "{}")))
    tool.began.get(timeout=10)
    agent.cancel()
    assert agent.when_idle(10)
    results = [e.data["message"]["content"][0] for e in stage.events if e.type == "tool/result"]
    assert [r["content"][0]["text"].split(":")[0] for r in results] == ["cancelled", "Error"]


def test_a_provider_that_raises_ends_the_turn_with_its_code(stage):
    agent = stage.agent()
    agent.followup("hello")
    stage.model.next_stream().fail(ProtocolError("what is this", code="WEIRD"))
    assert agent.when_idle(10)
    end = stage.events[-1].data["reason"]
    assert end["kind"] == "error" and end["error"]["code"] == "WEIRD"


def test_a_stream_that_just_ends_is_retried(stage):
    agent = stage.agent()
    agent.followup("hello")
    stage.model.next_stream().send(Finish("error", Failure("reset", "TRANSPORT")))
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    assert "llm/retry" in stage.types() and stage.events[-1].data["reason"] == {"kind": "completed"}


def test_a_message_that_json_cannot_hold_is_refused_to_its_sender(stage):
    agent = stage.agent()
    with pytest.raises(EventRefused):
        agent.record("session/title", {"title": float("nan")})
    agent.followup("lone \ud800 surrogate")
    stream = stage.model.next_stream()
    assert text_of(stream.request.messages[0]) == "lone \ufffd surrogate"
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)


# --- extension points -----------------------------------------------------------------------------


def test_a_pre_step_interceptor_rewrites_what_is_logged_and_sent(stage):
    def rewrite(payload, following):
        entered = following()
        return io.Enter(tuple(m for m in entered.messages if "secret" not in text_of(m)))

    agent = stage.agent(lambda scope: scope.intercept("agent/pre-step", rewrite) and None)
    agent.inject("a secret")
    agent.followup("hello")
    stream = stage.model.next_stream()
    assert [text_of(m) for m in stream.request.messages if "secret" in text_of(m)] == []
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)


def test_a_failing_interceptor_is_an_error_result_and_the_agent_lives(stage):
    def explode(payload, following):
        raise RuntimeError("boom")

    undo = []
    agent = stage.agent(lambda scope: undo.append(scope.intercept("agent/pre-step", explode)))
    agent.followup("hello")
    assert agent.when_idle(10)
    assert stage.events[-1].data["reason"]["error"]["message"] == "boom"
    undo[0]()
    agent.followup("again")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    assert stage.events[-1].data["reason"] == {"kind": "completed"}


def test_a_request_error_interceptor_decides_before_the_policy(stage):
    agent = stage.agent(
        lambda scope: scope.intercept("agent/request-error", lambda p, n: GiveUp("network")) and None
    )
    agent.followup("hello")
    stage.model.next_stream().send(Finish("error", Failure("reset", "TRANSPORT")))
    assert agent.when_idle(10)
    assert "llm/retry" not in stage.types()


def test_post_execute_changes_what_the_model_reads(stage):
    def censor(payload, following):
        result = following()
        return io.ToolResult(result.text.replace("apple", "pear"))

    tool = HeldTool()

    def setup(scope):
        scope.tool(tool)
        scope.intercept("tools/post-execute", censor)

    agent = stage.agent(setup)
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("held", "{}")))
    tool.go.put("an apple")
    stream = stage.model.next_stream()
    assert stream.request.messages[-1].content[0].content[0].text == "an pear"
    agent.cancel()
    assert agent.when_idle(10)


def test_a_guard_denies_and_nobody_overrules_it(stage):
    tool = HeldTool()

    def setup(scope):
        scope.tool(tool)
        scope.guard(lambda call: "not on Mondays")
        scope.guard(lambda call: None)

    agent = stage.agent(setup)
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("held", "{}")))
    stream = stage.model.next_stream()
    result = stream.request.messages[-1].content[0]
    assert result.is_error and "not on Mondays" in result.content[0].text
    agent.cancel()
    assert agent.when_idle(10)
    assert tool.began.empty()


def test_an_answer_of_the_wrong_kind_denies(stage):
    tool = HeldTool()

    def setup(scope):
        scope.tool(tool)
        scope.intercept("tools/pre-execute", lambda payload, following: "sure")

    agent = stage.agent(setup)
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("held", "{}")))
    assert stage.model.next_stream().request.messages[-1].content[0].is_error
    agent.cancel()
    assert agent.when_idle(10)


def test_what_needs_approval_is_denied_when_nobody_can_answer(stage):
    policy = ApprovalPolicy.from_toml({"default": "ask"}, "rules.toml")
    agent = stage.agent(policy=policy)
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("bash", '{"command": "echo hi"}')))
    stream = stage.model.next_stream()
    assert "nobody is there" in stream.request.messages[-1].content[0].content[0].text
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)
    decided = [e.data["outcome"] for e in stage.events if e.type == "approval/decided"]
    asked = [e.data["toolName"] for e in stage.events if e.type == "approval/asked"]
    assert (asked, decided) == (["bash"], ["unavailable"])
    denied = next(e.data["meta"]["denied"] for e in stage.events if e.type == "tool/result")
    assert denied["tool"] == "bash"


def test_turn_stopping_listeners_object_by_steering(stage):
    handles = []
    seen = []

    def object_once(payload):
        if not seen:
            seen.append(payload)
            handles[0].steer("one more thing")

    agent = stage.agent(lambda scope: scope.listen("agent/turn-stopping", object_once) and None)
    handles.append(agent)
    agent.followup("hello")
    stage.model.next_stream().send(*text_chunks("done"))
    stream = stage.model.next_stream()
    assert text_of(stream.request.messages[-1]) == "one more thing"
    stream.send(*text_chunks("really done"))
    assert agent.when_idle(10)
    assert stage.types().count("turn/start") == 1


def test_a_failing_observer_changes_nothing(stage):
    def explode(payload):
        raise RuntimeError("boom")

    agent = stage.agent(lambda scope: scope.observe("session/event", explode) and None)
    agent.followup("hello")
    stage.model.next_stream().send(*text_chunks("hi"))
    assert agent.when_idle(10)
    assert stage.events[-1].data["reason"] == {"kind": "completed"}


def test_a_pre_execute_interceptor_may_allow_what_follows(stage):
    tool = HeldTool()
    calls = []

    def watch(payload, following):
        calls.append(payload["call"].name)
        decision = following()
        assert isinstance(decision, Decision)
        return decision

    def setup(scope):
        scope.tool(tool)
        scope.intercept("tools/pre-execute", watch)

    agent = stage.agent(setup)
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("held", "{}")))
    tool.go.put("done")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    assert calls == ["held"]


def test_what_registers_on_a_preset_holds_for_its_agents_only(stage):
    tool = HeldTool()
    stage.harness.preset("reviewer").tool(tool)
    for preset, expected in (("reviewer", True), (None, False)):
        agent = stage.agent(preset=preset)
        agent.followup("hello")
        stream = stage.model.next_stream()
        assert ("held" in [t.name for t in stream.request.header.tools]) is expected
        stream.send(*text_chunks("ok"))
        assert agent.when_idle(10)
    with pytest.raises(UsageError):
        stage.agent(preset="nobody")


# --- creation and the end -------------------------------------------------------------------------


def test_a_failing_setup_leaves_nothing_behind(stage):
    def explode(scope):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        stage.agent(explode, session_id="one")
    assert stage.harness.agents() == []
    assert list(stage.harness.storage.list()) == []
    assert stage.agent(session_id="one").id == "one"


def test_a_failing_commit_leaves_nothing_behind(stage):
    def fail():
        raise RuntimeError("too late")

    with pytest.raises(RuntimeError, match="too late"):
        stage.agent(lambda scope: fail, session_id="one")
    assert stage.harness.agents() == []


def test_a_created_observer_may_veto(stage):
    def veto(payload):
        raise RuntimeError("vetoed")

    with pytest.raises(RuntimeError, match="vetoed"):
        stage.agent(lambda scope: scope.observe("agent/created", veto) and None, session_id="one")
    stage.harness.agents()


def test_bad_options_are_refused_before_anything_exists(stage):
    for fields in ({"tools": ("nope",)}, {"add_dirs": ("/does/not/exist",)}):
        with pytest.raises(UsageError):
            stage.agent(**fields)
    with pytest.raises(UsageError):
        stage.harness.create(stage.options().__class__(model="nope/m", cwd=str(stage.cwd)))
    assert list(stage.harness.storage.list()) == []


def test_an_id_is_live_only_once(stage):
    stage.agent(session_id="one")
    with pytest.raises((SessionBusy, SessionExists)):
        stage.agent(session_id="one")
    with pytest.raises(SessionBusy):
        stage.harness.resume("one", stage.options())


def test_dispose_ends_the_turn_keeps_the_log_and_frees_the_id(stage):
    agent = stage.agent(session_id="one")
    agent.followup("hello")
    stage.model.next_stream().send(TextDelta(0, "half"))
    agent.dispose()
    assert stage.events[-1].data["reason"] == {"kind": "aborted", "reason": {"kind": "disposed"}}
    with pytest.raises(ActorGone):
        agent.followup("too late")
    again = stage.harness.resume("one", stage.options())
    again.followup("go on")
    stream = stage.model.next_stream()
    texts = [text_of(m) for m in stream.request.messages]
    assert texts[0] == "hello" and texts[-1] == "go on" and "half" in texts
    again.dispose()


def test_run_gives_the_outcome_of_one_task(stage):
    agent = stage.agent()
    waiting = queue.SimpleQueue()
    task = start_task(lambda token: agent.run("hello"), waiting.put, name="run")
    stage.model.next_stream().send(*text_chunks("hi"))
    end = waiting.get(timeout=10).value
    assert (end.reason, end.answer, end.steps) == ("completed", "hi", 1)
    assert task.ended


def test_run_that_takes_too_long_is_cancelled(stage):
    end = stage.agent().run("hello", timeout=0.05)
    assert end.reason == "timeout" and end.exit_code == 124


def test_run_that_waits_too_long_for_what_its_agent_has_started_is_no_success(stage):
    agent, work, waiting = stage.agent(), stage.harness.work, queue.SimpleQueue()
    item = work.add(agent.id, "bash-1", "bash", "make", lambda: None)
    start_task(lambda token: agent.run("hello", timeout=1.0), waiting.put, name="run")
    stage.model.next_stream().send(*text_chunks("waiting"))
    end = waiting.get(timeout=10).value
    assert (end.reason, end.exit_code, end.answer, end.abandoned) == ("timeout", 124, "waiting", ("bash-1",))
    assert end.partial
    work.release(item)


def test_ephemeral_agents_leave_nothing_on_disk(stage):
    agent = stage.agent(ephemeral=True)
    agent.followup("hello")
    stage.model.next_stream().send(*text_chunks("hi"))
    assert agent.when_idle(10)
    agent.dispose()
    assert list(stage.home.rglob("*.zst")) == []
