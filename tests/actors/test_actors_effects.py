"""Foreign code around a live agent: whatever it does, the agent, its log and its other guests are well."""

from __future__ import annotations

import dataclasses
import os
import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.approvals import ApprovalsActor
from dsh_actors.actors.chains import Answer
from dsh_actors.actors.effects import EffectRunner
from dsh_actors.config import load_config
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import BlockStart, Failure, Finish, TextDelta
from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import (
    Message,
    TextBlock,
    ToolResultBlock,
    UserSource,
    text_of,
    user_message,
)
from dsh_actors.core.options import Limits
from dsh_actors.core.policy import ApprovalPolicy, Decision
from dsh_actors.core.retry import Retry, RetryPolicy
from dsh_actors.core.scope import Scope
from dsh_actors.errors import EventRefused, ProtocolError
from dsh_actors.harness import Harness
from dsh_actors.ports import CancelToken, ToolOutput, ToolSpec
from dsh_actors.runtime.actor import live_actors, start_actor
from dsh_actors.runtime.tasks import start_task
from dsh_actors.testing.machine import call_chunks, text_chunks

DEADLINE_S = 10.0
ASKING = ApprovalPolicy.from_toml({"default": "ask"}, "rules.toml")
BASH = ("bash", '{"command": "echo hi"}')

ENDLESS: dict = {}
ENDLESS["itself"] = ENDLESS


class ToolDouble:
    """Does what the test says; ``calls`` hears the context of each call."""

    def __init__(self, work=lambda context: ToolOutput("done"), name="t", parallel=lambda arguments: False):
        self.spec = ToolSpec(name, "x", {"type": "object"}, changes=False)
        self.is_parallel = parallel
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._work = work

    def execute(self, arguments, context) -> Any:
        self.calls.put(context)
        return self._work(context)


def reason_of_cancel(token: CancelToken, waiting: Callable[[], object] = lambda: None) -> object:
    """Wait until ``token`` is thrown, after saying so by ``waiting``; why it was."""
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    token.on_cancel(lambda: woken.put(None))
    waiting()
    woken.get(timeout=DEADLINE_S)
    return token.reason


def actor_of(name: str) -> Any:
    return next(actor for actor in live_actors() if actor.name == name)


def with_tool(tool, **handlers):
    """A setup: the tool, and interceptors by point (``tools_execute=f``)."""

    def setup(scope):
        scope.tool(tool)
        for point, handler in handlers.items():
            scope.intercept(point.replace("_", "/", 1).replace("_", "-"), handler)

    return setup


def results(stage) -> list[tuple[str, str | None]]:
    """Text and error code of each tool result so far."""
    found = [event.data for event in stage.events if event.type == "tool/result"]
    return [
        (data["message"]["content"][0]["content"][0]["text"], data.get("error", {}).get("code"))
        for data in found
    ]


def last_end(stage) -> dict[str, Any]:
    return next(event.data["reason"] for event in reversed(stage.events) if event.type == "turn/end")


def assert_healthy(stage, agent) -> None:
    """The agent takes another turn, and what is stored is what was seen."""
    agent.followup("are you well?")
    stage.model.next_stream().send(*text_chunks("yes"))
    assert agent.when_idle(DEADLINE_S)
    assert last_end(stage) == {"kind": "completed"}
    agent.dispose()
    assert stage.stored(agent.id) == stage.events


# --- what senders hand in -------------------------------------------------------------------------

BAD_MESSAGES = {
    "assistant": Message("m", "assistant", (TextBlock("x"),), UserSource()),  # type: ignore[arg-type]
    "system": Message("m", "system", (TextBlock("x"),), UserSource()),  # type: ignore[arg-type]
    "no text": Message("m", "user", (TextBlock(7),), UserSource()),  # type: ignore[arg-type]
    "no id": Message("", "user", (TextBlock("x"),), UserSource()),  # type: ignore[arg-type]
    "number for an id": Message(7, "user", (TextBlock("x"),), UserSource()),  # type: ignore[arg-type]
    "surrogate": Message("m", "user", (TextBlock("\ud800"),), UserSource()),  # type: ignore[arg-type]
    "tool result": Message(  # type: ignore[arg-type]
        "m", "user", (ToolResultBlock(CallId("c"), (TextBlock("x"),)),), UserSource()
    ),
}


