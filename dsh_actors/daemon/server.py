"""The daemon put together: harness, host, desk, streams and HTTP, from the first check to the last word."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Mapping

from dsh_actors.config import Config, prepare_home
from dsh_actors.core.metrics import render
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.access import LISTENER_KEY, Access, load_token
from dsh_actors.daemon.api import Api
from dsh_actors.daemon.approvals_desk import ApprovalsDesk
from dsh_actors.daemon.gauges import Gauges, Reading
from dsh_actors.daemon.host import Host
from dsh_actors.daemon.http_app import build_app
from dsh_actors.daemon.info import AgentInfo
from dsh_actors.daemon.page import status_page
from dsh_actors.daemon.sockets import UnixListener, loopback_address, open_loopback
from dsh_actors.daemon.streams import Notice, Streams
from dsh_actors.errors import HarnessError, StorageError, error_chain
from dsh_actors.harness import Harness
from dsh_actors.ports import LlmProvider
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import deadline
from dsh_actors.runtime.timers import SystemClock
from dsh_actors.runtime.wsgi import HttpServer

__all__ = ["Daemon"]

MAX_CONNECTIONS = 1_024
_ANSWERS_S = 0.5
"""What requests in hand have to be answered when the daemon stops."""


class Daemon:
    """One a home. `start` it, wait for `stopping`, `close` it.

    ``idle_exit_s``: it stops by itself when nothing ran and nobody was connected for so long, and
    with ``once`` no earlier than it has been of use.
    """

    def __init__(
        self,
        config: Config,
        *,
        providers: Mapping[str, LlmProvider] | None = None,
        idle_exit_s: float | None = None,
        once: bool = False,
    ) -> None:
        self.config = config
        self.stopping = threading.Event()
        self._idle_exit_s = idle_exit_s
        self._once = once
        self._is_stopping = False
        self._last_run = time.monotonic()
        self._was_used = False
        settings = config.daemon
        if settings.listen is not None:
            loopback_address(settings.listen)
        self.directory = os.path.join(config.require_home(writable=True), "daemon")
        _private_directory(config.require_home(), self.directory)
        self._host: Host | None = None
        self._unix: UnixListener | None = None
        self._tcp: socket.socket | None = None
        self._providers = providers

    @property
    def socket_path(self) -> str:
        return self.config.daemon.socket or os.path.join(self.directory, "socket")

    @property
    def url(self) -> str | None:
        """Where it listens on TCP, if it does."""
        if self._tcp is None:
            return None
        host, port = self._tcp.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def start(self) -> None:
        """Take the home and listen. Raises `SessionBusy` where another daemon has it, `UsageError`,
        `StorageError`; nothing is left behind then.
        """
        settings = self.config.daemon
        token = load_token(self.directory) if settings.listen is not None else None
        with contextlib.ExitStack() as undo:
            # What is held already is seen at once, before anything is started.
            self._unix = UnixListener(self.socket_path)
            undo.callback(self._close_listeners)
            if settings.listen is not None:
                self._tcp = open_loopback(settings.listen)
            self._build(token)
            undo.callback(self._harness.close, 1.0)
            assert self._host is not None
            self._host.start()
            self.http.listen(self._unix.socket, {LISTENER_KEY: "unix"})
            if self._tcp is not None:
                self.http.listen(self._tcp, {LISTENER_KEY: "tcp"})
            undo.pop_all()

    def _build(self, token: str | None) -> None:
        settings = self.config.daemon
        self.desk = ApprovalsDesk(SystemClock(), settings.approval_timeout_s, self._on_approval)
        harness = self._harness = Harness.open(
            self.config,
            providers=self._providers,
            answerer=self.desk,
            approval_timeout_s=settings.approval_timeout_s,
        )
        host = self._host = Host(
            harness,
            self.config,
            max_live=settings.max_live,
            idle_after_s=settings.idle_after_s,
            on_change=self._on_change,
            restart=settings.restart,
        )
        self.streams = Streams(host, settings.event_queue, self._asked)
        self._gauges = Gauges()
        api = Api(
            host,
            self.desk,
            self.streams,
            page=status_page,
            metrics=self._metrics,
            connections=lambda: self.http.connections,
            is_stopping=lambda: self._is_stopping,
        )
        app = build_app(
            api.routes, Access(token), is_stopping=lambda: self._is_stopping, tally=self._gauges.answered
        )
        self.http = HttpServer(app, max_connections=_max_connections())

    @property
    def host(self) -> Host:
        assert self._host is not None, "the daemon was not started"
        return self._host

    @property
    def harness(self) -> Harness:
        return self._harness

    # --- what happens --------------------------------------------------------------------------

    def _on_change(self, info: AgentInfo) -> None:
        if info.state == "running":
            self._was_used = True
        self._last_run = time.monotonic()
        self.streams.announce(info.id, Notice("agent", info))
        if info.state == "failed":
            self.streams.announce(info.id, Notice("agent.failed", {"id": info.id, "error": info.error}))
        elif info.state == "disposed":
            self.streams.announce(info.id, Notice("agent.disposed", {"id": info.id}))
            self.streams.end_agent(info.id)

    def _on_approval(self, agent_id: str, name: str, data: JsonObject) -> None:
        if name == "approval.requested":
            self.host.approval_opened(agent_id)
        else:
            self.host.approval_closed(agent_id)
        self.streams.announce(agent_id, Notice(name, data))

    def _asked(self, agent_id: str) -> list[Notice]:
        return [Notice("approval.requested", each.to_json()) for each in self.desk.open(agent_id)]

    def _metrics(self) -> str:
        counts = dict.fromkeys(("running", "idle", "asleep", "failed"), 0) | self.host.counts()
        states = tuple(({"state": state}, float(number)) for state, number in counts.items())
        return render(self._harness.metrics()) + self._gauges.render(
            Reading("dsh_agents_hosted", "gauge", "Agents by state, those that sleep too.", states),
            Reading.gauge("dsh_http_connections", "Open connections.", self.http.connections),
            Reading.gauge("dsh_event_readers", "Open event streams.", self.streams.readers),
            Reading.gauge("dsh_approvals_open", "Questions that wait.", len(self.desk.open())),
        )

    # --- the end -------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until it shall stop: `stopping` was set, or it has been idle for long enough."""
        idle = self._idle_exit_s
        while not self.stopping.wait(None if idle is None else min(1.0, idle / 4)):
            if idle is not None and self._idle_since() + idle <= time.monotonic():
                return

    def _idle_since(self) -> float:
        """Since when nothing runs and nobody is connected; now, where that is not so."""
        now = time.monotonic()
        if self.http.connections or self._may_run():
            self._was_used = True
            self._last_run = now
        if self.http.last_left is not None:
            self._was_used = True
        if self._once and not self._was_used:
            return now
        return max(self._last_run, self.http.last_left or 0.0)

    def _may_run(self) -> bool:
        try:
            return self.host.counts().get("running", 0) > 0
        except HarnessError as error:
            LOGGER.warning("the table of agents could not be read: %s", error_chain(error))
            return True

    def close(self, grace_s: float) -> None:
        """Take nothing new, let what runs be resumable, write everything, in about ``grace_s`` seconds.

        May be called again.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        ends = time.monotonic() + grace_s
        self.http.stop_accepting()
        if self._unix is not None:
            self._unix.remove()
        self.streams.close()
        for step in (
            lambda left: self.host.close(max(0.1, left - 1.0)),
            lambda left: self.http.close(min(_ANSWERS_S, left)),
            self._harness.close,
        ):
            left = max(0.5, ends - time.monotonic())
            try:
                with deadline(left + 1.0):
                    step(left)
            except HarnessError as error:
                LOGGER.error("closing: %s", error_chain(error))

    def _close_listeners(self) -> None:
        if self._unix is not None:
            self._unix.remove()
            self._unix.socket.close()
        if self._tcp is not None:
            self._tcp.close()


def _private_directory(home: str, path: str) -> None:
    prepare_home(home)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)
    except OSError as error:
        raise StorageError(f"cannot keep {path} to its owner: {error.strerror}") from error


def _max_connections() -> int:
    """A part of the descriptors: sessions, pipes and model connections need the others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, soft // 4))
