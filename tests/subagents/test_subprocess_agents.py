"""Sub-agents that are processes, in a live harness: their place, their budget, their parent's log and end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.core.events import Event
from dsh_actors.core.messages import text_of
from dsh_actors.core.options import Limits
from dsh_actors.core.policy import ApprovalPolicy
from dsh_actors.errors import SubagentError, UsageError
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.task_spec import approval_policy
from tests.actors.kit import until
from tests.subagents.kit import Troupe, delegate

START = json.dumps({"type": "run.start", "schema_version": 1, "session_id": "x"})
TOKENS = {"input": 100, "cache_read": 0, "cache_write": 0, "output": 10, "reasoning": 0}
END: dict[str, Any] = {
    "type": "run.end",
    "status": "completed",
    "reason": "completed",
    "answer": "fine",
    "steps": 3,
    "usage": {"own": TOKENS, "children": TOKENS},
    "cost": 0.0,
}


def speaking(script: str, **changes: object) -> str:
    """A shell script between the two lines that every run has."""
    end = json.dumps({**END, **changes})
    return f"""cat > prompt; echo '{START}'; {script}\ncat <<'LAST'\n{end}\nLAST"""


def breeding(count: int) -> str:
    """A shell script that tells of so many agents of its own, and goes on."""
    facts = [{"id": f"own-{n}", "label": "x", "mode": "one-shot"} for n in range(count)]
    events = [Event("subagent/started", n, 1, fact).to_json() for n, fact in enumerate(facts)]
    lines = "".join(f"{json.dumps(event)}\n" for event in events)
    return f"echo '{START}'; cat <<'EVENTS'\n{lines}EVENTS\nmkfifo held; read line < held"


SCRIPTS = {
    "breeds": breeding(3),
    "good": speaking(""),
    "env": speaking("env > seen"),
    "value": ": {schema_file}; " + speaking("cp {schema_file} given", structured={"n": 1}),
    "broken": "echo WARN; sleep 99",
    "slow": f"echo '{START}'; mkfifo held; read line < held",
}


@pytest.fixture
def troupe(tmp_path: Path) -> Iterator[Troupe]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    tables = [
        f"[subagents.{name}]\ncommand = ['sh', '-c', {json.dumps(script)}]\nenv_keys = ['WANTED_KEY']\n"
        for name, script in SCRIPTS.items()
    ]
    tables.append('[subagents.dsh]\ndescription = "another one of you"\n')
    (home / "config.toml").write_text("\n".join(tables))
    troupe = Troupe(tmp_path)
    troupe.harness.processes._grace_s = 0.3
    yield troupe
    troupe.close()


def ended(troupe: Troupe) -> list[dict[str, Any]]:
    return [event.data for event in troupe.of("subagent/ended")]


def test_a_model_gives_a_task_to_a_process_by_its_name(troupe: Troupe) -> None:
    troupe.play(delegate("count them", preset="good"), {"text": "done"})
    end = troupe.agent().run("go")
    assert end.completed and troupe.results() == ["fine"]
    assert (troupe.cwd / "prompt").read_text() == "count them"
    assert end.usage["children"]["input"] == 200 and end.usage["children"]["output"] == 20
    (fact,) = troupe.of("subagent/started")
    assert fact.data["via"] == "good" and ended(troupe)[0]["reason"] == "completed"


def test_the_agents_that_it_starts_itself_count_too(troupe: Troupe) -> None:
    agent = troupe.agent(limits=Limits(max_agents=3))
    end = agent.spawn("task", via="breeds", timeout=20.0)
    assert end.reason == "max_agents", end
    with pytest.raises(SubagentError) as refused:
        agent.spawn("another")
    assert refused.value.code == "AGENT_LIMIT"


def test_a_model_is_told_which_there_are(troupe: Troupe) -> None:
    troupe.play({"text": "ok"})
    troupe.agent().run("go")
    (header,) = troupe.of("request/header")
    assert "- dsh: another one of you\n- env: an agent" in header.data["header"]["system"]


def test_what_it_uses_counts_in_the_pool_of_its_parent(troupe: Troupe) -> None:
    agent = troupe.agent(limits=Limits(max_tokens=300))
    assert agent.spawn("one", via="good").completed
    assert agent.spawn("two", via="good").completed
    with pytest.raises(SubagentError) as spent:
        agent.spawn("three", via="good")
    assert spent.value.code == "BUDGET_SPENT"


def test_one_that_breaks_is_an_error_for_the_model_and_its_sibling_is_not_hurt(troupe: Troupe) -> None:
    both = {"calls": [*delegate("x", preset="broken")["calls"], *delegate("y", preset="good")["calls"]]}
    troupe.play(both, {"text": "done"})
    assert troupe.agent().run("go").completed
    broken, good = troupe.results()
    assert "broken: line 1 of its output is no JSON: WARN" in broken and good == "fine"


@pytest.mark.parametrize(("kind", "reason"), [("integer", "completed"), ("string", "schema")])
def test_a_value_is_held_against_its_schema_whatever_the_process_says(
    troupe: Troupe, kind: str, reason: str
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": kind}}}
    end = troupe.agent().spawn("x", via="value", schema=schema)
    assert (end.reason, end.structured) == (reason, {"n": 1})
    assert json.loads((troupe.cwd / "given").read_text()) == schema
    with pytest.raises(UsageError):
        troupe.agent().spawn("x", via="value", schema={"type": 5})


def test_time_ends_it_as_it_ends_any_other(troupe: Troupe) -> None:
    end = troupe.agent().spawn("x", via="slow", timeout=0.3)
    assert (end.reason, end.exit_code) == ("timeout", 124)


def test_a_cancelled_parent_takes_it_along(troupe: Troupe) -> None:
    troupe.play(delegate("x", preset="slow"))
    agent = troupe.agent()
    agent.followup("go")
    until(lambda: (troupe.cwd / "held").exists())
    agent.cancel()
    assert agent.when_done(10)
    assert ended(troupe)[0]["reason"] == "interrupted"
    assert troupe.harness.processes._find_all({}) == []


def test_in_the_background_it_answers_by_a_message_and_cannot_be_spoken_to(troupe: Troupe) -> None:
    troupe.play(delegate("x", preset="good", background=True), {"text": "waiting"}, {"text": "got it"})
    agent = troupe.agent()
    assert agent.run("go").answer == "got it"
    assert "Its answer:\nfine" in text_of(troupe.script.requests[-1].messages[-1])
    (child,) = troupe.children()
    with pytest.raises(SubagentError) as refused:
        troupe.harness.subagents.followup(agent.id, child, "and now?")
    assert refused.value.code == "NOT_RESUMABLE"
    assert [info.state for info in troupe.harness.subagents.list(agent.id)] == ["done"]


def test_a_command_gets_the_keys_that_are_named_for_it_and_no_others(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANTED_KEY", "wanted")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-unwanted")
    assert troupe.agent().spawn("x", via="env").completed
    seen = (troupe.cwd / "seen").read_text()
    assert "WANTED_KEY=wanted" in seen and "canary" not in seen


@pytest.mark.parametrize(
    ("via", "more", "words"),
    [
        ("good", {"fork": True}, "begin with what its parent knows"),
        ("good", {"tools": ("read",)}, "be kept to some tools"),
        ("good", {"schema": {"type": "object"}}, "be held to a schema"),
        ("dsh", {"fork": True}, "begin with what its parent knows"),
    ],
)
def test_what_a_process_cannot_be_held_to_is_refused(
    troupe: Troupe, via: str, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(SubagentError, match=words) as refused:
        troupe.agent().spawn("x", via=via, **more)
    assert refused.value.code == "UNSUPPORTED_CAPABILITY" and troupe.of("subagent/started") == []


def test_rules_that_a_process_cannot_keep_are_no_way_around_them(troupe: Troupe) -> None:
    read_only = troupe.agent(policy=ApprovalPolicy("read-only"))
    with pytest.raises(SubagentError, match="kept from changing anything"):
        read_only.spawn("x", via="good")
    with pytest.raises(SubagentError, match="rules that are in no file"):
        troupe.agent(policy=ApprovalPolicy("rules", default="allow")).spawn("x", via="dsh")
    guarded = troupe.agent(setup=lambda scope: scope.guard(lambda call: None) and None)
    with pytest.raises(SubagentError, match="guards of its parent"):
        guarded.spawn("x", via="dsh")


def test_an_unknown_name_is_refused_with_those_there_are(troupe: Troupe) -> None:
    with pytest.raises(UsageError) as refused:
        troupe.agent().spawn("x", via="nobody")
    assert "broken, dsh, env, good, slow, value" in (refused.value.hint or "")


def test_dsh_as_a_process_is_an_agent_with_a_session_of_its_own(troupe: Troupe) -> None:
    script = troupe.cwd / "script.json"
    call = {"tool": "bash", "arguments": {"command": "echo here > made"}}
    script.write_text(json.dumps([{"calls": [call]}, {"text": "made it"}]))
    agent = troupe.agent(limits=Limits(max_steps=5))
    end = agent.spawn("make it", via="dsh", model=f"scripted/{script}")
    assert (end.answer, end.steps, end.tool_calls) == ("made it", 2, 1), end
    assert (troupe.cwd / "made").read_text() == "here\n"
    header = troupe.harness.storage.header(end.session_id)  # type: ignore[arg-type]
    assert (header.parent_session, header.origin, header.delegation_depth) == (agent.id, "subagent", 1)
    assert [event.type for event in troupe.stored(end.session_id or "")][-1] == "turn/end"
    (fact,) = ended(troupe)
    assert fact["usage"]["output"] == end.usage["own"]["output"] > 0
    pool = troupe.harness._agents[agent.id].parts.env.watch.budget
    used = sum(end.usage["own"][kind] for kind in ("input", "output", "cache_read", "cache_write"))
    assert (pool.steps, pool.tool_calls, pool.tokens, pool.agents) == (2, 1, used, 1), "each counts once"


def test_dsh_as_a_process_keeps_to_the_rules_of_its_parents_file(troupe: Troupe, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "allow"\n[[rule]]\ntool = "bash"\ndecision = "deny"\nreason = "not here"\n')
    script = troupe.cwd / "script.json"
    call = {"tool": "bash", "arguments": {"command": "echo here > made"}}
    script.write_text(json.dumps([{"calls": [call]}, {"text": "refused"}]))
    agent = troupe.agent(policy=approval_policy(str(rules)))
    end = agent.spawn("make it", via="dsh", model=f"scripted/{script}")
    assert (end.completed, end.answer) == (True, "refused")
    assert end.denied[0]["reason"] == "not here" and not (troupe.cwd / "made").exists()


def test_dsh_as_a_process_ends_at_what_is_left_of_its_parents_limits(troupe: Troupe) -> None:
    script = troupe.cwd / "script.json"
    call = {"tool": "bash", "arguments": {"command": "true"}}
    script.write_text(json.dumps([{"calls": [call]}] * 9))
    agent = troupe.agent(limits=Limits(max_steps=4))
    agent.spawn("x", via="good")  # which says that it took three
    end = agent.spawn("y", via="dsh", model=f"scripted/{script}")
    assert (end.reason, end.steps, end.limit) == ("max_steps", 1, {"kind": "max_steps", "value": 1})


def test_a_harness_that_closes_leaves_no_process_behind(troupe: Troupe) -> None:
    agent, ends = troupe.agent(), []

    def done(end: TaskEnd[Any]) -> None:
        ends.append(end)

    start_task(lambda _token: agent.spawn("x", via="slow"), done, name="spawn")
    until(lambda: (troupe.cwd / "held").exists())
    troupe.harness.close()
    until(lambda: bool(ends))
    assert troupe.harness.processes._find_all({}) == []
