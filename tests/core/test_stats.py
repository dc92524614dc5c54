"""What a session took, by the rules of the fold."""

from __future__ import annotations

from typing import Any

import pytest

from dsh_actors.core.events import Event
from dsh_actors.core.pricing import PeakHours, Period, Price, Tariff, Tokens
from dsh_actors.core.stats import SessionStats, StatsFold
from dsh_actors.errors import EventRefused
from tests.session_logs import turns

PLACE = {"turn": 1, "step": 1}
SURFACE = ("assistant/message", "tool/result")


PRICES = {
    "p/m": Price(1.0, 2.0, 0.5),
    "p/euro": Price(1, 1, currency="EUR"),
    "p/peak": Tariff((Period(Price(1.0, 0.0), Price(2.0, 0.0), PeakHours(((60, 120),))),)),
}


def stats_of(*facts: tuple[str, int, dict[str, Any]], seed: int = 0) -> SessionStats:
    fold = StatsFold(PRICES.get, seed)
    for seq, (kind, time, data) in enumerate(facts):
        fold.observe(Event(kind, seq, time, {**PLACE, **data}, "append" if kind in SURFACE else None))
    return fold.stats


def delta(text: str, kind: str = "text-delta") -> dict[str, Any]:
    return {"chunk": {"type": kind, "index": 0, "text": text}}


def reply(usage: dict[str, int] | None = None) -> dict[str, Any]:
    source = {"kind": "model", "provider": "p", "model": "m"}
    data: dict[str, Any] = {"message": {"content": [], "source": source}}
    return data | ({"usage": usage} if usage else {})


def result(call: str) -> dict[str, Any]:
    return {"message": {"content": [{"toolCallId": call}]}}


USAGE = {"inputTokens": 10, "outputTokens": 4, "cacheReadTokens": 2}
END = ("step/end", 1000, {})


def test_a_step_is_timed_from_its_start_over_the_first_token_to_the_reply() -> None:
    stats = stats_of(
        ("step/start", 100, {}),
        ("assistant/chunk", 110, delta("")),
        ("assistant/chunk", 130, delta("a", "reasoning-delta")),
        ("assistant/chunk", 150, delta("b")),
        ("assistant/message", 180, reply(USAGE)),
        END,
    )
    assert (stats.turns, stats.steps, stats.llm_ms) == (1, 1, 80)
    assert (stats.ttft_ms, stats.ttft_steps, stats.decode_ms, stats.decode_tokens) == (30, 1, 50, 4)
    assert stats.usage == {"p/m": Tokens(10, 2, 0, 4, 0)}


def test_nothing_is_decoded_where_no_tokens_were_reported() -> None:
    stats = stats_of(
        ("step/start", 0, {}), ("assistant/chunk", 5, delta("a")), ("assistant/message", 9, reply()), END
    )
    assert (stats.ttft_ms, stats.decode_ms, stats.decode_tokens, stats.usage) == (5, 0, 0, {})


def test_a_retry_keeps_the_first_token_of_the_first_attempt_and_pays_for_both() -> None:
    first = {"chunk": {"type": "usage", "usage": USAGE}}
    stats = stats_of(
        ("request/context", 0, {"provider": "p", "model": "m"}),
        ("step/start", 0, {}),
        ("assistant/chunk", 5, delta("a")),
        ("assistant/chunk", 6, first),
        ("llm/retry", 7, {}),
        ("assistant/chunk", 50, delta("b")),
        ("assistant/message", 60, reply(USAGE)),
        END,
    )
    assert (stats.ttft_ms, stats.llm_ms) == (5, 60)
    assert stats.tokens() == Tokens(20, 4, 0, 8, 0)


def test_a_second_reply_of_a_step_is_not_timed_again() -> None:
    stats = stats_of(
        ("step/start", 0, {}), ("assistant/message", 10, reply()), ("assistant/message", 90, reply()), END
    )
    assert stats.llm_ms == 10


def test_a_step_without_a_reply_counts_but_is_not_timed() -> None:
    stats = stats_of(("step/start", 0, {}), END, ("turn/end", 1001, {}))
    assert (stats.turns, stats.steps, stats.llm_ms, stats.ttft_steps) == (1, 1, 0, 0)


def test_a_turn_without_a_step_is_none() -> None:
    assert stats_of(("turn/start", 0, {}), ("turn/end", 5, {})).turns == 0


def test_tools_are_timed_by_call_and_leftovers_are_dropped() -> None:
    stats = stats_of(
        ("tool/call", 0, {"callId": "a"}),
        ("tool/call", 2, {"callId": "b"}),
        ("tool/result", 10, result("b")),
        ("tool/result", 20, result("a")),
        ("tool/result", 30, result("orphan")),
        ("tool/call", 40, {"callId": "c"}),
        ("turn/end", 50, {}),
        ("tool/result", 99, result("c")),
    )
    assert (stats.tool_calls, stats.tool_ms) == (3, 28)


def test_a_clock_that_goes_back_counts_as_no_time() -> None:
    stats = stats_of(
        ("step/start", 100, {}), ("assistant/chunk", 50, delta("a")), ("assistant/message", 40, reply(USAGE)),
        ("tool/call", 100, {"callId": "a"}), ("tool/result", 10, result("a")),
    )  # fmt: skip
    assert (stats.llm_ms, stats.ttft_ms, stats.decode_ms, stats.tool_ms) == (0, 0, 0, 0)


