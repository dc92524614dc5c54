"""Small decisions about one attempt: which words a failure has, what is no overflow, what a refusal means."""

from __future__ import annotations

import logging

import pytest

from dsh_actors.adapters.llm.dialect import chosen_effort
from dsh_actors.adapters.llm.guards import overflow_of
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.adapters.llm.other_form import other_form
from dsh_actors.adapters.llm.patience import Patience
from dsh_actors.adapters.llm.settings import ModelFacts
from dsh_actors.config.profiles import PROFILES, changed_profile
from dsh_actors.core.chunks import CallConfig, Finish, FinishKind, Usage, UsageChunk
from tests.adapters.llm.llm_kit import (
    DONE,
    Control,
    MemoryTransport,
    answer,
    call,
    config,
    delta,
    failure_of,
    finish,
)

BEGUN = delta(content="Hi")


@pytest.mark.parametrize(
    ("pieces", "word"),
    [([TimeoutError()], "first_event_timeout_s"), ([BEGUN, TimeoutError()], "idle_timeout_s")],
)
def test_a_socket_that_gives_up_first_says_what_the_watchdog_would_have_said(
    pieces: list[bytes | Exception], word: str
) -> None:
    failure = failure_of(answer(pieces))
    assert failure.code == "TIMEOUT" and word in failure.message


def test_a_connection_counts_once() -> None:
    control = Control()
    patience = Patience(config(queue_timeout_s=0.2, first_event_timeout_s=0.1), control, "here")
    patience.connected()
    known = list(control.deadlines)
    patience.connected()
    assert control.deadlines == known
    control.close()


def test_a_call_cancelled_while_its_refusal_is_read_is_cancelled() -> None:
    control = Control()

    class Refused(MemoryTransport):
        def error_body(self) -> bytes:
            control.abort("cancelled")
            return b""

    transport = Refused([b"no"], 500)
    chunks = call(OpenAiCompatibleProvider(config(), transport=transport), control=control)
    assert chunks[-1].kind == "aborted"
    assert transport.closed == 1


def test_a_connection_that_breaks_after_the_reply_is_a_note_and_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    chunks = answer([BEGUN + finish("stop"), ConnectionResetError()])
    assert chunks[-1] == Finish("stop")
    assert "transport_after_finish" in caplog.text
    caplog.clear()
    assert answer([BEGUN + finish("stop") + DONE])[-1] == Finish("stop")
    assert caplog.text == ""


def test_a_reason_that_nobody_knows_is_a_code_of_bounded_length() -> None:
    assert failure_of(answer(BEGUN + finish("odd" * 100) + DONE)).code == ("ODD" * 100)[:64]


@pytest.mark.parametrize(
    ("kind", "output", "is_overflow"), [("stop", 5, True), ("tool-calls", 5, False), ("max-tokens", 5, False)]
)
def test_only_a_reply_that_makes_no_calls_can_be_to_a_prompt_that_was_too_long(
    kind: FinishKind, output: int, is_overflow: bool
) -> None:
    chunks = [UsageChunk(Usage(60, output, 50)), Finish(kind)]
    assert (overflow_of(chunks, 100) is not None) == is_overflow


def test_reasoning_is_not_to_blame_where_none_was_sent() -> None:
    unwelcome = "Unsupported parameter: reasoning_content"
    profile = changed_profile(PROFILES["generic"], {"missing_reasoning": "empty"})
    assert other_form(profile, unwelcome, b'{"messages":[]}') is None
    other = other_form(profile, unwelcome, b'{"reasoning_content":"so"}')
    assert other is not None
    # An empty text in its place would be as unwelcome.
    assert (other.replay_reasoning, other.missing_reasoning) == ("never", "omit")


def test_a_member_that_the_user_asked_for_is_not_left_out_by_itself() -> None:
    body = b'{"stream_options":{}}'
    assert other_form(PROFILES["generic"], "no stream_options", body).stream_options is False
    without = changed_profile(PROFILES["generic"], {"stream_options": False})
    assert other_form(without, "no stream_options", body) is None


def test_every_model_can_be_asked_not_to_reason() -> None:
    asked = CallConfig("test", "m", "off")
    assert chosen_effort(asked, ModelFacts("m", efforts=("low", "high"))) == asked
