"""Programs of many agents: what `dsh script` gives to a program, and `stage` to any other one.

Plain blocking calls. Agents that are started here stand side by side; those that an agent starts itself
(`AgentRef.spawn`) stand below it. All of them share the limits of the stage.
"""

from __future__ import annotations

import difflib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, TypeVar, overload

from dsh_actors.core.messages import Message
from dsh_actors.core.options import AgentOptions, Limits, require_sound
from dsh_actors.core.outcome import RunEnd
from dsh_actors.errors import HarnessError, UsageError
from dsh_actors.harness import AgentHandle, Harness
from dsh_actors.ports import CancelToken
from dsh_actors.runtime.tasks import Task, TaskEnd, start_task

__all__ = [
    "AgentHandle",
    "Limits",
    "RunEnd",
    "RunFailed",
    "create",
    "current",
    "gather",
    "options",
    "pipeline",
    "spawn",
    "stage",
]

T = TypeVar("T")
OnError = Literal["cancel", "collect"]

_JOIN_S = 60.0
"""How long calls that are given up may take to end: each disposes of its agents."""

_NAMES = frozenset(field.name for field in fields(AgentOptions)) - {"depth"}


class RunFailed(HarnessError):
    """A run that was to complete did not; ``end`` says how it ended."""

    code = "RUN_FAILED"

    def __init__(self, end: RunEnd) -> None:
        super().__init__(end.message)
        self.end = end


@dataclass(frozen=True, slots=True)
class _Stage:
    harness: Harness
    defaults: AgentOptions
    ends: float | None
    places: threading.BoundedSemaphore

    def within(self, seconds: float | None) -> float | None:
        """So many seconds, and no more than are left; None is no end."""
        if self.ends is None or type(seconds) not in (int, float, type(None)):
            return seconds  # whoever gets it refuses what is no number
        left = max(0.0, self.ends - time.monotonic())
        return left if seconds is None else min(seconds, left)


_stages: list[_Stage] = []


@contextmanager
def stage(harness: Harness, defaults: AgentOptions, *, ends: float | None = None) -> Iterator[None]:
    """During the block the functions of this module work with ``harness``; `dsh script` does this itself.

    ``defaults`` are the options of an agent for which nothing else is said. ``ends`` is the monotonic time
    at which everything is over, so that no agent plans beyond it.
    """
    places = threading.BoundedSemaphore(max(1, defaults.limits.max_concurrent_agents))
    entered = _Stage(harness, defaults, ends, places)
    _stages.append(entered)
    try:
        yield
    finally:
        _stages.remove(entered)


def _here() -> _Stage:
    if not _stages:
        raise UsageError(
            "there is no harness here", hint="run the program with dsh script, or inside scripting.stage"
        )
    return _stages[-1]


def current() -> Harness:
    """The harness of this program. Raises `UsageError` outside of `dsh script` and `stage`."""
    return _here().harness


def options(**changes: Any) -> AgentOptions:
    """The options of an agent: those given to `dsh script`, with ``changes`` (see `AgentOptions`).

    A relative ``cwd`` begins at the directory of the script's agents; lists may be given for tuples. Raises
    `UsageError` for a name that is no option, and for a value of a wrong kind.
    """
    here = _here()
    for name in changes:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, 1)
            raise UsageError(
                f"there is no option {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"options are: {', '.join(sorted(_NAMES))}",
            )
    values: dict[str, Any] = {name: tuple(v) if type(v) is list else v for name, v in changes.items()}
    made = replace(here.defaults, **values)
    require_sound(made)
    if "cwd" in values:
        made = replace(made, cwd=os.path.normpath(os.path.join(here.defaults.cwd, made.cwd)))
    return replace(made, limits=replace(made.limits, timeout_s=here.within(made.limits.timeout_s)))


def create(**changes: Any) -> AgentHandle:
    """A new agent, with `options`. Dispose of it, or use it as a context manager.

    Raises what `Harness.create` raises, and `SubagentError` with the code AGENT_LIMIT where the program may
    have no more agents.
    """
    return current().create(options(**changes))