def reply_of(model: str, usage: dict[str, int] | None = USAGE) -> dict[str, Any]:
    data = reply(usage)
    data["message"]["source"]["model"] = model
    return data


def test_the_cost_is_known_where_every_price_is() -> None:
    one = stats_of(("assistant/message", 0, reply(USAGE)))
    assert one.cost == pytest.approx((10 + 8 + 1) / 1e6)
    assert stats_of(("assistant/message", 0, reply_of("nobody-knows"))).cost is None
    assert SessionStats().cost == 0
    other = SessionStats()
    other.add(stats_of(("assistant/message", 0, reply_of("euro"))))
    assert other.cost is not None
    other.add(one)
    assert other.cost is None  # dollars and euros are no sum
    assert other.tokens().input == 20 and one.tokens().input == 10


def test_a_reply_without_a_count_of_tokens_makes_the_cost_unknown() -> None:
    assert stats_of(("assistant/message", 0, reply(USAGE)), ("assistant/message", 9, reply())).cost is None
    cut = reply() | {"interrupted": True}
    assert stats_of(("assistant/message", 0, reply(USAGE)), ("assistant/message", 9, cut)).cost is not None


def test_the_price_is_that_of_the_time_at_which_the_request_began() -> None:
    hour = 3_600_000
    for began, cost in ((hour - 1, 1.0), (hour, 2.0), (2 * hour - 1, 2.0), (2 * hour, 1.0)):
        usage = {"inputTokens": 1_000_000, "outputTokens": 0}
        facts = ("step/start", began, {}), ("assistant/message", began + hour, reply_of("peak", usage))
        assert stats_of(*facts).cost == cost
        begun = ("step/start", 0, {}), ("request/digest", began, {})
        assert stats_of(*begun, ("assistant/message", 9 * hour, reply_of("peak", usage))).cost == cost
        again = ("request/digest", 0, {}), ("llm/retry-started", began, {})
        assert stats_of(*again, ("assistant/message", 9 * hour, reply_of("peak", usage))).cost == cost


def title(model: str, usage: dict[str, int] | None, **more: Any) -> dict[str, Any]:
    data = {"requestSeq": 1, "provider": "p", "model": model, **more}
    return data | ({"usage": usage} if usage else {})


def test_a_title_is_paid_at_the_price_of_the_time_at_which_it_was_asked_for() -> None:
    hour = 3_600_000
    for began, cost in ((hour - 1, 1.0), (hour, 2.0), (2 * hour - 1, 2.0), (2 * hour, 1.0)):
        asked = ("session/title-llm-request", began, {})
        told = title("peak", {"inputTokens": 1_000_000, "outputTokens": 0})
        assert stats_of(asked, ("session/title-llm-result", began + hour, told)).cost == cost


def test_a_whole_title_without_a_count_of_tokens_makes_the_cost_unknown() -> None:
    rejected = {"failure": {"message": "no text", "code": "SESSION_TITLE_REJECTED"}}
    aborted = {"failure": {"message": "given up", "code": "ABORTED"}}
    for more, is_known in (({}, False), (rejected, False), (aborted, True)):
        told = ("session/title-llm-result", 0, title("m", None, **more))
        assert (stats_of(told).cost is not None) is is_known
    not_sent = title("m", None, **rejected) | {"requestSeq": None}
    assert stats_of(("session/title-llm-result", 0, not_sent)).cost == 0


def test_what_a_fork_copied_was_taken_by_its_parent() -> None:
    facts = [
        ("request/context", 0, {"provider": "p", "model": "m"}),
        ("step/start", 0, {}),
        ("assistant/message", 1, reply(USAGE)),
        END,
        ("step/start", 2000, {}),
        ("assistant/chunk", 2001, {"chunk": {"type": "usage", "usage": USAGE}}),
        ("llm/retry", 2002, {}),
    ]
    whole, own = stats_of(*facts), stats_of(*facts, seed=4)
    assert (whole.steps, whole.tokens().input) == (1, 20)
    assert (own.steps, own.tokens().input) == (0, 10)
    assert own.cost == pytest.approx(whole.cost / 2)


def test_sums_are_those_of_the_parts() -> None:
    fold = StatsFold(PRICES.get)
    for event in turns(2):
        fold.observe(event)
    total = SessionStats()
    total.add(fold.stats)
    total.add(fold.stats)
    assert (fold.stats.turns, fold.stats.steps, fold.stats.tool_calls) == (2, 4, 4)
    assert (total.turns, total.steps, total.tool_ms) == (4, 8, 2 * fold.stats.tool_ms)
    assert total.tokens() == Tokens(1200, 20, 0, 200, 28)


def test_a_wrong_payload_is_refused_with_its_place() -> None:
    with pytest.raises(EventRefused, match="event 0"):
        stats_of(("assistant/message", 0, {"message": None}))


def test_a_title_has_the_price_of_the_time_at_which_it_was_asked_for() -> None:
    hour = 3_600_000
    told = {"provider": "p", "model": "peak", "usage": {"inputTokens": 1_000_000, "outputTokens": 0}}
    for began, cost in ((hour - 1, 1.0), (hour, 2.0), (2 * hour, 1.0)):
        title = ("session/title-llm-request", began, {}), ("session/title-llm-result", began + hour, told)
        assert stats_of(("step/start", 0, {}), *title).cost == cost