@pytest.mark.parametrize("message", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_a_message_that_is_no_input_is_refused_to_its_sender(stage, message):
    agent = stage.agent()
    for send in (agent.followup, agent.steer, agent.inject):
        with pytest.raises(EventRefused):
            send(message)
    kept = agent.inject("this one is fine")
    with pytest.raises(EventRefused):
        agent._ask(io.EditInbox(kept, message))
    assert agent.status().next_step == 1
    assert_healthy(stage, agent)


def test_a_message_id_that_is_pending_is_refused_and_changes_nothing(stage):
    agent = stage.agent()
    agent.inject(user_message("same", "one"))
    with pytest.raises(EventRefused):
        agent.inject(user_message("same", "two"))
    assert_healthy(stage, agent)


@pytest.mark.parametrize(
    "cause", [{"kind": "weather"}, {"kind": "hook"}, {}, {"kind": "user", "x": float("nan")}, "user"]
)
def test_a_cancel_needs_a_cause_that_is_known(stage, cause):
    agent = stage.agent()
    agent.followup("hello")
    stream = stage.model.next_stream()
    with pytest.raises(EventRefused):
        agent._ask(io.Cancel(cause))
    assert agent.status().phase == "streaming"
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert_healthy(stage, agent)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("turn/start", {"turn": 9}),
        ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}),
        ("step/start", {"turn": 1, "step": 9}),
        ("user/message", user_message("m", "x").to_json()),
        ("assistant/message", {}),
        ("assistant/chunk", {"chunk": {"type": "usage"}}),
        ("tool/result", {}),
        ("tool/call", {"callId": "c", "name": "t", "arguments": ""}),
        ("agent/inbox/spliced", {"target": "next-step", "start": 0, "inserted": []}),
        ("request/header", {}),
        ("llm/retry", {}),
        ("session/end-seed", {}),
        ("todo/write", {}),
        ("todo/write", {"todos": [1]}),
        ("session/title", {"title": 7}),
        ("my-plugin/fact", ["no object"]),
        ("my-plugin/fact", ENDLESS),
        ("", {}),
        (7, {}),
    ],
)
def test_a_fact_that_is_part_of_the_structure_or_misshapen_is_refused(stage, kind, data):
    agent = stage.agent()
    with pytest.raises(EventRefused):
        agent.record(kind, data)
    assert agent.status().next_seq == 0
    assert_healthy(stage, agent)


def test_a_fact_of_an_unknown_type_can_be_skipped_by_every_reader(stage):
    agent = stage.agent()
    agent.record("my-plugin/fact", {"x": 1})
    agent.record("session/title", {"title": "A walk"})
    agent.record("run/note", {"x": 1})
    assert [(e.type, e.ignorable) for e in stage.events] == [
        ("my-plugin/fact", True),
        ("session/title", False),
        ("run/note", True),
    ]
    for event in stage.events:
        event.require_known()
    assert_healthy(stage, agent)


def test_what_is_not_a_message_for_an_agent_is_refused(stage):
    agent = stage.agent()
    with pytest.raises(ProtocolError):
        agent._ask(object())
    with pytest.raises(ProtocolError):
        agent._ask(io.Deliver(user_message("m", "x"), "sometime"))  # type: ignore[arg-type]
    assert_healthy(stage, agent)


# --- transitions that fail ------------------------------------------------------------------------


def test_a_transition_that_fails_half_way_ends_the_agent_also_for_an_asker(stage):
    agent = stage.agent()
    agent.inject("first")
    machine = actor_of(agent.id).machine
    advance = machine.advance

    def fail_after_the_fold(message, now):
        advance(message, now)
        raise EventRefused("too late")

    machine.advance = fail_after_the_fold
    with pytest.raises(EventRefused, match="too late"):
        agent.inject("second")
    assert agent.status().next_step == 1
    assert actor_of(agent.id).machine is not machine
    assert_healthy(stage, agent)


