"""Many tasks as one batch: what a task is known by, what is done of it, and what all of them come to.

Pure. A task that was begun is found again by its session's id, and is the same task while its digest is.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import EXIT_CODES, exit_code_of
from dsh_actors.core.left_work import LeftWork
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.pricing import Bill, Tokens
from dsh_actors.core.text import JsonObject

__all__ = [
    "CONTINUATION",
    "SCHEMA_VERSION",
    "TASK_EVENT",
    "BatchStop",
    "Decision",
    "Finished",
    "Spending",
    "StoredTask",
    "Tally",
    "decide",
    "digest_of",
    "needs_look",
    "seconds_left",
    "task_session_id",
]

SCHEMA_VERSION = 1
"""Version of the result lines: raised when a member changes its meaning."""

TASK_EVENT = "batch/task"
"""Says in a session which task of which batch it is: ``{"batch", "task", "digest"}``; always ignorable."""

CONTINUATION = (
    "The program that ran this task was stopped before the task was finished. Go on where it stopped, and "
    "finish the task. What is done already is not done again; look where you do not know whether it is."
)
"""What an interrupted task is told when it goes on."""

NOT_BEGUN = frozenset({"usage", "busy"})
"""What ended like this has done nothing, and is tried again whenever it is met."""

INTERRUPTED = frozenset({"signal", "pipe"})
"""What ended like this goes on when the batch is resumed."""


_WHOLE_ID = 80
"""A longer id of a task is cut and told apart by a digest: a session's id has to stay sayable."""


def task_session_id(batch: str, task: str, attempt: int) -> str:
    """The session of a task. The first attempt, which is nearly always the only one, has no number."""
    if len(task) > _WHOLE_ID:
        task = f"{task[:_WHOLE_ID]}~{hashlib.sha256(task.encode()).hexdigest()[:12]}"
    return f"batch-{batch}-{task}" + (f".{attempt}" if attempt > 1 else "")


def digest_of(*parts: JsonObject) -> str:
    """The same for the same values, whatever the order of their members."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- what is done already -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """A task as an earlier result line has it. ``status`` is the name of an exit code's row."""

    digest: str
    status: str
    attempt: int

    @staticmethod
    def of(line: Any) -> tuple[str, Finished] | None:
        """The task's id and what became of it; None for other lines and for tasks that never began."""
        match line:
            case {"type": "task.end", "id": str(task), "digest": str(digest), "status": str(status)}:
                attempt = line.get("attempt")
                if status not in NOT_BEGUN and type(attempt) is int:
                    return task, Finished(digest, status, attempt)
        return None


class StoredTask:
    """What a session tells of its task; a fold over its log. ``attempt`` is the number of the session."""

    def __init__(self, batch: str, task: str, attempt: int) -> None:
        self.attempt = attempt
        self.digest: str | None = None
        """None where the session is of another task."""
        self.was_prompted = False
        self._identity = (batch, task)
        self._is_left = False
        self._end: JsonObject | None = None
        self._work = LeftWork()

    def apply(self, event: Event) -> bool:
        """Take one event; whether it is one of the task's, and not of what was there before."""
        data = event.data
        if event.type == TASK_EVENT:
            # A session may be handed on from one task to another.
            self._is_left = (data.get("batch"), data.get("task")) != self._identity
            if not self._is_left:
                self.digest, self.was_prompted, self._end = data.get("digest"), False, None
                self._work = LeftWork()
            return False
        if self.digest is None or self._is_left:
            return False
        match event.type:
            case "agent/inbox/spliced":
                self.was_prompted = self.was_prompted or bool(data["inserted"])
            case "turn/start":
                self.was_prompted, self._end = True, None
            case "turn/end":
                self._end = data["reason"]
        self._work.apply(event)
        return True

    @property
    def is_over(self) -> bool:
        """Whether it came to an end of its own; a person or the end of the program is none.

        Nor is the end of a turn after which the agent was still to hear of what it had started.
        """
        match self._end:
            case None | {"kind": "interrupted"}:
                return False
            case {"kind": "aborted"}:
                return (self._end.get("reason") or {}).get("kind") == "hook"
            case {"kind": "completed"}:
                return not self._work.labels
        return True


