"""Every request of a session begins with the bytes of the one before: seen from the server, across processes.

Each test also derives all requests again from the log alone, as `dsh session verify --requests` does.
"""

from __future__ import annotations

import signal
from pathlib import Path

from tests.cli.dsh_process import Dsh, Event, Fifo
from tests.model_server import CC, EOF, LEN, THINK, C, H, Request, T, reuse_faults

FIXED_PART_BYTES = 8_000
"""What every request begins with before anybody has said anything: system prompt and built-in tools."""


def reused(dsh: Dsh) -> list[Request]:
    """All requests, each of which extends the bytes of the one before and follows from a log."""
    requests = dsh.requests()
    assert reuse_faults([request.body for request in requests]) == []
    proved = [report["requests"] for report in verify(dsh)]
    assert max(proved) >= len(requests) or len(proved) > 1
    return requests


def verify(dsh: Dsh) -> list[Event]:
    verified = dsh.call("session", "verify", "--all", "--requests", "--json")
    assert verified.code == 0, verified.out + verified.err
    assert all(report["requests"] for report in verified.events)
    return verified.events


def headers(events: list[Event]) -> list[tuple[str, Event]]:
    """(reason, header) of each logged request header."""
    found = [event["data"] for event in events if event["type"] == "request/header"]
    return [(data["reason"], data["header"]) for data in found]


def events_of(dsh: Dsh, session: str) -> list[Event]:
    return dsh.call("session", "show", "--json", session).events


def test_a_run_of_a_hundred_steps_sends_nothing_twice_and_nothing_else(dsh: Dsh) -> None:
    dsh.model = "deepseek/deepseek-flash"
    kinds = [
        C("todo_write", {"todos": [{"content": "step @@N@@", "status": "pending"}]}),
        C("read", {"path": "f"}, text="reading \N{GREEK SMALL LETTER ALPHA} @@N@@"),
        CC(("glob", {"pattern": "*@@N@@*"}), ("grep", {"pattern": "@@N@@", "path": "f"})),
        C("edit", {"path": "f", "old": "line", "new": "line"}),
        C("nothing", "not JSON"),
    ]
    (dsh.cwd / "f").write_text("line @@N@@\n")
    steps = [THINK("why @@N@@", kinds[number % len(kinds)]) for number in range(100)]
    dsh.server.script(*steps, T("done"))
    assert dsh.run("--session-id", "s", "work").code == 0
    requests = reused(dsh)
    assert len(requests) == len(steps) + 1  # no title, no summary, no warm-up
    assert requests[-1].text.count("reasoning_content") == len(steps)


def test_the_fixed_part_of_a_request_is_small(dsh: Dsh) -> None:
    dsh.model = "deepseek/deepseek-flash"
    dsh.server.script(T("ok"))
    assert dsh.run("a question").code == 0
    (request,) = dsh.requests()
    assert len(request.json["tools"]) >= 7 and request.messages[0]["role"] == "system"
    fixed, _, rest = request.body.partition(b'{"role":"user"')
    assert rest and len(fixed) < FIXED_PART_BYTES


def test_a_session_that_is_killed_again_and_again_extends_its_last_request(dsh: Dsh) -> None:
    held = "echo up > pipe; sleep 99"
    dsh.server.script(
        THINK("hm", C("bash", {"command": "echo one"})),
        T(["half ", "way"], hold="never"),  # killed within a reply
        C("bash", {"command": "echo two"}),
        CC(("bash", {"command": held}), ("bash", {"command": "echo never"})),  # killed within a call
        C("read", {"path": "nothing"}),
        H(503, {"retry-after": "50"}),  # killed while it waits to ask again
        T("", hold="never"),  # killed before the first word
        T("done"),
    )
    with Fifo(dsh.cwd / "pipe") as pipe:
        for number, (session, until) in enumerate(
            (("--session-id", 2), ("--resume", 4), ("--resume", 6), ("--resume", 7))
        ):
            running = dsh.begin(session, "s", "--json", f"part {number}")
            dsh.server.wait_for_requests(until)
            if until == 4:
                pipe.read()
            if until == 6:
                running.wait_for_event("llm/retry")
            running.kill()
    assert dsh.run("--resume", "s", "the rest").out == "done\n"
    requests = reused(dsh)
    assert len(requests) == 8
    results = list(requests[-1].results.values())
    assert len(results) == 5 and sum("unknown" in text for text in results) == 1
    assert [reason for reason, _ in headers(events_of(dsh, "s"))] == ["initial", *["resume"] * 4]


