"""Images on the chat-completions wire."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.adapters.llm import anthropic_request
from dsh_actors.adapters.llm import images as llm_images
from dsh_actors.adapters.llm.anthropic import AnthropicProvider
from dsh_actors.adapters.llm.chat_request import ChatEncoder
from dsh_actors.adapters.llm.deepseek import DeepSeekDialect
from dsh_actors.adapters.llm.dialect import ProfileDialect
from dsh_actors.adapters.llm.images import ImageLimits
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.adapters.llm.settings import ModelFacts
from dsh_actors.adapters.storage.attachments import MemoryAttachments
from dsh_actors.config.profiles import PROFILES
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.ids import CallId, MessageId
from dsh_actors.core.messages import (
    ImageBlock,
    ImageRef,
    Message,
    ModelSource,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    UserSource,
    user_message,
)
from dsh_actors.core.request import ModelRequest, RequestHeader
from dsh_actors.errors import AttachmentError
from tests.adapters.llm.llm_kit import config
from tests.image_samples import block, gif, png

STORE = MemoryAttachments()
PNG, GIF = block(png(), "a.png", STORE), block(gif(), None, STORE)
LOST = block(png(9, 9), "lost.png")
HEADER = RequestHeader(CallConfig("p", "m"))
URL = "data:image/png;base64," + base64.b64encode(png()).decode()


def encoder(read: Any = STORE.read) -> ChatEncoder:
    return ChatEncoder("p", ProfileDialect(), read)


def wire(coder: ChatEncoder, *messages: Message) -> list[dict[str, Any]]:
    return json.loads(coder.encode(ModelRequest(HEADER, messages)))["messages"]


def said(*blocks: Any) -> Message:
    return Message(MessageId("u"), "user", blocks, UserSource())


def called(*names: str) -> Message:
    calls = tuple(ToolCallBlock(CallId(name), "read", "{}") for name in names)
    return Message(MessageId("a"), "assistant", calls, ModelSource("p", "m"))


def result(name: str, *blocks: Any) -> Message:
    return Message(MessageId("r"), "user", (ToolResultBlock(CallId(name), blocks),), ToolSource(CallId(name)))


def test_a_users_images_are_parts_between_the_texts_each_with_a_handle() -> None:
    (message,) = wire(encoder(), said(TextBlock("look: "), PNG, TextBlock("and "), GIF))
    assert message == {
        "role": "user",
        "content": [
            {"type": "text", "text": "look: "},
            {"type": "text", "text": "[image a.png, PNG, 2 × 3]"},
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "text", "text": "and "},
            {"type": "text", "text": "[image GIF, 2 × 3]"},
            {
                "type": "image_url",
                "image_url": {"url": "data:image/gif;base64," + base64.b64encode(gif()).decode()},
            },
        ],
    }


def test_images_of_a_run_of_results_follow_the_last_of_them_in_one_message() -> None:
    coder = encoder()
    results = [result("1", TextBlock("one"), PNG), result("2", GIF), result("3", TextBlock("x"))]
    run = [called("1", "2", "3"), *results]
    messages = wire(coder, said(TextBlock("go")), *run)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert [message["content"] for message in messages[2:5]] == ["one", "(no output)", "x"]
    first, *parts = messages[5]["content"]
    assert first == {"type": "text", "text": "Images of the tool results above:"}
    assert [part["type"] for part in parts] == ["text", "image_url"] * 2
    longer = wire(coder, said(TextBlock("go")), *run, user_message("s", "steered"))
    assert longer == [*messages, {"role": "user", "content": "steered"}]
    assert wire(encoder(), said(TextBlock("go")), *run, user_message("s", "steered")) == longer


def test_a_model_that_reads_text_gets_a_text_in_place_of_each_image() -> None:
    messages = [said(TextBlock("look"), PNG), called("1"), result("1", TextBlock("got"), PNG)]
    shown = "[image a.png, PNG, 2 × 3: not shown, this model reads text only]"
    user, _, tool = wire(encoder(None), *messages)
    assert (user["content"], tool["content"]) == (f"look\n{shown}", f"got\n{shown}")


def test_a_lost_image_stays_a_text_and_the_session_goes_on() -> None:
    (message,) = wire(encoder(), said(LOST))
    assert message["content"] == "[image lost.png, PNG, 9 × 9: not shown, it is no longer stored]"


def test_an_image_that_cannot_be_read_now_fails_this_request_and_not_the_next() -> None:
    broken = True

    def read(ref: ImageRef) -> bytes:
        if broken and ref == GIF.attachment:
            raise AttachmentError("input/output error")
        return STORE.read(ref)

    coder, messages = encoder(read), [said(PNG), called("1"), result("1", PNG), called("2"), result("2", GIF)]
    with pytest.raises(AttachmentError):
        wire(coder, *messages)
    broken = False
    assert wire(coder, *messages) == wire(encoder(), *messages)


def test_each_image_is_read_once_in_a_conversation() -> None:
    reads: list[ImageRef] = []

    def read(ref: ImageRef) -> bytes:
        reads.append(ref)
        return STORE.read(ref)

    coder, messages = encoder(read), [said(PNG), called("1"), result("1", GIF)]
    for end in (1, 3, 3):
        wire(coder, *messages[:end])
    wire(coder, *messages, called("2"))
    assert reads == [PNG.attachment, GIF.attachment]


@pytest.mark.parametrize(
    "limits", [ImageLimits(count=2), ImageLimits(encoded_bytes=2 * len(URL.partition(",")[2]))]
)
def test_images_beyond_the_ceiling_of_a_request_are_named_and_earlier_ones_stay(
    monkeypatch: pytest.MonkeyPatch, limits: ImageLimits
) -> None:
    monkeypatch.setattr(llm_images, "ImageLimits", lambda: limits)
    coder = encoder()
    short = wire(coder, said(PNG), said(PNG))
    long = wire(coder, said(PNG), said(PNG), said(PNG))
    assert long[:2] == short and URL in str(short[1])
    assert long[2]["content"].endswith("not shown, the conversation holds as many images as it may]")
    replaced = wire(coder, user_message("s", "summary"), said(PNG))
    assert URL in str(replaced[1])


def test_an_image_that_a_provider_finds_too_large_is_named() -> None:
    limits = ImageLimits(each_encoded_bytes=len(URL.partition(",")[2]) - 1)
    shown = llm_images.ImageEncoder(STORE.read, limits).encode(PNG)
    assert shown == "[image a.png, PNG, 2 × 3: not shown, it is larger than this provider takes]"


BLOCK = st.sampled_from([PNG, GIF, LOST, TextBlock("t"), TextBlock("")])
STEP = st.one_of(
    st.lists(BLOCK, max_size=3).map(lambda blocks: [said(*blocks)]),
    st.lists(st.lists(BLOCK, max_size=2), min_size=1, max_size=3).map(
        lambda results: [called(*map(str, range(len(results))))]
        + [result(str(number), *blocks) for number, blocks in enumerate(results)]
    ),
)


@given(steps=st.lists(STEP, max_size=5), reads=st.booleans(), data=st.data())
def test_a_conversation_with_images_keeps_its_bytes_as_it_grows(
    steps: list[list[Message]], reads: bool, data: st.DataObject
) -> None:
    read = STORE.read if reads else None
    coder, previous = encoder(read), b""
    messages: list[Message] = []
    for step in steps:
        # Asked in the middle of a run of results too: the bytes are the same as without that question.
        cut = data.draw(st.integers(0, len(step)))
        coder.encode(ModelRequest(HEADER, [*messages, *step[:cut]]))
        messages += step
        body = coder.encode(ModelRequest(HEADER, messages))
        assert body == encoder(read).encode(ModelRequest(HEADER, messages))
        assert body.startswith(previous[:-2])
        previous = body


def test_who_takes_images_is_what_the_catalogue_says_and_nobody_else() -> None:
    own = OpenAiCompatibleProvider(config(read_image=STORE.read), DeepSeekDialect())
    listed = (ModelFacts("seeing", input_modalities=("text", "image")), ModelFacts("blind"))
    other = OpenAiCompatibleProvider(config(models=listed, read_image=STORE.read))

    def shown(provider: OpenAiCompatibleProvider, model: str) -> bool:
        call = provider.prepare(CallConfig("test", model))
        body = call.encoder().encode(ModelRequest(HEADER, [said(PNG)]))
        assert ("image" in call.input_modalities) == (URL.encode() in body)
        return URL.encode() in body

    assert [shown(own, model) for model in ("deepseek-flash", "deepseek-v4-pro")] == [True, False]
    assert [shown(other, model) for model in ("seeing", "blind", "unlisted")] == [True, False, False]
    without = OpenAiCompatibleProvider(config(models=listed)).prepare(CallConfig("test", "seeing"))
    assert URL.encode() not in without.encoder().encode(ModelRequest(HEADER, [said(PNG)]))


def test_half_a_surrogate_in_a_name_does_not_reach_the_wire() -> None:
    odd = ImageBlock(ImageRef(PNG.attachment.id, "image/png", PNG.attachment.size, 2, 3, "\ud800.png"))
    assert b"\\ud8" not in encoder().encode(ModelRequest(HEADER, [said(odd)]))


# --- other wires and switches ------------------------------------------------------------------


def messages_encoder(read: Any = STORE.read) -> Any:
    listed = (ModelFacts("seeing", input_modalities=("text", "image")), ModelFacts("blind"))
    provider = AnthropicProvider(config(type="anthropic", models=listed, read_image=read))
    return provider.prepare(CallConfig("test", "seeing")).encoder()


def test_the_messages_wire_takes_images_in_user_messages_and_inside_results() -> None:
    data = base64.b64encode(png()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    shown = [{"type": "text", "text": "[image a.png, PNG, 2 × 3]"}, {"type": "image", "source": source}]
    messages = [said(TextBlock("look"), PNG), called("1"), result("1", TextBlock("got"), PNG)]
    user, _, answered = wire(messages_encoder(), *messages)
    assert user["content"] == [{"type": "text", "text": "look"}, *shown]
    (block_,) = answered["content"]
    assert block_["content"] == [{"type": "text", "text": "got"}, *shown]
    (text, *_), _, _ = (message["content"] for message in wire(messages_encoder(None), *messages))
    assert text == {"type": "text", "text": "look"}


def test_the_messages_wire_keeps_its_bytes_as_a_conversation_with_images_grows() -> None:
    messages = [said(PNG), called("1", "2"), result("1", PNG), result("2", GIF), user_message("s", "more")]
    coder, previous = messages_encoder(), b""
    for end in (1, 4, 5):
        body = coder.encode(ModelRequest(HEADER, messages[:end]))
        assert body == messages_encoder().encode(ModelRequest(HEADER, messages[:end]))
        assert body.startswith(previous.rstrip(b"]}"))
        previous = body


def test_the_messages_wire_counts_its_images_anew_when_history_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(anthropic_request, "IMAGE_LIMITS", ImageLimits(count=2))
    coder = messages_encoder()
    crowded = str(wire(coder, said(PNG), said(PNG), said(PNG)))
    assert crowded.count("base64") == 2 and "as many images as it may" in crowded
    assert str(wire(coder, user_message("s", "summary"), said(PNG), said(PNG))).count("base64") == 2


@pytest.mark.parametrize("switch", ["bridge_tool_results", "merge_same_role"])
def test_a_servers_rules_on_roles_hold_for_the_message_with_the_images_too(switch: str) -> None:
    profile = dataclasses.replace(PROFILES["generic"], **{switch: True})
    messages = [said(TextBlock("go")), called("1"), result("1", PNG), user_message("s", "steered")]
    coder = ChatEncoder("p", ProfileDialect(profile), STORE.read)
    short = wire(coder, *messages[:3])
    long = wire(coder, *messages)
    assert long == wire(ChatEncoder("p", ProfileDialect(profile), STORE.read), *messages)
    roles = [message["role"] for message in long]
    if switch == "merge_same_role":
        assert roles == ["user", "assistant", "tool", "user"]
        assert long[3]["content"] == [*short[3]["content"], {"type": "text", "text": "steered"}]
    else:
        assert roles == ["user", "assistant", "tool", "assistant", "user", "user"]
        assert long[:5] == short
