"""One turn after another, effect by effect: order, steering, rejection, retry, cancel, limits."""

from __future__ import annotations

import pytest

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import (
    CallConfig,
    Failure,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from dsh_actors.core.events import Replace
from dsh_actors.core.ids import CallId, MessageId
from dsh_actors.core.limits import LimitWatch
from dsh_actors.core.messages import Message, TextBlock, ToolResultBlock, UserSource, text_of, user_message
from dsh_actors.core.options import Limits
from dsh_actors.core.prompt import NO_CONTEXT
from dsh_actors.core.retry import GiveUp, Retry
from dsh_actors.core.state import Counters
from dsh_actors.core.turn_env import Environment, Phase
from dsh_actors.errors import EventRefused, ProtocolError
from dsh_actors.testing.machine import MachineDriver, call_chunks, text_chunks


def limited(**limits: int) -> Environment:
    return Environment(CallConfig("p", "m"), watch=LimitWatch(Limits(**limits), Counters()))


def data(driver: MachineDriver, kind: str) -> list[dict]:
    return [event.data for event in driver.log if event.type == kind]


def test_a_followup_runs_in_the_documented_order_of_events():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*text_chunks("hi"))
    assert driver.types() == [
        "agent/inbox/spliced", "turn/start", "agent/inbox/spliced", "step/start", "user/message",
        "request/header", "request/context", "request/digest", "assistant/message", "step/end", "turn/end",
    ]  # fmt: skip
    assert driver.ends() == [{"kind": "completed"}]
    assert driver.machine.phase is Phase.IDLE
    statuses = [n.payload["status"] for n in driver.notices if n.kind == "agent/status"]
    assert statuses == ["running", "idle"]


def test_the_reply_cites_exactly_its_own_chunks():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*text_chunks("hi"))
    chunks = [e.seq for e in driver.log if e.type == "assistant/chunk"]
    message = next(e for e in driver.log if e.type == "assistant/message")
    assert list(message.source_event_seqs) == chunks and len(chunks) == 2


def test_a_tool_call_is_answered_and_its_result_goes_into_the_next_request():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*call_chunks(("ls", "{}")))
    driver.run_tool("a file")
    driver.settle()
    request = driver.take(io.OpenStream).request
    assert [m.role for m in request.messages] == ["user", "assistant", "user"]
    assert request.messages[2].content[0].content[0].text == "a file"
    assert data(driver, "step/start") == [{"turn": 1, "step": 1}, {"turn": 1, "step": 2}]


def test_a_changing_tool_starts_only_after_its_call_is_durable():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.settle()
    stream = driver.take(io.OpenStream)
    driver.send(io.Chunks(stream.ticket, call_chunks(("write", "{}"))))
    prepare = driver.take(io.PrepareTool)
    driver.send(io.ToolPrepared(prepare.ticket, prepare.index))
    assert driver.log[-1].type == "tool/call"
    flush = driver.take(io.Flush)
    assert not any(isinstance(e, io.RunTool) for e in driver.open)
    driver.send(io.Flushed(flush.ticket))
    assert driver.take(io.RunTool).call.name == "write"


def test_a_burst_of_followups_becomes_one_turn_each_in_order():
    driver = MachineDriver()
    for word in ("one", "two", "three"):
        driver.deliver(word)
    for _ in range(3):
        driver.reply(*text_chunks("ok"))
    assert [d["turn"] for d in data(driver, "turn/start")] == [1, 2, 3]
    prompts = [d["content"][0]["text"] for d in data(driver, "user/message")]
    assert prompts == ["one", "two", "three"]
    assert [n.payload["status"] for n in driver.notices if n.kind == "agent/status"] == ["running", "idle"]


def test_steering_during_a_tool_joins_the_next_step_after_all_results():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*call_chunks(("ls", "{}"), ("ls", "{}")))
    driver.deliver("look left", "next-step")
    driver.run_tool()
    driver.run_tool()
    driver.settle()
    roles = [e.type for e in driver.log if e.surface_op]
    assert roles == ["user/message", "assistant/message", "tool/result", "tool/result", "user/message"]
    assert text_of(driver.take(io.OpenStream).request.messages[-1]) == "look left"


