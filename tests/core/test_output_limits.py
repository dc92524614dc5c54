"""The turn machine's use of the token meter: output limits that fit the window, and limits on the cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsh_actors.core import tokens
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Failure, Finish, TextDelta, Usage, UsageChunk
from dsh_actors.core.limits import LimitWatch
from dsh_actors.core.options import Limits
from dsh_actors.core.retry import GiveUp
from dsh_actors.core.state import Counters
from dsh_actors.core.turn_env import Environment, Phase
from dsh_actors.testing.machine import MachineDriver, call_chunks, text_chunks

WINDOW = 20_000


class Driver(MachineDriver):
    """A machine whose provider fills in an output limit and knows its model's window."""

    window: int | None = WINDOW

    def usual_answer(self, effect: io.Effect) -> io.Input | None:
        if isinstance(effect, io.AskRequest):
            proposal, filled = effect.proposal, frozenset[str]()
            if proposal.max_tokens is None:
                proposal, filled = replace(proposal, max_tokens=8_000), frozenset({"maxTokens"})
            return io.CallReady(effect.ticket, proposal, filled, self.window)
        return super().usual_answer(effect)

    def headers(self) -> list[tuple[str, int]]:
        """The reason and the output limit of each logged header."""
        logged = (event.data for event in self.log if event.type == "request/header")
        return [(data["reason"], data["header"]["config"]["maxTokens"]) for data in logged]


def talk(driver: Driver, question: str, usage: Usage | None = None) -> None:
    driver.deliver(question)
    chunks = [TextDelta(0, "ok"), *([UsageChunk(usage)] if usage else []), Finish("stop")]
    driver.reply(*chunks)


def test_a_default_limit_shrinks_as_the_window_fills_and_is_logged_as_it_is_sent() -> None:
    driver = Driver()
    talk(driver, "short")
    assert driver.headers() == [("initial", 8_000)]
    talk(driver, "word" * 11_500)
    talk(driver, "more")
    assert driver.headers() == [("initial", 8_000), ("change", 4_000)]
    logged = driver.machine.state.request_header
    assert (logged.config.max_tokens, logged.adapter_defaults) == (4_000, {"maxTokens"})
    talk(driver, "word" * 1_500)
    assert driver.headers()[-1] == ("change", 2_000)


def test_what_the_provider_counts_decides_and_not_the_estimate() -> None:
    driver = Driver()
    talk(driver, "short", Usage(13_000, 10))
    talk(driver, "more")
    assert driver.headers() == [("initial", 8_000), ("change", 4_000)]


def test_the_window_is_the_providers_own_and_may_not_be_known() -> None:
    driver = Driver()
    driver.window = None
    talk(driver, "word" * 50_000)
    assert driver.headers() == [("initial", 8_000)]


def test_a_limit_that_was_asked_for_stays_and_costs_no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "message_tokens", lambda message: pytest.fail("measured"))
    driver = Driver(Environment(CallConfig("p", "m", max_tokens=9_000)))
    talk(driver, "word" * 50_000)
    assert driver.headers() == [("initial", 9_000)]


def test_a_session_that_is_resumed_sends_the_limit_it_would_have_sent() -> None:
    driver = Driver()
    talk(driver, "short", Usage(13_000, 10))
    again = Driver(log=driver.log)
    assert again.machine.requests.context() == driver.machine.requests.context() == 13_000 + 4 + 1 + 4
    for each in (driver, again):
        talk(each, "more")
        assert each.headers()[-1][1] == 4_000


def test_the_context_is_known_before_and_after_requests_and_while_one_runs() -> None:
    driver = Driver()
    assert driver.machine.requests.context() is None
    driver.deliver("hello")
    driver.settle()
    running = driver.machine.requests.context()
    assert running == 4 + 2 + 4 + (4 + 2)  # the message, and the system prompt "system"
    driver.reply(TextDelta(0, "four"), UsageChunk(Usage(100, 5, 20)), Finish("stop"))
    assert driver.machine.requests.context() == 120 + 4 + 1 + 4


# --- limits on the cost -----------------------------------------------------------------------


def paid(limit: float | None, price: float | None = 1.0) -> Driver:
    """A machine that pays ``price`` a token."""
    watch = LimitWatch(Limits(max_cost=limit), Counters())
    seen = []

    def cost(model: str, usage: Usage, began: int) -> float | None:
        seen.append((model, usage, began))
        return None if price is None else price * usage.total

    driver = Driver(Environment(CallConfig("p", "m"), watch=watch, cost_of=cost))
    driver.seen = seen  # type: ignore[attr-defined]
    return driver


def test_a_reply_that_nobody_counted_is_estimated_for_a_limit_on_the_cost() -> None:
    driver = paid(1_000)
    driver.deliver("hello")
    driver.reply(*call_chunks(("bash", '{"command": "ls"}')))
    prompt, output = 16, 1 + 5 + 4
    assert driver.machine.env.watch.cost == prompt + output
    [(model, usage, began)] = driver.seen
    sent = next(event for event in driver.log if event.type == "request/digest")
    assert (model, usage, began) == ("p/m", Usage(prompt, output), sent.time)


def test_a_reply_that_was_cut_off_is_estimated_too_and_one_that_brought_nothing_is_free() -> None:
    for chunks, cost in (((TextDelta(0, "four"),), 16 + 5), ((), 0)):
        driver = paid(1_000)
        driver.deliver("hello")
        driver.reply(*chunks, Finish("error", Failure("gone", "TRANSPORT")))
        driver.send(io.ErrorDecided(driver.take(io.AskRequestError).ticket, GiveUp("network")))
        assert driver.machine.env.watch.cost == cost


def test_without_a_limit_nothing_is_estimated() -> None:
    driver = paid(None)
    talk(driver, "hello")
    assert driver.seen == [] and driver.machine.env.watch.cost == 0


def test_a_cost_that_becomes_unknown_ends_a_run_with_a_limit_on_it() -> None:
    driver = paid(1_000, price=None)
    driver.deliver("hello")
    driver.reply(*call_chunks(("bash", "{}")))
    driver.run_tool()
    [reached] = [event.data for event in driver.log if event.type == "limit/reached"]
    assert (reached["kind"], reached["value"]) == ("max_cost", 1_000)
    assert driver.machine.phase is Phase.IDLE
    free = paid(None, price=None)
    talk(free, "hello", Usage(5, 5))
    free.deliver("more")
    free.reply(*text_chunks("ok"))
    assert "limit/reached" not in free.types()
