"""Images from the command line to the wire and back out of the log, as real processes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.dsh_process import ONE_LINE, Dsh, assert_refused
from tests.image_samples import ALL_TYPES, jpeg, png
from tests.model_server import CC, C, T

SEEING = ("-m", "deepseek/deepseek-flash")
BLIND = ("-m", "deepseek/deepseek-v4-pro")
DATA = base64.b64encode(png()).decode()
URL = f"data:image/png;base64,{DATA}"


@pytest.fixture
def place(dsh: Dsh) -> Dsh:
    """The program beside a picture."""
    (dsh.cwd / "a.png").write_bytes(png())
    return dsh


def stored(place: Dsh) -> list[Path]:
    return sorted(path for path in place.home.glob("attachments/sha256/*/*") if path.is_file())


def urls(message: dict[str, Any]) -> list[str]:
    return [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]


def events(place: Dsh, session: str) -> list[dict[str, Any]]:
    return place.call("session", "show", "--json", session).events


def test_an_attached_image_is_seen_by_the_model_and_only_referred_to_in_the_log(place: Dsh) -> None:
    files = {kind.replace("/", "."): data for kind, data in ALL_TYPES.items()}
    options = []
    for name, data in files.items():
        (place.cwd / name).write_bytes(data)
        options += ["--file", name]
    place.server.script(T("a pear"))
    run = place.run(*SEEING, "--session-id", "s", "--json", *options, "What is it?")
    assert (run.code, run.err, run.end["answer"]) == (0, "", "a pear")
    (request,) = place.requests()
    message = next(each for each in request.messages if isinstance(each["content"], list))
    assert message["content"][0]["text"] == f"What is it?\n\nAttached images: {', '.join(files)}"
    sent = [f"data:{kind};base64,{base64.b64encode(data).decode()}" for kind, data in ALL_TYPES.items()]
    assert urls(message) == sent
    assert sorted(path.read_bytes() for path in stored(place)) == sorted(ALL_TYPES.values())
    assert DATA[:40] not in run.out and DATA[:40] not in json.dumps(events(place, "s"))
    assert place.call("session", "verify", "s", "--requests").code == 0




def test_a_resumed_and_a_forked_session_send_the_same_bytes_again(place: Dsh) -> None:
    place.server.script(T("one"), T("two"), T("three"))
    assert place.run(*SEEING, "--session-id", "s", "--file", "a.png", "x").code == 0
    (place.cwd / "a.png").unlink()
    (place.cwd / "j.jpg").write_bytes(jpeg())
    assert place.run("--resume", "s", "--file", "j.jpg", "y").code == 0
    assert place.run("--fork", "s", "--session-id", "t", *SEEING, "z").code == 0
    requests = place.requests_with_stable_prefix()
    assert [request.text.count("data:image/") for request in requests] == [1, 2, 2]
    assert place.call("session", "verify", "--all", "--requests").code == 0


def test_pictures_that_the_read_tool_meets_follow_the_results_of_the_step(place: Dsh) -> None:
    (place.cwd / "notes").write_text("n\n")
    calls = CC(("read", {"path": "a.png"}), ("read", {"path": "notes"}), ("read", {"path": "a.png"}))
    place.server.script(calls, C("read", {"path": "notes"}), T("done"))
    assert place.run(*SEEING, "--session-id", "s", "look").code == 0
    _, second, third = place.requests_with_stable_prefix()
    roles = [message["role"] for message in second.messages]
    assert roles[-4:] == ["tool", "tool", "tool", "user"]
    assert urls(second.messages[-1]) == [URL, URL]
    assert len(stored(place)) == 1
    assert third.messages[: len(second.messages)] == second.messages
    assert place.call("session", "verify", "s", "--requests").code == 0


def test_a_model_that_reads_text_is_told_of_pictures_and_refused_as_a_target(place: Dsh) -> None:
    refused = place.run(*BLIND, "--file", "a.png", "x")
    assert_refused(refused, place)
    assert "a.png is an image, and deepseek/deepseek-v4-pro reads text only" in refused.err
    assert_refused(place.run("-m", "openai/unlisted", "--file", "a.png", "x"), place)
    assert stored(place) == []
    place.server.script(C("read", {"path": "a.png"}), T("ok"))
    assert place.run(*BLIND, "x").code == 0
    assert "this model reads text only" in place.requests()[-1].messages[-1]["content"]
    assert stored(place) == []


def test_a_session_with_pictures_goes_on_with_a_model_that_reads_text_and_back(place: Dsh) -> None:
    place.server.script(T("one"), T("two"), T("three"))
    assert place.run(*SEEING, "--session-id", "s", "--file", "a.png", "x").code == 0
    assert place.run("--resume", "s", *BLIND, "y").code == 0
    refused = place.run("--resume", "s", "--file", "a.png", "y")
    assert refused.code == 2 and ONE_LINE.match(refused.err)
    assert place.run("--resume", "s", *SEEING, "z").code == 0
    first, second, third = place.requests()
    assert [URL in request.text for request in (first, second, third)] == [True, False, True]
    assert "[image a.png, PNG, 2 × 3: not shown" in second.text
    assert place.call("session", "verify", "s", "--requests").code == 0


def test_a_model_of_the_configuration_takes_images_where_it_is_said(place: Dsh) -> None:
    place.home.mkdir()
    (place.home / "config.toml").write_text(
        f'[providers.local]\nbase_url = "{place.server.url}/v1"\n'
        '[[providers.local.models]]\nid = "eyes"\ncapabilities = ["image"]\n'
    )
    place.server.script(T("ok"))
    assert place.run("-m", "local/eyes", "--file", "a.png", "x").code == 0
    assert URL in place.requests()[0].text


def test_a_session_with_pictures_moves_between_the_wires(place: Dsh) -> None:
    place.home.mkdir()
    (place.home / "config.toml").write_text(
        '[[providers.anthropic.models]]\nid = "claude-x"\ncapabilities = ["image"]\n'
    )
    place.server.script(C("read", {"path": "a.png"}), T("one"), T("two"))
    claude = ("-m", "anthropic/claude-x")
    assert place.run(*claude, "--session-id", "s", "--file", "a.png", "x").code == 0
    assert place.run("--resume", "s", *SEEING, "y").code == 0
    first, second, third = place.requests()
    assert [json.dumps(request.json).count(DATA) for request in (first, second, third)] == [1, 2, 2]
    (result,) = second.json["messages"][-1]["content"]
    assert result["type"] == "tool_result" and result["content"][-1]["source"]["data"] == DATA
    assert [len(urls(each)) for each in third.messages if isinstance(each["content"], list)] == [1, 1]
    assert place.call("session", "verify", "s", "--requests").code == 0


def test_a_damaged_image_is_refused_before_anything_exists(place: Dsh) -> None:
    (place.cwd / "cut.jpg").write_bytes(jpeg()[:-2])
    result = place.run(*SEEING, "--file", "a.png", "--file", "cut.jpg", "x")
    assert_refused(result, place)
    assert "--file: cut.jpg is no whole JPEG image: it is cut off" in result.err
    assert not place.home.exists()


def test_an_ephemeral_run_sees_its_images_and_leaves_none(place: Dsh) -> None:
    place.server.script(C("read", {"path": "a.png"}), T("ok"), T("kept"), T("not kept"))
    assert place.run(*SEEING, "--ephemeral", "--file", "a.png", "x").code == 0
    assert [request.text.count(URL) for request in place.requests()] == [1, 2]
    assert not place.home.exists()
    assert place.run(*SEEING, "--session-id", "s", "x").code == 0
    assert place.run(*SEEING, "--fork", "s", "--ephemeral", "--file", "a.png", "x").code == 0
    assert URL in place.requests()[-1].text and stored(place) == []