def test_injecting_while_idle_waits_and_then_comes_before_the_prompt():
    driver = MachineDriver()
    driver.deliver("a fact", "next-step", wake=False)
    assert driver.machine.phase is Phase.IDLE and driver.types() == ["agent/inbox/spliced"]
    driver.deliver("the prompt")
    driver.reply(*text_chunks("ok"))
    texts = [d["content"][0]["text"] for d in data(driver, "user/message")]
    assert texts == ["a fact", "the prompt"]


def test_input_that_comes_while_the_turn_is_stopping_gets_another_step():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.settle()
    stream = driver.take(io.OpenStream)
    driver.send(io.Chunks(stream.ticket, text_chunks("done")))
    stopping = driver.take(io.AskStopping)
    driver.deliver("not yet", "next-step")
    driver.send(io.StoppingDone(stopping.ticket))
    driver.reply(*text_chunks("really done"))
    assert len(data(driver, "step/start")) == 2 and driver.ends() == [{"kind": "completed"}]


def test_a_rejected_first_step_closes_a_turn_without_steps_and_parks_the_queue():
    driver = MachineDriver()
    driver.deliver("bad")
    driver.deliver("parked")
    driver.send(driver.usual_answer(driver.take(io.AssemblePrompt)))
    ask = driver.take(io.AskPreStep)
    driver.send(io.PreStepDecided(ask.ticket, io.Reject()))
    assert driver.ends() == [{"kind": "blocked"}] and "step/start" not in driver.types()
    assert driver.machine.phase is Phase.IDLE
    assert [text_of(m) for m in driver.machine.state.inbox.pending("next-turn")] == ["parked"]


def test_a_first_batch_rewritten_to_nothing_asks_no_model():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.send(driver.usual_answer(driver.take(io.AssemblePrompt)))
    driver.send(io.PreStepDecided(driver.take(io.AskPreStep).ticket, io.Enter(())))
    assert driver.ends() == [{"kind": "completed"}] and "request/header" not in driver.types()


def test_the_context_snapshot_is_sent_again_only_when_it_changed():
    driver = MachineDriver()

    def turn(context: str) -> list[str]:
        driver.deliver("hello")
        driver.send(io.PromptReady(driver.take(io.AssemblePrompt).ticket, "system", (), context))
        driver.reply(*text_chunks("ok"))
        return [d["content"][0]["text"] for d in data(driver, "user/message")]

    assert turn("noon") == ["hello", "noon"]
    assert turn("noon") == ["hello", "noon", "hello"]
    assert turn("one")[-2:] == ["hello", "one"]


def test_a_retry_stays_in_the_step_and_leaves_nothing_on_the_surface():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.settle()
    stream = driver.take(io.OpenStream)
    failure = Failure("busy", "OVERLOADED", 503)
    driver.send(io.Chunks(stream.ticket, (TextDelta(0, "par"), Finish("error", failure))))
    ask = driver.take(io.AskRequestError)
    assert (ask.failure, ask.retries) == (failure, 0)
    driver.send(io.ErrorDecided(ask.ticket, Retry(2_000)))
    assert driver.take(io.StartTimer).delay_ms == 2_000
    driver.send(io.TimerFired(driver.machine.ticket))
    driver.reply(*text_chunks("whole"))
    assert [d["step"] for d in data(driver, "step/start")] == [1]
    assert data(driver, "llm/retry")[0]["failure"] == failure.to_json()
    assert data(driver, "llm/retry-started") == [
        {"retryId": data(driver, "llm/retry")[0]["retryId"], "turn": 1, "step": 1, "retry": 1}
    ]
    assert len(data(driver, "assistant/message")) == 1


def test_giving_up_ends_the_turn_with_the_failure_and_parks_the_queue():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.deliver("parked")
    failure = Failure("no key", "AUTH", 401)
    driver.reply(Finish("error", failure))
    driver.send(io.ErrorDecided(driver.take(io.AskRequestError).ticket, GiveUp("auth")))
    assert driver.ends() == [{"kind": "error", "error": failure.to_json()}]
    assert driver.types()[-2:] == ["step/end", "turn/end"]
    assert driver.machine.state.inbox.has_pending("next-turn") and driver.machine.phase is Phase.IDLE


