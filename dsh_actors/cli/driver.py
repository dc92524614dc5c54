"""`dsh run` around its run: what comes out of it, signs of life, and the signals that end it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_actors.cli.options import RunArguments
from dsh_actors.cli.progress import Heartbeat, Progress
from dsh_actors.cli.render import RunOutput
from dsh_actors.cli.stopping import SignalWatch
from dsh_actors.core.events import Event
from dsh_actors.core.outcome import RunEnd
from dsh_actors.runs import Run, RunPlan

if TYPE_CHECKING:
    from dsh_actors.harness import Harness

__all__ = ["RunDriver"]


class RunDriver:
    """Drives one run; used once. ``started`` is the monotonic time that limits count from."""

    def __init__(
        self,
        harness: Harness,
        plan: RunPlan,
        arguments: RunArguments,
        output: RunOutput,
        signals: SignalWatch,
        started: float,
    ) -> None:
        self._arguments = arguments
        self._output = output
        self._signals = signals
        self._run = Run(harness, plan, started=started, on_event=self._on_event)

    def execute(self) -> RunEnd:
        """Run to the end. Raises what kept the agent from being created; later errors are in the result."""
        run, output = self._run, self._output
        handle, options = run.open(), run.plan.options
        resumed = run.plan.resume is not None
        output.start(handle.id, model=options.model or None, cwd=options.cwd, resumed=resumed)
        heartbeat = Heartbeat(output, run.fold, self._arguments, run.started)
        progress = Progress(output, run.fold, self._arguments, run.started)
        try:
            self._signals.on_first = self._stop_by_signal
            self._signals.on_second = self._leave
            output.on_broken(lambda: run.stop("pipe"))
            if self._signals.name is not None:
                self._stop_by_signal()
            run.drive()
        finally:
            heartbeat.close()
            progress.close()
        return run.end()

    def _on_event(self, event: Event) -> None:
        if self._arguments.json_lines:
            self._output.line(event.to_json())

    def _stop_by_signal(self) -> None:
        self._run.stop("signal", self._signals.name)

    def _leave(self) -> None:
        self._run.signal = self._signals.name
        self._output.last_words(self._run.forced_end())