def test_an_asker_whose_message_was_taken_hears_no_later_failure(stage):
    agent = stage.agent()
    runner = actor_of(agent.id)._effects

    def fail(effect):
        raise gevent.Timeout(1)

    runner.carry_out = fail
    sent = agent.followup("first")
    assert agent.when_idle(DEADLINE_S)
    assert actor_of(agent.id)._effects is not runner
    agent.dispose()
    stored = stage.stored(agent.id)
    assert any(sent in str(event.data) for event in stored)
    assert [event.seq for event in stored] == list(range(len(stored)))


@pytest.mark.parametrize("error", [gevent.Timeout(1), gevent.GreenletExit(), RuntimeError("boom")])
def test_an_observer_that_raises_anything_changes_nothing(stage, error):
    told = []

    def explode(event):
        raise error

    def setup(scope):
        scope.observe("session/event", explode)
        scope.observe("agent/error", told.append)

    agent = stage.agent(setup)
    assert_healthy(stage, agent)
    assert told[0].keys() == {"session", "message", "code"} and told[0]["session"] == agent.id


def test_the_store_has_an_event_before_any_observer_sees_it(stage, monkeypatch):
    order: list[str] = []
    tell = Address.tell

    def recording(address, message):
        if isinstance(message, p.AppendEvents):
            order.append("stored")
        tell(address, message)

    monkeypatch.setattr(Address, "tell", recording)
    agent = stage.agent(lambda scope: scope.observe("session/event", lambda e: order.append("seen")) and None)
    agent.inject("hello")
    assert order == ["stored", "seen"]


# --- interceptors, guards, listeners --------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        io.Enter((BAD_MESSAGES["system"],)),
        io.Enter((BAD_MESSAGES["assistant"],)),
        io.Enter(("hello",)),  # type: ignore[arg-type]
        io.Enter(None),  # type: ignore[arg-type]
        "hello",
    ],
    ids=range(5),
)
def test_a_pre_step_answer_that_cannot_be_used_ends_the_turn_with_an_error(stage, answer):
    told, undo = [], []

    def setup(scope):
        undo.append(scope.intercept("agent/pre-step", lambda payload, following: answer))
        scope.observe("agent/error", told.append)

    agent = stage.agent(setup)
    agent.followup("hello")
    assert agent.when_idle(DEADLINE_S)
    assert last_end(stage)["kind"] == "error"
    assert len(told) == 1 and {"session", "message", "code", "turn"} <= told[0].keys()
    undo[0]()
    assert_healthy(stage, agent)


def test_an_interceptor_is_told_of_a_cancel_and_its_late_answer_does_not_count(stage):
    began: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answered: queue.SimpleQueue[object] = queue.SimpleQueue()

    def ask_late(payload, following):
        answered.put(reason_of_cancel(payload["cancel"], lambda: began.put(payload)))
        return Decision("ask", "late", "too late")

    agent = stage.agent(with_tool(ToolDouble(), **{"tools_pre_execute": ask_late}))
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}")))
    began.get(timeout=DEADLINE_S)
    agent.cancel()
    assert answered.get(timeout=DEADLINE_S) == {"kind": "user"}
    assert agent.when_idle(DEADLINE_S)
    assert_healthy(stage, agent)
    assert "approval/asked" not in stage.types()


def explode(payload, following):
    raise RuntimeError("boom")


def test_a_failing_pre_execute_keeps_the_call_from_running(stage):
    tool = ToolDouble()
    agent = stage.agent(with_tool(tool, tools_pre_execute=explode))
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}")))
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert results(stage) == [("Error: boom", "UNKNOWN")] and tool.calls.empty()


def wrong_kind(payload, following):
    return "fine"


def misshapen(payload, following):
    return dataclasses.replace(following(), contexts=("hello",))


def structural(payload, following):
    return dataclasses.replace(following(), events=(("turn/end", {"turn": 1}),))


@pytest.mark.parametrize("interceptor", [explode, wrong_kind, misshapen, structural])
def test_a_failing_post_execute_lets_no_result_pass(stage, interceptor):
    agent = stage.agent(with_tool(ToolDouble(), tools_post_execute=interceptor))
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}")))
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    ((text, code),) = results(stage)
    assert "done" not in text and code is not None
    assert_healthy(stage, agent)