@pytest.mark.parametrize("chunks", [(Finish("stop"),), (ReasoningDelta(0, "hm"), Finish("stop"))])
def test_an_answer_without_text_is_a_failure_and_a_nudge_joins_the_same_step(chunks):
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*chunks)
    ask = driver.take(io.AskRequestError)
    assert ask.failure.code == "EMPTY_RESPONSE"
    driver.send(io.ErrorDecided(ask.ticket, Retry(0, nudge=True)))
    driver.settle()
    request = driver.take(io.OpenStream).request
    assert [m.role for m in request.messages] == ["user", "user"]
    assert "empty" in text_of(request.messages[1])


def test_max_tokens_drops_the_calls_and_sticks_to_the_turn():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.settle()
    stream = driver.take(io.OpenStream)
    driver.deliver("more", "next-step")
    driver.send(io.Chunks(stream.ticket, (*call_chunks(("ls", "{}"))[:1], Finish("max-tokens"))))
    driver.reply(*text_chunks("done"))
    assert "tool/call" not in driver.types()
    assert driver.ends() == [{"kind": "max-tokens"}]


def test_a_reply_that_only_pauses_is_followed_by_a_step_without_new_input():
    driver = MachineDriver(limited(max_steps=2))
    driver.deliver("hello")
    driver.reply(TextDelta(0, "wait"), Finish("stop", continues=True))
    driver.settle()
    assert driver.ends() == []
    stream = driver.take(io.OpenStream)
    assert [message.role for message in stream.request.messages] == ["user", "assistant"]
    # It may think aloud for ever, but not beyond the run's limit.
    driver.send(io.Chunks(stream.ticket, (ReasoningDelta(0, "hm"), Finish("stop", continues=True))))
    driver.settle()
    assert driver.ends() == [{"kind": "aborted", "reason": {"kind": "hook", "reason": "max_steps"}}]


def test_a_concluding_tool_ends_the_turn_without_a_follow_up_request():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*call_chunks(("answer", "{}")))
    driver.run_tool("the answer", concludes=True)
    assert driver.ends() == [{"kind": "completed"}]
    assert len(data(driver, "step/start")) == 1


def test_contexts_of_results_follow_all_results_in_the_order_of_the_calls():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*call_chunks(("a", "{}"), ("b", "{}")))
    driver.run_tool("1", contexts=(user_message("x1", "about a"),))
    driver.run_tool("2", contexts=(user_message("x2", "about b"),))
    driver.settle()
    texts = [text_of(m) for m in driver.take(io.OpenStream).request.messages[-2:]]
    assert texts == ["about a", "about b"]


# --- cancelling -----------------------------------------------------------------------------------


def test_cancel_while_idle_changes_nothing_and_the_next_prompt_runs():
    driver = MachineDriver()
    driver.send(io.Cancel({"kind": "user"}))
    assert driver.log == []
    driver.deliver("hello")
    driver.reply(*text_chunks("ok"))
    assert driver.ends() == [{"kind": "completed"}]


def test_cancel_right_after_a_followup_closes_a_turn_without_a_step_and_drops_the_queue():
    driver = MachineDriver()
    driver.deliver("one")
    driver.deliver("two")
    driver.send(io.Cancel({"kind": "user"}))
    assert driver.ends() == [{"kind": "aborted", "reason": {"kind": "user"}}]
    assert "step/start" not in driver.types() and not driver.machine.state.inbox.has_pending()


def test_cancel_in_a_stream_keeps_the_readable_part_and_drops_the_half_call():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(TextDelta(0, "half an ans"), ToolCallDelta(1, CallId("c"), "ls", '{"pa'))
    late = driver.take(io.OpenStream).ticket
    driver.send(io.Cancel({"kind": "user"}))
    message = data(driver, "assistant/message")[0]
    assert message["interrupted"] is True
    assert driver.cancelled == [late]
    assert driver.types()[-3:] == ["assistant/message", "step/end", "turn/end"]
    before = len(driver.log)
    driver.send(io.Chunks(late, text_chunks("too late")))
    assert len(driver.log) == before


def test_cancel_keeping_the_inbox_parks_it_and_the_next_wake_runs_it_first():
    driver = MachineDriver()
    driver.deliver("one")
    driver.deliver("parked")
    driver.reply(TextDelta(0, "par"))
    driver.send(io.Cancel({"kind": "user"}, keep_inbox=True))
    assert driver.machine.phase is Phase.IDLE
    driver.deliver("new")
    driver.open.clear()
    driver.send(io.PromptReady(driver.machine.ticket, "system", ()))
    assert [text_of(m) for m in driver.take(io.AskPreStep).claimed] == ["parked"]


