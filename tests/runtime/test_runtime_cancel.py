"""Cancel switches: thrown once, heard by all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.ports import CancelToken
from dsh_actors.runtime.cancel import Cancelled, CancelSource


def test_the_first_reason_stays_and_callbacks_run_once() -> None:
    source, calls = CancelSource(), []
    token: CancelToken = source.token
    token.on_cancel(lambda: calls.append(token.reason))
    assert token.reason is None
    source.cancel("user")
    source.cancel("parent")
    assert token.reason == "user"
    assert calls == ["user"]


def test_a_callback_registered_after_the_cancel_runs_at_once() -> None:
    source, calls = CancelSource(), []
    source.cancel("user")
    undo = source.token.on_cancel(lambda: calls.append(1))
    assert calls == [1]
    undo()


def test_whoever_registers_during_a_cancel_runs_nobody_elses_callback() -> None:
    # It may be a native thread, and the others may wake greenlets of the thread that cancels.
    source, calls = CancelSource(), []

    def join_in() -> None:
        source.token.on_cancel(lambda: calls.append("its own"))
        calls.append("registered")

    source.token.on_cancel(lambda: calls.append("another's"))
    source.token.on_cancel(join_in)
    source.cancel("user")
    assert calls == ["its own", "registered", "another's"]


def test_a_failing_callback_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    source, calls = CancelSource(), []
    source.token.on_cancel(lambda: calls.append("first"))
    source.token.on_cancel(lambda: 1 // 0)
    source.token.on_cancel(lambda: calls.append("last"))
    source.cancel("user")
    assert sorted(calls) == ["first", "last"]
    assert "ZeroDivisionError" in caplog.text


def test_a_cancel_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="reason"):
        CancelSource().cancel(None)


def test_a_cancelled_error_carries_the_reason() -> None:
    error = Cancelled("user")
    assert (error.code, error.reason, str(error)) == ("CANCELLED", "user", "Cancelled: user")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), max_size=8), st.integers(0, 8))
def test_each_callback_runs_exactly_once_unless_undone_before(undone: list[bool], late: int) -> None:
    source, calls = CancelSource(), []
    undos = [source.token.on_cancel(lambda n=n: calls.append(n)) for n in range(len(undone))]
    for undo, is_undone in zip(undos, undone, strict=True):
        if is_undone:
            undo()
            undo()
    source.cancel("now")
    for n in range(late):
        source.token.on_cancel(lambda n=n: calls.append(100 + n))
    for undo in undos:
        undo()
    expected = [n for n, is_undone in enumerate(undone) if not is_undone] + [100 + n for n in range(late)]
    assert sorted(calls) == expected
