"""The supervisor's books, driven message by message: nothing here is started, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dsh_actors.actors import protocol as p
from dsh_actors.actors import supervisor as supervising
from dsh_actors.actors.address import Address
from dsh_actors.actors.lifecycle import AgentEntry
from dsh_actors.actors.supervisor import SupervisorActor
from dsh_actors.core import turn_io as io
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.inbox import splice
from dsh_actors.core.messages import user_message
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.scope import Scope
from dsh_actors.core.state import SessionState
from dsh_actors.errors import ActorGone, SessionBusy
from dsh_actors.runtime.actor import Died
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.tasks import TaskEnd

ONE = SessionId("one")


@dataclass(eq=False)
class Incarnation:
    """What was started, as a ref: what it was told."""

    actor: Any
    told: list[Any] = field(default_factory=list)
    is_alive: bool = True

    def tell(self, message: Any) -> None:
        self.told.append(message)


@dataclass(eq=False)
class Job:
    """A task that runs when the test says so."""

    work: Callable[[Any], Any]
    deliver: Callable[[TaskEnd[Any]], None]
    name: str
    killed: list[float] = field(default_factory=list)

    def kill(self, grace_s: float, _reason: object = None) -> None:
        self.killed.append(grace_s)


class Life:
    """The work of the transactions, scripted. An entry of ``errors`` is raised by the step of that name."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wiring = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: self.now))
        self.did: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.recovered: p.Opened | None = None

    def _step(self, name: str) -> None:
        self.did.append(name)
        if name in self.errors:
            raise self.errors[name]

    def prepare(self, session_id: SessionId, message: Any) -> tuple[AgentEntry, p.Opened]:
        self._step("prepare")
        header = SessionHeader(session_id, 1, "/")
        entry = AgentEntry(session_id, header, message.options, Address(session_id), Scope("agent"), None)
        return entry, p.Opened(header, SessionState(header))

    def undo(self, entry: AgentEntry) -> None:
        self._step("undo")

    def announce(self, entry: AgentEntry, source: str) -> None:
        self._step(f"announce {source}")

    def report_crash(self, entry: AgentEntry, report: dict[str, Any]) -> None:
        self._step(f"report {report['message']}")

    def recover(self, entry: AgentEntry) -> p.Opened:
        self._step("recover")
        return self.recovered or p.Opened(entry.header, SessionState(entry.header))

    def drain(self, entry: AgentEntry, timeout_s: float) -> None:
        self._step("drain")


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[Job] = []
        self.started: list[Incarnation] = []
        monkeypatch.setattr(supervising, "start_task", self.start_task)
        monkeypatch.setattr(supervising, "start_actor", self.start_actor)
        monkeypatch.setattr(supervising, "AgentActor", lambda **parts: SimpleNamespace(**parts))
        self.life = Life()
        self.worker = Address("worker")
        self.actor = SupervisorActor(
            name="supervisor",
            lifecycle=self.life,  # type: ignore[arg-type]  # a double of what is used
            workers={
                "worker": (self.worker, lambda generation, parent: ("worker", generation)),
                "index": (Address("index"), lambda generation, parent: ("index", generation)),
            },
            agents={},
            dispensable=frozenset({"index"}),
        )
        self.actor.started()
        self.started.clear()

    def start_task(self, work: Any, deliver: Any, *, name: str) -> Job:
        self.jobs.append(Job(work, deliver, name))
        return self.jobs[-1]

    def start_actor(self, actor: Any) -> Incarnation:
        self.started.append(Incarnation(actor))
        return self.started[-1]

    def send(self, message: Any) -> Any:
        return self.actor.receive(message)

    def step(self, job: Job | None = None) -> Any:
        """The oldest task runs, and the supervisor takes in how it ended."""
        job = job or self.jobs[0]
        self.jobs.remove(job)
        try:
            end: TaskEnd[Any] = TaskEnd(job.work(None), None)
        except BaseException as error:
            end = TaskEnd(None, error)
        job.deliver(end)
        message = self.actor.actor_inbox.get().message
        self.send(message)
        return message

    def run(self) -> None:
        while self.jobs:
            self.step()

    def create(self, session_id: SessionId = ONE) -> GeventFuture:
        options = AgentOptions(model="m/m", cwd="/")
        return self.send(p.CreateAgent(options, SessionHeader(session_id, 1, "/")))

    def live(self, session_id: SessionId = ONE) -> AgentEntry:
        promise = self.create(session_id)
        self.run()
        entry: AgentEntry = promise.get(timeout=0)
        self.life.did.clear()
        return entry

    def agent_dies(self, entry: AgentEntry, generation: int | None = None) -> None:
        number = entry.generation if generation is None else generation
        self.send(Died(entry.id, number, RuntimeError("boom")))

    def worker_dies(self, *unread: Any) -> None:
        self.send(Died("worker", self.actor._generations["worker"], RuntimeError("boom"), unread))

    @property
    def ids(self) -> list[SessionId]:
        return [entry.id for entry in self.send(p.GetAgents())]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def error_of(promise: GeventFuture) -> BaseException:
    assert promise.is_set
    with pytest.raises(Exception) as caught:
        promise.get(timeout=0)
    return caught.value