def test_cancel_while_tools_run_waits_for_them_and_answers_every_call():
    driver = MachineDriver(Environment(CallConfig("p", "m"), is_parallel=lambda call: call.name == "read"))
    driver.deliver("hello")
    driver.reply(*call_chunks(("read", "{}"), ("read", "{}"), ("write", "{}")))
    first, second = driver.take(io.RunTool), driver.take(io.RunTool)
    driver.send(io.Cancel({"kind": "user"}))
    assert driver.machine.running and set(driver.cancelled) == {first.ticket, second.ticket}
    driver.deliver("after", "next-step")
    driver.send(io.ToolRan(second.ticket, 1, io.ToolResult("real 2")))
    driver.send(io.ToolRan(first.ticket, 0, io.ToolResult("real 1")))
    driver.settle()
    results = data(driver, "tool/result")
    texts = [r["message"]["content"][0]["content"][0]["text"] for r in results]
    assert texts[:2] == ["real 1", "real 2"] and "not started" in texts[2]
    assert results[2]["error"]["code"] == "ABORTED_BEFORE_DISPATCH"
    assert driver.ends()[0] == {"kind": "aborted", "reason": {"kind": "user"}}
    assert data(driver, "turn/start")[-1] == {"turn": 2}


def test_the_first_cause_of_a_cancel_is_recorded():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*call_chunks(("write", "{}")))
    driver.send(io.Cancel({"kind": "user"}))
    driver.send(io.Cancel({"kind": "disposed"}))
    driver.run_tool()
    assert driver.ends() == [{"kind": "aborted", "reason": {"kind": "user"}}]


def test_a_disposed_agent_opens_no_turn():
    driver = MachineDriver()
    driver.send(io.Cancel({"kind": "disposed"}))
    driver.deliver("hello")
    assert driver.machine.phase is Phase.IDLE and driver.types() == ["agent/inbox/spliced"]


def test_broken_storage_ends_the_turn_and_starts_nothing():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*call_chunks(("read", "{}")))
    running = driver.take(io.RunTool)
    driver.send(io.StorageBroken(Failure("disk full", "STORAGE_FULL")))
    driver.send(io.ToolRan(running.ticket, 0, io.ToolResult("done")))
    driver.settle()
    assert driver.ends()[0]["error"]["code"] == "STORAGE_FULL"
    assert driver.open == []


def test_a_failed_flush_sends_no_request():
    driver = MachineDriver()
    driver.deliver("hello")
    while not any(isinstance(e, io.Flush) for e in driver.open):
        effect = driver.open.pop(0)
        driver.send(driver.usual_answer(effect))
    driver.send(io.Flushed(driver.take(io.Flush).ticket, Failure("disk full", "STORAGE_FULL")))
    assert driver.ends()[0]["kind"] == "error" and driver.open == []


# --- limits and repetition ------------------------------------------------------------------------


def test_the_step_limit_allows_exactly_that_many_requests():
    driver = MachineDriver(limited(max_steps=2))
    driver.deliver("hello")
    for index in range(2):
        driver.reply(*call_chunks(("ls", f'{{"n":{index}}}'), prefix=f"c{index}"))
        driver.run_tool(str(index))
    assert data(driver, "limit/reached") == [{"kind": "max_steps", "value": 2}]
    assert driver.ends() == [{"kind": "aborted", "reason": {"kind": "hook", "reason": "max_steps"}}]
    assert len(data(driver, "request/digest")) == 2


def test_a_call_beyond_the_limit_is_answered_and_ends_the_turn():
    driver = MachineDriver(limited(max_tool_calls=1))
    driver.deliver("hello")
    driver.reply(*call_chunks(("ls", "{}"), ("ls", "{}")))
    driver.run_tool()
    assert data(driver, "tool/result")[1]["error"]["code"] == "ABORTED_BEFORE_DISPATCH"
    assert data(driver, "limit/reached") == [{"kind": "max_tool_calls", "value": 1}]


def test_exactly_the_allowed_calls_leave_the_model_its_answer():
    driver = MachineDriver(limited(max_tool_calls=1))
    driver.deliver("hello")
    driver.reply(*call_chunks(("ls", "{}")))
    driver.run_tool()
    driver.reply(*text_chunks("done"))
    assert driver.ends() == [{"kind": "completed"}]


