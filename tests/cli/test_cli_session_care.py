"""`dsh session verify`, `salvage` and `stats`: exit codes, one clear line, nothing changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsh_actors.cli.session_common import flush, write
from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.ports import Checkpoint
from tests.cli.dsh_process import ONE_LINE, Dsh, Result
from tests.cli.session_kit import LOG, everything, flip, held, segment, sessions, store
from tests.model_server import C, T
from tests.session_logs import turns


def verified(dsh: Dsh, *arguments: str, code: int = 0) -> Result:
    """The command's result; what is stored does not change by it."""
    before = everything(dsh.home)
    result = dsh.call("session", "verify", *arguments)
    assert result.code == code, result.err
    assert everything(dsh.home) == before
    return result


def test_a_real_run_verifies_with_every_request(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "echo one"}), T("done"), T("again"))
    assert dsh.run("--session-id", "s", "x").code == 0
    assert dsh.run("--resume", "s", "more").code == 0
    report = verified(dsh, "s", "--requests", "--json").events[0]
    assert (report["id"], report["status"], report["requests"]) == ("s", "ok", len(dsh.requests()))
    text = verified(dsh, "--all", "--requests").out
    assert text.startswith("s  ok  ") and "3 requests" in text


def test_damaged_bytes_are_named_with_their_place_and_the_others_still_checked(dsh: Dsh) -> None:
    for name in ("a", "b", "c"):
        store(dsh.home, name)
    offset = flip(dsh.home, "b", 2)
    result = verified(dsh, "a", "b", "c", "--json", code=1)
    rows = {row["id"]: row for row in result.events}
    assert [rows[name]["status"] for name in "abc"] == ["ok", "corrupt", "ok"]
    fault = rows["b"]["faults"][0]
    assert (
        fault["kind"] == "log" and f"{segment(dsh.home, 'b')} is damaged at byte {offset}" in fault["reason"]
    )
    assert ONE_LINE.match(result.err) and "1 of 3 sessions" in result.err and "salvage" in result.err


def test_a_changed_request_is_found_only_when_asked_for(dsh: Dsh) -> None:
    seq = next(event.seq for event in LOG if event.type == "user/message")
    content = [{"type": "text", "text": "something else"}]
    bad = [replace(e, data={**e.data, "content": content}) if e.seq == seq else e for e in LOG]
    store(dsh.home, "s", bad)
    verified(dsh, "s")
    result = verified(dsh, "s", "--requests", code=1)
    assert "request: event" in result.out and "digest" in result.err


def test_an_unknown_event_is_unsupported_and_no_damage(dsh: Dsh) -> None:
    store(dsh.home, "s", [*LOG, Event("future/fact", len(LOG), 0, {})])
    result = verified(dsh, "s", "--json", code=1)
    assert result.events[0]["status"] == "unsupported"
    assert "future/fact" in result.err


