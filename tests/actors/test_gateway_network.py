"""The gateway with a real provider and real sockets: aborts in every phase, what agents share."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dsh_actors.actors import protocol as p
from dsh_actors.actors.model_gateway import GatewayState, ModelGatewayActor
from dsh_actors.adapters.llm import transport
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.config import load_config
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Finish
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.redaction import Redactor
from dsh_actors.core.request import ModelRequest, RequestHeader
from dsh_actors.harness import Harness
from dsh_actors.runtime.actor import start_actor
from dsh_actors.runtime.timers import SystemClock
from tests.actors.kit import until
from tests.adapters.llm.llm_kit import DONE, HI, Server, chunk, config, delta, finish, head
from tests.adapters.llm.secure_kit import deaf_listener, mute_listener

DEADLINE_S = 10.0
PROMISE_S = 0.1
"""An abort takes no longer, in every phase."""

TRIES = 3
"""A busy machine may be late once; the promise is about what the gateway does."""


class Agents:
    """The gateway of a process whose agents all use one route to ``url``."""

    def __init__(self, url: str, limit: int = 8, body: bytes = b"{}", **changes: Any) -> None:
        self.provider = OpenAiCompatibleProvider(config(url, name="test", **changes))
        self.state = GatewayState({"test": self.provider}, Redactor({}), limits={"test": limit})
        self.body = body
        self.ref = start_actor(
            ModelGatewayActor(
                name="model_gateway", parent=None, generation=0, state=self.state, clock=SystemClock()
            )
        )

    def encode(self, request: ModelRequest) -> bytes:
        return self.body

    def ask(self, agent: int) -> queue.SimpleQueue[io.Chunks]:
        """One request of this agent; its replies."""
        replies: queue.SimpleQueue[io.Chunks] = queue.SimpleQueue()
        call = self.provider.prepare(CallConfig("test", "m"))
        request = ModelRequest(RequestHeader(call.config), [])
        owner = p.Owner(f"s{agent}", 1)
        self.ref.tell(p.OpenModelStream(owner, 1, call, self, request, (), replies.put))
        return replies

    def abort(self, agent: int) -> None:
        self.ref.tell(p.AbortModelStream(p.Owner(f"s{agent}", 1), 1))

    def answer(self, agent: int) -> Finish:
        return ended(self.ask(agent))

    @property
    def in_use(self) -> int:
        return self.state.route("test").slots.in_use

    def close(self) -> None:
        self.ref.stop(timeout=DEADLINE_S)
        assert self.state.streams == {}
        until(lambda: self.in_use == 0)


def ended(replies: queue.SimpleQueue[io.Chunks]) -> Finish:
    while True:
        last = replies.get(timeout=DEADLINE_S).chunks[-1]
        if isinstance(last, Finish):
            return last


@pytest.fixture
def agents_at() -> Iterator[Callable[..., Agents]]:
    made: list[Agents] = []

    def make(url: str, **options: Any) -> Agents:
        made.append(Agents(url, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def answer(connection: socket.socket, request: bytes) -> None:
    connection.sendall(head() + chunk(HI) + chunk(b""))


# --- aborts -----------------------------------------------------------------------------------


def quickest_abort(agents: Agents, is_there: Callable[[], object]) -> None:
    """Abort requests once they are where they should be; the quickest keeps the promise."""
    times = []
    for number in range(TRIES):
        replies = agents.ask(number)
        is_there()
        begun = time.monotonic()
        agents.abort(number)
        last = ended(replies)
        times.append(time.monotonic() - begun)
        assert last.kind == "aborted" and last.failure is not None and last.failure.code == "ABORTED"
        if times[-1] < PROMISE_S:
            return
    raise AssertionError(f"aborts took {times} s")


def soon() -> None:
    """Some turns for all others, so that a greenlet arrives at its system call."""
    turns = iter(range(20))
    until(lambda: next(turns, None) is None)


def test_an_abort_ends_a_look_up_of_a_name(agents_at, monkeypatch):
    look_up, stuck, begun = socket.getaddrinfo, threading.Event(), threading.Event()

    def slow(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "slow.test":
            begun.set()
            stuck.wait(DEADLINE_S)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    agents = agents_at("http://slow.test/v1")
    quickest_abort(agents, lambda: begun.wait(DEADLINE_S))
    stuck.set()


@pytest.mark.parametrize("phase", ["connect", "handshake", "send"])
def test_an_abort_ends_a_call_that_has_not_been_heard(agents_at, phase):
    with ExitStack() as stack:
        port = stack.enter_context(deaf_listener() if phase == "connect" else mute_listener())
        scheme = "https" if phase == "handshake" else "http"
        body = b"x" * 12_000_000 if phase == "send" else b"{}"
        quickest_abort(agents_at(f"{scheme}://127.0.0.1:{port}/v1", body=body), soon)


@pytest.mark.parametrize("sent", ["nothing", "half a head", "a head", "half a reply", "comments"])
def test_an_abort_ends_a_call_that_is_being_answered_and_the_next_works(agents_at, sent):
    said = {
        "nothing": b"",
        "half a head": b"HTTP/1.1 200 OK\r\nX-A",
        "a head": head(),
        "half a reply": head() + chunk(delta(content="a")),
        "comments": head() + chunk(b": queued\n\n"),
    }[sent]
    heard, left = threading.Event(), threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        if left.is_set():
            answer(connection, request)
            return True
        connection.sendall(said)
        heard.set()
        assert connection.recv(1) == b""
        left.set()
        return False

    def is_there() -> None:
        assert heard.wait(DEADLINE_S)
        heard.clear()
        soon()

    with Server(handle) as server:
        agents = agents_at(server.url)
        quickest_abort(agents, is_there)
        assert left.wait(DEADLINE_S), "the server must see the end"
        assert agents.answer(9) == Finish("stop")


def test_an_abort_does_not_wait_for_a_flood_to_end(agents_at):
    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head())
        while True:
            connection.sendall(chunk(delta(content="a") * 500))

    with Server(handle) as server:
        quickest_abort(agents_at(server.url), soon)
        assert server.gone.wait(DEADLINE_S)


def test_an_abort_ends_the_wait_for_the_end_of_a_body_that_is_complete(agents_at, monkeypatch):
    monkeypatch.setattr(transport, "DRAIN_S", 3 * DEADLINE_S)
    hold = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head() + chunk(HI))
        hold.wait(3 * DEADLINE_S)
        return False

    with Server(handle) as server:
        agents = agents_at(server.url)
        assert ended(agents.ask(1)) == Finish("stop")
        agents.abort(1)
        until(lambda: agents.in_use == 0)
        hold.set()


def test_an_abort_ends_the_wait_for_a_slot_and_for_a_pause(agents_at):
    hold = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> None:
        hold.wait(DEADLINE_S)
        answer(connection, request)

    with Server(handle) as server:
        agents = agents_at(server.url, limit=1)
        first = agents.ask(99)
        until(lambda: len(server.requests) == 1)
        quickest_abort(agents, lambda: until(lambda: agents.state.route("test").slots.waiting == 1))
        hold.set()
        assert ended(first) == Finish("stop")
        agents.state.route("test").paused_until = time.monotonic() + 60
        quickest_abort(agents, soon)
        agents.state.route("test").paused_until = 0
        assert len(server.requests) == 1
        assert agents.answer(100) == Finish("stop")


# --- what agents share ------------------------------------------------------------------------


def test_all_agents_wait_out_a_rate_limit_and_come_back_one_after_the_other(agents_at):
    arrivals: list[float] = []
    limited_at = 0.0

    def handle(connection: socket.socket, request: bytes) -> None:
        nonlocal limited_at
        if not limited_at:
            limited_at = time.monotonic()
            connection.sendall(b"HTTP/1.1 429 Slow\r\nRetry-After-Ms: 500\r\nContent-Length: 2\r\n\r\n{}")
            return
        arrivals.append(time.monotonic())
        answer(connection, request)

    with Server(handle) as server:
        agents = agents_at(server.url)
        failure = agents.answer(0).failure
        assert failure is not None and (failure.code, failure.retry_after_ms) == ("RATE_LIMIT", 500)
        waiting = [agents.ask(number) for number in range(1, 8)]
        until(lambda: agents.in_use == 7)
        agents.abort(7)
        assert ended(waiting[-1]).kind == "aborted"
        assert arrivals == []
        assert all(ended(replies) == Finish("stop") for replies in waiting[:-1])
    assert len(arrivals) == 6, "who was aborted while waiting must not send"
    assert min(arrivals) - limited_at >= 0.5
    assert max(arrivals) - min(arrivals) > 0.001, "they came back all at once"


def test_a_route_serves_its_agents_in_turn_over_as_many_connections_as_it_may_use(agents_at):
    present = most = 0
    pace = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> None:
        nonlocal present, most
        present += 1
        most = max(most, present)
        connection.sendall(head() + chunk(delta(content="a")))
        pace.wait(0.002)
        present -= 1
        connection.sendall(chunk(finish("stop") + DONE) + chunk(b""))

    with Server(handle) as server:
        agents = agents_at(server.url, limit=4)
        for _ in range(3):
            waiting = [agents.ask(number) for number in range(20)]
            for replies in waiting:
                assert ended(replies) == Finish("stop")
        assert (len(server.requests), most) == (60, 4)
        assert server.connections == 4


def test_whoever_waits_longest_for_a_slot_is_next(agents_at):
    gate = threading.Semaphore(0)

    def handle(connection: socket.socket, request: bytes) -> None:
        gate.acquire(timeout=DEADLINE_S)
        answer(connection, request)

    with Server(handle) as server:
        agents = agents_at(server.url, limit=1)
        waiting = [agents.ask(number) for number in range(6)]
        for replies in waiting:
            gate.release()
            assert ended(replies) == Finish("stop")


def test_a_session_of_many_requests_keeps_its_connection(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with Server(answer) as server:
        (home / "config.toml").write_text(f'[providers.lab]\nbase_url = "{server.url}"\n')
        env = {"DSH_HOME": str(home), "HOME": str(tmp_path)}
        with Harness.open(load_config(env=env, cwd=str(tmp_path))) as harness:
            agent = harness.create(AgentOptions(model="lab/m", cwd=str(tmp_path), sandbox="off"))
            for _ in range(10):
                agent.followup("go on")
                assert agent.when_idle(DEADLINE_S)
            agent.dispose(DEADLINE_S)
        assert (len(server.requests), server.connections) == (10, 1)


def test_the_configuration_bounds_the_requests_of_a_route(tmp_path):
    gate = threading.Semaphore(0)

    def handle(connection: socket.socket, request: bytes) -> None:
        gate.acquire(timeout=DEADLINE_S)
        answer(connection, request)

    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with Server(handle) as server:
        route = f'[providers.lab]\nbase_url = "{server.url}"\nmax_concurrency = 2\n'
        (home / "config.toml").write_text(route)
        env = {"DSH_HOME": str(home), "HOME": str(tmp_path)}
        with Harness.open(load_config(env=env, cwd=str(tmp_path))) as harness:
            options = AgentOptions(model="lab/m", cwd=str(tmp_path), sandbox="off")
            handles = [harness.create(options) for _ in range(5)]
            for agent in handles:
                agent.followup("go")
            until(lambda: len(server.requests) == 2)
            for answered in range(1, 6):
                gate.release()
                until(lambda answered=answered: len(server.requests) == min(5, 2 + answered))
            for agent in handles:
                assert agent.when_idle(DEADLINE_S)
                agent.dispose(DEADLINE_S)
