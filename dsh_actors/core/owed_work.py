"""What went on behind an agent where its log ends, so that the agent never heard of its end. Pure."""

from __future__ import annotations

from dsh_actors.core.events import Event
from dsh_actors.core.text import JsonObject

__all__ = ["OwedWork"]


class OwedWork:
    """A fold over the events of a run. A turn that ended while jobs or sub-agents went on is no end of a run.

    The end of a job is heard in a notice, or in the turn in which it falls; that of a sub-agent in the
    background always in a notice. One that is waited for ends with its call.
    """

    __slots__ = ("_agents", "_in_turn", "_jobs", "_told")

    def __init__(self) -> None:
        self._jobs: dict[str, None] = {}
        self._agents: dict[str, None] = {}
        self._told: dict[str, None] = {}
        self._in_turn = False

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of what the agent has not heard the end of."""
        return (*self._jobs, *(job for job in self._told if job not in self._jobs), *self._agents)

    def apply(self, event: Event) -> None:
        """Take one event, in order."""
        data = event.data
        match event.type:
            case "turn/start":
                self._in_turn = True
            case "turn/end":
                self._in_turn = False
            case "job/started":
                self._jobs[data["id"]] = None
            case "job/ended" if self._in_turn:
                self._jobs.pop(data["id"], None)
            case "subagent/started" if data.get("mode") == "continuable":
                self._agents[data["id"]] = None
            case "agent/inbox/spliced":
                for message in data["inserted"]:
                    self._told.update(dict.fromkeys(_jobs_of(message["source"])))
            case "user/message":
                self._heard(data["source"])

    def _heard(self, source: JsonObject) -> None:
        for job in _jobs_of(source):
            self._jobs.pop(job, None)
            self._told.pop(job, None)
        if source["kind"] == "subagent-settled":
            self._agents.pop(source.get("senderSessionId", ""), None)


def _jobs_of(source: JsonObject) -> tuple[str, ...]:
    """Those that a notice is about."""
    return tuple(source.get("jobs", ())) if source.get("plugin") == "jobs" else ()
