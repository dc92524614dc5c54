"""Jobs of live agents: across a crash of the actor, a fork, and the end of the harness."""

from __future__ import annotations

import json
import os

from dsh_actors.core.messages import text_of
from dsh_actors.runs import Run, RunPlan
from dsh_actors.runtime.tasks import live_tasks, start_task
from dsh_actors.testing.machine import call_chunks, text_chunks
from tests.actors.kit import until
from tests.actors.test_actors_supervision import crash_and_return


def begin_job(stage, command: str):
    """An agent whose turn is over and whose job goes on."""
    agent = stage.agent()
    agent.followup("go")
    arguments = json.dumps({"command": command, "background": True})
    stage.model.next_stream().send(*call_chunks(("bash", arguments)))
    stage.model.next_stream().send(*text_chunks("waiting"))
    assert agent.when_idle(10)
    return agent


def test_a_job_outlives_a_crash_of_its_agent_whose_next_life_hears_of_it(stage):
    os.mkfifo(stage.cwd / "pipe")
    agent = begin_job(stage, "read line < pipe; echo got $line")
    crash_and_return(agent._address)
    assert not agent.when_done(0.01)
    (stage.cwd / "pipe").write_text("word\n")
    stream = stage.model.next_stream()
    assert text_of(stream.request.messages[-1]).endswith("got word\n")
    stream.send(*text_chunks("done"))
    assert agent.when_done(10)
    agent.dispose()
    kinds = [event.type for event in stage.stored(agent.id) if event.type.startswith("job/")]
    assert kinds == ["job/started", "job/ended"]


def test_a_fork_neither_hears_of_a_job_nor_holds_it(stage):
    agent = begin_job(stage, "sleep 99")
    fork = agent.fork()
    assert fork.when_done(10)
    assert [item.id for item in stage.harness.work.of(agent.id)] == ["bash-1"]
    fork.dispose()
    again = stage.harness.resume(fork.id, stage.options())
    assert again.status().next_step == 0
    agent.dispose()
    assert stage.harness.work.of(agent.id) == ()


def test_a_run_out_of_time_ends_its_jobs_and_names_them(stage):
    plan = RunPlan("go", stage.options(), None, stage.harness.config.price)
    run, ends = Run(stage.harness, plan, on_event=stage.events.append), []
    run.open()
    start_task(lambda _token: run.drive(), ends.append, name="drive")
    arguments = json.dumps({"command": "sleep 99", "background": True})
    stage.model.next_stream().send(*call_chunks(("bash", arguments)))
    stage.model.next_stream().send(*text_chunks("waiting"))
    until(lambda: "turn/end" in stage.types())
    run.stop("timeout")
    until(lambda: bool(ends))
    end = run.end()
    assert (end.reason, end.exit_code, end.abandoned) == ("timeout", 124, ("bash-1",))
    # The notice waits for whoever goes on with the session, and sets nobody to work.
    assert stage.types()[-2:] == ["job/ended", "agent/inbox/spliced"]
    assert stage.harness.processes._find_all({}) == []


def test_the_end_of_the_harness_is_the_end_of_every_job(stage):
    agent = begin_job(stage, "sleep 99")
    stage.harness.close()
    ends = [event.data for event in stage.stored(agent.id) if event.type == "job/ended"]
    assert [end["status"] for end in ends] == ["killed"]
    until(lambda: not live_tasks())
