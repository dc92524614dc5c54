"""Looking into a running process: the actor tree, what blocks the hub, and the errors kept quiet."""

from __future__ import annotations

import gc
import logging
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import gevent
import gevent.events

from dsh_actors.runtime.actor import BaseActor, live_actors
from dsh_actors.runtime.log import LOGGER, PYKKA_LOGGER
from dsh_actors.runtime.signals import on_signals

__all__ = ["actor_tree", "install_blocking_detection", "install_sigusr1", "show_errors"]


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
    subscribers: list[Any] = gevent.events.subscribers

    def on_event(event: Any) -> None:
        if report is not None and isinstance(event, gevent.events.EventLoopBlocked):
            report("\n".join(str(line) for line in event.info))

    subscribers.append(on_event)
    with warnings.catch_warnings():
        # gevent warns that it cannot watch the memory without psutil: nobody asked it to.
        warnings.simplefilter("ignore", RuntimeWarning)
        hub.start_periodic_monitoring_thread()

    def undo() -> None:
        monitor = hub.periodic_monitoring_thread
        if monitor is not None:
            monitor.kill()
            hub.periodic_monitoring_thread = None
        if on_event in subscribers:
            subscribers.remove(on_event)
        config.monitor_thread, config.max_blocking_time, config.print_blocking_reports = previous

    return undo


def actor_tree() -> str:
    """One line an actor: name, class, generation and mailbox depth, indented below its parent."""
    actors = live_actors()
    alive = {id(actor.ref) for actor in actors}
    children: dict[int | None, list[BaseActor]] = {}
    for actor in actors:
        parent = id(actor.parent) if id(actor.parent) in alive else None
        children.setdefault(parent, []).append(actor)
    lines: list[str] = []
    pending = [(0, actor) for actor in reversed(children.get(None, []))]
    while pending:
        depth, actor = pending.pop()
        lines.append(
            f"{'  ' * depth}{actor.name} ({type(actor).__name__}) "
            f"generation={actor.generation} mailbox={actor.mailbox_depth}"
        )
        pending.extend((depth + 1, child) for child in reversed(children.get(id(actor.ref), [])))
    return "\n".join(lines)


def install_sigusr1() -> Callable[[], None]:
    """On SIGUSR1 write the actor tree and the number of greenlets to stderr. Returns the undo."""

    def show(_number: int) -> None:
        count = sum(isinstance(item, gevent.Greenlet) and not item.dead for item in gc.get_objects())
        text = f"{actor_tree() or 'no actors'}\n{count} greenlets\n"
        os.write(2, text.encode())

    return on_signals({signal.SIGUSR1: show})
