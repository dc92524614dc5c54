"""What a log says of jobs and sub-agents that their agent is still to hear of: its run is not over. Pure."""

from __future__ import annotations

from dsh_actors.core.events import Event

__all__ = ["LeftWork"]


class LeftWork:
    """A fold: what the agent has started and has not heard the end of.

    A turn hears of what ended before it or in it: where it does not, a notice waits for a turn to come.
    """

    __slots__ = ("_going", "_in_turn", "_unheard")

    def __init__(self) -> None:
        self._going: dict[str, str] = {}
        self._unheard: dict[str, str] = {}
        self._in_turn = False

    @property
    def labels(self) -> tuple[str, ...]:
        """Each with its id and what it is."""
        return (*self._going.values(), *self._unheard.values())

    def apply(self, event: Event) -> None:
        """Take in the next event. Of an agent that was forked, only those behind the fork are its own."""
        match event.type:
            case "turn/start":
                self._in_turn = True
                self._unheard.clear()
            case "turn/end":
                self._in_turn = False
            case "job/started" | "subagent/started":
                self._going[event.data["id"]] = f"{event.data['id']} ({event.data.get('label')})"
            case "job/ended" | "subagent/ended":
                label = self._going.pop(event.data["id"], None)
                if label is not None and not self._in_turn:
                    self._unheard[event.data["id"]] = label