def test_a_cancelled_reply_stays_as_far_as_it_went(dsh: Dsh) -> None:
    dsh.server.script(
        T(["half ", "way"], hold="never"),
        THINK("because", T("nothing yet", hold="never")),
        C("bash", {"command": "sleep 99"}),
        T("done"),
    )
    for session, word in (("--session-id", "half"), ("--resume", "because")):
        running = dsh.begin(session, "s", "--json", "one")
        running.wait_for(lambda run, word=word: word in str(run.events))
        running.send_signal(signal.SIGINT)
        assert running.wait().code == 130
    running = dsh.begin("--resume", "s", "--json", "two")
    running.wait_for_event("tool/call")
    running.send_signal(signal.SIGTERM)
    assert running.wait().code == 143
    assert dsh.run("--resume", "s", "three").code == 0
    last = reused(dsh)[-1]
    assert any(m["role"] == "assistant" and m["content"] == "half " for m in last.messages)


def test_what_fails_within_a_step_changes_nothing_that_was_sent(dsh: Dsh) -> None:
    dsh.server.script(
        C("todo_write", {"todos": []}),
        *(H(500, {"retry-after": "0"}), EOF("partial"), T("")),
        *(LEN("cut"), T("last")),
    )
    assert dsh.run("--session-id", "s", "one").code == 1
    assert dsh.run("--resume", "s", "two").code == 0
    requests = reused(dsh)
    assert len(requests) == 6
    assert len({request.body for request in requests[1:4]}) == 1


def test_a_fork_begins_with_what_its_parent_sent_last(dsh: Dsh) -> None:
    step = THINK("why", C("bash", {"command": "echo @@N@@"}))
    dsh.server.script(step, T("one"), step, T("two"), step, T("three"), T("four"), step, T("five"))
    assert dsh.run("--session-id", "s", "1").code == 0
    assert dsh.run("--resume", "s", "2").code == 0
    assert dsh.run("--fork", "s", "--session-id", "child", "3").code == 0
    assert dsh.run("--fork", "child", "--session-id", "grandchild", "4").code == 0
    assert len(reused(dsh)) == 7
    first_end = next(event["seq"] for event in events_of(dsh, "s") if event["type"] == "turn/end")
    assert dsh.run("--fork", f"s@{first_end}", "--session-id", "other", "5").code == 0
    requests = dsh.requests()
    bodies = [request.body for request in requests]
    assert reuse_faults([*bodies[:2], *bodies[7:]]) == []
    assert len(verify(dsh)) == 4


def test_a_session_that_is_opened_at_its_checkpoint_goes_on_where_it_was(dsh: Dsh) -> None:
    often = {
        "DSH_SESSION_CHECKPOINT_EVENTS": "1",
        "DSH_SESSION_CHECKPOINT_MAX_EVENTS": "7",
        "DSH_SESSION_SEGMENT_EVENTS": "16",
    }
    dsh.env |= often
    step = THINK("why", CC(("bash", {"command": "echo @@N@@"}), ("todo_write", {"todos": []})))
    dsh.server.script(step, step, T("one"), step, T(["half", "way"], hold="never"), T("two"), T("three"))
    assert dsh.run("--session-id", "s", "1").code == 0
    running = dsh.begin("--resume", "s", "--json", "2")
    dsh.server.wait_for_requests(5)
    running.kill()
    for prompt in ("3", "4"):
        assert dsh.run("--resume", "s", prompt).code == 0
    assert len(reused(dsh)) == 7


