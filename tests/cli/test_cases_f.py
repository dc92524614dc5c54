"""Sub-agents of the real program: what they use, what bounds them, and that none outlives its root."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.cli.dsh_process import Dsh, stream_faults
from tests.model_server import CC, C, Entry, H, T

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "prompt_tokens_details": {"cached_tokens": 40},
}


def task(name: str, **more: Any) -> dict[str, Any]:
    return {"prompt": f"[[agent:{name}]] do it", **more}


def play(dsh: Dsh, after: str = "fail", **routes: list[Entry]) -> None:
    dsh.server.load({name: {"entries": entries, "after": after} for name, entries in routes.items()})


ROOT = "[[agent:root]] delegate"


# --- A2, A3 ---------------------------------------------------------------------------------------


def test_a_fan_out_of_six_ends_with_the_answer_to_all_their_results(dsh: Dsh) -> None:
    names = [f"c{number}" for number in range(6)]
    play(
        dsh,
        root=[CC(*(("agent", task(name)) for name in names)), T("sum")],
        **{name: [T(f"answer of {name}")] for name in names},
    )
    result = dsh.run(ROOT)
    assert (result.code, result.out, result.err) == (0, "sum\n", "")
    last = dsh.requests()[-1]
    assert sorted(last.results.values()) == [f"answer of {name}" for name in names]


def test_a_run_waits_for_the_agent_behind_it_and_feeds_its_answer_back(dsh: Dsh) -> None:
    play(
        dsh,
        root=[C("agent", task("child", background=True)), T("waiting"), T("got it")],
        child=[T("child answer", hold="child")],
    )
    running = dsh.begin("--json", ROOT)
    running.wait_for_event("turn/end")
    dsh.server.wait_for_requests(3)
    dsh.server.release("child")
    result = running.wait()
    assert result.code == 0 and result.end["answer"] == "got it"
    assert stream_faults(result.events) == []
    assert "child answer" in dsh.requests()[-1].text
    assert dsh.survivors(0) == []


def test_without_waiting_the_work_is_named_and_ended(dsh: Dsh) -> None:
    play(
        dsh,
        root=[C("agent", task("child", background=True)), T("waiting")],
        child=[C("bash", {"command": "sleep 600"})],
    )
    result = dsh.run("--json", "--no-wait", ROOT)
    assert result.code == 4 and result.end["reason"] == "abandoned"
    (started,) = result.of("subagent/started")
    assert result.end["abandoned"] == [started["data"]["id"]]
    assert dsh.survivors() == []


# --- F8 -------------------------------------------------------------------------------------------


def test_totals_are_exact_over_retries_failures_agents_and_resumes(dsh: Dsh) -> None:
    again = H(503, {"retry-after": "0"})
    root = [
        C("agent", task("child"), usage=USAGE),
        again,
        CC(("agent", task("bad")), ("agent", task("behind", background=True)), usage=USAGE),
        T("one", usage=USAGE),
        T("two", usage=USAGE),
        C("agent", task("third"), usage=USAGE),
        T("three", usage=USAGE),
    ]
    play(
        dsh,
        root=root,
        child=[C("agent", task("grandchild"), usage=USAGE), again, T("c", usage=USAGE)],
        grandchild=[T("g", usage=USAGE)],
        bad=[C("bash", {"command": "true"}, usage=USAGE), H(400)],
        behind=[T("b", usage=USAGE, hold="behind")],
        third=[T("t", usage=USAGE)],
    )
    (dsh.home).mkdir(exist_ok=True)
    (dsh.home / "config.toml").write_text(
        '[providers.priced]\ntype = "openai_compatible"\n'
        f'base_url = "{dsh.server.url}/v1"\n[[providers.priced.models]]\nid = "m"\n'
        "price = { input = 1, cache_read = 0.5, output = 10 }\n"
    )
    running = dsh.start("run", "-m", "priced/m", "--session-id", "s", "--json", ROOT)
    running.wait_for_event("turn/end")
    dsh.server.release("behind")
    first = running.wait().end
    second = dsh.start("run", "--resume", "s", "--json", "go on").wait().end
    one = {"input": 60, "cache_read": 40, "cache_write": 0, "output": 10, "reasoning": 0}

    def times(count: int) -> dict[str, int]:
        return {name: value * count for name, value in one.items()}

    assert first["usage"] == {"own": times(4), "children": times(5)}
    assert second["usage"] == {"own": times(2), "children": times(1)}
    assert first["cost"] == pytest.approx(9 * 180e-6) and second["cost"] == pytest.approx(3 * 180e-6)
    assert (first["reason"], first["retries"], first["tool_errors"]) == ("completed", 1, 1)


# --- F9 -------------------------------------------------------------------------------------------


def test_agents_that_breed_stop_at_the_limits_and_the_root_ends(dsh: Dsh) -> None:
    call = ("agent", {"prompt": "[[agent:breeder]] breed"})
    play(dsh, "repeat", root=[CC(call, call, call), T("done")], breeder=[CC(call, call, call)])
    result = dsh.run("--json", "--max-agents", "12", "--max-depth", "2", ROOT, timeout_s=60)
    assert (result.code, result.end["answer"]) == (0, "done")
    results = [text for request in dsh.requests() for text in request.results.values()]
    assert any("sub-agents may be nested 2 deep" in text for text in results)
    assert any("may have 12 sub-agents in all" in text for text in results)
    assert len(dsh.session_ids()) - 1 == 12
    assert dsh.survivors(0) == []


def test_one_pool_ends_a_run_and_names_the_limit(dsh: Dsh) -> None:
    call = ("agent", {"prompt": "[[agent:worker]] work"})
    todo = C("todo_write", {"todos": [{"content": "@@N@@", "status": "pending"}]})
    play(dsh, "repeat", root=[CC(call, call)], worker=[todo])
    result = dsh.run("--json", "--max-steps", "7", ROOT)
    assert (result.code, result.end["reason"]) == (4, "max_steps")
    assert result.end["limit"] == {"kind": "max_steps", "value": 7}
    assert len(dsh.requests()) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_agent_and_no_command_of_one_outlives_the_root(dsh: Dsh, number: int) -> None:
    play(
        dsh,
        root=[CC(("agent", task("one")), ("agent", task("two", background=True))), T("never")],
        one=[C("bash", {"command": "echo up > one; sleep 600"})],
        two=[C("bash", {"command": "echo up > two; sleep 600"})],
    )
    running = dsh.begin("--json", "--session-id", "s", ROOT)
    dsh.server.wait_for_ends(3)
    while not ((dsh.cwd / "one").exists() and (dsh.cwd / "two").exists()):
        running.process.poll()
    running.send_signal(number)
    result = running.wait()
    assert result.code == (143 if number == signal.SIGTERM else -9)
    assert dsh.survivors() == []


def test_a_resumed_root_hears_of_what_a_kill_interrupted_and_can_send_it_on(dsh: Dsh) -> None:
    play(
        dsh,
        root=[C("agent", task("child", background=True)), T("waiting"), T("told"), T("done")],
        child=[T("half", hold="never")],
    )
    running = dsh.begin("--json", "--session-id", "s", ROOT)
    running.wait_for_event("turn/end")
    dsh.server.wait_for_requests(3)
    running.kill()
    (started,) = [event for event in running.events if event["type"] == "subagent/started"]
    child = started["data"]["id"]
    play(
        dsh,
        root=[C("agent_send", {"id": child, "message": "[[agent:child]] go on"}), T("waiting"), T("done")],
        child=[T("whole")],
    )
    result = dsh.run("--resume", "s", "--json", "and now?")
    assert (result.code, result.end["answer"]) == (0, "done")
    requests = dsh.requests()
    assert f"Agent {child}" in requests[0].text and "was interrupted" in requests[0].text
    assert "whole" in requests[-1].text
    verified = dsh.call("session", "verify", "--all", "--requests", "--json")
    assert verified.code == 0, verified.out


# --- F12 ------------------------------------------------------------------------------------------


def test_who_waits_for_an_agent_asks_for_nothing_meanwhile(dsh: Dsh) -> None:
    play(
        dsh,
        root=[C("agent", task("child", background=True)), C("agent_wait", {}), T("done")],
        child=[T("late", hold="child")],
    )
    running = dsh.begin("--json", ROOT)
    running.wait_for_event("tool/call", 2)
    dsh.server.wait_for_requests(3)
    dsh.server.release("child")
    result = running.wait()
    assert (result.code, result.end["answer"]) == (0, "done")
    requests = dsh.requests()
    assert len(requests) == 4 and "late" in requests[-1].text


# --- the rest -------------------------------------------------------------------------------------


def test_a_limit_of_time_ends_agents_with_their_root(dsh: Dsh) -> None:
    play(dsh, root=[C("agent", task("child"))], child=[C("bash", {"command": "sleep 600"})])
    result = dsh.run("--json", "--timeout", "3", ROOT)
    assert (result.code, result.end["reason"]) == (124, "timeout")
    assert result.of("subagent/ended")[0]["data"]["reason"] == "interrupted"
    assert dsh.survivors() == []


def test_depth_nought_leaves_the_tools_out(dsh: Dsh) -> None:
    play(dsh, root=[T("ok")])
    assert dsh.run("--max-depth", "0", ROOT).code == 0
    (request,) = dsh.requests()
    assert not [tool for tool in request.json["tools"] if tool["function"]["name"].startswith("agent")]


def test_sessions_of_agents_are_shown_only_when_wanted_and_never_continued(dsh: Dsh) -> None:
    play(dsh, root=[C("agent", task("child")), T("ok"), T("went on")], child=[T("c")])
    assert dsh.run("--session-id", "s", ROOT).code == 0
    listed = [json.loads(line) for line in dsh.call("session", "ls", "--json").out.splitlines()]
    assert [row["id"] for row in listed] == ["s"]
    everything = [json.loads(line) for line in dsh.call("session", "ls", "--all", "--json").out.splitlines()]
    (child,) = [row for row in everything if row["id"] != "s"]
    assert child["parent"] == "s" and len(everything) == 2
    assert "(sub-agent of s)" in dsh.call("session", "ls", "--all").out
    assert dsh.run("--continue", "[[agent:root]] on").out == "went on\n"
    shown = dsh.call("session", "show", child["id"]).out
    assert "A sub-agent of `s`" in shown
    exported = dsh.call("session", "export", "--format", "jsonl", child["id"]).out
    header = json.loads(exported.splitlines()[0])
    assert (header["parentSession"], header["origin"], header["delegationDepth"]) == ("s", "subagent", 1)
