"""What is done of a batch, what is to be done, and what all of it comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsh_actors.core.batch import (
    TASK_EVENT,
    BatchStop,
    Decision,
    Finished,
    Spending,
    StoredTask,
    Tally,
    decide,
    digest_of,
    needs_look,
    seconds_left,
    task_session_id,
)
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import exit_code_of
from dsh_actors.core.outcome import RunEnd

TOKENS = {"input": 5, "cache_read": 1, "cache_write": 0, "output": 2, "reasoning": 1}


def stored(*events: tuple[str, dict[str, Any]], attempt: int = 1) -> StoredTask:
    task = StoredTask("b", "t", attempt)
    for seq, (kind, data) in enumerate(events):
        task.apply(Event(kind, seq, 0, data, ignorable=kind == TASK_EVENT))
    return task


def marked(digest: str = "d", task: str = "t", batch: str = "b") -> tuple[str, dict[str, Any]]:
    return TASK_EVENT, {"batch": batch, "task": task, "digest": digest}


def told(**source: Any) -> dict[str, Any]:
    return {"source": {"kind": "user", **source}}


QUEUED = ("agent/inbox/spliced", {"target": "next-turn", "start": 0, "inserted": [told()]})
TURN = ("turn/start", {"turn": 1})
JOB = ("job/started", {"id": "bash-1", "label": "make"})
JOB_END = ("job/ended", {"id": "bash-1", "status": "killed"})
JOB_NOTICE = told(kind="plugin", plugin="jobs", jobs=["bash-1"])
NOTICE = ("agent/inbox/spliced", {"target": "next-step", "start": 0, "inserted": [JOB_NOTICE]})
HEARD = ("user/message", JOB_NOTICE)
SETTLED = ("user/message", told(kind="subagent-settled", senderSessionId="a"))


def agent(mode: str) -> tuple[str, dict[str, Any]]:
    return "subagent/started", {"id": "a", "label": "look", "mode": mode}



def ended(kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "turn/end", {"turn": 1, "reason": {"kind": kind, **more}}


DONE = ended("completed")


def end(reason: str, cost: float | None = 0.25, signal: str | None = None) -> RunEnd:
    usage = {"own": TOKENS, "children": TOKENS}
    steps = int(reason != "usage")
    return RunEnd(reason, exit_code_of(reason, signal), "s", reason, usage=usage, cost=cost, steps=steps)


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "was_prompted", "is_over"),
    [
        ([], False, False),
        ([marked()], False, False),
        ([marked(), QUEUED], True, False),
        ([marked(), QUEUED, TURN], True, False),
        ([marked(), TURN, DONE], True, True),
        ([marked(), TURN, DONE, TURN], True, False),
        ([marked(), TURN, JOB, DONE, marked(), TURN, DONE], True, True),
        ([marked(), TURN, ended("interrupted")], True, False),
        ([marked(), TURN, ended("aborted", reason={"kind": "user"})], True, False),
        ([marked(), TURN, ended("aborted", reason={"kind": "disposed"})], True, False),
        ([marked(), TURN, ended("aborted", reason={"kind": "hook", "reason": "timeout"})], True, True),
        ([marked(), TURN, ended("error", error={})], True, True),
        ([marked(), TURN, DONE, marked()], False, False),
        ([TURN, DONE, marked()], False, False),
        ([marked(), TURN, marked(task="other"), DONE], True, False),
        ([marked(), TURN, JOB, DONE], True, False),
        ([marked(), TURN, JOB, ended("error", error={})], True, True),
        ([marked(), TURN, JOB, JOB_END, DONE], True, True),
        ([marked(), TURN, JOB, DONE, JOB_END], True, False),
        ([marked(), TURN, JOB, DONE, JOB_END, NOTICE], True, False),
        ([marked(), TURN, JOB, JOB_END, NOTICE, DONE], True, False),
        ([marked(), TURN, JOB, DONE, JOB_END, NOTICE, TURN, HEARD, DONE], True, True),
        ([marked(), TURN, agent("one-shot"), DONE], True, True),
        ([marked(), TURN, agent("continuable"), DONE], True, False),
        ([marked(), TURN, agent("continuable"), DONE, TURN, SETTLED, DONE], True, True),
        ([JOB, agent("continuable"), marked(), TURN, DONE], True, True),
    ],
)
def test_a_session_tells_how_far_its_task_came(events: list[Any], was_prompted: bool, is_over: bool) -> None:
    task = stored(*events)
    assert (task.was_prompted, task.is_over) == (was_prompted, is_over)


def test_a_task_that_waits_for_nothing_is_over_with_its_turn() -> None:
    task = StoredTask("b", "t", 1, waits=False)
    for seq, (kind, data) in enumerate((marked(), TURN, JOB, DONE)):
        task.apply(Event(kind, seq, 0, data, ignorable=kind == TASK_EVENT))
    assert task.is_over and task.owed.names == ("bash-1",)


def test_a_session_of_another_task_or_batch_says_nothing_of_this_one() -> None:
    for other in (marked(task="u"), marked(batch="c")):
        assert stored(other, TURN, DONE).digest is None


# --- what to do -----------------------------------------------------------------------------------


def decided(
    finished: Finished | None, session: StoredTask | None, *, retry: bool = False, completed: bool = True
) -> Decision:
    return decide("d", finished, session, retry_failed=retry, completed=completed)


def line(status: str, digest: str = "d", attempt: int = 1) -> Finished:
    return Finished(digest, status, attempt)


def test_a_task_that_nothing_is_known_of_is_begun() -> None:
    assert decided(None, None) == Decision("start", 1)


@pytest.mark.parametrize("status", ["completed", "failed", "limit", "timeout", "denied", "schema"])
def test_a_task_with_a_result_is_left_alone(status: str) -> None:
    assert decided(line(status), None) == Decision("skip", 1)
    assert not needs_look("d", line(status), retry_failed=False)


def test_what_failed_is_run_anew_where_that_is_wanted() -> None:
    over = stored(marked(), TURN, ended("error"), attempt=2)
    assert decided(line("failed", attempt=2), over, retry=True, completed=False) == Decision("start", 3)
    assert decided(line("completed"), over, retry=True).action == "skip"


def test_what_was_interrupted_goes_on_in_its_session() -> None:
    cut = stored(marked(), TURN, ended("aborted", reason={"kind": "user"}))
    assert decided(line("signal"), cut) == Decision("resume", 1)
    assert decided(None, stored(marked(), TURN)) == Decision("resume", 1)
    # A new try that was killed, too.
    assert decided(line("failed"), stored(marked(), attempt=2), retry=True) == Decision("resume", 2)


def test_a_task_that_ended_without_its_line_is_only_told_of() -> None:
    assert decided(None, stored(marked(), TURN, DONE)) == Decision("report", 1)


def test_a_task_that_has_changed_is_run_in_a_session_of_its_own() -> None:
    assert decided(line("completed", "old"), stored(marked("old"), TURN, DONE)) == Decision("start", 2)
    assert decided(None, stored(marked("old"), TURN)) == Decision("start", 2)
    assert decided(line("completed", "old"), stored(marked(), TURN, attempt=2)) == Decision("resume", 2)


def test_an_interrupted_task_without_a_session_begins_again() -> None:
    assert decided(line("signal"), None) == Decision("start", 1)


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "batch.end"},
        {"type": "task.end", "id": "t", "digest": "d", "status": "usage", "attempt": 1},
        {"type": "task.end", "id": "t", "digest": "d", "status": "busy", "attempt": 1},
        {"type": "task.end", "id": None, "digest": "d", "status": "failed", "attempt": 1},
        {"type": "task.end", "id": "t", "digest": "d", "status": "failed", "attempt": "1"},
        [],
        None,
    ],
)
def test_only_lines_of_tasks_that_began_count_as_results(raw: Any) -> None:
    assert Finished.of(raw) is None


def test_a_result_line_is_found_again() -> None:
    raw = {"type": "task.end", "id": "t", "digest": "d", "status": "failed", "attempt": 2, "more": 1}
    assert Finished.of(json.loads(json.dumps(raw))) == ("t", Finished("d", "failed", 2))


def test_a_digest_depends_on_values_and_not_on_their_order() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert len({digest_of({"a": 1}), digest_of({"a": 2}), digest_of({"a": 1}, {}), digest_of()}) == 4


def test_each_attempt_has_a_session_of_its_own_and_long_ids_stay_apart() -> None:
    assert task_session_id("b", "t", 1) == "batch-b-t" and task_session_id("b", "t", 2) == "batch-b-t.2"
    long = [task_session_id("b" * 80, "x" * 150 + last, 12) for last in "yz"]
    assert long[0] != long[1] and max(map(len, long)) <= 200


# --- all of them ----------------------------------------------------------------------------------


def test_the_summary_counts_everything_once() -> None:
    tally = Tally()
    tally.add(end("completed"), "EUR")
    tally.add(end("network", cost=0.5), "EUR")
    tally.add(end("usage", cost=None), None)
    tally.skip("completed")
    told = tally.end("b", None, 7)
    assert told["counts"] == {"completed": 1, "failed": 1, "usage": 1} and told["tasks"] == 3
    assert told["skipped"] == {"completed": 1}
    assert (told["cost"], told["currency"], told["duration_ms"]) == (0.75, "EUR", 7)
    assert told["usage"]["input"] == 30 and told["usage"]["reasoning"] == 6
    assert (tally.done, tally.failed) == (1, 2)


@pytest.mark.parametrize(
    ("reasons", "skipped", "code", "status"),
    [
        ([], [], 0, "completed"),
        (["completed"], ["completed"], 0, "completed"),
        (["completed", "usage"], [], 1, "failed"),
        (["usage", "usage"], [], 2, "usage"),
        (["auth", "balance"], [], 3, "auth"),
        (["auth", "usage"], [], 1, "failed"),
        (["timeout"], ["completed"], 1, "failed"),
        (["completed"], ["limit"], 1, "failed"),
        ([], ["limit"], 4, "limit"),
    ],
)
def test_the_exit_code_is_that_of_the_tasks(
    reasons: list[str], skipped: list[str], code: int, status: str
) -> None:
    for simple in (False, True):
        tally = Tally(simple_exit=simple)
        for reason in reasons:
            tally.add(end(reason), None)
        for each in skipped:
            tally.skip(each)
        told = tally.end("b", None, 0)
        assert (told["exit_code"], told["status"]) == (min(code, 1) if simple else code, status)


def test_a_stop_decides_the_exit_code_but_a_failed_task_does_not_hide_why() -> None:
    tally = Tally()
    tally.add(end("completed"), None)
    told = tally.end("b", BatchStop("interrupted", "stopped by SIGTERM", "SIGTERM"), 0)
    assert (told["exit_code"], told["status"], told["signal"]) == (143, "signal", "SIGTERM")
    tally.add(end("network"), None)
    told = tally.end("b", BatchStop("tasks_failed", "--fail-fast: t failed"), 0)
    assert told["exit_code"] == 1 and told["message"].startswith("--fail-fast: t failed; 1 of 2")


def test_spending_stops_at_its_limits_and_where_it_cannot_be_watched() -> None:
    tokens = Spending(100, None)
    assert tokens.add(99, None, None) is None
    stop = tokens.add(1, 0.0, None)
    assert stop is not None and stop.reason == "max_tokens"
    cost = Spending(None, 1.0)
    assert cost.add(10**9, 0.5, "EUR") is None
    reached = cost.add(0, 0.5, "EUR")
    assert reached is not None and reached.reason == "max_cost" and "reached" in reached.message
    unknown = Spending(None, 1.0).add(1, None, None)
    assert unknown is not None and "not known" in unknown.message
    assert not Spending(None, None).is_limited


def test_the_time_left_is_estimated_by_the_pace() -> None:
    assert seconds_left(10, 0.5, 40, 10) == pytest.approx(15)
    assert seconds_left(10, 1.0, 50, 0) == 0
    assert seconds_left(10, None, 50, 0) is None and seconds_left(10, 0.5, 0, 5) is None
