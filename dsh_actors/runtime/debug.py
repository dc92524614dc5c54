"""Looking into a running process: the actor tree, what blocks the hub, and the errors kept quiet."""

from __future__ import annotations

import gc
import logging
import signal
import warnings
from collections.abc import Callable
from typing import Any

import gevent
import gevent.events
import gevent.util

from dsh_actors.runtime.actor import BaseActor, live_actors
from dsh_actors.runtime.log import LOGGER, PYKKA_LOGGER
from dsh_actors.runtime.output import Writer
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.signals import on_signals

__all__ = ["actor_tree", "install_blocking_detection", "install_sigusr1", "show_errors"]

MAX_UNREAD_BYTES = 1 << 20


def show_errors(handler: logging.Handler, level: int = logging.INFO) -> Callable[[], None]:
    """Send what the runtime and Pykka log (tracebacks of failed actors) to ``handler``. Returns the undo."""
    loggers = [(logger, logger.level) for logger in (LOGGER, PYKKA_LOGGER)]
    for logger, _ in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)

    def undo() -> None:
        for logger, previous in loggers:
            logger.removeHandler(handler)
            logger.setLevel(previous)

    return undo


def install_blocking_detection(
    max_ms: float = 50, report: Callable[[str], None] | None = None
) -> Callable[[], None]:
    """Watch for code that holds the hub longer than ``max_ms``; it is checked about that often.

    The stacks go to ``report``, which is called in a native thread, or else to stderr. Returns the undo.
    """
    config: Any = gevent.config
    hub = gevent.get_hub()
    previous = (config.monitor_thread, config.max_blocking_time, config.print_blocking_reports)
    config.monitor_thread = True
    config.max_blocking_time = max_ms / 1000
    config.print_blocking_reports = report is None
    # What greenlets keep to themselves may be a request with its token, or have no form outside of them;
    # gevent has no switch for it.
    gevent.util.GreenletTree._GreenletTree__render_locals = lambda _self, _tree: None
    subscribers: list[Any] = gevent.events.subscribers

    def on_event(event: Any) -> None:
        if report is not None and isinstance(event, gevent.events.EventLoopBlocked):
            report("\n".join(str(line) for line in event.info))

    subscribers.append(on_event)
    with warnings.catch_warnings():
        # gevent warns that it cannot watch the memory without psutil: nobody asked it to.
        warnings.simplefilter("ignore", RuntimeWarning)
        hub.start_periodic_monitoring_thread()
    # A native thread that meets a patched lock gets a hub, and may block for as long as it likes.
    config.monitor_thread = previous[0]

    def undo() -> None:
        monitor = hub.periodic_monitoring_thread
        if monitor is not None:
            monitor.kill()
            hub.periodic_monitoring_thread = None
        if on_event in subscribers:
            subscribers.remove(on_event)
        config.monitor_thread, config.max_blocking_time, config.print_blocking_reports = previous

    return undo


def actor_tree(root: Ref[Any] | None = None) -> str:
    """One line an actor, indented below what it belongs to: name, class, generation (how often it was
    started anew), mailbox depth and what it is doing.

    ``root``: only that actor and what is below it. Waits for nobody and asks nobody.
    """
    actors = live_actors()
    refs = {id(actor.ref) for actor in actors}
    siblings = {(id(actor.parent), actor.name): id(actor.ref) for actor in actors}
    children: dict[int | None, list[BaseActor]] = {}
    for actor in actors:
        above = siblings.get((id(actor.parent), actor.belongs_to or ""), id(actor.parent))
        children.setdefault(above if above in refs else None, []).append(actor)
    tops = [actor for actor in actors if actor.ref is root] if root is not None else children.get(None, [])
    lines: list[str] = []
    pending = [(0, actor) for actor in reversed(tops)]
    while pending:
        depth, actor = pending.pop()
        lines.append(
            f"{'  ' * depth}{actor.name} ({type(actor).__name__}) "
            f"generation={actor.generation} mailbox={actor.mailbox_depth} {_condition(actor)}".rstrip()
        )
        pending.extend((depth + 1, child) for child in reversed(children.get(id(actor.ref), [])))
    return "\n".join(lines)


def _condition(actor: BaseActor) -> str:
    try:
        return actor.condition
    except Exception as error:
        # It is looked at in the middle of whatever it does.
        return f"({type(error).__name__})"


def install_sigusr1() -> Callable[[], None]:
    """On SIGUSR1 write the actor tree and the number of greenlets to stderr. Returns the undo.

    The writing is a native thread's: nobody waits for a reader that does not read, and nothing more is
    written for one that leaves much unread.
    """
    output = Writer(2)

    def show(_number: int) -> None:
        if output.queued_bytes > MAX_UNREAD_BYTES:
            return
        count = sum(isinstance(item, gevent.Greenlet) and not item.dead for item in gc.get_objects())
        output.write(f"{actor_tree() or 'no actors'}\n{count} greenlets\n".encode())

    undo_signal = on_signals({signal.SIGUSR1: show})

    def undo() -> None:
        undo_signal()
        output.close()

    return undo
