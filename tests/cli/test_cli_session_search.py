"""`dsh session search` over the sessions of real runs."""

from __future__ import annotations

from pathlib import Path

from tests.cli.dsh_process import Dsh, assert_failed
from tests.model_server import C, T


def test_sessions_are_found_by_what_was_said_and_done_in_them(dsh: Dsh, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    dsh.server.script(C("bash", {"command": "echo quince-jam"}), T("Pears\x1b[31m are cheap."), T("No idea."))
    assert dsh.run("--session-id", "s", "What does a pear cost?").code == 0
    assert dsh.run("--session-id", "t", "Pears, again?", cwd=elsewhere).code == 0
    (hit,) = dsh.call("session", "search", "--json", "quince jam").events
    assert (hit["id"], hit["title"], hit["cwd"]) == ("s", "What does a pear cost?", str(dsh.cwd))
    assert "quince-jam" in hit["snippet"] and hit["type"] in ("tool/call", "tool/result")
    shown = dsh.call("session", "search", "cheap", "pears")
    assert shown.out.startswith("s@") and shown.out.count("\n") == 1
    assert "are cheap." in shown.out and "\x1b" not in shown.out
    assert {line["id"] for line in dsh.call("session", "search", "--json", "PEARS").events} == {"s", "t"}
    assert len(dsh.call("session", "search", "--json", "-n", "1", "pears").events) == 1
    here = dsh.call("session", "search", "--json", "--here", "pears", cwd=elsewhere)
    assert [line["id"] for line in here.events] == ["t"]
    nothing = dsh.call("session", "search", "plums")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "")


def test_a_search_for_no_word_is_a_usage_error(dsh: Dsh) -> None:
    for words in ((), ("",), ("-,-", "?")):
        refused = dsh.call("session", "search", "--", *words)
        assert_failed(refused, 2)
