"""One session, one agent after another: what belongs to an earlier one does nothing to the next."""

from __future__ import annotations

import pytest

from dsh_actors.errors import ActorGone
from dsh_actors.runs import Run, RunPlan
from dsh_actors.runtime.tasks import deadline
from tests.subagents.kit import PATIENCE_S, Troupe


def test_whoever_holds_an_agent_that_is_gone_cannot_speak_to_the_next_one(troupe: Troupe) -> None:
    troupe.play({"text": "one"})
    gone = troupe.agent()
    gone.run("go", PATIENCE_S)
    gone.dispose()
    with troupe.harness.resume(gone.id, troupe.options()), deadline(PATIENCE_S), pytest.raises(ActorGone):
        gone.followup("are you there?")


def test_whoever_holds_an_agent_that_is_gone_cannot_end_the_next_one(troupe: Troupe) -> None:
    troupe.play({"text": "one"}, {"text": "two"})
    gone = troupe.agent()
    gone.run("go", PATIENCE_S)
    gone.dispose()
    agent = troupe.harness.resume(gone.id, troupe.options())
    gone.dispose()
    assert agent.run("again", PATIENCE_S).answer == "two"


def test_a_run_whose_agent_was_gone_before_it_does_not_silence_the_next_one(troupe: Troupe) -> None:
    run = Run(troupe.harness, RunPlan("go", troupe.options(), None, troupe.harness.config.price))
    agent = run.open()
    agent.rename("so that there is a session")
    agent.dispose()
    run.drive()
    assert not run.end().completed
    troupe.harness.resume(agent.id, troupe.options())
    assert not troupe.harness.work.is_quiet(agent.id)