Action = Literal["skip", "start", "resume", "report"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a task: leave it, run it from the start, let its session go on, or only say how
    that ended. ``attempt`` is the number of the session."""

    action: Action
    attempt: int = 1


def needs_look(digest: str, finished: Finished | None, *, retry_failed: bool) -> bool:
    """Whether the sessions have to be looked at to know what to do: a result line may say enough."""
    if finished is None or finished.digest != digest or finished.status in INTERRUPTED:
        return True
    return finished.status != "completed" and retry_failed


def decide(
    digest: str,
    finished: Finished | None,
    stored: StoredTask | None,
    *,
    retry_failed: bool,
    completed: bool = False,
) -> Decision:
    """``finished``: the task's last result line. ``stored``: its newest session, None where it has none,
    and ``completed``, whether that one came to a good end."""
    if not needs_look(digest, finished, retry_failed=retry_failed):
        return Decision("skip")
    if stored is None:
        # An ephemeral attempt has left a line and no session.
        return Decision("start", 1)
    if stored.digest == digest and not stored.is_over:
        return Decision("resume", stored.attempt)
    if stored.digest != digest or (retry_failed and not completed):
        return Decision("start", stored.attempt + 1)
    return Decision("report", stored.attempt)


def seconds_left(elapsed_s: float, read_share: float | None, finished: int, open_tasks: int) -> float | None:
    """An estimate by the pace so far; ``read_share`` of the file holds the finished and the open tasks."""
    if not read_share or not finished:
        return None
    total = (finished + open_tasks) / min(1.0, read_share)
    return max(0.0, (total - finished) * elapsed_s / finished)


# --- what all of them come to ---------------------------------------------------------------------


class Spending:
    """What the tasks of a batch have taken so far, finished or not, against limits of the whole."""

    def __init__(self, max_tokens: int | None, max_cost: float | None) -> None:
        self._max_tokens = max_tokens
        self._max_cost = max_cost
        self._tokens = 0
        self._bill = Bill()

    @property
    def is_limited(self) -> bool:
        return self._max_tokens is not None or self._max_cost is not None

    def add(self, tokens: int, cost: float | None, currency: str | None) -> BatchStop | None:
        """Count some more; why to stop, if a limit is reached or cannot be watched any longer."""
        self._tokens += tokens
        self._bill.add(cost, currency)
        if self._max_tokens is not None and self._tokens >= self._max_tokens:
            return BatchStop("max_tokens", f"--max-total-tokens {self._max_tokens} reached")
        if self._max_cost is None:
            return None
        total = self._bill.total
        if total is None:
            message = f"--max-total-cost {self._max_cost:g} cannot be kept: a cost is not known"
            return BatchStop("max_cost", message)
        if total >= self._max_cost:
            return BatchStop("max_cost", f"--max-total-cost {self._max_cost:g} reached")
        return None


@dataclass(frozen=True, slots=True)
class BatchStop:
    """Why a batch ended before its tasks did. ``message`` is a line for people.

    ``reason`` is one of a run, or ``tasks_failed``: the exit code follows from the tasks then.
    """

    reason: str
    message: str
    signal: str | None = None


class Tally:
    """Counts what is finished; keeps nothing of a single task."""

    def __init__(self, *, simple_exit: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.tokens = Tokens()
        self._bill = Bill()
        self._codes: Counter[int] = Counter()
        self._simple_exit = simple_exit

    @property
    def done(self) -> int:
        """The tasks that completed now."""
        return self.counts["completed"]

    @property
    def failed(self) -> int:
        return self.counts.total() - self.done

    def add(self, end: RunEnd, currency: str | None) -> None:
        """Count one result; ``currency`` is that of its cost."""
        self.counts[end.status] += 1
        self._codes[end.exit_code] += 1
        for part in end.usage.values():
            self.tokens.sum(Tokens(**part))
        if end.steps:
            self._bill.add(end.cost, currency)

    def skip(self, status: str) -> None:
        """Count a task that an earlier result line tells of."""
        self.skipped[status] += 1
        self._codes[_code_named(status)] += 1

    def end(self, name: str, stop: BatchStop | None, duration_ms: int) -> JsonObject:
        """The ``batch.end`` object."""
        code, status, reason, message = self._judge(stop)
        data: JsonObject = {"type": "batch.end", "status": status, "reason": reason, "exit_code": code}
        data |= {"name": name, "message": message, "tasks": self.counts.total()}
        data |= {"counts": dict(sorted(self.counts.items())), "skipped": dict(sorted(self.skipped.items()))}
        data |= {"usage": asdict(self.tokens), "cost": self._bill.total, "currency": self._bill.currency}
        data["duration_ms"] = duration_ms
        if stop is not None and stop.signal is not None:
            data["signal"] = stop.signal
        return data

    def _judge(self, stop: BatchStop | None) -> tuple[int, str, str, str]:
        if stop is not None and stop.reason in EXIT_CODES:
            code = exit_code_of(stop.reason, stop.signal, simple=self._simple_exit)
            return code, EXIT_CODES[stop.reason].name, stop.reason, stop.message
        failing = {code for code in self._codes if code and self._codes[code]}
        if not failing:
            return 0, "completed", "completed", "completed"
        counts = self.counts + self.skipped
        bad = {status: count for status, count in sorted(counts.items()) if status != "completed"}
        listed = ", ".join(f"{count} {status}" for status, count in bad.items())
        message = f"{sum(bad.values())} of {counts.total()} tasks did not complete: {listed}"
        one_code = failing.pop() if len(failing) == 1 and not counts["completed"] else 1
        status = next(iter(bad)) if one_code != 1 else "failed"
        if stop is not None:
            message = f"{stop.message}; {message}"
        code = min(one_code, 1) if self._simple_exit else one_code
        return code, status, "tasks_failed", message


def _code_named(status: str) -> int:
    """The code of a row by its name; what another version may have called otherwise is a failure."""
    codes: Mapping[str, int] = {row.name: row.code for row in EXIT_CODES.values()}
    return codes.get(status, 1)
