"""The tools for background jobs: list them, read what they wrote, wait for their ends, stop them.

None of them holds a slot of the tool pool: waiting must not keep others from running.
"""

from __future__ import annotations

from dsh_actors.core.jobs import JobReading, job_line, reading_text
from dsh_actors.core.text import JsonObject, shorten
from dsh_actors.errors import ToolError
from dsh_actors.ports import Jobs, ToolContext, ToolOutput, ToolSpec

__all__ = ["JobListTool", "JobOutputTool", "JobStopTool", "JobWaitTool"]

MAX_WAIT_S = 600.0
"""The longest wait of one call, and that of `job_wait` where none is asked for."""
_STOP_WAIT_S = 8.0
"""A job has 5 s to end after it was told to; then it is killed."""
_LABEL_LIMIT = 200

_ID: JsonObject = {"type": "string"}
_TIMEOUT: JsonObject = {"type": "number", "description": "Longest wait in seconds."}


def _spec(name: str, description: str, properties: JsonObject, required: list[str]) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        parameters["required"] = required
    return ToolSpec(
        name, description, parameters, changes=False, timeout_s=MAX_WAIT_S + 60.0, holds_slot=False
    )


_LIST = _spec("job_list", "List the background jobs.", {}, [])
_OUTPUT = _spec(
    "job_output",
    "What a background job wrote since it was last read; with timeout_s, after waiting for its end.",
    {"id": _ID, "timeout_s": _TIMEOUT},
    ["id"],
)
_STOP = _spec("job_stop", "Stop a background job.", {"id": _ID}, ["id"])
_WAIT = _spec(
    "job_wait",
    "Wait for the end of background jobs (all, or those named; any: the first of them) and read their "
    "output. Without it you are told when a job ends, also after your turn.",
    {"ids": {"type": "array", "items": _ID}, "any": {"type": "boolean"}, "timeout_s": _TIMEOUT},
    [],
)


class JobListTool:
    """Implements `ports.Tool`."""

    @property
    def spec(self) -> ToolSpec:
        return _LIST

    def is_parallel(self, arguments: JsonObject) -> bool:
        return True

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        views = _jobs(context).all()
        lines = [f"{job_line(view)} ({shorten(view.label, _LABEL_LIMIT)})" for view in views]
        return ToolOutput("\n".join(lines) or "There are no background jobs.")


class JobOutputTool:
    """Implements `ports.Tool`."""

    @property
    def spec(self) -> ToolSpec:
        return _OUTPUT

    def is_parallel(self, arguments: JsonObject) -> bool:
        return True

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        jobs, job = _jobs(context), arguments["id"]
        if "timeout_s" in arguments:
            jobs.wait((job,), timeout_s=_wait_s(arguments), cancel=context.cancel)
        return _read(jobs, (job,), context)


class JobStopTool:
    """Implements `ports.Tool`. Answers when the job has ended: an end that was asked for is not announced."""

    @property
    def spec(self) -> ToolSpec:
        return _STOP

    def is_parallel(self, arguments: JsonObject) -> bool:
        return False

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        jobs, job = _jobs(context), arguments["id"]
        jobs.stop(job)
        jobs.wait((job,), timeout_s=_STOP_WAIT_S, cancel=context.cancel)
        return _read(jobs, (job,), context)


class JobWaitTool:
    """Implements `ports.Tool`. An end that it answers with is not announced."""

    @property
    def spec(self) -> ToolSpec:
        return _WAIT

    def is_parallel(self, arguments: JsonObject) -> bool:
        return True

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        jobs, wait_s = _jobs(context), _wait_s(arguments)
        asked = tuple(dict.fromkeys(arguments.get("ids") or (v.id for v in jobs.all() if not v.is_over)))
        if not asked:
            return ToolOutput("No background job is running.")
        views = jobs.wait(asked, first=bool(arguments.get("any")), timeout_s=wait_s, cancel=context.cancel)
        output = _read(jobs, tuple(view.id for view in views if view.is_over), context)
        going_on = [f"[{job_line(view)}]" for view in views if not view.is_over]
        parts = [output.text] if output.text else []
        if going_on and not (arguments.get("any") and output.text):
            going_on.append(f"[waited {wait_s:g} s]")
        return ToolOutput("\n".join([*parts, *going_on]), meta=output.meta)


def _jobs(context: ToolContext) -> Jobs:
    if context.jobs is None:
        raise ToolError("there are no background jobs in this run", code="UNSUPPORTED")
    return context.jobs


def _read(jobs: Jobs, ids: tuple[str, ...], context: ToolContext) -> ToolOutput:
    """The new output of some jobs, which share the room there is."""
    readings: list[JobReading] = [jobs.read(job) for job in ids]
    room = context.output_limit_bytes // max(1, len(readings))
    meta = {"jobs": {reading.view.id: reading.view.status for reading in readings}}
    return ToolOutput("\n".join(reading_text(reading, room) for reading in readings), meta=meta)


def _wait_s(arguments: JsonObject) -> float:
    asked: float = arguments.get("timeout_s", MAX_WAIT_S)
    if not 0 < asked < float("inf"):  # also for NaN
        raise ToolError("timeout_s is a number of seconds above 0", code="INVALID_ARGS")
    return min(asked, MAX_WAIT_S)