def test_the_token_limit_counts_what_was_reported():
    driver = MachineDriver(limited(max_tokens=100))
    driver.deliver("hello")
    usage = UsageChunk(Usage(60, 40, None, None, 10))
    driver.reply(*call_chunks(("ls", "{}"))[:1], usage, Finish("tool-calls"))
    driver.run_tool()
    assert data(driver, "limit/reached") == [{"kind": "max_tokens", "value": 100}]


@pytest.mark.parametrize("spent", [99, 100])
def test_a_failed_request_is_not_repeated_beyond_the_token_limit(spent: int):
    driver = MachineDriver(limited(max_tokens=100))
    driver.deliver("hello")
    driver.settle()
    stream = driver.take(io.OpenStream)
    failure = Failure("busy", "OVERLOADED", 503)
    usage = UsageChunk(Usage(spent, 0, None, None, None))
    driver.send(io.Chunks(stream.ticket, (usage, Finish("error", failure))))
    driver.send(io.ErrorDecided(driver.take(io.AskRequestError).ticket, Retry(2_000)))
    if spent < 100:
        assert driver.take(io.StartTimer).delay_ms == 2_000
        return
    assert data(driver, "llm/retry") == []
    assert data(driver, "limit/reached") == [{"kind": "max_tokens", "value": 100}]
    assert driver.ends() == [{"kind": "aborted", "reason": {"kind": "hook", "reason": "max_tokens"}}]
    assert driver.machine.phase is Phase.IDLE


def test_a_failed_request_is_not_repeated_beyond_the_cost_limit():
    env = limited(max_cost=1)
    driver = MachineDriver(env)
    driver.deliver("hello")
    driver.settle()
    stream = driver.take(io.OpenStream)
    env.watch.spend(1.5)
    driver.send(io.Chunks(stream.ticket, (Finish("error", Failure("busy", "OVERLOADED", 503)),)))
    driver.send(io.ErrorDecided(driver.take(io.AskRequestError).ticket, Retry(2_000)))
    assert data(driver, "limit/reached") == [{"kind": "max_cost", "value": 1}]


def test_repeated_calls_are_noted_at_the_third_and_stopped_at_the_sixth():
    driver = MachineDriver()
    driver.deliver("hello")
    for index in range(6):
        driver.reply(*call_chunks(("ls", "{}"), prefix=f"r{index}-"))
        if index == 3:
            notes = [d for d in data(driver, "user/message") if d["source"]["kind"] == "plugin"]
            assert len(notes) == 1 and "repeat" in notes[0]["content"][0]["text"]
        driver.run_tool("the same")
    assert data(driver, "limit/reached") == [{"kind": "stuck", "value": 6}]
    assert len(data(driver, "request/digest")) == 6


def test_a_followup_after_a_step_limit_stays_queued():
    driver = MachineDriver(limited(max_steps=1))
    driver.deliver("one")
    driver.deliver("two")
    driver.reply(*text_chunks("done"))
    assert driver.machine.phase is Phase.IDLE
    assert driver.machine.state.inbox.has_pending("next-turn")


# --- requests -------------------------------------------------------------------------------------


def test_the_header_is_logged_on_the_first_request_and_on_change_only():
    driver = MachineDriver()
    for system in ("a", "a", "b"):
        driver.deliver("hello")
        driver.send(io.PromptReady(driver.take(io.AssemblePrompt).ticket, system, ()))
        driver.reply(*text_chunks("ok"))
    assert [d["reason"] for d in data(driver, "request/header")] == ["initial", "change"]


def test_a_new_machine_over_an_old_log_says_resume_and_numbers_on():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*text_chunks("ok"))
    again = MachineDriver(log=driver.log)
    again.deliver("more")
    again.reply(*text_chunks("ok"))
    assert [d["reason"] for d in data(again, "request/header")] == ["initial", "resume"]
    assert [d["turn"] for d in data(again, "turn/start")] == [1, 2]


def test_a_series_starts_with_a_header_of_that_reason():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*text_chunks("ok"))
    driver.deliver("fresh")
    driver.send(driver.usual_answer(driver.take(io.AssemblePrompt)))
    ask = driver.take(io.AskPreStep)
    driver.send(io.PreStepDecided(ask.ticket, io.Enter(ask.default.messages, series=True)))
    driver.reply(*text_chunks("ok"))
    assert [d["reason"] for d in data(driver, "request/header")] == ["initial", "series"]