def test_a_checkpoint_that_is_not_what_the_log_says_is_found(dsh: Dsh) -> None:
    dsh.server.script(T("done"))
    assert dsh.run("--session-id", "s", "x").code == 0
    stored = sessions(dsh.home)
    kept = stored.checkpoint(SessionId("s"))
    assert kept is not None
    verified(dsh, "s")
    writer = stored.open(SessionId("s"))
    list(writer.replay())
    writer.save_checkpoint(Checkpoint(kept.next_seq, {**kept.state, "title": "of another task"}))
    writer.close()
    result = verified(dsh, "s", code=1)
    assert "another title" in result.err and "may be deleted" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify",), ("verify", "--all", "s"), ("verify", "absent"), ("verify", "s", "absent"),
        ("salvage", "absent"), ("stats", "absent"), ("stats", "--here", "s"), ("fork", "absent"),
        ("prune",), ("prune", "--older-than", "soon"), ("prune", "--max-bytes", "much"),
        ("import", "absent.jsonl"), ("import", "."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_code_2_and_changes_nothing(dsh: Dsh, arguments: tuple[str, ...]) -> None:
    store(dsh.home, "s")
    before = everything(dsh.home)
    result = dsh.call("session", *arguments)
    assert (result.code, result.out) == (2, "")
    assert ONE_LINE.match(result.err), result.err
    assert everything(dsh.home) == before


# --- salvage ----------------------------------------------------------------------------------


def test_a_salvaged_session_leaves_its_source_verifies_and_can_be_resumed(dsh: Dsh) -> None:
    store(dsh.home, "s", turns(3), cwd=str(dsh.cwd))
    offset = flip(dsh.home, "s", 2)
    assert dsh.call("session", "show", "s").code == 1
    before = everything(dsh.home)
    result = dsh.call("session", "salvage", "s", "--json")
    assert (result.code, result.err) == (0, "")
    after = everything(dsh.home)
    assert {path: after[path] for path in before} == before
    found = result.events[0]
    assert (found["id"], found["from"]) == ("s-salvaged", "s")
    gap = found["gaps"][0]
    assert gap["damages"][0]["offset"] == offset and gap["damages"][0]["bytes"] > 0
    assert gap["damages"][0]["place"] == str(segment(dsh.home, "s"))
    ends = [event.seq for event in turns(3) if event.type == "turn/end"]
    assert (gap["first_seq"], gap["last_seq"]) == (ends[0] + 1, ends[1] + 1)
    assert dsh.call("session", "verify", "s-salvaged", "--requests").code == 0
    dsh.server.script(T("went on"))
    resumed = dsh.run("--resume", "s-salvaged", "-m", dsh.model, "go on")
    assert (resumed.code, resumed.out) == (0, "went on\n")
    texts = [str(message["content"]) for message in dsh.requests()[0].messages]
    assert any("task 1" in text for text in texts) and any("task 3" in text for text in texts)
    assert not any("task 2" in text for text in texts)


def test_a_second_salvage_gets_a_name_of_its_own_and_a_taken_one_is_refused(dsh: Dsh) -> None:
    store(dsh.home, "s")
    names = [dsh.call("session", "salvage", "s").out.partition(":")[0] for _ in range(2)]
    assert names == ["s-salvaged", "s-salvaged-2"]
    taken = dsh.call("session", "salvage", "s", "--to", "s-salvaged")
    assert taken.code == 8 and ONE_LINE.match(taken.err)


def test_a_lost_header_gets_the_directory_that_was_asked_for(dsh: Dsh) -> None:
    store(dsh.home, "s")
    flip(dsh.home, "s", 0)
    listed = dsh.call("session", "salvage", "s", "--to", "t", "-C", str(dsh.cwd))
    assert listed.code == 0 and "no events missing" in listed.out
    storage = sessions(dsh.home)
    assert storage.header(SessionId("t")).cwd == str(dsh.cwd)
    assert list(storage.read(SessionId("t"))) == LOG


def test_a_session_in_use_is_not_salvaged(dsh: Dsh) -> None:
    store(dsh.home, "s")
    writer = held(dsh.home, "s")
    busy = dsh.call("session", "salvage", "s")
    assert (busy.code, busy.out) == (8, "") and ONE_LINE.match(busy.err)
    writer.close()  # type: ignore[attr-defined]


def test_a_session_without_one_readable_event_is_corrupt(dsh: Dsh) -> None:
    store(dsh.home, "s")
    segment(dsh.home, "s").write_bytes(b"\x00" * 500)
    result = dsh.call("session", "salvage", "s")
    assert (result.code, result.out) == (1, "") and ONE_LINE.match(result.err)
    assert dsh.session_ids() == ["s"]


# --- stats ------------------------------------------------------------------------------------


def test_stats_are_those_of_each_session_and_their_sum(dsh: Dsh) -> None:
    dsh.home.mkdir()
    (dsh.home / "config.toml").write_text(
        '[providers.p]\ntype = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
        '[[providers.p.models]]\nid = "m"\nprice = { input = 1.0, output = 2.0 }\n'
    )
    store(dsh.home, "a")
    store(dsh.home, "b", turns(1))
    rows = dsh.call("session", "stats", "a", "b", "--json").events
    a, b, total = rows
    assert (a["id"], a["turns"], a["steps"], a["tool_calls"]) == ("a", 2, 4, 4)
    assert a["usage"] == {"input": 600, "cache_read": 10, "cache_write": 0, "output": 100, "reasoning": 14}
    assert a["cost"] == pytest.approx((610 * 1 + 100 * 2) / 1e6)
    assert (total["total"]["sessions"], total["total"]["turns"]) == (2, 3)
    assert total["total"]["cost"] == pytest.approx(a["cost"] + b["cost"])
    one = dsh.call("session", "stats", "a").out
    assert one.count("\n") == 1 and "2 turns, 4 steps" in one and "cost 0.0008 USD" in one
    assert a["currency"] == total["total"]["currency"] == "USD"


def test_stats_of_all_name_a_damaged_session_and_go_on(dsh: Dsh) -> None:
    store(dsh.home, "a")
    store(dsh.home, "b")
    flip(dsh.home, "b", 1)
    result = dsh.call("session", "stats", "--json")
    rows = {row.get("id"): row for row in result.events}
    assert result.code == 0 and "damaged" in rows["b"]["error"]
    assert rows["a"]["turns"] == 2 and rows[None]["total"]["sessions"] == 1
    assert rows["a"]["cost"] is None
    assert dsh.call("session", "stats", "b").code == 1


OBEYED = "\x1b]0;a title\x07\x1b[2J\x9b31m\x7f"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_shown_what_it_would_obey_and_a_file_gets_it_whole(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(STREAMS, "stdout_is_terminal", lambda: is_terminal)
    write(f"so: {OBEYED}\n\tas it was\n".encode())
    flush()
    shown = "\\x1b]0;a title\\x07\\x1b[2J\\x9b31m\\x7f" if is_terminal else OBEYED
    assert capfdbinary.readouterr().out.decode() == f"so: {shown}\n\tas it was\n"


def test_json_lines_escape_what_a_terminal_would_obey_and_lose_nothing(dsh: Dsh) -> None:
    dsh.server.script(T(f"so: {OBEYED}"))
    result = dsh.run("--session-id", "s", "--json", "x")
    assert result.end["answer"] == f"so: {OBEYED}"
    assert not [character for character in result.out if character in "\x1b\x07\x9b\x7f"]