# --- creating ---------------------------------------------------------------------------------


def test_an_agent_is_published_and_then_announced(bench):
    promise = bench.create()
    bench.step()
    assert bench.ids == [ONE] and not promise.is_set
    bench.step()
    assert promise.get(timeout=0).id == ONE
    assert bench.life.did == ["prepare", "announce startup"]


def test_an_id_on_its_way_is_busy_and_free_after_a_failure(bench):
    bench.life.errors["prepare"] = RuntimeError("no")
    promise = bench.create()
    with pytest.raises(SessionBusy):
        bench.create()
    bench.run()
    assert str(error_of(promise)) == "no"
    bench.life.errors.clear()
    assert bench.live().id == ONE


def test_a_veto_is_heard_after_all_is_undone(bench):
    bench.life.errors["announce startup"] = RuntimeError("vetoed")
    promise = bench.create()
    bench.step()
    bench.step()
    assert not promise.is_set and bench.started[0].told == [io.Cancel({"kind": "disposed"}, keep_title=True)]
    bench.step()
    assert str(error_of(promise)) == "vetoed"
    assert bench.life.did[-1] == "drain" and bench.ids == []


def test_a_stray_message_ends_nothing(bench):
    assert bench.send(object()) is None


# --- closing ----------------------------------------------------------------------------------


def test_a_shutdown_waits_for_what_is_on_its_way_and_nobody_gets_to_see_it(bench):
    promise = bench.create()
    closed = bench.send(p.Shutdown(7.0))
    assert bench.jobs[0].killed == [7.0] and not closed.is_set
    bench.step()
    assert bench.ids == [] and bench.started == [] and not closed.is_set
    bench.step()
    assert closed.is_set and bench.life.did == ["prepare", "undo"]
    assert isinstance(error_of(promise), ActorGone)
    with pytest.raises(ActorGone):
        bench.create()


def test_a_shutdown_disposes_of_an_agent_that_is_being_announced(bench):
    promise = bench.create()
    bench.step()
    announcement = bench.jobs[0]
    closed = bench.send(p.Shutdown(7.0))
    assert announcement.killed
    bench.step(bench.jobs[1])
    assert not closed.is_set
    bench.step(announcement)
    assert closed.is_set and isinstance(error_of(promise), ActorGone)


def test_disposing_twice_is_disposing_once_and_both_hear_of_it(bench):
    bench.live()
    bench.life.errors["drain"] = RuntimeError("disk")
    first, second = bench.send(p.DisposeAgent(ONE)), bench.send(p.DisposeAgent(ONE))
    assert len(bench.jobs) == 1
    bench.run()
    assert [str(error_of(each)) for each in (first, second)] == ["disk", "disk"]
    assert bench.ids == [] and bench.send(p.DisposeAgent(ONE)) is None


# --- agents that died -------------------------------------------------------------------------


def test_an_agent_that_died_is_reported_recovered_and_started_with_the_next_generation(bench):
    entry = bench.live()
    bench.agent_dies(entry)
    waiting = bench.send(p.AwaitAgent(ONE))
    assert not waiting.is_set
    bench.run()
    assert bench.life.did == ["report boom", "recover"]
    assert waiting.is_set and bench.send(p.AwaitAgent(ONE)) is None
    assert [each.actor.generation for each in bench.started] == [0, 1]
    assert entry.address.ref is bench.started[1] and entry.last_error is None