def spawn(
    prompt: str | Message, *, timeout: float | None = None, check: bool = False, **changes: Any
) -> RunEnd:
    """One task on a new agent, from its start to its outcome; the agent is gone then, its session stays.

    At most ``--max-concurrent-agents`` of them work at once, the others wait here. After ``timeout``
    seconds of work the outcome's reason is ``timeout``. ``check``: raises `RunFailed` unless the run
    completed; without it every end is returned. Raises what `create` raises.
    """
    made, here = options(**changes), _here()
    seconds = made.limits.timeout_s if timeout is None else timeout
    with here.places:
        # What was left may have passed while there was no place.
        made = replace(made, limits=replace(made.limits, timeout_s=here.within(made.limits.timeout_s)))
        with here.harness.create(made) as agent:
            end = agent.run(prompt, here.within(seconds))
    if check and not end.completed:
        raise RunFailed(end)
    return end


@overload
def gather(*calls: str, concurrency: int | None = None, on_error: OnError = "cancel") -> list[RunEnd]: ...
@overload
def gather(
    *calls: Callable[[], T], concurrency: int | None = None, on_error: OnError = "cancel"
) -> list[T]: ...
def gather(
    *calls: Callable[[], Any] | str, concurrency: int | None = None, on_error: OnError = "cancel"
) -> list[Any]:
    """Make all ``calls`` side by side, at most ``concurrency`` at once; their results in the same order.

    A call is a function without arguments, or the prompt of a `spawn`. The first one that raises ends the
    others, agents included, and is raised; with ``on_error="collect"`` the others go on and each error
    stands in the place of the result. An agent that fails is no error here: its outcome says so.
    """
    if on_error not in ("cancel", "collect"):
        raise UsageError(f"on_error is 'cancel' or 'collect', not {on_error!r}")
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"concurrency is a number from 1 on, not {concurrency!r}")
    todo = [partial(spawn, call) if isinstance(call, str) else call for call in calls]
    return _Crew(todo, collects=on_error == "collect").work(concurrency or len(todo))


def pipeline(
    items: Iterable[Any],
    *stages: Callable[[Any], Any],
    concurrency: int | None = None,
    on_error: OnError = "cancel",
) -> list[Any]:
    """Send each item through all ``stages``, one after the other; their last results in the items' order.

    An item does not wait for the others between two stages. ``concurrency`` and ``on_error`` as for
    `gather`, for items.
    """

    def through(item: Any) -> Any:
        for each in stages:
            item = each(item)
        return item

    calls: Sequence[Callable[[], Any]] = [partial(through, item) for item in items]
    return gather(*calls, concurrency=concurrency, on_error=on_error)


class _Crew:
    """The tasks of one `gather`: each takes the next call when it is done with one."""

    def __init__(self, calls: Sequence[Callable[[], Any]], *, collects: bool) -> None:
        self._calls = calls
        self._collects = collects
        self._results: list[Any] = [None] * len(calls)
        self._next = 0
        self._at_work = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._tasks: list[Task] = []

    def work(self, width: int) -> list[Any]:
        """All of it. Raises the first error, when everything has ended."""
        count = min(width, len(self._calls))
        self._at_work = count
        self._tasks = [start_task(self._take_calls, self._ended, name="gather") for _ in range(count)]
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._at_work or self._error is not None)
        except BaseException:
            # Whoever called is being stopped: nothing of this goes on without it.
            self._give_up()
            raise
        if self._error is not None:
            self._give_up()
            raise self._error
        return self._results

    def _take_calls(self, _token: CancelToken) -> None:
        while self._error is None and self._next < len(self._calls):
            index = self._next
            self._next += 1
            try:
                self._results[index] = self._calls[index]()
            except Exception as error:  # the caller's own code
                if not self._collects:
                    raise
                self._results[index] = error

    def _ended(self, end: TaskEnd[None]) -> None:
        with self._changed:
            self._at_work -= 1
            if self._error is None:
                self._error = end.error
            self._changed.notify()

    def _give_up(self) -> None:
        self._next = len(self._calls)
        for task in self._tasks:
            task.kill(0.0, "given up")
        ends = time.monotonic() + _JOIN_S
        for task in self._tasks:
            task.join(max(0.0, ends - time.monotonic()))
