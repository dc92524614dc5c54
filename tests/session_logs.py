"""Whole logs that tests share: made by the turn machine itself, the same at every call."""

from __future__ import annotations

from dsh_actors.core.chunks import Finish, ReasoningDelta, TextDelta, Usage, UsageChunk
from dsh_actors.core.events import Event
from dsh_actors.testing.machine import MachineDriver, call_chunks

__all__ = ["turns"]


def turns(count: int = 2, words: int = 4) -> list[Event]:
    """``count`` turns of two steps each: a reply with reasoning and two calls, then an answer."""
    driver = MachineDriver()
    for number in range(1, count + 1):
        driver.deliver(f"task {number}: größer")
        driver.settle()
        calls = call_chunks(("read", '{"path":"a"}'), ("read", "{}"), prefix=f"t{number}c")
        deltas = [ReasoningDelta(9, f"hm {word} ") for word in range(words)]
        driver.reply(*deltas, *calls[:-1], UsageChunk(Usage(100, 20, 5)), calls[-1])
        driver.run_tool(f"first {number}")
        driver.run_tool(f"second {number}", is_error=True)
        answer = [TextDelta(0, f"word {word} ") for word in range(words)]
        driver.reply(*answer, UsageChunk(Usage(200, 30, None, None, 7)), Finish("stop"))
    return driver.log
