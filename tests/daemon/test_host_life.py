"""Agents of the host: created, spoken to, asleep and awake again, ended."""

from __future__ import annotations

from dsh_actors.core.messages import text_of
from tests.daemon.host_kit import answer


def test_an_agent_is_created_works_and_tells_how_its_run_ended(daemon):
    one = daemon.agent("hello")
    end = daemon.end(one)
    info = daemon.host.get(one)
    assert (end.reason, end.answer, end.session_id) == ("completed", "echo: hello", one)
    assert (info.state, info.turn, info.tokens, info.next_turn) == ("idle", 1, 12, 0)
    assert info.last_end["answer"] == "echo: hello"
    assert info.cwd == str(daemon.cwd)


def test_a_message_wakes_a_sleeping_agent_which_remembers(daemon):
    one = daemon.agent("first", model="manual/m")
    daemon.manual.next_stream().send(*answer("one"))
    daemon.end(one)
    daemon.sleep(one)
    assert [ref.id for ref in daemon.harness.agents()] == []
    daemon.host.deliver(one, "second")
    stream = daemon.manual.next_stream()
    assert [text_of(m) for m in stream.request.messages if m.role == "assistant"] == ["one"]
    stream.send(*answer("two"))
    assert daemon.end(one).answer == "two"
    assert daemon.host.get(one).turn == 2
