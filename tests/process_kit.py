"""What tests of commands share: a runner whose time for a command begins when the command is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gevent.event import Event

from dsh_actors.core.bounded_output import BoundedOutput
from dsh_actors.ports import CancelToken, ProcessResult
from dsh_actors.runtime.process import Processes

__all__ = ["PATIENCE_S", "HeardProcesses", "wait_until"]

PATIENCE_S = 20.0
"""A guard against a hang, and no measure of anything."""


def wait_until(condition: Callable[[], object]) -> None:
    """Let the others run until it is so."""
    ends, never = time.monotonic() + PATIENCE_S, Event()
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        never.wait(0.001)


class HeardProcesses(Processes):
    """Counts the time of a command from its first output on, so that a slow start is not its end.

    ``on_heard`` is called at that moment, and once it returns the time begins.
    """

    on_heard: Callable[[], object] = staticmethod(lambda: None)

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float,
        cancel: CancelToken,
        output_limit_bytes: int,
    ) -> ProcessResult:
        output, heard = BoundedOutput(output_limit_bytes), Event()

        def take(piece: bytes) -> None:
            output.add(piece)
            heard.set()

        command = self.start(argv, cwd=cwd, env=env, on_output=take)
        assert heard.wait(PATIENCE_S), "the command said nothing"
        self.on_heard()
        result = command.wait(timeout_s=timeout_s, cancel=cancel)
        kept, omitted = output.parts()
        return replace(result, output=kept, omitted=omitted)
