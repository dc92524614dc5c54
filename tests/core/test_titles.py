"""Titles: how a text becomes one, and when a model is asked for a better one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Failure, Finish, TextDelta, Usage
from dsh_actors.core.events import Event
from dsh_actors.core.ids import CallId, MessageId, Ticket
from dsh_actors.core.limits import LimitWatch
from dsh_actors.core.messages import Message, OpaqueBlock, PluginSource, TextBlock, ToolCallBlock, UserSource
from dsh_actors.core.options import Limits, TitlePolicy
from dsh_actors.core.quoted_files import quoted_file
from dsh_actors.core.snapshot import dump, load
from dsh_actors.core.state import Counters
from dsh_actors.core.titles import fallback_title, judge_title, normal_title
from dsh_actors.core.turn_env import Environment
from dsh_actors.testing.machine import MachineDriver, call_chunks, text_chunks


def driver(mode: str = "fallback", route: tuple[str, str] | None = None, **more: object) -> MachineDriver:
    return MachineDriver(Environment(CallConfig("p", "m"), titles=TitlePolicy(mode, route)), **more)  # type: ignore[arg-type]


def data_of(log: list[Event], kind: str) -> list[dict[str, object]]:
    return [event.data for event in log if event.type == kind]


def titles(log: list[Event]) -> list[tuple[object, object]]:
    return [(data["title"], data["source"]["kind"]) for data in data_of(log, "session/title")]  # type: ignore[index]


def prompt_seqs(log: list[Event]) -> list[int]:
    said = [event for event in log if event.type == "user/message"]
    return [event.seq for event in said if event.data["source"]["kind"] == "user"]


def ask(machine: MachineDriver, text: str) -> None:
    machine.deliver(text)
    machine.settle()


def answer(machine: MachineDriver, outcome: str | Failure, usage: Usage | None = None) -> None:
    machine.send(io.TitleWritten(machine.take(io.WriteTitle).ticket, outcome, usage))


# --- the text of a title ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  two\n\twords \r\n", "two words"),
        ("\x1b[31mred\x1b[0m and \x1b]0;name\x07bare \x9b1mcsi", "red and bare csi"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1bMend", "link end"),
        ("a\x00b\x7fc\x85d", "abc d"),
        ("\u202egnp.exe\u202c zero\u200bwidth\ufeff", "gnp.exe zerowidth"),
        ("line\u2028para\u2029no\u00a0break", "line para no break"),
        ("\x1b[2J\u200b \n", ""),
    ],
)
def test_a_title_is_one_line_of_what_can_be_seen(text: str, title: str) -> None:
    assert normal_title(text) == title


def test_a_title_is_cut_between_code_points_and_may_vanish() -> None:
    assert normal_title("\N{PEAR}" * 30) == "\N{PEAR}" * 20
    assert normal_title("abc \N{PEAR}", 5) == "abc"
    assert normal_title("\N{PEAR}", 3) == ""


def test_the_fallback_is_the_first_words_within_its_bytes() -> None:
    assert fallback_title("one two three four five six seven") == "one two three four five"
    assert fallback_title("word" * 30) == ("word" * 10)
    assert len(fallback_title("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 100).encode()) <= 40


@pytest.mark.parametrize(
    ("finish", "blocks"),
    [
        (Finish("stop"), ()),
        (Finish("stop"), (TextBlock(" \u200b\n"),)),
        (Finish("max-tokens"), (TextBlock("Cut"),)),
        (Finish("tool-calls"), (TextBlock("Pears"), ToolCallBlock(CallId("c"), "bash", "{}"))),
        (Finish("tool-calls"), (TextBlock("Pears"),)),
        (Finish("stop"), (TextBlock("Pears"), ToolCallBlock(CallId("c"), "bash", "{}"))),
        (Finish("error", Failure("no", "SERVER")), (TextBlock("Pears"),)),
        (Finish("aborted"), (TextBlock("Pears"),)),
    ],
)
def test_a_reply_that_is_no_title_is_rejected(finish: Finish, blocks: tuple[TextBlock, ...]) -> None:
    assert isinstance(judge_title(finish, blocks), Failure)


def test_a_reply_of_text_is_the_title() -> None:
    blocks = (TextBlock(" The price\n"), TextBlock("of pears"))
    assert judge_title(Finish("stop"), blocks) == "The price of pears"


# --- the fallback -----------------------------------------------------------------------------


def test_the_first_prompt_names_the_session_once() -> None:
    machine = driver()
    for text in ("What does a pear cost in winter?", "And an apple?"):
        ask(machine, text)
        machine.reply(*text_chunks("much"))
    (data,) = data_of(machine.log, "session/title")
    assert data["title"] == "What does a pear cost"
    assert (data["messageSeqs"], data["source"]) == (prompt_seqs(machine.log)[:1], {"kind": "fallback"})
    assert machine.machine.state.title == "What does a pear cost"


def test_what_no_person_wrote_in_words_names_nothing() -> None:
    machine = driver()
    for number, (block, source) in enumerate(
        [
            (TextBlock("from a plugin"), PluginSource("p")),
            (OpaqueBlock({"type": "image"}), UserSource()),
            (TextBlock(" \n\u200b"), UserSource()),
        ]
    ):
        machine.send(io.Deliver(Message(MessageId(f"x{number}"), "user", (block,), source)))
        machine.reply(*text_chunks("yes"))
    assert titles(machine.log) == []
    ask(machine, "words")
    assert titles(machine.log) == [("words", "fallback")]


def test_a_file_before_the_words_is_no_part_of_the_title_nor_sent_for_one() -> None:
    machine = driver("first-prompt")
    ask(machine, f"{quoted_file('shop.py', 'line' * 5_000)}\n\nWhat does a pear cost?")
    assert titles(machine.log) == [("What does a pear cost?", "fallback")]
    (asked,) = data_of(machine.log, "session/title-llm-request")
    assert asked["messages"][0]["content"] == [{"type": "text", "text": "What does a pear cost?"}]  # type: ignore[index]


def test_without_a_policy_there_is_no_title() -> None:
    machine = MachineDriver()
    ask(machine, "words")
    assert titles(machine.log) == []


def test_a_session_from_before_titles_is_named_after_its_first_prompt() -> None:
    before = MachineDriver()
    ask(before, "the very first")
    before.reply(*text_chunks("yes"))
    machine = driver("first-prompt", log=before.log)
    ask(machine, "much later")
    assert titles(machine.log) == [("the very first", "fallback")]
    assert data_of(machine.log, "session/title-llm-request") == []


# --- a model's title --------------------------------------------------------------------------


def test_the_first_prompt_is_put_to_the_sessions_model_without_thinking_or_tools() -> None:
    machine = driver("first-prompt")
    ask(machine, "What does a pear cost in winter?")
    effect = machine.take(io.WriteTitle)
    header = effect.request.header
    assert header.config == CallConfig("p", "m", "off", max_tokens=64)
    assert header.tools == () and header.system
    (logged,) = data_of(machine.log, "session/title-llm-request")
    assert logged["route"] == {"provider": "p", "model": "m"}
    assert logged["messages"] == [message.to_json() for message in effect.request.messages]
    assert (logged["system"], logged["maxTokens"]) == (header.system, 64)
    assert logged["messageSeqs"] == prompt_seqs(machine.log)
    machine.send(io.TitleWritten(effect.ticket, "Winter pears", Usage(7, 3)))
    assert titles(machine.log) == [("What does a pear cost", "fallback"), ("Winter pears", "provider")]
    assert data_of(machine.log, "session/title")[1]["source"] == {
        "kind": "provider",
        "provider": "model",
        "model": {"provider": "p", "model": "m"},
    }
    assert machine.machine.state.counters.tokens == 10


def test_the_request_for_a_title_is_logged_before_the_flush_and_made_after_it() -> None:
    machine = driver("first-prompt")
    machine.deliver("words")
    while not any(isinstance(effect, io.Flush) for effect in machine.open):
        (effect,) = machine.open
        machine.open.clear()
        machine.send(machine.usual_answer(effect))  # type: ignore[arg-type]
    assert "session/title-llm-request" in machine.types()
    assert not any(isinstance(effect, io.WriteTitle) for effect in machine.open)
    machine.settle()
    assert any(isinstance(effect, io.WriteTitle) for effect in machine.open)


def test_the_requests_of_the_conversation_are_the_same_with_and_without_a_title() -> None:
    digests = []
    for mode in ("fallback", "all-prompts"):
        machine = driver(mode, ("other", "small"))
        for text in ("one", "two"):
            ask(machine, text)
            machine.reply(*call_chunks(("bash", "{}")))
            machine.run_tool()
            if mode != "fallback":
                answer(machine, f"Title of {text}")
            machine.reply(*text_chunks("done"))
        requests = [event for event in machine.log if event.type == "request/digest"]
        digests.append([event.data["messages"] for event in requests])
        assert [header["reason"] for header in data_of(machine.log, "request/header")] == ["initial"]
    assert digests[0] == digests[1]


def test_first_prompt_asks_once_and_all_prompts_each_time_with_all_of_them() -> None:
    for mode, expected in (("first-prompt", 1), ("all-prompts", 2)):
        machine = driver(mode)
        for text in ("one", "two"):
            ask(machine, text)
            if data_of(machine.log, "session/title-llm-request")[1:] or text == "one":
                answer(machine, f"Title {text}")
            machine.reply(*text_chunks("done"))
        asked = data_of(machine.log, "session/title-llm-request")
        assert len(asked) == expected
        assert asked[-1]["messageSeqs"] == prompt_seqs(machine.log)[:expected]


def test_of_two_prompts_in_one_step_only_the_first_is_the_first_prompt() -> None:
    machine = driver("first-prompt")
    machine.deliver("one", "next-step", wake=False)
    ask(machine, "two")
    (asked,) = data_of(machine.log, "session/title-llm-request")
    assert asked["messageSeqs"] == prompt_seqs(machine.log)[:1]
    assert titles(machine.log) == [("one", "fallback")]


def test_a_newer_prompt_supersedes_the_title_under_way() -> None:
    machine = driver("all-prompts")
    ask(machine, "one")
    old = machine.take(io.WriteTitle)
    machine.reply(*text_chunks("done"))
    ask(machine, "two")
    assert old.ticket in machine.cancelled
    machine.send(io.TitleWritten(old.ticket, "Too late"))
    answer(machine, "Both")
    assert [title for title, _ in titles(machine.log)] == ["one", "Both"]
    (given_up, written) = data_of(machine.log, "session/title-llm-result")
    assert given_up["failure"]["code"] == "ABORTED" and "failure" not in written  # type: ignore[index]


def test_a_title_that_a_person_gave_stays() -> None:
    machine = driver("all-prompts")
    ask(machine, "one")
    given = {"title": "Mine", "messageSeqs": [], "source": {"kind": "user"}}
    machine.send(io.Record("session/title", given))
    answer(machine, "The model's", Usage(5, 5))
    machine.reply(*text_chunks("done"))
    ask(machine, "two")
    assert titles(machine.log)[-1] == ("Mine", "user")
    assert len(data_of(machine.log, "session/title-llm-request")) == 1
    assert machine.machine.state.counters.tokens == 10  # what was late is paid for all the same
    machine.reply(*text_chunks("done"))
    state = machine.machine.state
    restored = load(state.header, dump(state))
    assert restored.fingerprint() == state.fingerprint() and restored.title_pinned


def test_a_failure_is_recorded_and_the_title_stays() -> None:
    machine = driver("first-prompt", ("other", "small"))
    ask(machine, "one")
    answer(machine, Failure("no", "RATE_LIMIT", 429), Usage(4, 0))
    assert titles(machine.log) == [("one", "fallback")]
    (result,) = data_of(machine.log, "session/title-llm-result")
    assert (result["provider"], result["model"]) == ("other", "small")
    assert result["failure"]["code"] == "RATE_LIMIT"  # type: ignore[index]
    assert machine.log[-1].ignorable
    machine.reply(*text_chunks("done"))
    assert machine.ends() == [{"kind": "completed"}]


def test_what_a_title_costs_counts_towards_the_limit() -> None:
    asked = []

    def cost_of(model: str, usage: Usage, began_ms: int) -> float:
        asked.append((model, began_ms))
        return 0.25 * usage.total

    policy = TitlePolicy("first-prompt", ("other", "small"))
    env = Environment(CallConfig("p", "m"), titles=policy, cost_of=cost_of)
    machine = MachineDriver(env)
    ask(machine, "one")
    (began,) = [event.time for event in machine.log if event.type == "session/title-llm-request"]
    machine.now += 60_000
    machine.send(io.Chunks(machine.take(io.OpenStream).ticket, (TextDelta(0, "a"),)))
    answer(machine, "Named", Usage(4, 4))
    assert env.watch.cost == 2.0
    assert asked == [("other/small", began)]


def test_a_title_that_nobody_counted_is_estimated_for_a_limit_on_the_cost() -> None:
    for limit, outcome, is_spent in (
        (1.0, "Named", True),
        (1.0, Failure("no text", "SESSION_TITLE_REJECTED"), True),
        (1.0, Failure("the server is gone", "SERVER"), False),
        (None, "Named", False),
    ):
        env = Environment(
            CallConfig("p", "m"),
            titles=TitlePolicy("first-prompt"),
            cost_of=lambda model, usage, time_ms: usage.total / 1e6,
            watch=LimitWatch(Limits(max_cost=limit), Counters()),
        )
        machine = MachineDriver(env)
        ask(machine, "one")
        answer(machine, outcome)
        assert bool(env.watch.cost) is is_spent


def test_the_price_of_a_title_is_that_of_the_time_at_which_it_was_asked_for() -> None:
    times: list[int] = []
    env = Environment(
        CallConfig("p", "m"),
        titles=TitlePolicy("first-prompt"),
        cost_of=lambda model, usage, time_ms: times.append(time_ms),
    )
    machine = MachineDriver(env)
    ask(machine, "one")
    machine.reply(*call_chunks(("bash", "{}")))
    machine.now += 60_000
    answer(machine, "Named", Usage(4, 4))
    (asked,) = (event for event in machine.log if event.type == "session/title-llm-request")
    assert times == [asked.time]


def test_prompts_that_are_too_long_are_not_sent() -> None:
    machine = driver("first-prompt")
    ask(machine, "long " * 2_000)
    assert data_of(machine.log, "session/title-llm-request") == []
    (result,) = data_of(machine.log, "session/title-llm-result")
    assert result["requestSeq"] is None and result["failure"]
    assert titles(machine.log) == [("long long long long long", "fallback")]


def test_a_fork_keeps_its_parents_title() -> None:
    parent = driver()
    ask(parent, "one")
    parent.reply(*text_chunks("done"))
    child = driver("first-prompt", log=parent.log)
    child.machine.state.header = replace(child.header, parent_session="s", seed_length=len(parent.log))  # type: ignore[arg-type]
    ask(child, "two")
    assert titles(child.log) == [("one", "fallback")]


def test_a_fork_without_a_title_gets_words_and_asks_no_model() -> None:
    child = driver("first-prompt")
    child.machine.state.header = replace(child.header, parent_session="s")  # type: ignore[arg-type]
    ask(child, "two")
    assert titles(child.log) == [("two", "fallback")]
    assert data_of(child.log, "session/title-llm-request") == []


@pytest.mark.parametrize("when", ["before it is sent", "while it is written"])
def test_a_cancelled_turn_gives_its_title_up(when: str) -> None:
    machine = driver("first-prompt")
    machine.deliver("one")
    if when == "while it is written":
        machine.settle()
    else:
        while "session/title-llm-request" not in machine.types():
            (effect,) = machine.open
            machine.open.clear()
            machine.send(machine.usual_answer(effect))  # type: ignore[arg-type]
    machine.send(io.Cancel({"kind": "user"}))
    assert data_of(machine.log, "session/title-llm-result")[0]["failure"]["code"] == "ABORTED"  # type: ignore[index]
    assert not machine.machine.titles.is_under_way
    asked = [effect.ticket for effect in machine.open if isinstance(effect, io.WriteTitle)]
    assert len(asked) == (when == "while it is written") and set(asked) <= set(machine.cancelled)
    assert len(machine.cancelled) == 1 + len(asked)  # the work of the turn, and the title where it was sent


def test_a_dispose_may_let_a_title_come_to_its_end() -> None:
    machine = driver("first-prompt")
    ask(machine, "one")
    machine.reply(*text_chunks("done"))
    machine.send(io.Cancel({"kind": "disposed"}, keep_title=True))
    assert machine.machine.titles.is_under_way
    answer(machine, "Named")
    assert not machine.machine.titles.is_under_way
    assert titles(machine.log)[-1] == ("Named", "provider")


def test_an_answer_to_nothing_is_dropped() -> None:
    machine = driver("first-prompt")
    ask(machine, "one")
    machine.send(io.TitleWritten(Ticket(999), "Whose?"))
    assert [title for title, _ in titles(machine.log)] == ["one"]
