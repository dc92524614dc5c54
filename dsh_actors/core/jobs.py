"""Background jobs: what a log says of them, how one stands, and what its owner is told of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from dsh_actors.core.bounded_output import visible
from dsh_actors.core.messages import PluginSource
from dsh_actors.core.text import JsonObject, shorten

__all__ = [
    "JobLog",
    "JobReading",
    "JobStatus",
    "JobView",
    "NoticeBudget",
    "UnreadNotices",
    "ended_fact",
    "job_line",
    "notice_source",
    "notice_text",
    "reading_text",
    "started_fact",
    "unknown_end_text",
]

JobStatus = Literal["running", "stopping", "completed", "failed", "killed"]

MAX_WAKES = 3
"""So often in a row the end of a job wakes its owner; then somebody else has to speak to it first."""

_PLUGIN = "jobs"

LABEL_LIMIT = 120
"""Characters of a command in what is said about its job."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at a moment. ``detail`` says how it ended, ``duration_s`` how long it has taken so far."""

    id: str
    label: str
    status: JobStatus
    detail: str
    duration_s: float

    @property
    def is_over(self) -> bool:
        return self.status not in ("running", "stopping")


@dataclass(frozen=True, slots=True)
class JobReading:
    """A job and what it wrote since it was read last; ``omitted`` bytes of that are gone in its middle."""

    view: JobView
    output: bytes = field(repr=False)
    omitted: int


@dataclass(slots=True)
class JobLog:
    """A fold: how many jobs an agent has had, and which of them have no end in its log."""

    started: int = 0
    open: dict[str, str] = field(default_factory=dict)
    """The label of each, by id."""

    def apply(self, kind: str, data: JsonObject, *, own: bool = True) -> None:
        """Take in a ``job/started`` or ``job/ended``. What is not the agent's ``own``, but of the session
        that it was forked from, is only counted. Raises `KeyError` for data of another shape.
        """
        job = data["id"]
        if kind == "job/started":
            self.started += 1
            if own:
                self.open[job] = str(data.get("label", ""))
        else:
            self.open.pop(job, None)

    def to_json(self) -> JsonObject:
        return {"started": self.started, "open": dict(self.open)}

    @staticmethod
    def from_json(data: JsonObject) -> JobLog:
        """Raises `KeyError`, `TypeError` or `ValueError` for another shape."""
        started, jobs = data["started"], data["open"]
        if type(started) is not int or any(type(label) is not str for label in jobs.values()):
            raise ValueError("not a record of jobs")
        return JobLog(started, dict(jobs))

    def copy(self) -> JobLog:
        return JobLog(self.started, dict(self.open))


class NoticeBudget:
    """How often the end of a job may wake its owner, so that no agent goes on by itself for ever."""

    __slots__ = ("_wakes",)

    def __init__(self) -> None:
        self._wakes = 0

    def restore(self) -> None:
        """Somebody spoke to the owner."""
        self._wakes = 0

    def may_wake(self, others_go_on: bool) -> bool:
        """Whether the end of a job wakes its idle owner now; if so, it is counted.

        The last wake is kept for the last of several, so that their owner hears of them all.
        """
        if self._wakes >= MAX_WAKES or (self._wakes == MAX_WAKES - 1 and others_go_on):
            return False
        self._wakes += 1
        return True


class UnreadNotices:
    """A fold: the notices about jobs that wait for their agent. A run that ends with one left is not done."""

    def __init__(self) -> None:
        self._jobs: dict[str, list[str]] = {}

    @property
    def jobs(self) -> list[str]:
        """Whose notices nobody has read."""
        return [job for jobs in self._jobs.values() for job in jobs]

    def queued(self, data: JsonObject) -> None:
        """Take in an ``agent/inbox/spliced``."""
        for message in data["inserted"]:
            source = message["source"]
            if source["kind"] == "plugin" and source["plugin"] == _PLUGIN:
                self._jobs[message["id"]] = list(source.get("jobs", ()))

    def read(self, data: JsonObject) -> None:
        """Take in a ``user/message``."""
        self._jobs.pop(data["id"], None)


def started_fact(job: str, kind: str, label: str) -> JsonObject:
    """The data of ``job/started``."""
    return {"id": job, "kind": kind, "label": label}


def ended_fact(view: JobView) -> JsonObject:
    """The data of ``job/ended``; its status may also be ``unknown``, after a crash."""
    return {
        "id": view.id,
        "status": view.status,
        "detail": view.detail,
        "durationMs": round(view.duration_s * 1000),
    }


def notice_source(jobs: Iterable[str]) -> PluginSource:
    """Where a notice about jobs comes from."""
    return PluginSource(_PLUGIN, "notice", {"jobs": list(jobs)})


def job_line(view: JobView) -> str:
    """The job's state in one line, which stays the same while the job goes on."""
    if view.is_over:
        return f"{view.id} has ended: {view.detail}, after {view.duration_s:.1f} s"
    return f"{view.id} is {'being stopped' if view.status == 'stopping' else 'still running'}"


def reading_text(reading: JobReading, limit: int) -> str:
    """What was read, at most about ``limit`` bytes of it, and the state of the job in its last line."""
    text, _ = visible(reading.output, reading.omitted, limit)
    if not text:
        text = "(no new output)"
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}[{job_line(reading.view)}]"


def notice_text(reading: JobReading, limit: int) -> str:
    """What the owner of a job is told when it has ended. The output is cut in its middle, nothing else is."""
    view = reading.view
    head = f"The background job {job_line(view)}. Its command: {shorten(view.label, LABEL_LIMIT)}"
    text, _ = visible(reading.output, reading.omitted, limit)
    if not text:
        return f"{head}\nIt wrote nothing more."
    return f"{head}\nWhat it wrote since it was last read:\n{text}"


def unknown_end_text(jobs: dict[str, str]) -> str:
    """What an agent is told of the ``jobs`` (labels by id) that a crash of the harness ended with it."""
    lines = [f"- {job}: {shorten(label, LABEL_LIMIT)}" for job, label in jobs.items()]
    return "\n".join(
        [
            "These background jobs were running when the program was ended from outside. They were ended "
            "with it; how far they came is not known, and their output is gone:",
            *lines,
        ]
    )