def test_tools_and_streams_are_intercepted(stage):
    def around(payload, following):
        return ToolOutput(f"<{following().text}>")

    def serve(payload, following):
        answered = any(message.role == "assistant" for message in payload["request"].messages)
        return [text_chunks("not the provider")] if answered else following()

    agent = stage.agent(with_tool(ToolDouble(), tools_execute=around, llm_stream=serve))
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}")))
    assert agent.when_idle(DEADLINE_S)
    assert results(stage)[0][0] == "<done>"
    reply = [event for event in stage.events if event.type == "assistant/message"][-1]
    assert reply.data["message"]["content"][0]["text"] == "not the provider"


def test_a_guard_that_takes_its_time_does_not_hold_the_agent(stage):
    began: queue.SimpleQueue[object] = queue.SimpleQueue()
    go: queue.SimpleQueue[str] = queue.SimpleQueue()

    def guard(call):
        began.put(call)
        return go.get(timeout=DEADLINE_S)

    def setup(scope):
        scope.tool(ToolDouble())
        scope.guard(guard)

    agent = stage.agent(setup)
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}")))
    began.get(timeout=DEADLINE_S)
    assert agent.status().phase == "tools"
    go.put("not today")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert results(stage) == [("Error: not today", "DENIED")]


def test_every_turn_stopping_listener_is_called_though_one_fails(stage):
    called = []

    def fail(payload):
        called.append("first")
        raise RuntimeError("boom")

    def setup(scope):
        scope.listen("agent/turn-stopping", fail)
        scope.listen("agent/turn-stopping", lambda payload: called.append("second"))

    agent = stage.agent(setup)
    agent.followup("hello")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert called == ["first", "second"]
    assert last_end(stage)["error"]["message"] == "boom"


@pytest.mark.parametrize("delay", [-1, 0.5, "soon", 10**12])
def test_a_retry_after_no_proper_delay_is_refused(stage, delay):
    agent = stage.agent(
        lambda scope: scope.intercept("agent/request-error", lambda p, n: Retry(delay)) and None
    )
    agent.followup("hello")
    stage.model.next_stream().send(Finish("error", Failure("reset", "TRANSPORT")))
    assert agent.when_idle(DEADLINE_S)
    assert last_end(stage)["error"]["code"] == "PROTOCOL"
    assert_healthy(stage, agent)


@pytest.mark.parametrize("output", [0, -1, 0.5, "much", True])
def test_a_retry_with_no_proper_output_limit_is_refused(stage, output):
    agent = stage.agent(
        lambda scope: (
            scope.intercept("agent/request-error", lambda p, n: Retry(0, max_output=output)) and None
        )
    )
    agent.followup("hello")
    stage.model.next_stream().send(Finish("error", Failure("too long", "CONTEXT_WINDOW_EXCEEDED")))
    assert agent.when_idle(DEADLINE_S)
    assert last_end(stage)["error"]["code"] == "PROTOCOL"
    assert_healthy(stage, agent)


def test_the_lower_of_the_routes_and_the_runs_patience_counts(stage):
    stage.model.retry_policy = RetryPolicy(max_retries=1, initial_delay_ms=0, max_delay_ms=0)
    agent = stage.agent(limits=Limits(max_retries=4))
    agent.followup("hello")
    for _ in range(2):
        stage.model.next_stream().send(Finish("error", Failure("reset", "TRANSPORT")))
    assert agent.when_idle(DEADLINE_S)
    assert [e.data["maxRetries"] for e in stage.events if e.type == "llm/retry"] == [1]


@pytest.mark.parametrize("hint", [{"should_retry": "no"}, {"fitting_output": 1.5}])
def test_a_failure_with_an_improper_hint_is_malformed(stage, hint):
    agent = stage.agent(limits=Limits(max_retries=0))
    agent.followup("hello")
    stage.model.next_stream().send(Finish("error", Failure("x", "TRANSPORT", **hint)))
    assert agent.when_idle(DEADLINE_S)
    assert last_end(stage)["error"]["code"] == "MALFORMED_RESPONSE"


# --- prompts and models ---------------------------------------------------------------------------


