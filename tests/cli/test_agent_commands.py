"""`dsh agent` against a real daemon: create, wait, send, approve, cancel, fork, dispose, look."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.actors.kit import until
from tests.cli.agent_kit import Agents, agents, served
from tests.cli.dsh_process import ONE_LINE, assert_failed
from tests.model_server import STALL, C, T
from tests.model_server.entries import H

__all__ = ["agents", "served"]


def test_an_agent_is_created_awaited_and_answers_as_a_run_does(agents: Agents) -> None:
    agents.served.dsh.server.script(T("Pears: 3."))
    agent_id = agents.create("--session-id", "pears", "What does a pear cost?")
    assert agent_id == "pears"
    assert agents.ok("wait", agent_id) == "Pears: 3.\n"
    (end,) = agents.json("wait", agent_id)
    assert end["done"] is True and end["end"]["answer"] == "Pears: 3." and end["end"]["type"] == "run.end"
    shown = agents.ok("status", agent_id)
    assert "state:    idle" in shown and "title:    What does a pear cost?" in shown
    (info,) = (each for each in agents.json("ls") if each["id"] == agent_id)
    assert info == agents.json("status", agent_id)[0]
    assert info["cwd"] == str(agents.served.dsh.cwd) and info["model"] == "openai/test"
    assert any(line.startswith("pears  idle ") for line in agents.ok("ls").splitlines())


def test_what_an_agent_has_started_is_shown_while_it_goes_on(agents: Agents) -> None:
    task, silent = {"prompt": "look aside", "background": True}, STALL(60)
    agents.served.dsh.server.script(C("agent", task), silent, silent)
    agent_id = agents.create("begin", "--approve", "all")
    until(lambda: agents.json("status", agent_id)[0]["work"])
    (work,) = agents.json("status", agent_id)[0]["work"]
    assert work["kind"] == "agent"
    assert f"at work:  agent {work['id']}  {work['label']}\n" in agents.ok("status", agent_id)
    (row,) = (line for line in agents.ok("ls").splitlines() if line.startswith(agent_id))
    assert " +1 " in row
    agents.ok("dispose", agent_id)


def test_events_are_the_lines_of_the_log(agents: Agents) -> None:
    agents.served.dsh.server.script(T("Done."))
    agent_id = agents.create("do it")
    agents.ok("wait", agent_id)
    events = agents.json("events", agent_id)
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "turn/end"
    assert agents.json("events", "--after", str(len(events) - 3), agent_id) == events[-2:]


def test_the_events_of_a_damaged_log_are_not_taken_for_whole(agents: Agents) -> None:
    dsh = agents.served.dsh
    dsh.server.script(T("Done."))
    agent_id = agents.create("do it")
    agents.ok("wait", agent_id)
    agents.ok("events", agent_id)  # it is on disk with that
    (segment,) = (dsh.home / "sessions").glob(f"*/{agent_id}/log/*")
    content = segment.read_bytes()
    segment.write_bytes(content[:200] + b"\0" * 40 + content[240:])
    done = agents("events", agent_id)
    assert done.code == 1
    assert "is damaged at byte" in done.err
    assert json.loads(done.out.splitlines()[-1])["type"] == "unreadable"
    segment.write_bytes(content)


def test_events_are_followed_until_the_agent_is_disposed_of(agents: Agents) -> None:
    dsh = agents.served.dsh
    dsh.server.script(T("One."), T("Two."))
    agent_id = agents.create("first")
    agents.ok("wait", agent_id)
    following = dsh.start("agent", "events", "-f", agent_id)
    following.wait_for_event("turn/end")
    assert agents.ok("send", "--wait", agent_id, "second") == "Two.\n"
    following.wait_for_event("turn/end", 2)
    agents.ok("dispose", agent_id)
    done = following.wait()
    assert (done.code, done.err) == (0, "")
    assert [event["seq"] for event in done.events if "seq" in event] == list(
        range(len([event for event in done.events if "seq" in event]))
    )
    assert agents("status", agent_id).code == 2


def test_an_approval_lets_the_call_go_on(agents: Agents) -> None:
    agents.served.dsh.server.script(C("bash", {"command": "echo made > made.txt"}), T("Made."))
    agent_id, question = agents.asking()
    assert not (agents.served.dsh.cwd / "made.txt").exists()
    (open_one,) = agents.json("approvals")
    assert (open_one["id"], open_one["agent"], open_one["tool"]) == (question, agent_id, "bash")
    assert f"{agent_id}  {question}  bash" in agents.ok("approvals")
    assert "state:    asking" in agents.ok("status", agent_id) and question in agents.ok("status", agent_id)
    assert agents.ok("approve", agent_id, question) == ""
    assert agents.ok("wait", agent_id) == "Made.\n"
    assert (agents.served.dsh.cwd / "made.txt").read_text() == "made\n"
    late = agents("approve", agent_id, question)
    assert_failed(late, 2)
    assert "no open question" in late.err


def test_a_denial_reaches_the_model_and_the_exit_code(agents: Agents) -> None:
    server = agents.served.dsh.server
    server.script(C("bash", {"command": "touch denied.txt"}), T("Could not."))
    agent_id, question = agents.asking()
    agents.ok("approve", "--deny", agent_id, question)
    assert_failed(agents("wait", agent_id), 6)
    assert not (agents.served.dsh.cwd / "denied.txt").exists()
    assert "rejected" in server.requests()[-1].body.decode()


def test_an_answer_does_not_go_to_another_agents_question(agents: Agents) -> None:
    agents.served.dsh.server.script(C("bash", {"command": "true"}), T("Waited."), T("Done."))
    asking, question = agents.asking()
    agents.served.dsh.server.script(T("Other."))
    other = agents.create("do it")
    agents.ok("wait", other)
    refused = agents("approve", other, question)
    assert_failed(refused, 2)
    assert agents.json("approvals")[0]["id"] == question
    agents.ok("cancel", asking)


def test_waiting_for_several_ends_as_the_worst_of_them(agents: Agents) -> None:
    server = agents.served.dsh.server
    server.script(T("Fine."))
    fine = agents.create("a")
    assert agents.ok("wait", fine) == "Fine.\n"
    server.script(H(401))
    refused = agents.create("b")
    assert_failed(agents("wait", refused), 3)
    both = agents("wait", fine, refused)
    assert both.code == 3 and ONE_LINE.match(both.err) and "1 of 2 agents" in both.err
    assert both.out == f"{fine}  completed\n{refused}  auth\n"
    first = agents("wait", "--any", fine, refused)
    assert first.code == 3  # both are done; none is left out


def test_a_wait_gives_up_in_time_and_any_takes_the_first(agents: Agents) -> None:
    agents.served.dsh.server.script(C("bash", {"command": "true"}), T("Done."))
    asking, _ = agents.asking()
    late = agents("wait", "--timeout", "0.1", asking)
    assert_failed(late, 124)
    assert f"agent {asking} is not done after 0.1 s" in late.err
    agents.served.dsh.server.script(T("Quick."))
    quick = agents.create("a")
    assert agents.ok("wait", "--any", asking, quick) == f"{quick}  completed\n"
    ends = {each["id"]: each["done"] for each in agents.json("wait", "--any", asking, quick)}
    assert ends == {asking: False, quick: True}
    sent = agents("send", "--wait", "--timeout", "0.1", asking, "hurry")
    assert_failed(sent, 124)
    agents.ok("cancel", asking)


def test_a_signal_ends_the_wait_and_not_the_agent(agents: Agents) -> None:
    dsh = agents.served.dsh
    dsh.server.script(C("bash", {"command": "true"}), T("Done."))
    asking, question = agents.asking()
    waiting = dsh.start("agent", "events", "-f", asking)
    waiting.wait_for_event("approval.requested")
    waiting.send_signal(signal.SIGINT)
    done = waiting.wait()
    assert (done.code, done.err) == (130, "dsh: signal: stopped by SIGINT\n")
    agents.ok("approve", asking, question)
    assert agents.ok("wait", asking) == "Done.\n"


@pytest.mark.parametrize("how", ["steer", "inject"])
def test_a_message_joins_the_turn_that_goes_on(agents: Agents, how: str) -> None:
    server = agents.served.dsh.server
    server.script(C("bash", {"command": "true"}), T("Heard."))
    asking, question = agents.asking()
    (delivered,) = agents.json(how, asking, f"words to {how}")
    assert delivered["message_id"]
    agents.ok("approve", asking, question)
    assert agents.ok("wait", asking) == "Heard.\n"
    assert f"words to {how}" in server.requests()[-1].body.decode()


def test_cancelling_ends_the_turn_and_the_agent_takes_new_messages(agents: Agents) -> None:
    agents.served.dsh.server.script(C("bash", {"command": "true"}), T("Fresh."))
    asking, _ = agents.asking()
    agents.ok("cancel", asking)
    ended = agents("wait", asking)
    assert ended.code != 0 and ended.out == "" and ONE_LINE.match(ended.err)
    assert agents.json("approvals") == []
    assert agents.ok("send", "--wait", asking, "once more") == "Fresh.\n"


def test_a_fork_begins_with_what_there_was(agents: Agents) -> None:
    server = agents.served.dsh.server
    server.script(T("One."), T("Two."))
    agent_id = agents.create("--session-id", "trunk@home", "first words")
    agents.ok("wait", agent_id)
    copy = agents.ok("fork", "--session-id", "branch", agent_id, "second words").strip()
    assert copy == "branch" and agents.ok("wait", copy) == "Two.\n"
    asked = server.requests()[-1].body.decode()
    assert "first words" in asked and "second words" in asked
    end = next(event["seq"] for event in agents.json("events", copy) if event["type"] == "turn/end")
    early = agents.json("fork", f"{copy}@{end}")[0]["id"]
    assert "second words" not in agents.ok("events", early)
    inside = agents("fork", f"{copy}@4")
    assert_failed(inside, 2)


def test_a_task_comes_from_standard_input_or_not_at_all(agents: Agents) -> None:
    dsh = agents.served.dsh
    dsh.server.script(T("Read."), T("Told."))
    made = dsh.call("agent", "create", "-m", "openai/test", text="from a pipe")
    assert made.code == 0
    assert agents.ok("wait", made.out.strip()) == "Read.\n"
    assert "from a pipe" in dsh.server.requests()[-1].body.decode()
    idle = agents.create("--idle")
    assert agents.json("status", idle)[0]["state"] == "idle"
    assert agents.ok("wait", idle) == "", "it owes nothing, and was asked nothing"
    assert agents.json("wait", idle) == [{"id": idle, "done": True, "end": None}]
    assert agents.ok("send", "--wait", idle, "now") == "Told.\n"


def test_what_the_daemon_refuses_is_told_in_its_words(agents: Agents) -> None:
    for arguments, word in (
        (["create", "-m", "nowhere/x", "do it"], "nowhere"),
        (["create", "-m", "openai/test", "-C", os.devnull, "do it"], "not a directory"),
        (["create", "-m", "openai/test", "--tools", "hammer", "do it"], "hammer"),
        (["create", "--resume", "nobody", "do it"], "nobody"),
        (["status", "nobody"], "nobody"),
        (["send", "nobody", "hello"], "nobody"),
        (["cancel", "nobody"], "nobody"),
        (["wait", "nobody"], "nobody"),
        (["events", "nobody"], "nobody"),
        (["fork", "nobody"], "nobody"),
        (["dispose", "nobody"], "nobody"),
        (["approve", "nobody", "x"], "nobody"),
    ):
        refused = agents(*arguments)
        assert_failed(refused, 2)
        assert word in refused.err, refused.err
    assert agents.served.dsh.server.count() == 0


def test_the_same_over_tcp_with_the_token(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSH_HOME", str(agents.served.dsh.home))
    agents.create("--idle")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody is
    here = [each["id"] for each in agents.json("ls")]
    assert here and [each["id"] for each in agents.json("ls", "--socket", agents.served.url)] == here
    token = agents.served.dsh.home / "daemon" / "token"
    monkeypatch.setenv("DSH_HOME", str(agents.served.dsh.tmp))
    (agents.served.dsh.tmp / "daemon").mkdir(exist_ok=True)
    wrong = agents.served.dsh.tmp / "daemon" / "token"
    for text in (None, "wrong", "no\nline"):
        if text is not None:
            wrong.write_text(text)
        refused = agents("ls", "--socket", agents.served.url)
        assert_failed(refused, 3)
        assert token.read_text().strip() not in refused.err