def test_what_an_adapter_filled_in_is_not_proposed_again():
    driver = MachineDriver()
    driver.deliver("hello")
    for _ in range(2):
        driver.send(driver.usual_answer(driver.take(io.AssemblePrompt)))
        driver.send(driver.usual_answer(driver.take(io.AskPreStep)))
        ask = driver.take(io.AskRequest)
        assert ask.proposal.max_tokens is None
        filled = CallConfig("p", "m", max_tokens=99)
        driver.send(io.CallReady(ask.ticket, filled, frozenset({"maxTokens"}), None))
        driver.reply(*text_chunks("ok"))
        driver.deliver("again")


# --- inbox, maintenance, refusals -----------------------------------------------------------------


def test_a_message_that_is_already_pending_is_refused_and_nothing_changes():
    driver = MachineDriver()
    message = user_message("same", "x")
    driver.send(io.Deliver(message, "next-step", wake=False))
    with pytest.raises(EventRefused):
        driver.send(io.Deliver(message, "next-turn", wake=False))
    assert len(driver.log) == 1 and driver.machine.state.next_seq == 1


def test_pending_input_can_be_replaced_and_removed():
    driver = MachineDriver()
    driver.send(io.Deliver(user_message("a", "old"), "next-step", wake=False))
    driver.send(io.EditInbox("a", user_message("b", "new")))
    assert [text_of(m) for m in driver.machine.state.inbox.pending("next-step")] == ["new"]
    driver.send(io.EditInbox("b"))
    assert not driver.machine.state.inbox.has_pending()
    with pytest.raises(ProtocolError):
        driver.send(io.EditInbox("b"))


def test_maintenance_holds_input_back_and_then_lets_it_run():
    driver = MachineDriver()
    driver.send(io.BeginMaintenance(io.Ticket(77)))
    driver.deliver("later")
    assert driver.types() == ["agent/inbox/spliced"] and not driver.machine.running
    with pytest.raises(ProtocolError):
        driver.send(io.BeginMaintenance(io.Ticket(78)))
    driver.send(io.EndMaintenance(io.Ticket(77)))
    assert driver.machine.running


def test_a_failing_interceptor_ends_the_turn_balanced():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.send(driver.usual_answer(driver.take(io.AssemblePrompt)))
    ask = driver.take(io.AskPreStep)
    driver.send(io.WorkFailed(ask.ticket, Failure("boom", "UNKNOWN")))
    assert driver.ends() == [{"kind": "error", "error": {"message": "boom", "code": "UNKNOWN"}}]
    assert [n.kind for n in driver.notices if n.kind == "agent/error"] == ["agent/error"]


# --- what may not slip: one assertion for each rule that a small change could break ----------------


def aborting(driver: MachineDriver) -> io.RunTool:
    """A turn that was cancelled, keeping the inbox, while a tool still runs."""
    driver.deliver("hello")
    driver.reply(*call_chunks(("write", "{}")))
    running = driver.take(io.RunTool)
    driver.send(io.Cancel({"kind": "user"}, keep_inbox=True))
    return running


def end_tool(driver: MachineDriver, running: io.RunTool) -> None:
    driver.send(io.ToolRan(running.ticket, running.index, io.ToolResult("done")))
    driver.settle()


def test_a_waking_message_after_a_cancel_gets_a_turn_of_its_own():
    driver = MachineDriver()
    running = aborting(driver)
    driver.deliver("late", "next-step")
    assert [text_of(m) for m in driver.machine.state.inbox.pending("next-turn")] == ["late"]
    end_tool(driver, running)
    assert [d["turn"] for d in data(driver, "turn/start")] == [1, 2]


def test_a_plain_cancel_drops_what_was_latched():
    driver = MachineDriver()
    running = aborting(driver)
    driver.deliver("late")
    driver.send(io.Cancel({"kind": "user"}))
    end_tool(driver, running)
    assert driver.machine.phase is Phase.IDLE and len(data(driver, "turn/start")) == 1


def test_a_latched_wake_whose_message_was_removed_opens_no_turn():
    driver = MachineDriver()
    running = aborting(driver)
    driver.send(io.Deliver(user_message("gone", "late")))
    driver.send(io.EditInbox("gone"))
    end_tool(driver, running)
    assert driver.machine.phase is Phase.IDLE and len(data(driver, "turn/start")) == 1


