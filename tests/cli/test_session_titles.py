"""Titles as a user meets them: off by default, written beside the run, never in its way."""

from __future__ import annotations

import time

import pytest

from tests.cli.dsh_process import Dsh, Event, assert_refused
from tests.model_server import STALL, C, Request, T, reuse_faults

TITLES_OF = {"DSH_SESSION_TITLE_MODEL": "deepseek/deepseek-v4-flash"}
FIRST = {"DSH_SESSION_TITLE": "first-prompt", **TITLES_OF}
WORK = [C("bash", {"command": "echo @@N@@"}), T("done")]


def play(dsh: Dsh, work: list[Event], titles: list[Event]) -> None:
    """The run's model answers with ``work``, the model of titles with ``titles``."""
    dsh.server.script(**{"test": work, "deepseek-v4-flash": titles})


def requests_of(dsh: Dsh, route: str) -> list[Request]:
    return [request for request in dsh.requests() if request.route == route]


def listed(dsh: Dsh) -> dict[str, str]:
    return {line["id"]: line["title"] for line in dsh.call("session", "ls", "--json").events}


def assert_proved(dsh: Dsh) -> None:
    verified = dsh.call("session", "verify", "--all", "--requests")
    assert verified.code == 0, verified.out + verified.err


def test_by_default_a_session_is_named_by_its_first_words_and_no_model_is_asked(dsh: Dsh) -> None:
    dsh.server.script(*WORK, T("two"))
    assert dsh.run("--session-id", "s", "Count all the pears that are left, please.").code == 0
    assert dsh.run("--resume", "s", "And the apples?").code == 0
    assert listed(dsh) == {"s": "Count all the pears that"}
    assert len(dsh.requests()) == 3


def test_a_model_writes_a_title_beside_the_run_and_touches_nothing_of_it(dsh: Dsh) -> None:
    used = {"prompt_tokens": 40, "completion_tokens": 5}
    more = [C("bash", {"command": "echo more"}), T("two", usage=None)]
    play(dsh, [WORK[0], T("done", usage=None), *more], [T("Pears, counted", usage=used)])
    result = dsh.run("--session-id", "s", "--json", "Count the pears.", env=FIRST)
    assert (result.code, result.err, result.end["answer"]) == (0, "", "done")
    assert listed(dsh) == {"s": "Pears, counted"}
    stats = dsh.call("session", "stats", "--json", "s").events[0]["usage"]
    assert stats == result.end["usage"]["own"]
    assert stats["input"] >= 40 and stats["output"] >= 5
    told = [event["data"].get("usage") for event in result.events if event["type"] == "assistant/message"]
    assert stats["input"] - sum(usage["inputTokens"] for usage in told if usage) == 40
    assert dsh.run("--resume", "s", "And the apples?", env=FIRST).code == 0
    (asked,) = requests_of(dsh, "deepseek-v4-flash")
    assert asked.json["thinking"] == {"type": "disabled"} and "reasoning_effort" not in asked.json
    assert asked.json["max_tokens"] == 64 and "tools" not in asked.json
    assert [message["role"] for message in asked.messages] == ["system", "user"]
    assert asked.messages[1]["content"] == "Count the pears."
    assert reuse_faults([request.body for request in requests_of(dsh, "test")]) == []
    assert len(dsh.requests()) == 5
    assert_proved(dsh)


def test_a_title_that_takes_its_time_delays_the_end_by_little(dsh: Dsh) -> None:
    play(dsh, WORK, [STALL(99, "so ")])
    began = time.monotonic()
    result = dsh.run("--session-id", "s", "--json", "Count the pears.", env=FIRST)
    assert time.monotonic() - began < 20  # a guard against a hang: the other side sleeps for 99 s
    assert (result.code, result.err, result.end["answer"]) == (0, "", "done")
    (told,) = result.of("session/title-llm-result")
    assert told["data"]["failure"]["code"] == "ABORTED"
    dsh.server.wait_for_ends(3)
    assert [request.outcome for request in requests_of(dsh, "deepseek-v4-flash")] == ["client-left"]
    assert listed(dsh) == {"s": "Count the pears."}


def test_a_killed_run_leaves_the_title_it_had(dsh: Dsh) -> None:
    play(dsh, [T("", hold="never"), T("later")], [T("", hold="never")])
    running = dsh.begin("--session-id", "s", "Count the pears.", env=FIRST)
    dsh.server.wait_for_requests(2)
    running.kill()
    assert dsh.run("--resume", "s", "go on", env=FIRST).out == "later\n"
    assert listed(dsh) == {"s": "Count the pears."}
    assert len(requests_of(dsh, "deepseek-v4-flash")) == 1
    assert_proved(dsh)


def test_a_run_that_keeps_nothing_needs_no_title(dsh: Dsh) -> None:
    play(dsh, WORK, [T("Named")])
    assert dsh.run("--ephemeral", "go", env=FIRST).code == 0
    assert requests_of(dsh, "deepseek-v4-flash") == []


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("TITLE", "sometimes", "all-prompts"),
        ("TITLE_MODEL", "deepseek", "PROVIDER/MODEL"),
        ("TITLE_MODEL", "deepsek/deepseek-flash", "deepseek"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_happens(
    dsh: Dsh, name: str, value: str, word: str
) -> None:
    result = dsh.run("go", env={**FIRST, f"DSH_SESSION_{name}": value})
    assert_refused(result, dsh)
    assert word in result.err


def test_a_limit_on_cost_needs_the_price_of_titles_too(dsh: Dsh) -> None:
    dsh.home.mkdir(mode=0o700)
    priced = '[[providers.openai.models]]\nid = "test"\nprice = { input = 1, output = 2 }\n'
    (dsh.home / "config.toml").write_text(priced)
    unpriced = FIRST | {"DSH_SESSION_TITLE_MODEL": "openai/unpriced"}
    result = dsh.run("--max-cost", "1", "go", env=unpriced)
    assert_refused(result, dsh)
    assert "openai/unpriced" in result.err


def test_a_limit_on_cost_and_titles_in_another_currency_are_refused_before_anything_happens(dsh: Dsh) -> None:
    dsh.home.mkdir(mode=0o700)
    priced = '[[providers.openai.models]]\nid = "test"\nprice = { input = 1, output = 2, currency = "EUR" }\n'
    (dsh.home / "config.toml").write_text(priced)
    result = dsh.run("--max-cost", "1", "go", env=FIRST)
    assert_refused(result, dsh)
    assert "deepseek-v4-flash is in USD" in result.err and "EUR" in result.err
    play(dsh, [T("done")], [])
    assert dsh.run("--max-cost", "1", "go", env=FIRST | {"DSH_SESSION_TITLE": "fallback"}).code == 0


def test_a_title_that_nobody_counted_has_no_known_cost(dsh: Dsh) -> None:
    dsh.home.mkdir(mode=0o700)
    priced = '[[providers.openai.models]]\nid = "test"\nprice = { input = 1, output = 2 }\n'
    (dsh.home / "config.toml").write_text(priced)
    play(dsh, [C("bash", {"command": "true"}, hold="titled"), T("done")], [T("Named", usage=None)])
    running = dsh.begin("--session-id", "s", "--json", "Count the pears.", env=FIRST)
    running.wait_for_event("session/title-llm-result")
    dsh.server.release("titled")
    assert running.wait().end["cost"] is None
    assert dsh.call("session", "stats", "--json", "s").events[0]["cost"] is None
