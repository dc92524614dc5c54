"""What a harness counts: the sink that keeps it may die, and no agent notices."""

from __future__ import annotations

from dsh_actors.actors import telemetry_sink
from dsh_actors.actors.address import Address
from dsh_actors.actors.protocol import RecordEvents
from dsh_actors.actors.telemetry_sink import TelemetryFeed
from dsh_actors.core.chunks import CallConfig, TextDelta
from dsh_actors.core.events import Event
from dsh_actors.core.metrics import render
from dsh_actors.core.scope import Scope
from dsh_actors.testing.machine import call_chunks, text_chunks
from tests.actors.kit import until


def value(stage, name: str, **labels: str) -> float:
    samples = stage.harness.metrics()[name]
    return next((each["value"] for each in samples if each["labels"] == labels), 0)


def kill(address: Address) -> None:
    ref = address.ref
    ref.tell(object())
    until(lambda: address.ref is not ref)


def play(stage, agent) -> None:
    agent.followup("hello")
    stage.model.next_stream().send(*call_chunks(("glob", '{"pattern": "*"}')))
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)


def test_a_harness_counts_its_agents_and_what_they_do(stage):
    agent = stage.agent()
    play(stage, agent)
    assert value(stage, "dsh_agents_created_total") == value(stage, "dsh_agents_live") == 1
    assert value(stage, "dsh_turns_total", end="completed") == 1
    assert value(stage, "dsh_steps_total") == 2
    assert value(stage, "dsh_tool_calls_total", tool="glob") == 1
    assert value(stage, "dsh_model_requests_total", provider="manual", outcome="ok") == 2
    assert value(stage, "dsh_mailbox_depth", actor="session_store") == 0
    agent.followup("again")
    stage.model.next_stream()
    assert value(stage, "dsh_agents_running") == 1
    agent.dispose()
    assert (value(stage, "dsh_agents_disposed_total"), value(stage, "dsh_agents_live")) == (1, 0)
    assert value(stage, "dsh_turns_total", end="aborted") == 1
    assert "dsh_agents_disposed_total 1" in render(stage.harness.metrics()).splitlines()


def test_crashes_and_restarts_are_counted_and_so_is_the_turn_that_broke(stage):
    agent = stage.agent()
    agent.followup("hello")
    stage.model.next_stream().send(TextDelta(0, "half"))
    kill(agent._address)
    kill(stage.harness._at.pool)
    assert agent.when_idle(10)
    assert value(stage, "dsh_agent_crashes_total") == value(stage, "dsh_agent_restarts_total") == 1
    assert value(stage, "dsh_worker_restarts_total", worker="tool_pool") == 1
    assert value(stage, "dsh_turns_total", end="interrupted") == 1


def test_a_sink_that_dies_in_a_turn_changes_nothing_in_the_log_and_forgets_nothing(stage):
    def log_of(kills: bool) -> list[tuple[str, object]]:
        stage.events.clear()
        agent = stage.agent()
        agent.followup("hello")
        stream = stage.model.next_stream()
        if kills:
            kill(stage.harness._at.telemetry)
        stream.send(*text_chunks("ok"))
        assert agent.when_idle(10)
        agent.dispose()
        assert stage.stored(agent.id) == stage.events
        return [(event.type, event.data.get("chunk")) for event in stage.events]

    undisturbed = log_of(kills=False)
    assert log_of(kills=True) == undisturbed
    assert value(stage, "dsh_turns_total", end="completed") == 2
    assert value(stage, "dsh_worker_restarts_total", worker="telemetry_sink") == 1


def test_a_sink_that_keeps_dying_is_done_without(stage):
    address = stage.harness._at.telemetry
    for _ in range(3):
        kill(address)
    ref = address.ref
    ref.tell(object())
    until(lambda: address._gone is not None)
    agent = stage.agent()
    play(stage, agent)
    assert agent.status().status == "idle"
    assert stage.harness.metrics()["dsh_agents_live"] == [{"labels": {}, "value": 1}]


class Slow(Address):
    """A sink that has been told and takes nothing in."""

    def __init__(self) -> None:
        super().__init__("telemetry_sink")
        self.told: list[RecordEvents] = []

    def tell(self, message: RecordEvents) -> None:
        self.told.append(message)


def test_a_sink_that_takes_nothing_in_is_told_no_more_and_nothing_is_lost():
    sink = Slow()
    feed, scope = TelemetryFeed(sink, lambda model: None), Scope("agent")
    feed.meter(scope, CallConfig("p", "m"))
    (apply,) = scope.handlers_of("session/event")
    turns = 3 * telemetry_sink.MAX_UNREAD
    for turn in range(turns):
        apply(Event("turn/end", turn, 1_000 * (turn + 1), {"turn": turn, "reason": {"kind": "completed"}}))
    assert len(sink.told) == telemetry_sink.MAX_UNREAD
    feed.totals()  # tells the rest
    for message in sink.told:
        feed.taken(message.counts)
    assert feed.totals()["dsh_turns_total", "completed"] == turns


def test_steps_in_quick_succession_are_told_of_together():
    sink = Slow()
    feed, scope = TelemetryFeed(sink, lambda model: None), Scope("agent")
    feed.meter(scope, CallConfig("p", "m"))
    (apply,) = scope.handlers_of("session/event")
    for step in range(100):
        apply(Event("step/start", step, 10_000 + step, {}))
        apply(Event("step/end", step, 10_000 + step, {}))
    assert len(sink.told) == 1


def test_the_tree_shows_what_every_actor_is_doing(stage):
    agent = stage.agent()
    agent.followup("hello")
    stage.model.next_stream()
    agent.inject("later")
    lines = stage.harness.actor_tree().splitlines()
    assert lines[0] == (
        "supervisor (SupervisorActor) generation=0 mailbox=0 agents=1 coming=0 restarting=0"
    )
    place = "streaming turn=1 step=1 queued=1"
    assert f"  {agent.id} (AgentActor) generation=0 mailbox=0 {place}" in lines
    kill(agent._address)
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    kill(stage.harness._at.gateway)
    lines = stage.harness.actor_tree().splitlines()
    assert f"  {agent.id} (AgentActor) generation=1 mailbox=0 idle queued=0" in lines
    assert "  model_gateway (ModelGatewayActor) generation=1 mailbox=0" in lines
    assert len(lines) == 8