def test_the_end_of_a_turn_asks_for_a_flush():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.settle()
    stream = driver.take(io.OpenStream)
    driver.send(io.Chunks(stream.ticket, text_chunks("hi")))
    stopping = driver.take(io.AskStopping)
    transition = driver.send(io.StoppingDone(stopping.ticket))
    assert transition.events[-1].type == "turn/end" and io.Flush(None) in transition.effects


def test_facts_that_are_all_gone_are_called_off_once():
    driver = MachineDriver()
    texts = []
    for context in ("noon", None, None):
        driver.deliver("hello")
        driver.send(io.PromptReady(driver.take(io.AssemblePrompt).ticket, "system", (), context))
        driver.reply(*text_chunks("ok"))
        texts = [d["content"][0]["text"] for d in data(driver, "user/message")]
    assert [t for t in texts if t != "hello"] == ["noon", NO_CONTEXT]


def test_facts_alone_do_not_start_a_turn_whose_input_was_taken_away():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.send(io.PromptReady(driver.take(io.AssemblePrompt).ticket, "system", (), "noon"))
    ask = driver.take(io.AskPreStep)
    assert [text_of(m) for m in ask.default.messages] == ["hello", "noon"]
    assert [text_of(m) for m in ask.claimed] == ["hello"]


def test_a_replaced_snapshot_is_sent_again():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.send(io.PromptReady(driver.take(io.AssemblePrompt).ticket, "system", (), "noon"))
    driver.reply(*text_chunks("ok"))
    nodes = driver.machine.state.surface.nodes
    summary = user_message("summary", "what was said").to_json()
    shadowed = tuple(node.seq for node in nodes)
    driver.log.append(
        driver.machine.emit(
            "user/message", summary, surface=Replace(shadowed[0], shadowed[-1]), sources=shadowed
        )
    )
    driver.deliver("go on")
    driver.send(io.PromptReady(driver.take(io.AssemblePrompt).ticket, "system", (), "noon"))
    driver.settle()
    texts = [text_of(m) for m in driver.take(io.OpenStream).request.messages]
    assert texts == ["what was said", "go on", "noon"]


def test_time_in_the_log_never_goes_back():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.now = 5
    driver.deliver("more")
    times = [event.time for event in driver.log]
    assert times == sorted(times)


def test_a_person_who_speaks_after_a_stop_gets_an_answer():
    driver = MachineDriver()
    driver.deliver("hello")
    for index in range(6):
        driver.reply(*call_chunks(("ls", "{}"), prefix=f"r{index}-"))
        driver.run_tool("the same")
    driver.deliver("try something else")
    driver.reply(*text_chunks("ok"))
    assert driver.ends()[-1] == {"kind": "completed"}


def test_an_effort_that_an_adapter_filled_in_is_not_proposed_again():
    driver = MachineDriver()
    for _ in range(2):
        driver.deliver("hello")
        driver.send(driver.usual_answer(driver.take(io.AssemblePrompt)))
        driver.send(driver.usual_answer(driver.take(io.AskPreStep)))
        ask = driver.take(io.AskRequest)
        assert ask.proposal.reasoning_effort is None
        filled = CallConfig("p", "m", reasoning_effort="high")
        driver.send(io.CallReady(ask.ticket, filled, frozenset({"reasoningEffort"}), 1000))
        driver.reply(*text_chunks("ok"))
    assert data(driver, "request/context") == [{"provider": "p", "model": "m", "contextWindow": 1000}]


def test_usage_of_an_interrupted_reply_is_kept():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(TextDelta(0, "par"), UsageChunk(Usage(7, 3)))
    driver.send(io.Cancel({"kind": "user"}))
    assert data(driver, "assistant/message")[0]["usage"] == {"inputTokens": 7, "outputTokens": 3}
    assert driver.machine.state.counters.tokens == 10