def test_another_day_directory_and_configuration_only_add_to_a_session(dsh: Dsh, tmp_path: Path) -> None:
    where = C("bash", {"command": "pwd"})
    dsh.server.script(where, T("one"), where, T("two"), T("three"))
    begun = ("--append-system-prompt", "Be brief.", "--max-output", "1000", "--tools", "bash,read")
    assert dsh.run("--session-id", "s", *begun, "1", env={"TZ": "WEST+12"}).code == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    changed = {
        "TZ": "EAST-14",  # it is always another day there
        "LANG": "C",
        "PYTHONHASHSEED": "7",
        "DSH_TOOLS_OUTPUT_LIMIT_BYTES": "2000",
        "DSH_LIMITS_TOOL_TIMEOUT": "7",
        "DSH_MODEL_IDLE_TIMEOUT_S": "20",
    }
    options = ("--approve", "read-only", "--no-fail-on-denied", "--add-dir", str(elsewhere))
    assert dsh.run("--resume", "s", *options, "2", env=changed, cwd=elsewhere).code == 0
    assert dsh.run("--resume", "s", "--sandbox", "off", "3").code == 0
    requests = reused(dsh)
    assert len(requests) == 5
    days = [m["content"] for m in requests[-1].messages if "Date: " in str(m["content"])]
    assert len(days) >= 2 and len(set(days)) >= 2
    (first, header), *others = headers(events_of(dsh, "s"))
    assert (first, others) == ("initial", [("resume", header), ("resume", header)])


def test_what_is_asked_to_change_on_resume_is_in_the_logged_header(dsh: Dsh) -> None:
    dsh.server.script(T("ok"), after="repeat")
    assert dsh.run("--session-id", "s", "--tools", "read", "1").code == 0
    assert dsh.run("--resume", "s", "--append-system-prompt", "Be brief.", "2").code == 0
    assert dsh.run("--resume", "s", "--tools", "read,bash", "--max-output", "77", "3").code == 0
    assert dsh.run("--resume", "s", "4").code == 0
    found = headers(events_of(dsh, "s"))
    assert [reason for reason, _ in found] == ["initial", "resume", "resume", "resume"]
    first, second, third, fourth = (header for _, header in found)
    assert second["system"] == first["system"] + "\n\nBe brief." and second["tools"] == first["tools"]
    assert [tool["name"] for tool in third["tools"]] == ["bash", "read"]
    assert (third["system"], third["config"]["maxTokens"]) == (second["system"], 77)
    assert fourth == third
    bodies = [request.body for request in dsh.requests()]
    assert reuse_faults(bodies[2:]) == [] and len(reuse_faults(bodies)) == 2
    verify(dsh)


def test_a_process_of_its_own_steers_injects_and_tells_facts_without_touching_the_past(dsh: Dsh) -> None:
    program = dsh.tmp / "steering.py"
    program.write_text(STEERING)
    step = THINK("why", C("bash", {"command": "echo @@N@@"}))
    dsh.server.script(
        T(["one ", "more"], hold="steered"), T("two"), step, T("three"), step, step, T("four"), T("five")
    )
    running = dsh.start(command=[*dsh.command()[:1], str(program)])
    running.wait_for_event("steered")
    dsh.server.release("steered")
    done = running.wait()
    assert done.code == 0, done.err
    requests = reused(dsh)
    said = [m["content"] for m in requests[-1].messages if m["role"] == "user"]
    assert [text for text in said if "\n" not in text] == ["go", "steered", "quietly", "again", "last", "end"]
    assert sum("Tasks: " in text for text in said) >= 3, said
    assert len(requests) == 8


STEERING = """
from gevent import monkey

monkey.patch_all()

import os
import threading

from dsh_actors.config import load_config
from dsh_actors.core.options import AgentOptions
from dsh_actors.harness import Harness

speaking = threading.Event()


def listen(event):
    if event.type == "assistant/chunk":
        speaking.set()


with Harness.open(load_config()) as harness:
    tasks = 3
    harness.scope.context("tasks", 9, lambda: f"Tasks: {tasks}")
    harness.scope.observe("session/event", listen)
    agent = harness.create(AgentOptions(model="openai/test", cwd=os.getcwd(), session_id="s"))
    agent.followup("go")
    speaking.wait()
    agent.steer("steered")
    print('{"type": "steered"}', flush=True)
    agent.when_idle()
    tasks = 2
    agent.inject("quietly")
    agent.run("again")
    undo = harness.scope.context("mood", 10, "Mood: good")
    agent.run("last")
    agent.dispose()
    undo()
    tasks = 1
    options = AgentOptions(model="", cwd=os.getcwd())
    harness.resume("s", options).run("end")
"""
