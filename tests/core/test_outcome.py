"""The outcome of a run as a fold of its events, and the one table of exit codes."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors import errors
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import EXIT_CODES, EXIT_TABLE, error_line, exit_code_of, reason_of_error
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.core.pricing import PeakHours, Period, Price, PriceOf, Tariff, Tokens


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(call_id: str, tool: str = "bash") -> dict[str, Any]:
    return {"type": "tool-call", "id": call_id, "name": tool, "arguments": "{}"}


def reply(*blocks: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    message = {"id": "m", "role": "assistant", "content": list(blocks), "source": {"kind": "model"}}
    return "assistant/message", {"turn": 1, "step": 1, "message": message, **more}


def result(call_id: str, *, failed: bool = False, **more: Any) -> tuple[str, dict[str, Any]]:
    block: dict[str, Any] = {"type": "tool-result", "toolCallId": call_id, "content": [text("out")]}
    if failed:
        block["isError"] = True
    return "tool/result", {"turn": 1, "step": 1, "message": {"content": [block]}, **more}


def started(call_id: str, tool: str = "bash") -> tuple[str, dict[str, Any]]:
    return "tool/call", {"turn": 1, "step": 1, "callId": call_id, "name": tool, "arguments": "{}"}


def ended(kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "turn/end", {"turn": 1, "reason": {"kind": kind, **more}}


TURN = ("turn/start", {"turn": 1})
STEP = ("step/start", {"turn": 1, "step": 1})
STEP_END = ("step/end", {"turn": 1, "step": 1})
RETRY = ("llm/retry", {"turn": 1, "step": 1, "retry": 1})
HEADER = ("request/header", {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "initial"})
USAGE = {"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 100, "reasoningTokens": 2}


def usage_chunk(**usage: int) -> tuple[str, dict[str, Any]]:
    return "assistant/chunk", {"turn": 1, "step": 1, "chunk": {"type": "usage", "usage": usage}}


def run(*facts: tuple[str, dict[str, Any]], price: Price | None = None, **circumstances: Any) -> RunEnd:
    fold, seq = OutcomeFold(lambda model: price if model == "p/m" else None), count()
    for kind, data in facts:
        fold.apply(Event(kind, next(seq), 0, data))
    return fold.end(Circumstances(session_id="s1", **circumstances))


def test_a_terminal_answer_is_completed() -> None:
    end = run(TURN, STEP, reply(text("an"), text("swer"), usage=USAGE), STEP_END, ended("completed"))
    assert (end.reason, end.exit_code, end.answer, end.partial) == ("completed", 0, "answer", False)
    assert end.printed_answer(partial_ok=False) == "answer"
    assert end.error_line() is None


def test_only_the_last_message_is_the_answer() -> None:
    end = run(
        TURN,
        STEP,
        reply(text("let me look"), call("c1")),
        started("c1"),
        result("c1"),
        STEP_END,
        STEP,
        reply(text("found")),
        STEP_END,
        ended("completed"),
    )
    assert (end.answer, end.steps, end.tool_calls, end.turns) == ("found", 2, 1, 1)


def test_nothing_but_a_recorded_end_completes_a_run() -> None:
    end = run(TURN, STEP, reply(call("c1")), started("c1"), result("c1"))
    assert (end.reason, end.exit_code) == ("internal", 1)


def test_an_open_call_is_never_completed() -> None:
    end = run(TURN, STEP, reply(text("done"), call("c1")), ended("completed"))
    assert (end.reason, end.exit_code) == ("internal", 1)


@pytest.mark.parametrize("answer", ["", "  \n"])
def test_an_empty_answer_fails(answer: str) -> None:
    end = run(TURN, STEP, reply(text(answer)), STEP_END, ended("completed"))
    assert (end.reason, end.exit_code, end.answer) == ("empty_response", 1, None)


def test_the_answer_of_an_earlier_turn_does_not_complete_a_later_one() -> None:
    end = run(TURN, STEP, reply(text("old")), STEP_END, ended("completed"), TURN, ended("completed"))
    assert end.reason == "empty_response"


def test_an_error_that_a_retry_recovered_from_is_only_counted() -> None:
    end = run(TURN, STEP, RETRY, RETRY, reply(text("ok")), STEP_END, ended("completed"))
    assert (end.exit_code, end.retries) == (0, 2)


def test_a_provider_failure_names_status_and_attempts() -> None:
    failure = {"message": "no capacity", "code": "SERVER", "status": 500}
    end = run(TURN, STEP, RETRY, RETRY, STEP_END, ended("error", error=failure))
    assert (end.reason, end.exit_code, end.error) == ("provider_error", 1, failure)
    line = end.error_line()
    assert line is not None and line.startswith("dsh: failed: ") and line.endswith("(session s1)")
    assert "500" in line and "3 attempts" in line and "wait" not in line


def test_a_failure_tells_how_long_the_server_asked_to_wait() -> None:
    failure = {"message": "slow down", "code": "RATE_LIMIT", "status": 429, "providerRetryAfterMs": 7_200_000}
    end = run(TURN, STEP, STEP_END, ended("error", error=failure))
    assert "the server asks to wait 7,200 s" in (end.error_line() or "")


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        ("AUTH", "auth", 3),
        ("QUOTA", "balance", 3),
        ("RATE_LIMIT", "rate_limited", 1),
        ("EMPTY_RESPONSE", "empty_response", 1),
        ("CONTEXT_WINDOW_EXCEEDED", "context_exhausted", 1),
        ("STORAGE_FULL", "storage_full", 1),
    ],
)
def test_failure_codes_lead_to_their_reasons(code: str, reason: str, exit_code: int) -> None:
    end = run(TURN, STEP, STEP_END, ended("error", error={"message": "m", "code": code}))
    assert (end.reason, end.exit_code) == (reason, exit_code)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        ("max_steps", 4),
        ("max_tool_calls", 4),
        ("max_tokens", 4),
        ("max_cost", 4),
        ("stuck", 7),
        ("timeout", 124),
    ],
)
def test_a_limit_gives_its_own_code_and_a_partial_answer(kind: str, exit_code: int) -> None:
    end = run(
        TURN,
        STEP,
        reply(text("so far"), call("c1")),
        started("c1"),
        result("c1"),
        STEP_END,
        ("limit/reached", {"kind": kind, "value": 3}),
        ended("aborted", reason={"kind": "hook", "reason": kind}),
    )
    assert (end.reason, end.exit_code, end.limit) == (kind, exit_code, {"kind": kind, "value": 3})
    assert (end.answer, end.partial) == ("so far", True)
    assert end.printed_answer(partial_ok=False) is None
    assert end.printed_answer(partial_ok=True) == "so far"


def test_a_cut_answer_is_truncated_and_partial() -> None:
    end = run(TURN, STEP, reply(text("half")), STEP_END, ended("max-tokens"))
    assert (end.reason, end.exit_code, end.partial) == ("output_truncated", 1, True)


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_interrupts(signal: str, code: int) -> None:
    end = run(TURN, STEP, ended("aborted", reason={"kind": "user"}), signal=signal)
    assert (end.reason, end.exit_code, end.to_json()["signal"]) == ("interrupted", code, signal)


def test_a_signal_that_came_too_late_changes_nothing() -> None:
    end = run(TURN, STEP, reply(text("ok")), STEP_END, ended("completed"), signal="SIGTERM")
    assert (end.exit_code, "signal" in end.to_json()) == (0, False)


def test_a_deadline_is_a_timeout() -> None:
    end = run(TURN, STEP, ended("aborted", reason={"kind": "hook", "reason": "deadline"}))
    assert (end.reason, end.exit_code) == ("deadline", 124)


DENIAL = {
    "denied": {"tool": "write", "rule": "read-only", "reason": "no changes", "hint": "--approve workspace"}
}


def test_a_denied_call_fails_the_run_and_names_the_way_out() -> None:
    facts = (
        TURN,
        STEP,
        reply(call("c1", "write")),
        started("c1", "write"),
        result("c1", failed=True, error={"name": "ToolDenied", "code": "DENIED"}, meta=DENIAL),
        STEP_END,
        STEP,
        reply(text("could not")),
        STEP_END,
        ended("completed"),
    )
    end = run(*facts)
    assert (end.reason, end.exit_code, end.tool_errors) == ("denied", 6, 0)
    assert end.denied == ({"call_id": "c1", **DENIAL["denied"]},)
    line = end.error_line() or ""
    assert all(word in line for word in ("write", "read-only", "--approve workspace"))
    lenient = run(*facts, fail_on_denied=False)
    assert (lenient.exit_code, len(lenient.denied)) == (0, 1)


def test_tool_errors_are_counted_and_do_not_fail_the_run() -> None:
    end = run(
        TURN,
        STEP,
        reply(call("c1")),
        started("c1"),
        result("c1", failed=True),
        STEP_END,
        STEP,
        reply(text("ok")),
        STEP_END,
        ended("completed"),
    )
    assert (end.exit_code, end.tool_errors) == (0, 1)


def test_what_closes_an_earlier_run_is_not_counted() -> None:
    end = run(
        result("old", failed=True),
        ended("interrupted"),
        TURN,
        STEP,
        reply(text("ok"), usage=USAGE),
        STEP_END,
        ended("completed"),
    )
    assert (end.exit_code, end.tool_errors, end.turns) == (0, 0, 1)


def test_tokens_of_failed_attempts_count_and_none_counts_twice() -> None:
    end = run(
        TURN,
        STEP,
        HEADER,
        usage_chunk(inputTokens=7, outputTokens=1),
        RETRY,
        usage_chunk(**USAGE),
        reply(text("ok"), usage=USAGE),
        STEP_END,
        ended("completed"),
        price=Price(input=1.0, output=2.0, cache_read=0.1),
    )
    own = {"input": 17, "cache_read": 100, "cache_write": 0, "output": 6, "reasoning": 2}
    assert end.usage["own"] == own
    assert end.cost == pytest.approx((17 * 1.0 + 6 * 2.0 + 100 * 0.1) / 1e6)


def test_an_unknown_price_is_no_price() -> None:
    facts = (TURN, STEP, HEADER, reply(text("ok"), usage=USAGE), STEP_END, ended("completed"))
    assert run(*facts).cost is None
    assert run(*facts, price=Price(1.0, 1.0)).cost is not None


def fold_of(price_of: PriceOf, *facts: tuple[str, int, dict[str, Any]]) -> OutcomeFold:
    """The fold of facts with a time each."""
    fold = OutcomeFold(price_of)
    for seq, (kind, time, data) in enumerate(facts):
        fold.apply(Event(kind, seq, time, data))
    return fold


def reply_of(model: str, usage: dict[str, int] | None = USAGE) -> dict[str, Any]:
    _, data = reply(text("ok"), **({"usage": usage} if usage else {}))
    data["message"]["source"] |= {"provider": "p", "model": model}
    return data


PRICES = {
    "p/m": Price(1.0, 0.0, 0.0),
    "p/euro": Price(1.0, 0.0, 0.0, currency="EUR"),
    "p/peak": Tariff((Period(Price(1.0, 0.0), Price(2.0, 0.0), PeakHours(((60, 120),))),)),
}
BEGIN = (("turn/start", 0, {"turn": 1}), ("step/start", 0, {}))


def test_an_agent_that_goes_on_has_a_cost_though_its_model_is_not_logged_again() -> None:
    # The header is in the log already: only the reply says whose it is; a failed attempt came before.
    chunk = {"chunk": {"type": "usage", "usage": USAGE}}
    fold = fold_of(PRICES.get, *BEGIN, ("assistant/chunk", 1, chunk), ("llm/retry", 2, {}))
    assert fold.cost is None
    fold.apply(Event("assistant/message", 9, 3, reply_of("m")))
    assert fold.cost == pytest.approx(20 / 1e6)


def test_a_reply_without_a_count_of_tokens_has_no_known_cost() -> None:
    counted, uncounted = ("assistant/message", 1, reply_of("m")), reply_of("m", None)
    assert fold_of(PRICES.get, *BEGIN, counted, ("assistant/message", 2, uncounted)).cost is None
    cut = ("assistant/message", 2, uncounted | {"interrupted": True})
    assert fold_of(PRICES.get, *BEGIN, counted, cut).cost is not None


def test_two_currencies_are_no_sum() -> None:
    facts = []
    for model in ("m", "euro"):
        config = {"provider": "p", "model": model}
        facts.append(("request/header", 1, {"header": {"config": config}}))
        facts.append(("assistant/message", 1, reply_of(model)))
    assert fold_of(PRICES.get, *BEGIN, *facts[:2]).cost is not None
    assert fold_of(PRICES.get, *BEGIN, *facts[2:]).currency == "EUR"
    assert fold_of(PRICES.get, *BEGIN, *facts).cost is None


def test_the_price_is_that_of_the_hour_in_which_the_request_began() -> None:
    hour = 3_600_000
    usage = {"inputTokens": 1_000_000, "outputTokens": 0}
    for began, cost in ((hour - 1, 1.0), (hour, 2.0), (2 * hour, 1.0)):
        for kind in ("step/start", "request/digest", "llm/retry-started"):
            later = ("assistant/message", 5 * hour, reply_of("peak", usage))
            assert fold_of(PRICES.get, *BEGIN, (kind, began, {}), later).cost == cost, kind


def test_a_title_costs_what_held_when_it_was_asked_for_and_is_unknown_without_a_count() -> None:
    hour = 3_600_000
    begin = (*BEGIN, ("request/header", 0, HEADER[1]))
    told = {"requestSeq": 1, "provider": "p", "model": "peak"}
    counted = told | {"usage": {"inputTokens": 1_000_000, "outputTokens": 0}}
    for began, cost in ((hour - 1, 1.0), (hour, 2.0), (2 * hour, 1.0)):
        asked = ("session/title-llm-request", began, {})
        later = ("session/title-llm-result", 5 * hour, counted)
        assert fold_of(PRICES.get, *begin, asked, later).cost == cost
    assert fold_of(PRICES.get, *begin, ("session/title-llm-result", 1, told)).cost is None
    failed = told | {"failure": {"message": "given up", "code": "ABORTED"}}
    assert fold_of(PRICES.get, *begin, ("session/title-llm-result", 1, failed)).cost == 0


def test_what_sub_agents_used_stands_beside_the_own_and_is_in_the_cost() -> None:
    fold = fold_of(PRICES.get, *BEGIN, ("assistant/message", 1, reply_of("m")))
    fold.add_child(Tokens(5, 4, 3, 2, 1), 0.25, "USD")
    fold.add_child(Tokens(1), 0.0, None)
    end = fold.end(Circumstances())
    assert end.usage["children"] == {
        "input": 6,
        "cache_read": 4,
        "cache_write": 3,
        "output": 2,
        "reasoning": 1,
    }
    assert end.usage["own"]["input"] == 10
    assert end.cost == pytest.approx(0.25 + 10 / 1e6)
    fold.add_child(Tokens(), None, None)
    assert fold.cost is None


def test_the_context_is_what_the_newest_request_and_its_reply_hold() -> None:
    window = ("request/context", 0, {"provider": "p", "model": "m", "contextWindow": 1000})
    fold = fold_of(PRICES.get, *BEGIN, window)
    assert (fold.context, fold.context_window) == (None, 1000)
    fold.apply(Event("assistant/message", 9, 1, reply_of("m")))
    assert fold.context == 115
    fold.apply(Event("assistant/message", 10, 1, reply_of("m", {"inputTokens": 7, "outputTokens": 1})))
    fold.apply(Event("request/context", 11, 1, {"provider": "p", "model": "other"}))
    assert (fold.context, fold.context_window) == (8, None)


def test_a_limit_on_what_is_not_known_says_so() -> None:
    reached = {"turn": 1, "kind": "max_cost", "value": 3}
    for data, words in ((reached, "3 reached"), (reached | {"unknown": True}, "3 cannot be kept")):
        end = run(TURN, STEP, HEADER, STEP_END, ("limit/reached", data), ended("completed"))
        assert (end.exit_code, end.reason, end.limit) == (4, "max_cost", {"kind": "max_cost", "value": 3})
        assert end.message.startswith(f"--max-cost {words}")


def test_the_reason_from_outside_wins() -> None:
    end = run(TURN, STEP, reply(text("ok")), ended("completed"), reason="pipe", message="gone")
    assert (end.reason, end.exit_code, end.partial) == ("pipe", 141, False)


def test_simple_exit_knows_one_failure() -> None:
    end = run(TURN, STEP, ended("aborted", reason={"kind": "user"}), signal="SIGINT", simple_exit=True)
    assert (end.exit_code, end.status) == (1, "signal")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.ConfigError("x"), 2),
        (errors.SessionNotFound("x"), 2),
        (errors.CredentialError("x"), 3),
        (errors.SessionBusy("x"), 8),
        (errors.SessionExists("x"), 8),
        (errors.SessionCorrupt("x"), 1),
        (errors.SessionUnsupported("x"), 1),
        (errors.StorageFull("x"), 1),
        (errors.ProviderError("x", code="QUOTA"), 3),
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 1),
    ],
)
def test_errors_lead_to_exit_codes(error: BaseException, code: int) -> None:
    assert exit_code_of(reason_of_error(error)) == code


def test_every_reason_has_one_row() -> None:
    reasons = [reason for row in EXIT_TABLE for reason in row.reasons]
    assert len(reasons) == len(set(reasons)) == len(EXIT_CODES)
    assert {row.code for row in EXIT_TABLE} == {0, 1, 2, 3, 4, 5, 6, 7, 8, 124, 130, 141}


@given(st.text(), st.text(min_size=1, max_size=5))
def test_an_error_is_one_line_whatever_it_says(message: str, session: str) -> None:
    line = error_line("failed", message, re.sub(r"[^a-z0-9]", "", session))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


def test_a_full_disk_names_the_calls_that_were_made_before() -> None:
    full = {"message": "cannot write the log", "code": "STORAGE_FULL"}
    end = run(TURN, STEP, started("a"), started("b"), ended("error", error=full))
    assert end.reason == "storage_full"
    assert end.message == "storage_full: cannot write the log; calls already made: 2 bash"


def test_the_name_of_the_exit_code_is_said_once() -> None:
    end = run(TURN, STEP, ended("error", error={"message": "no such key", "code": "AUTH", "status": 401}))
    assert end.error_line() == "dsh: auth: HTTP 401: no such key (session s1)"


def test_the_line_is_one_whatever_the_id_of_the_session() -> None:
    assert "\n" not in error_line("usage", "a\nb", "c\nd\x1b")


def test_a_title_has_the_price_of_the_time_at_which_it_was_asked_for() -> None:
    hour = 3_600_000
    told = {"provider": "p", "model": "peak", "usage": {"inputTokens": 1_000_000, "outputTokens": 0}}
    for began, cost in ((hour - 1, 1.0), (hour, 2.0), (2 * hour, 1.0)):
        title = ("session/title-llm-request", began, {}), ("session/title-llm-result", began + hour, told)
        end = ("assistant/message", began + hour, reply_of("m", {"inputTokens": 0, "outputTokens": 0}))
        assert fold_of(PRICES.get, *BEGIN, *title, end).cost == cost
        # Asked for by an earlier run of the same agent: the end of it is all that is seen.
        assert fold_of(PRICES.get, *BEGIN, ("session/title-llm-result", began, told), end).cost == cost
