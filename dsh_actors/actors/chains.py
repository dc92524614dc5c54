"""Extension points that may take their time: answered at once where that is safe, otherwise from a task.

Nothing here knows what an answer means; whoever asks brings the function that accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_actors.actors.boundary import failure_of, let_exits_pass
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import Failure
from dsh_actors.core.ids import SessionId, Ticket
from dsh_actors.core.scope import Scope, run_chain
from dsh_actors.core.text import JsonObject
from dsh_actors.ports import CancelToken
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import Task, TaskEnd, deadline, start_task

__all__ = ["Accept", "Answer", "Chains", "OnError"]

INTERCEPTOR_DEADLINE_S = 600.0
"""An interceptor chain that takes longer has failed."""
KILL_GRACE_S = 1.0

Accept = Callable[[Any], list[io.Input]]
OnError = Callable[[Failure], io.Input] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker's interceptors came to."""

    ticket: Ticket
    end: TaskEnd[Any]
    accept: Accept
    on_error: OnError


class Chains:
    """One agent's. ``feed`` takes inputs that are there at once; ``ref`` is where answers go later."""

    def __init__(
        self,
        session_id: SessionId,
        scope: Scope,
        ref: Ref[Any],
        feed: Callable[[list[io.Input]], None],
    ) -> None:
        self._id = session_id
        self._scope = scope
        self._ref = ref
        self._feed = feed
        self._tasks: dict[Ticket, Task] = {}

    def close(self) -> None:
        for task in self._tasks.values():
            task.kill(KILL_GRACE_S, "stopped")

    def ask(
        self,
        point: str,
        ticket: Ticket,
        payload: JsonObject,
        default: Callable[[], Any],
        accept: Accept,
        *,
        slow: bool = False,
        on_error: OnError = None,
    ) -> None:
        """Answer at once where nobody intercepts and ``default`` is quick, otherwise from a worker.

        ``accept`` turns the chain's answer into the machine's inputs; it raises for one it cannot use.
        """
        handlers = self._scope.handlers_of(point)
        if handlers or slow:
            payload["session"] = self._id
            self._work(ticket, lambda: run_chain(handlers, payload, default), payload, accept, on_error)
        else:
            self.settle(ticket, default, accept, on_error)

    def tell(
        self,
        listeners: Sequence[Callable[..., Any]],
        ticket: Ticket,
        payload: JsonObject,
        done: io.Input,
    ) -> None:
        """Call every listener from a worker, also after one has failed; the first failure is the answer."""
        payload["session"] = self._id

        def listen() -> None:
            failed: list[Exception] = []
            for listener in listeners:
                try:
                    listener(payload)
                except Exception as error:  # foreign code; the others are still to be called
                    failed.append(error)
            if failed:
                raise failed[0]

        self._work(ticket, listen, payload, lambda _: [done], None)

    def settle(
        self, ticket: Ticket, answer: Callable[[], Any], accept: Accept, on_error: OnError = None
    ) -> None:
        """Feed the machine with what ``answer`` and ``accept`` come to, or with how they failed."""
        try:
            inputs = accept(answer())
        except BaseException as error:
            # Interceptors, a provider's prepare, prompt sections: foreign code, which may raise anything.
            inputs = [_failed(ticket, error, on_error)]
        self._feed(inputs)

    def _work(
        self,
        ticket: Ticket,
        work: Callable[[], Any],
        payload: JsonObject,
        accept: Accept,
        on_error: OnError,
    ) -> None:
        def run(token: CancelToken) -> Any:
            payload["cancel"] = token
            with deadline(INTERCEPTOR_DEADLINE_S):
                return work()

        self._tasks[ticket] = start_task(
            run,
            lambda end: self._ref.tell(Answer(ticket, end, accept, on_error)),
            name=f"interceptors {self._id}",
        )

    def on_answer(self, message: Answer) -> None:
        if self._tasks.pop(message.ticket, None) is None:
            return  # the work was cancelled

        end = message.end
        if end.error is not None:
            self._feed([_failed(message.ticket, end.error, message.on_error)])
        else:
            self.settle(message.ticket, lambda: end.value, message.accept, message.on_error)

    def cancel(self, ticket: Ticket, cause: JsonObject) -> bool:
        """Give the work up, if there is any; its answer will not count. Whether there was any."""
        task = self._tasks.pop(ticket, None)
        if task is None:
            return False
        task.kill(KILL_GRACE_S, cause)
        return True


def _failed(ticket: Ticket, error: BaseException, on_error: OnError) -> io.Input:
    let_exits_pass(error)
    failure = failure_of(error)
    return on_error(failure) if on_error else io.WorkFailed(ticket, failure)
