"""`dsh run --fork`: a copy of a session that goes on by itself, with every option of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.dsh_process import ONE_LINE, Dsh, Event, assert_failed
from tests.model_server import CC, C, T


def seeded(dsh: Dsh, *answers: object) -> list[Event]:
    """A stored session ``s`` of two turns, and its events."""
    dsh.server.script(T("first"), T("second"), *(answers or (T("forked"),)))
    assert dsh.run("--session-id", "s", "one").code == 0
    assert dsh.run("--resume", "s", "two").code == 0
    return events_of(dsh, "s")


def events_of(dsh: Dsh, session: str) -> list[Event]:
    shown = dsh.call("session", "show", "--json", session)
    assert shown.code == 0, shown.err
    return shown.events


def header_of(dsh: Dsh, session: str) -> Event:
    return dsh.call("session", "export", session).events[0]


def ends(events: list[Event]) -> list[int]:
    return [event["seq"] for event in events if event["type"] == "turn/end"]


def test_a_fork_extends_the_conversation_and_leaves_its_parent_alone(dsh: Dsh) -> None:
    parent = seeded(dsh)
    forked = dsh.call("run", "--fork", "s", "--session-id", "child", "three")
    assert (forked.code, forked.out, forked.err) == (0, "forked\n", "")
    dsh.requests_with_stable_prefix()
    assert events_of(dsh, "s") == parent
    child = events_of(dsh, "child")
    assert child[: len(parent)] == parent
    assert child[len(parent)]["type"] == "session/end-seed"
    header = header_of(dsh, "child")
    assert (header["parentSession"], header["seedLength"]) == ("s", len(parent))
    assert header["cwd"] == header_of(dsh, "s")["cwd"]


def test_a_fork_at_an_event_knows_nothing_of_what_came_later(dsh: Dsh) -> None:
    first_end = ends(seeded(dsh))[0]
    assert dsh.run("--fork", f"s@{first_end}", "--session-id", "child", "three").code == 0
    asked = [message["content"] for message in dsh.requests()[-1].messages if message["role"] == "user"]
    assert "two" not in asked and asked[0] == "one" and asked[-1] == "three"
    assert header_of(dsh, "child")["seedLength"] == first_end + 1


def test_a_fork_gets_an_id_of_its_own_and_can_be_resumed(dsh: Dsh) -> None:
    seeded(dsh, T("forked"), T("later"))
    started = dsh.run("--fork", "s", "--json", "three")
    child = started.end["session_id"]
    assert started.code == 0 and child != "s" and started.events[0]["session_id"] == child
    assert started.events[0]["resumed"] is False
    assert started.of("turn/start")[0]["data"]["turn"] == 3
    assert dsh.run("--resume", child, "four").out == "later\n"
    dsh.requests_with_stable_prefix()


def test_a_fork_takes_every_option_of_a_new_run(dsh: Dsh) -> None:
    options = "--max-steps 9 --max-tokens 100000 --timeout 60 --approve all --tools bash --json"
    seeded(dsh, C("bash", {"command": "echo from-the-fork"}), T("done"))
    done = dsh.run("--fork", "s", *options.split(), "--append-system-prompt", "Be brief.", "three")
    assert done.code == 0 and done.end["answer"] == "done"
    assert "from-the-fork" in str(done.of("tool/result"))
    assert "Be brief." in dsh.requests()[-1].text


def test_a_fork_works_where_its_parent_did(dsh: Dsh, tmp_path: Path) -> None:
    seeded(dsh, C("bash", {"command": "pwd"}), T("done"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = dsh.run("--fork", "s", "--json", "three", cwd=elsewhere)
    assert str(dsh.cwd) in str(done.of("tool/result"))
    refused = dsh.run("--fork", "s", "-C", str(elsewhere), "three")
    assert_failed(refused, 2)


def test_a_fork_that_keeps_nothing_leaves_nothing(dsh: Dsh) -> None:
    parent = seeded(dsh)
    assert dsh.run("--fork", "s", "--ephemeral", "three").out == "forked\n"
    assert dsh.session_ids() == ["s"]
    assert events_of(dsh, "s") == parent


def test_a_fork_of_what_is_not_there_is_refused_and_makes_nothing(dsh: Dsh) -> None:
    parent = seeded(dsh)
    before = len(dsh.requests())
    wrong = {"nobody": "nobody", "s@-1": "-1", "s@99999": "99999", "s@4": "inside the turn", "": "session"}
    for point, word in wrong.items():
        refused = dsh.run("--fork", point, "--session-id", "child", "three")
        assert_failed(refused, 2)
        assert word in refused.err
    taken = dsh.run("--fork", "s@99999", "--session-id", "s", "three")
    assert_failed(taken, 8)  # the id comes before the boundary
    assert (len(dsh.requests()), dsh.session_ids(), events_of(dsh, "s")) == (before, ["s"], parent)


def test_a_session_that_was_killed_is_forked_where_its_last_turn_ended(dsh: Dsh) -> None:
    dsh.server.script(T("first"), T(["half", "way"], hold="never"), T("forked"))
    assert dsh.run("--session-id", "s", "one").code == 0
    running = dsh.begin("--resume", "s", "--json", "two")
    dsh.server.wait_for_requests(2)
    running.kill()
    refused = dsh.run("--fork", "s", "three")
    assert_failed(refused, 2)
    last_end = ends(events_of(dsh, "s"))[0]
    assert f"s@{last_end}" in refused.err
    assert dsh.run("--fork", f"s@{last_end}", "three").out == "forked\n"


def test_a_session_is_forked_while_another_run_holds_it(dsh: Dsh) -> None:
    dsh.server.script(T("first"), T(["half", "way"], hold="never"), T("forked"))
    assert dsh.run("--session-id", "s", "one").code == 0
    end = ends(events_of(dsh, "s"))[0]
    running = dsh.begin("--resume", "s", "--json", "two")
    dsh.server.wait_for_requests(2)
    assert dsh.run("--fork", f"s@{end}", "three").out == "forked\n"
    running.kill()


# --- checkpoints as a run meets them ----------------------------------------------------------


def checkpoints(dsh: Dsh, session: str) -> Path:
    (place,) = dsh.home.glob(f"sessions/*/{session}/checkpoints")
    return place


def test_a_run_leaves_a_checkpoint_and_needs_none(dsh: Dsh) -> None:
    seeded(dsh, T("third"), T("fourth"), T("fifth"))
    place = checkpoints(dsh, "s")
    assert list(place.iterdir())
    shutil.rmtree(place)
    assert dsh.run("--resume", "s", "three").out == "third\n"
    for file in place.iterdir():
        file.write_bytes(b"not a checkpoint")
    assert dsh.run("--resume", "s", "four").out == "fourth\n"
    shutil.rmtree(place)
    place.write_text("in the way")
    blocked = dsh.run("--resume", "s", "five")
    assert (blocked.code, blocked.out, blocked.err) == (0, "fifth\n", "")
    dsh.requests_with_stable_prefix()


def test_calls_before_a_checkpoint_are_known_after_it(dsh: Dsh) -> None:
    commands = (("bash", {"command": "echo one"}), ("bash", {"command": "echo two"}))
    dsh.server.script(CC(*commands), T("done"), T("later"))
    few = {"DSH_SESSION_CHECKPOINT_EVENTS": "3", "DSH_SESSION_CHECKPOINT_MAX_EVENTS": "5"}
    assert dsh.run("--session-id", "s", "one", env=few).code == 0
    assert dsh.run("--resume", "s", "two", env=few).out == "later\n"
    dsh.requests_with_stable_prefix()


def test_a_run_killed_between_checkpoints_goes_on_from_what_is_durable(dsh: Dsh) -> None:
    few = {"DSH_SESSION_CHECKPOINT_EVENTS": "3", "DSH_SESSION_CHECKPOINT_MAX_EVENTS": "5"}
    dsh.server.script(C("bash", {"command": "echo x >> ran"}), T(["ha", "lf"], hold="never"), T("resumed"))
    running = dsh.begin("--session-id", "s", "--json", "one", env=few)
    dsh.server.wait_for_requests(2)
    running.kill()
    assert dsh.run("--resume", "s", "go on", env=few).out == "resumed\n"
    assert (dsh.cwd / "ran").read_text() == "x\n"
    dsh.requests_with_stable_prefix()


def test_a_session_is_found_whatever_the_project_at_hand_says(dsh: Dsh, tmp_path: Path) -> None:
    seeded(dsh, T("resumed"), T("forked"))
    broken = tmp_path / "another"
    (broken / ".dsh").mkdir(parents=True)
    (broken / ".dsh/config.toml").write_text("[nonsense]\n")
    elsewhere = ("-C", str(broken))
    dsh.cwd, home = broken, dsh.cwd
    assert dsh.call("run", "--resume", "s", "three").out == "resumed\n"
    assert dsh.call("run", "--fork", "s", "four").out == "forked\n"
    dsh.cwd = home
    refused = dsh.run(*elsewhere, "five")
    assert refused.code == 2 and "nonsense" in refused.err


@pytest.mark.parametrize("wrong", ["", " ", "a\nb", "a" * 201])
def test_no_command_makes_a_session_with_a_name_that_a_run_refuses(
    dsh: Dsh, wrong: str, tmp_path: Path
) -> None:
    seeded(dsh)
    exported = tmp_path / "s.jsonl"
    exported.write_text(dsh.call("session", "export", "s").out)
    for command in (
        ("fork", "--session-id", wrong, "s"),
        ("salvage", "--to", wrong, "s"),
        ("import", "--session-id", wrong, str(exported)),
    ):
        refused = dsh.call("session", *command)
        assert (refused.code, refused.out) == (2, ""), command
        assert ONE_LINE.match(refused.err)
    assert len(dsh.call("session", "ls", "--json").events) == 1


def test_what_a_project_says_is_shown_and_not_obeyed(dsh: Dsh) -> None:
    project = Path(dsh.cwd) / ".dsh"
    project.mkdir()
    (project / "config.toml").write_text('[agent]\nmodel = "a\\u001b[31mb"\n')
    for command in (("config", "show"), ("doctor",)):
        shown = dsh.call(*command).out
        assert "a\\x1b[31mb" in shown and "\x1b" not in shown
