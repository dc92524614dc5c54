"""What is said of a run that ended early: limits, denials, stopped turns; and what it is told before."""

from __future__ import annotations

from collections.abc import Sequence

from dsh_actors.core.exit_codes import EXIT_CODES
from dsh_actors.core.text import JsonObject

__all__ = ["deadline_text", "denied_text", "judge_aborted", "limit_text", "warning_before"]

_WARNING_S = 300.0


def warning_before(deadline_s: float) -> float:
    """When, in seconds from its begin, a run is told of its deadline: five minutes before, or a quarter of it
    where that is less."""
    return max(deadline_s * 0.75, deadline_s - _WARNING_S)


def deadline_text(left_s: float) -> str:
    """What it is told then, to finish in time."""
    return (
        f"The time for this run ends in about {round(left_s)} seconds. Finish now: start nothing new and "
        "give your final answer with what you have."
    )


def judge_aborted(cause: JsonObject, signal: str | None) -> tuple[str, str]:
    kind, word = cause.get("kind"), str(cause.get("reason"))
    if kind == "hook" and word in EXIT_CODES and word != "completed":
        return word, _STOPPED.get(word, f"stopped: {word}")
    if signal is not None:
        return "interrupted", f"stopped by {signal}"
    if kind == "hook":
        return "interrupted", f"stopped: {word}"
    if kind == "disposed":
        return "internal", "the agent was disposed of before its turn was over"
    return "interrupted", "cancelled"


_STOPPED = {"timeout": "--timeout passed", "deadline": "--deadline passed"}


def limit_text(limit: JsonObject, is_unknown: bool) -> str:
    kind, value = limit["kind"], limit["value"]
    if is_unknown:
        return f"--{kind.replace('_', '-')} {value} cannot be kept: what the run took so far is not known"
    if kind == "stuck":
        return f"the same call came back with the same result {value} times"
    if kind in _STOPPED:
        return _STOPPED[kind]
    return f"--{kind.replace('_', '-')} {value} reached"


def denied_text(denied: Sequence[JsonObject]) -> str:
    first = denied[0]
    text = f"{first['tool']} was denied by {first.get('rule') or 'a policy'}"
    if first.get("reason"):
        text += f": {first['reason']}"
    if first.get("hint"):
        text += f"; to allow it: {first['hint']}"
    return text + (f" (and {len(denied) - 1} more)" if len(denied) > 1 else "")
