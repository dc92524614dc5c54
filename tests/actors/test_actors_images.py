"""Images through a live harness: stored for a message, offered to tools, kept out of the log."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from dsh_actors.config import load_config
from dsh_actors.core.messages import user_message
from dsh_actors.core.options import AgentOptions
from dsh_actors.errors import ImageRefused, UsageError
from dsh_actors.harness import Harness
from dsh_actors.testing.scripted import ScriptedProvider
from tests.image_samples import png

SCRIPT = [{"calls": [{"tool": "read", "arguments": {"path": "a.png"}}]}, {"text": "ok"}]


@pytest.fixture
def model() -> ScriptedProvider:
    """A model that takes images; the stage's own reads text."""
    return ScriptedProvider(SCRIPT)


@pytest.fixture
def harness(stage, model) -> Iterator[Harness]:
    config = load_config(env={"DSH_HOME": str(stage.home)}, cwd=str(stage.cwd))
    with Harness.open(config, providers={"seeing": model, "manual": stage.model}) as harness:
        yield harness


@pytest.mark.parametrize("ephemeral", [False, True])
def test_an_image_goes_with_a_message_and_comes_from_a_tool(stage, model, harness, ephemeral):
    (stage.cwd / "a.png").write_bytes(png())
    block = harness.image(png(), "p.png", ephemeral=ephemeral)
    agent = harness.create(AgentOptions("seeing/m", str(stage.cwd), ephemeral=ephemeral))
    assert agent.run(user_message("m", "look", images=(block,)), timeout=20).answer == "ok"
    first, second = model.requests
    assert next(message for message in first.messages if message.id == "m").content[1] == block
    (result,) = second.messages[-1].content
    text, image = result.content
    assert text.text == "[image a.png, PNG, 2 × 3, 70 bytes]"
    assert image.attachment.digest == block.attachment.digest
    agent.dispose()
    kept = [path for path in stage.home.rglob(block.attachment.digest) if path.is_file()]
    assert len(kept) == (0 if ephemeral else 1)
    if not ephemeral:
        log = json.dumps([event.to_json() for event in harness.storage.read(agent.id)])
        assert log.count(block.attachment.id) >= 2
        assert base64.b64encode(png()).decode()[:24] not in log


def test_who_takes_images_is_asked_of_the_provider(harness):
    assert harness.takes_images("seeing/m")
    assert not harness.takes_images("manual/m")
    with pytest.raises(UsageError, match="there is no provider"):
        harness.takes_images("nobody/m")


def test_what_is_no_image_is_refused_with_nothing_stored(stage, harness):
    with pytest.raises(ImageRefused):
        harness.image(b"hello", "a.png")
    assert list(stage.home.rglob("*")) == []
    assert harness.image(png()).attachment.name is None