def test_the_death_of_an_earlier_incarnation_means_nothing(bench):
    entry = bench.live()
    bench.agent_dies(entry)
    bench.run()
    bench.agent_dies(entry, generation=0)
    assert bench.jobs == [] and not entry.restarting


def test_what_was_recovered_for_an_earlier_incarnation_or_agent_is_not_started(bench):
    entry = bench.live()
    bench.agent_dies(entry)
    late = bench.step()
    bench.send(late)
    assert len(bench.started) == 2
    bench.agent_dies(entry)
    bench.send(late)
    assert len(bench.started) == 2 and entry.restarting
    bench.run()
    bench.started.pop()
    bench.send(p.DisposeAgent(ONE))
    bench.run()
    again = bench.live()
    bench.agent_dies(again)
    bench.send(late)
    assert len(bench.started) == 3 and again.restarting


def test_an_agent_whose_log_cannot_be_read_is_given_up(bench):
    entry = bench.live()
    bench.life.errors["recover"] = RuntimeError("damaged")
    bench.agent_dies(entry)
    waiting = bench.send(p.AwaitAgent(ONE))
    bench.run()
    assert bench.ids == [] and "damaged" in str(error_of(waiting))
    with pytest.raises(ActorGone):
        bench.send(p.AwaitAgent(ONE))


def test_the_fourth_crash_within_a_minute_is_the_last(bench):
    entry = bench.live()
    for _ in range(3):
        bench.agent_dies(entry)
        bench.run()
    assert entry.generation == 3
    bench.agent_dies(entry)
    bench.run()
    assert bench.ids == [] and bench.life.did[-2:] == ["report boom", "drain"]


def test_crashes_far_apart_are_forgiven(bench):
    entry = bench.live()
    for _ in range(8):
        bench.agent_dies(entry)
        bench.run()
        bench.life.now += 30.0
    assert bench.ids == [ONE] and entry.generation == 8


@pytest.mark.parametrize("closers", [True, False])
def test_pending_input_is_gone_on_with_only_if_the_crash_ended_a_turn(bench, closers):
    entry = bench.live()
    state = SessionState(entry.header)
    pending = splice("next-turn", 0, inserted=(user_message("m", "next"),))
    state.apply(Event("agent/inbox/spliced", 0, 1, pending))
    ending = (Event("turn/end", 0, 1, {}),) if closers else ()
    bench.life.recovered = p.Opened(entry.header, state, ending)
    bench.agent_dies(entry)
    bench.run()
    assert bench.started[1].told == ([io.Wake()] if closers else [])


# --- workers that died ------------------------------------------------------------------------


def test_a_worker_is_started_again_with_what_was_left_unread(bench):
    bench.worker_dies("first", "second")
    assert [each.actor for each in bench.started] == [("worker", 1)]
    assert bench.worker.ref.told == ["first", "second"]


def test_the_death_of_an_earlier_worker_means_nothing(bench):
    bench.worker_dies()
    bench.send(Died("worker", 0, RuntimeError("late")))
    assert len(bench.started) == 1


def test_a_worker_that_keeps_failing_takes_the_agents_with_it_in_order(bench):
    entry = bench.live()
    bench.started.clear()
    for _ in range(4):
        bench.worker_dies()
    assert len(bench.started) == 4, "the last one winds up what is under way"
    assert entry.disposing is not None and "worker keeps failing: boom" in str(entry.last_error)
    with pytest.raises(ActorGone, match="worker keeps failing"):
        bench.create(SessionId("two"))
    bench.run()
    assert bench.ids == []
    bench.worker_dies()
    assert len(bench.started) == 4
    bench.worker.ref.is_alive = False
    with pytest.raises(ActorGone, match="worker keeps failing"):
        bench.worker.ask("anything", timeout=1)


def test_worker_crashes_far_apart_are_forgiven(bench):
    bench.live()
    for _ in range(8):
        bench.worker_dies()
        bench.life.now += 30.0
    assert bench.ids == [ONE] and bench.jobs == []


def test_a_worker_that_nobody_depends_on_is_done_without(bench):
    bench.live()
    for generation in range(4):
        bench.send(Died("index", generation, RuntimeError("boom")))
    assert bench.ids == [ONE] and bench.jobs == []
    assert bench.live(SessionId("two")).id == "two"