def next_system(stage, agent) -> str:
    agent.followup("hello")
    stream = stage.model.next_stream()
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    return stream.request.header.system


def test_a_section_that_is_registered_later_is_in_the_next_prompt(stage):
    scopes = []
    agent = stage.agent(lambda scope: scopes.append(scope))
    assert "LATER" not in next_system(stage, agent)
    scopes[0].section("later", 50, "LATER")
    assert "LATER" in next_system(stage, agent)


def test_a_computed_section_is_computed_for_each_step(stage):
    mode = ["slow\ud800"]
    agent = stage.agent(lambda scope: scope.section("mode", 50, lambda: f"MODE {mode[0]}") and None)
    assert next_system(stage, agent).endswith("MODE slow\ufffd")
    mode[0] = "quick"
    assert next_system(stage, agent).endswith("MODE quick")
    headers = [event for event in stage.events if event.type == "request/header"]
    assert next_system(stage, agent).endswith("MODE quick")
    assert [event for event in stage.events if event.type == "request/header"] == headers


class CallDouble:
    """A prepared call whose encoder can be counted, or fails."""

    def __init__(self, call, encoder) -> None:
        self.config, self.adapter_defaults, self.context_window = call.config, frozenset(), None
        self.encoder = encoder


def test_an_encoder_that_cannot_be_made_ends_the_turn_and_not_the_agent(stage, monkeypatch):
    prepare, broken = stage.model.prepare, [True]

    def fail():
        raise RuntimeError("no encoder")

    monkeypatch.setattr(
        stage.model,
        "prepare",
        lambda config: CallDouble(prepare(config), fail) if broken else prepare(config),
    )
    agent = stage.agent()
    agent.followup("hello")
    assert agent.when_idle(DEADLINE_S)
    assert last_end(stage)["error"]["message"] == "no encoder"
    broken.clear()
    assert_healthy(stage, agent)


def test_an_encoder_is_kept_for_a_model_and_made_anew_for_another(stage, monkeypatch):
    prepare, made, model = stage.model.prepare, [], ["m"]

    def counting(config):
        call = prepare(config)

        def encoder():
            made.append(config.model)
            return call.encoder()

        return CallDouble(call, encoder)

    monkeypatch.setattr(stage.model, "prepare", counting)
    agent = stage.agent(
        lambda scope: (
            scope.intercept(
                "agent/request", lambda payload, following: dataclasses.replace(following(), model=model[0])
            )
            and None
        )
    )
    next_system(stage, agent)
    next_system(stage, agent)
    model[0] = "n"
    next_system(stage, agent)
    assert made == ["m", "n"]


def test_a_prepared_call_that_cannot_be_logged_ends_the_turn_with_an_error(stage, monkeypatch):
    prepare, window = stage.model.prepare, [object()]

    def odd(config):
        call = CallDouble(prepare(config), prepare(config).encoder)
        call.context_window = window[0]
        return call

    monkeypatch.setattr(stage.model, "prepare", odd)
    agent = stage.agent()
    agent.followup("hello")
    assert agent.when_idle(DEADLINE_S)
    assert last_end(stage)["kind"] == "error"
    window[0] = 1_000
    assert_healthy(stage, agent)


def test_a_stream_that_cannot_be_assembled_is_tried_again(stage):
    agent = stage.agent()
    agent.followup("hello")
    stage.model.next_stream().send(BlockStart(0, "image"), TextDelta(1, "x"), Finish("stop"))
    stage.model.next_stream().send(TextDelta(0, "half \ud800"), Finish("stop"))
    assert agent.when_idle(DEADLINE_S)
    retry = next(event for event in stage.events if event.type == "llm/retry")
    assert retry.data["failure"]["code"] == "MALFORMED_RESPONSE"
    assert_healthy(stage, agent)


@pytest.mark.parametrize("retries", [0, 2])
def test_an_agent_retries_as_often_as_its_own_limits_say(stage, retries):
    agent = stage.agent(limits=Limits(max_retries=retries))
    agent.followup("hello")
    for _ in range(retries + 1):
        stage.model.next_stream().send(Finish("error", Failure("reset", "TRANSPORT")))
    assert agent.when_idle(DEADLINE_S)
    assert [e.data["maxRetries"] for e in stage.events if e.type == "llm/retry"] == [retries] * retries
    assert last_end(stage)["kind"] == "error"


