"""What a log says of jobs, how often an end wakes, and which notices nobody has read."""

from __future__ import annotations

import pytest

from dsh_actors.core.bounded_output import exit_words
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.inbox import splice
from dsh_actors.core.jobs import MAX_WAKES, JobLog, NoticeBudget, UnreadNotices, notice_source, started_fact
from dsh_actors.core.messages import user_message
from dsh_actors.core.outcome import Circumstances, OutcomeFold
from dsh_actors.core.snapshot import dump, load
from dsh_actors.core.state import SessionState
from dsh_actors.errors import EventRefused

STARTED = ("job/started", started_fact("bash-1", "bash", "make"))
NOTICE = user_message("n1", "bash-1 has ended", notice_source(["bash-1"]))


def state_of(header: SessionHeader, *facts: tuple[str, dict[str, object]]) -> SessionState:
    state = SessionState(header)
    for seq, (kind, data) in enumerate(facts):
        state.apply(Event(kind, seq, 1, data, ignorable=True))
    return state


def test_a_job_without_an_end_is_open_and_survives_a_snapshot() -> None:
    header = SessionHeader(SessionId("s"), 1)
    state = state_of(header, STARTED, ("job/started", {"id": "bash-2"}), ("job/ended", {"id": "bash-1"}))
    assert (state.jobs.started, state.jobs.open) == (2, {"bash-2": ""})
    assert load(header, dump(state)).fingerprint() == state.fingerprint()
    assert "jobs" not in dump(SessionState(header))


def test_a_fork_counts_on_but_owns_none_of_its_parents_jobs() -> None:
    state = state_of(SessionHeader(SessionId("s"), 1, seed_length=1), STARTED)
    assert (state.jobs.started, state.jobs.open) == (1, {})


def test_a_wrong_fact_or_snapshot_of_jobs_is_refused() -> None:
    header = SessionHeader(SessionId("s"), 1)
    with pytest.raises(EventRefused):
        state_of(header, ("job/started", {"label": "make"}))
    for wrong in ({"started": "1", "open": {}}, {"started": 1, "open": {"a": 1}}, {"started": 1}, [], 5):
        with pytest.raises(EventRefused):
            load(header, dump(SessionState(header)) | {"jobs": wrong})


def test_a_copy_of_a_log_is_its_own() -> None:
    log = JobLog()
    log.copy().apply(*STARTED)
    assert log == JobLog()


def test_the_budget_counts_wakes_and_keeps_the_last_for_the_last_job() -> None:
    budget = NoticeBudget()
    assert [budget.may_wake(True) for _ in range(4)] == [True] * (MAX_WAKES - 1) + [False] * 2
    assert budget.may_wake(False) and not budget.may_wake(False)
    budget.restore()
    assert budget.may_wake(False)


def test_a_notice_is_unread_until_it_is_a_message_of_a_step() -> None:
    unread = UnreadNotices()
    unread.queued(splice("next-step", 0, inserted=(user_message("m", "hello"), NOTICE)))
    assert unread.jobs == ["bash-1"]
    unread.read(user_message("m", "hello").to_json())
    assert unread.jobs == ["bash-1"]
    unread.read(NOTICE.to_json())
    assert unread.jobs == []


@pytest.mark.parametrize(("is_read", "reason", "code"), [(True, "completed", 0), (False, "abandoned", 4)])
def test_a_run_whose_agent_did_not_hear_of_an_end_is_not_done(is_read: bool, reason: str, code: int) -> None:
    answer = {
        "message": {"content": [{"type": "text", "text": "done"}], "source": {"kind": "model"}},
        "usage": None,
    }
    facts = [
        ("turn/start", {"turn": 1}),
        ("agent/inbox/spliced", splice("next-step", 0, inserted=(NOTICE,))),
        *([("user/message", NOTICE.to_json())] if is_read else []),
        ("assistant/message", answer),
        ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}),
    ]
    fold = OutcomeFold()
    for seq, (kind, data) in enumerate(facts):
        fold.apply(Event(kind, seq, 1, data))
    end = fold.end(Circumstances())
    assert (end.reason, end.exit_code) == (reason, code)


def test_every_end_of_a_command_has_words() -> None:
    assert [exit_words(code) for code in (0, 3, -9, -15, -64)] == [
        "exit code 0",
        "exit code 3",
        "ended by signal SIGKILL",
        "ended by signal SIGTERM",
        "ended by signal 64",
    ]
