"""Drives a turn machine by hand: a test sends inputs, picks which piece of work ends next, and how.

Nothing is started and nothing waits, so a test chooses every interleaving.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Chunk, Finish, FinishKind, TextDelta, ToolCallDelta
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import CallId, SessionId, Ticket
from dsh_actors.core.inbox import Target
from dsh_actors.core.messages import user_message
from dsh_actors.core.state import SessionState
from dsh_actors.core.turn import TurnMachine
from dsh_actors.core.turn_env import Environment

__all__ = ["MachineDriver", "call_chunks", "text_chunks"]

E = TypeVar("E", bound="io.Effect")


def text_chunks(text: str, kind: FinishKind = "stop") -> tuple[Chunk, ...]:
    """A reply of one text block."""
    return (TextDelta(0, text), Finish(kind))


def call_chunks(*calls: tuple[str, str], prefix: str = "c") -> tuple[Chunk, ...]:
    """A reply that asks for ``(tool, arguments)`` calls with the ids ``c0``, ``c1``, …"""
    deltas = [ToolCallDelta(i, CallId(f"{prefix}{i}"), name, text) for i, (name, text) in enumerate(calls)]
    return (*deltas, Finish("tool-calls"))


class MachineDriver:
    """A machine, the log it wrote, and the work it started that has not been answered yet."""

    def __init__(self, env: Environment | None = None, *, log: Sequence[Event] = ()) -> None:
        self.header = SessionHeader(SessionId("s"), 0, "/")
        state = SessionState(self.header)
        for event in log:
            state.apply(event)
        self.log: list[Event] = list(log)
        self.machine = TurnMachine(state, env or Environment(CallConfig("p", "m")))
        self.open: list[io.Effect] = []
        self.notices: list[io.Notify] = []
        self.cancelled: list[Ticket] = []
        self.now = 1_000

    def send(self, message: io.Input) -> io.Transition:
        """Give the machine one input, 1 ms later than the last."""
        self.now += 1
        transition = self.machine.advance(message, self.now)
        self.log += transition.events
        for effect in transition.effects:
            match effect:
                case io.Notify():
                    self.notices.append(effect)
                case io.CancelWork():
                    self.cancelled.append(effect.ticket)
                case io.Flush(ticket=None):
                    pass
                case _:
                    self.open.append(effect)
        return transition

    def deliver(self, text: str, target: Target = "next-turn", *, wake: bool = True) -> None:
        self.send(io.Deliver(user_message(f"m{self.now}", text), target, wake))

    def take(self, kind: type[E]) -> E:
        """The oldest unanswered effect of a kind. Raises `AssertionError` if there is none."""
        for effect in self.open:
            if isinstance(effect, kind):
                self.open.remove(effect)
                return effect
        raise AssertionError(f"no open {kind.__name__}; open: {self.open}")

    def usual_answer(self, effect: io.Effect) -> io.Input | None:
        """What the world answers when nothing is unusual; None for streams, errors and running tools."""
        match effect:
            case io.AssemblePrompt(ticket=ticket):
                return io.PromptReady(ticket, "system", ())
            case io.AskPreStep(ticket=ticket, default=default):
                return io.PreStepDecided(ticket, default)
            case io.AskRequest(ticket=ticket, proposal=proposal):
                return io.CallReady(ticket, proposal, frozenset(), None)
            case io.Flush(ticket=ticket) if ticket is not None:
                return io.Flushed(ticket)
            case io.StartTimer(ticket=ticket):
                return io.TimerFired(ticket)
            case io.AskStopping(ticket=ticket):
                return io.StoppingDone(ticket)
            case io.PrepareTool(ticket=ticket, index=index):
                return io.ToolPrepared(ticket, index)
            case io.FinaliseTool(ticket=ticket, index=index, result=result):
                return io.ToolFinalised(ticket, index, result)
        return None

    def settle(self) -> None:
        """Answer all that has a usual answer, until only streams, errors and tools are open."""
        while True:
            for effect in self.open:
                answer = self.usual_answer(effect)
                if answer is not None:
                    self.open.remove(effect)
                    self.send(answer)
                    break
            else:
                return

    def reply(self, *chunks: Chunk) -> None:
        """Let the open stream bring these chunks, then settle."""
        self.settle()
        stream = self.take(io.OpenStream)
        if not isinstance(chunks[-1], Finish):
            self.open.append(stream)
        self.send(io.Chunks(stream.ticket, chunks))
        self.settle()

    def run_tool(self, text: str = "done", **fields: object) -> io.RunTool:
        """End the oldest running tool with a result, then settle."""
        self.settle()
        effect = self.take(io.RunTool)
        self.send(io.ToolRan(effect.ticket, effect.index, io.ToolResult(text, **fields)))  # type: ignore[arg-type]
        self.settle()
        return effect

    def types(self) -> list[str]:
        """The event types of the log, in order, without chunks."""
        return [event.type for event in self.log if event.type != "assistant/chunk"]

    def ends(self) -> list[object]:
        """The reasons of the turns that ended."""
        return [event.data["reason"] for event in self.log if event.type == "turn/end"]