@pytest.mark.parametrize("ending", ["accepted", "empty", "failed", "cancelled"])
def test_every_attempt_is_paid_for_once(ending):
    watch = LimitWatch(Limits(), Counters())
    env = Environment(CallConfig("p", "m"), watch=watch, cost_of=lambda model, usage, began: usage.total / 10)
    driver = MachineDriver(env)
    driver.deliver("hello")
    usage = UsageChunk(Usage(7, 3))
    match ending:
        case "accepted":
            driver.reply(TextDelta(0, "ok"), usage, Finish("stop"))
        case "empty":
            driver.reply(usage, Finish("stop"))
            driver.send(io.ErrorDecided(driver.take(io.AskRequestError).ticket, GiveUp("empty_response")))
        case "failed":
            driver.reply(usage, Finish("error", Failure("gone", "TRANSPORT")))
            driver.send(io.ErrorDecided(driver.take(io.AskRequestError).ticket, GiveUp("network")))
        case "cancelled":
            driver.reply(usage)
            driver.send(io.Cancel({"kind": "user"}))
    assert driver.machine.phase is Phase.IDLE and watch.cost == 1.0


def test_two_retries_share_an_id_and_count_on_and_keep_the_series():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*text_chunks("ok"))
    driver.deliver("fresh")
    driver.send(driver.usual_answer(driver.take(io.AssemblePrompt)))
    ask = driver.take(io.AskPreStep)
    driver.send(io.PreStepDecided(ask.ticket, io.Enter(ask.default.messages, series=True)))
    seen = []
    for code in ("TRANSPORT", "SERVER", "SERVER"):
        driver.reply(Finish("error", Failure("gone", code)))
        error = driver.take(io.AskRequestError)
        seen.append((error.retries, error.retries_of_code))
        driver.send(io.ErrorDecided(error.ticket, Retry(0)))
    driver.reply(*text_chunks("ok"))
    assert seen == [(0, 0), (1, 0), (2, 1)]
    retries = data(driver, "llm/retry")
    assert [r["retry"] for r in retries] == [1, 2, 3] and len({r["retryId"] for r in retries}) == 1
    assert [d["reason"] for d in data(driver, "request/header")] == ["initial", "series"]
    assert not [d for d in data(driver, "user/message") if d["source"]["kind"] == "plugin"]


def test_replay_state_goes_into_the_message():
    driver = MachineDriver()
    driver.deliver("hello")
    state = {"response": {"key": "x"}, "blocks": [None]}
    driver.reply(TextDelta(0, "ok"), Finish("stop", replay_state=state))
    assert data(driver, "assistant/message")[0]["message"]["source"]["replayState"] == state


def test_an_abort_without_a_failure_has_its_code():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(Finish("aborted"))
    assert driver.take(io.AskRequestError).failure.code == "ABORTED"


def test_a_reply_that_promises_calls_and_has_nothing_is_empty():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(Finish("tool-calls"))
    assert driver.take(io.AskRequestError).failure.code == "EMPTY_RESPONSE"


@pytest.mark.parametrize("message", [
    Message(MessageId("a"), "assistant", (TextBlock("x"),), UserSource()),
    Message(MessageId("b"), "user", (ToolResultBlock(CallId("c"), (TextBlock("x"),)),), UserSource()),
])  # fmt: skip
def test_what_is_no_input_is_refused_before_anything_changes(message):
    driver = MachineDriver()
    with pytest.raises(EventRefused):
        driver.send(io.Deliver(message))
    assert driver.log == [] and driver.machine.phase is Phase.IDLE
    driver.send(io.Deliver(user_message("m", "x"), wake=False))
    with pytest.raises(EventRefused):
        driver.send(io.EditInbox("m", message))
    assert len(driver.log) == 1


def test_storage_that_breaks_while_idle_is_told():
    driver = MachineDriver()
    driver.send(io.StorageBroken(Failure("disk full", "STORAGE_FULL")))
    assert [n.payload["error"]["code"] for n in driver.notices] == ["STORAGE_FULL"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ('{"a":' * 50_000, "it is nested too deeply"),
        ('{"a": ' + "9" * 5_000 + "}", "a number has too many digits"),
    ],
)
def test_arguments_that_cannot_be_read_are_an_error_result_and_the_log_folds_again(text, fault):
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*call_chunks(("bash", text)))
    effect = driver.run_tool("Error: the arguments are not valid JSON", is_error=True)
    assert effect.call.problem == f"the arguments are not valid JSON: {fault}"
    driver.reply(*text_chunks("ok"))
    assert MachineDriver(log=driver.log).machine.state.fingerprint() == driver.machine.state.fingerprint()


def test_what_one_reply_repeats_counts_once():
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*call_chunks(*[("ls", "{}")] * 8))
    for _ in range(8):
        driver.run_tool("the same")
    driver.reply(*text_chunks("ok"))
    assert driver.ends() == [{"kind": "completed"}]