# --- tools ----------------------------------------------------------------------------------------


def raising(arguments):
    raise KeyError("k")


def timing_out(arguments):
    raise gevent.Timeout(1)


@pytest.mark.parametrize("classify", [raising, timing_out, lambda arguments: "yes"])
def test_a_tool_that_cannot_say_whether_it_is_parallel_runs_alone(stage, classify):
    go: queue.SimpleQueue[str] = queue.SimpleQueue()
    tool = ToolDouble(lambda context: ToolOutput(go.get(timeout=DEADLINE_S)), parallel=classify)
    agent = stage.agent(with_tool(tool))
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}"), ("t", "{}")))
    tool.calls.get(timeout=DEADLINE_S)
    agent.status()
    with pytest.raises(queue.Empty):
        tool.calls.get(timeout=0.05)
    go.put("one")
    tool.calls.get(timeout=DEADLINE_S)
    go.put("two")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert [text for text, _ in results(stage)] == ["one", "two"]
    assert_healthy(stage, agent)


def test_contexts_whose_ids_are_taken_get_others(stage):
    pending = user_message("taken", "pending")
    contexts = (user_message("same", "one"), user_message("same", "two"), user_message("taken", "three"))
    go: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work(context):
        go.get(timeout=DEADLINE_S)
        return ToolOutput("done", contexts=contexts)

    tool = ToolDouble(work)
    agent = stage.agent(with_tool(tool))
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}")))
    tool.calls.get(timeout=DEADLINE_S)
    agent.inject(pending)
    go.put(None)
    stream = stage.model.next_stream()
    told = [m for m in stream.request.messages if text_of(m) in ("pending", "one", "two", "three")]
    assert {text_of(m) for m in told} == {"pending", "one", "two", "three"}
    assert len({m.id for m in told}) == 4
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert_healthy(stage, agent)


def test_tools_are_told_to_stop_when_their_agent_crashes_and_the_next_life_is_its_own(stage):
    def work(context):
        stopped.put(reason_of_cancel(context.cancel))
        return ToolOutput("stopped")

    stopped: queue.SimpleQueue[object] = queue.SimpleQueue()
    tool = ToolDouble(work)
    agent = stage.agent(with_tool(tool))
    for cause in ({"kind": "disposed"}, {"kind": "user"}):
        agent.followup("hello")
        stage.model.next_stream().send(*call_chunks(("t", "{}")))
        tool.calls.get(timeout=DEADLINE_S)
        if cause["kind"] == "user":
            agent.cancel()
        else:
            agent._address.tell(object())
        assert stopped.get(timeout=DEADLINE_S) == cause
        assert agent.when_idle(DEADLINE_S)


def test_children_of_tools_do_not_inherit_the_keys_of_providers(tmp_path, monkeypatch):
    secret = "sk-0123456789abcdef"
    for name, value in {"DEEPSEEK_API_KEY": secret, "COPY_OF_IT": secret, "HARMLESS": "yes"}.items():
        monkeypatch.setenv(name, value)
    config = load_config(env={**os.environ, "DSH_HOME": str(tmp_path / "home")}, cwd=str(tmp_path))
    with Harness.open(config) as harness:
        env = harness._assembly._child_environment()
    assert env["HARMLESS"] == "yes"
    assert "DEEPSEEK_API_KEY" not in env and secret not in env.values()


def test_a_key_that_is_none_takes_no_other_variable_from_children(tmp_path, monkeypatch):
    for name, value in {"OPENAI_API_KEY": "none", "PROGRESS": "none"}.items():
        monkeypatch.setenv(name, value)
    config = load_config(env={**os.environ, "DSH_HOME": str(tmp_path / "home")}, cwd=str(tmp_path))
    with Harness.open(config) as harness:
        env = harness._assembly._child_environment()
    assert env["PROGRESS"] == "none" and "OPENAI_API_KEY" not in env


def test_a_resumed_session_keeps_the_words_it_began_with(stage):
    agent = stage.agent(session_id="one", system_prompt="You are {{brave}}.")
    first = next_system(stage, agent)
    agent.dispose()
    again = stage.harness.resume("one", stage.options())
    assert next_system(stage, again) == first


# --- approvals ------------------------------------------------------------------------------------


class AnswererDouble:
    """Somebody who can be asked; ``broken`` makes every question fail."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.withdrawn: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.broken = False

    def ask(self, request, answer) -> None:
        if self.broken:
            raise RuntimeError("no line")
        self.asked.put((request, answer))

    def withdraw(self, approval_id, outcome) -> None:
        self.withdrawn.put(approval_id)
        raise RuntimeError("not reachable")


@pytest.fixture
def answerer(stage) -> AnswererDouble:
    double = AnswererDouble()
    stage.agent().dispose()
    actor_of("approvals")._answerer = double
    return double


def ask_for_bash(stage, agent) -> None:
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(BASH))


def test_an_answerer_that_fails_means_that_nobody_is_there(stage, answerer):
    answerer.broken = True
    agent = stage.agent(policy=ASKING)
    ask_for_bash(stage, agent)
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert results(stage)[0][1] == "DENIED"
    assert actor_of("approvals").generation == 0


def test_approvals_that_end_leave_no_agent_waiting(stage, answerer):
    agent = stage.agent(policy=ASKING)
    ask_for_bash(stage, agent)
    answerer.asked.get(timeout=DEADLINE_S)
    stage.harness._at.approvals.tell(object())
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert results(stage)[0][1] == "DENIED"


def test_the_questions_of_a_crashed_agent_are_withdrawn_and_their_answers_reach_nobody(stage, answerer):
    agent = stage.agent(policy=ASKING)
    ask_for_bash(stage, agent)
    old, answer_old = answerer.asked.get(timeout=DEADLINE_S)
    agent._address.tell(object())
    assert answerer.withdrawn.get(timeout=DEADLINE_S) == old.approval_id
    assert agent.when_idle(DEADLINE_S)
    ask_for_bash(stage, agent)
    new, answer_new = answerer.asked.get(timeout=DEADLINE_S)
    assert new.approval_id != old.approval_id
    answer_old("allowed-once")
    answer_new("rejected")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert [code for _, code in results(stage)][-1] == "DENIED"


def test_a_question_that_is_answered_yes_lets_the_call_run(stage, answerer):
    agent = stage.agent(policy=ASKING)
    ask_for_bash(stage, agent)
    _, answer = answerer.asked.get(timeout=DEADLINE_S)
    answer("allowed-once")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert results(stage)[0][1] is None


def test_a_decision_with_words_that_cannot_be_logged_refuses_the_call(stage):
    tool = ToolDouble()
    odd = Decision("ask", "odd", "\ud800")
    agent = stage.agent(with_tool(tool, tools_pre_execute=lambda payload, following: odd))
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}")))
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(DEADLINE_S)
    assert results(stage)[0][1] == "EVENT_REFUSED" and tool.calls.empty()
    assert_healthy(stage, agent)


def test_open_questions_are_answered_when_the_approvals_are_stopped():
    replies: queue.SimpleQueue[str] = queue.SimpleQueue()
    double = AnswererDouble()
    ref = start_actor(ApprovalsActor(name="approvals", parent=None, generation=0, answerer=double))
    ref.tell(p.RequestApproval("s", "a-1", "bash", {}, "why", replies.put))
    double.asked.get(timeout=DEADLINE_S)
    ref.stop(timeout=DEADLINE_S)
    assert replies.get(timeout=DEADLINE_S) == "unavailable"


# --- the runner by itself -------------------------------------------------------------------------


class RefDouble:
    def __init__(self) -> None:
        self.told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.tell = self.told.put


def bare_runner(scope: Scope) -> tuple[EffectRunner, RefDouble, list[io.Input]]:
    nobody = SimpleNamespace(tell=lambda message: None)
    wiring: Any = SimpleNamespace(store=nobody, gateway=nobody, pool=nobody)
    gate = SimpleNamespace(drop=lambda ticket: [], close=lambda: None)
    parts: Any = SimpleNamespace(scope=scope, gate=gate)
    ref: Any = RefDouble()
    fed: list[io.Input] = []
    return EffectRunner("s", wiring, parts, ref, fed.extend), ref, fed  # type: ignore[arg-type]


def test_a_cancel_reaches_post_execute_and_its_late_answer_does_not_count():
    reasons: queue.SimpleQueue[object] = queue.SimpleQueue()
    began: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(payload, following):
        reasons.put(reason_of_cancel(payload["cancel"], lambda: began.put(None)))
        return io.ToolResult("too late")

    scope = Scope("agent")
    scope.intercept("tools/post-execute", wait)
    runner, ref, fed = bare_runner(scope)
    result = io.ToolResult("done")
    runner.carry_out(io.FinaliseTool(5, 0, io.Call("c", "t", {}), result))  # type: ignore[arg-type]
    began.get(timeout=DEADLINE_S)
    runner.carry_out(io.CancelWork(5, {"kind": "user"}))  # type: ignore[arg-type]
    assert reasons.get(timeout=DEADLINE_S) == {"kind": "user"}
    late = ref.told.get(timeout=DEADLINE_S)
    assert isinstance(late, Answer)
    runner.on_answer(late)
    assert fed == []


def test_a_cancelled_turn_does_not_wait_for_post_execute(stage):
    began: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(payload, following):
        reason_of_cancel(payload["cancel"], lambda: began.put(None))
        return io.ToolResult("too late")

    contexts = (user_message("same", "one"), user_message("same", "two"))
    tool = ToolDouble(lambda context: ToolOutput("done", contexts=contexts))
    agent = stage.agent(with_tool(tool, tools_post_execute=wait))
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("t", "{}")))
    began.get(timeout=DEADLINE_S)
    agent.cancel()
    assert agent.when_idle(DEADLINE_S)
    assert results(stage) == [("done", None)]


def test_a_cancelled_timer_does_not_fire():
    runner, ref, fed = bare_runner(Scope("agent"))
    runner.carry_out(io.StartTimer(5, 20))  # type: ignore[arg-type]
    runner.carry_out(io.CancelWork(5, {"kind": "user"}))  # type: ignore[arg-type]
    runner.carry_out(io.StartTimer(6, 40))  # type: ignore[arg-type]
    assert ref.told.get(timeout=DEADLINE_S) == io.TimerFired(6)  # type: ignore[arg-type]
    assert fed == [] and ref.told.empty()


def test_a_closed_runner_has_given_up_its_interceptors_and_timers():
    reasons: queue.SimpleQueue[object] = queue.SimpleQueue()
    began: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(payload):
        payload["cancel"].on_cancel(lambda: reasons.put("told"))
        began.put(None)

    scope = Scope("agent")
    scope.listen("agent/turn-stopping", wait)
    go: queue.SimpleQueue[None] = queue.SimpleQueue()
    scope.listen("agent/turn-stopping", lambda payload: go.get(timeout=DEADLINE_S))
    runner, ref, _ = bare_runner(scope)
    runner.carry_out(io.StartTimer(4, 20))  # type: ignore[arg-type]
    runner.carry_out(io.AskStopping(5, 1, {"kind": "completed"}))  # type: ignore[arg-type]
    began.get(timeout=DEADLINE_S)
    runner.close()
    assert reasons.get(timeout=DEADLINE_S) == "told"
    go.put(None)
    assert isinstance(ref.told.get(timeout=DEADLINE_S), Answer)
    assert ref.told.empty()


def test_two_lives_of_a_session_are_two_owners():
    first, _, _ = bare_runner(Scope("agent"))
    second, _, _ = bare_runner(Scope("agent"))
    assert first._owner.session == second._owner.session and first._owner != second._owner


def test_a_run_goes_on_beside_an_agent_whose_messages_are_refused(stage):
    agent = stage.agent()
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    start_task(lambda token: agent.run("hello"), ended.put, name="run")
    stream = stage.model.next_stream()
    with pytest.raises(EventRefused):
        agent.steer(BAD_MESSAGES["assistant"])
    stream.send(*text_chunks("hi"))
    assert ended.get(timeout=DEADLINE_S).value.reason == "completed"
