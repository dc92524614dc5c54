"""Known secrets leave no trace in text, JSON and bytes."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Failure,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from dsh_actors.core.ids import CallId, MessageId
from dsh_actors.core.messages import (
    Message,
    OpaqueBlock,
    PluginSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    user_message,
)
from dsh_actors.core.redaction import RedactingStream, Redactor

KEY = "sk-canary-0123456789abcdefXYZ"
REDACTOR = Redactor({"API_KEY": KEY, "PASS": "hunter22", "SHORT": "abc"})


def test_a_value_is_replaced_by_its_name() -> None:
    assert REDACTOR.text(f"a {KEY} b {KEY}, hunter22") == (
        "a [redacted:API_KEY] b [redacted:API_KEY], [redacted:PASS]"
    )


def test_a_short_value_is_left_alone() -> None:
    assert REDACTOR.text("abc") == "abc"


def test_text_without_a_secret_comes_back_as_the_same_object() -> None:
    text, data, value = "plain " * 100, b"plain", {"a": ["plain", 1, None]}
    assert REDACTOR.text(text) is text
    assert REDACTOR.bytes(data) is data
    assert REDACTOR.json(value) is value
    assert Redactor({}).text(KEY) is KEY


@pytest.mark.parametrize("before", ["", "u:", "us:", "usr:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_hides_no_secret_wherever_it_stands(before: str, encode: Any) -> None:
    secret = "p~?~w>>\xff-secret-value"
    encoded = encode(f"{before}{secret}:tail".encode()).decode()
    clean = Redactor({"P": secret}).text(f"Basic {encoded}")
    assert "[redacted:P]" in clean
    assert len(clean) < len("Basic [redacted:P]") + len(encode(f"{before}:tail".encode())) + 8


def test_quoted_and_escaped_forms_are_found() -> None:
    secret = 'p@ss"w\\ord/1 é'
    redactor = Redactor({"P": secret})
    for form in (quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1]):
        assert redactor.text(f"<{form}>") == "<[redacted:P]>"


def test_a_secret_cut_by_truncation_goes_as_far_as_it_shows() -> None:
    assert REDACTOR.text(KEY[:20] + "\n[100 bytes omitted]") == "[redacted:API_KEY]\n[100 bytes omitted]"
    assert REDACTOR.text("omitted]\n" + KEY[-20:] + " end") == "omitted]\n[redacted:API_KEY] end"
    assert REDACTOR.text(KEY[:6] + " is how such keys begin") == KEY[:6] + " is how such keys begin"


def test_of_two_secrets_that_begin_alike_the_longer_goes_whole() -> None:
    redactor = Redactor({"A": "common-prefix", "B": "common-prefix-and-more"})
    assert redactor.text("common-prefix-and-more") == "[redacted:B]"
    assert redactor.text("common-prefix.") == "[redacted:A]."


def test_json_is_redacted_in_keys_and_depth_and_the_original_stays() -> None:
    value = {"env": [{KEY: [f"x{KEY}"]}, 1], "ok": True}
    assert REDACTOR.json(value) == {"env": [{"[redacted:API_KEY]": ["x[redacted:API_KEY]"]}, 1], "ok": True}
    assert KEY in value["env"][0]
    deep: Any = KEY
    for _ in range(490):
        deep = [deep]
    assert KEY not in json.dumps(REDACTOR.json(deep))


def test_bytes_are_redacted_whatever_surrounds_them() -> None:
    secret = "pässword-ü"
    clean = Redactor({"P": secret}).bytes(b"\xff\x00" + secret.encode() + b"\xfe")
    assert clean == b"\xff\x00[redacted:P]\xfe"


@given(st.text(max_size=30), st.text(min_size=8, max_size=40), st.text(max_size=30))
def test_no_value_survives_in_any_surroundings(before: str, secret: str, after: str) -> None:
    redactor = Redactor({"N": secret})
    clean = redactor.text(before + secret + after)
    assert "[redacted:N]" in clean
    assert secret not in clean.replace("[redacted:N]", "")


def streamed(pieces: list[Chunk], redactor: Redactor = REDACTOR) -> list[Chunk]:
    """What a stream passes on, each chunk delivered alone."""
    stream = RedactingStream(redactor)
    return [chunk for piece in pieces for chunk in stream.chunks((piece,))]


def shown(chunks: list[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta) and chunk.index == index)


def cut(text: str, places: list[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([KEY, "hunter22", "s", "sk", "h", "hunter", " ", "z", KEY[:5]]), max_size=8),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_a_stream_shows_what_the_whole_text_would_however_it_is_cut(
    words: list[str], places: list[int]
) -> None:
    text = "".join(words)
    passed = streamed([*(TextDelta(0, piece) for piece in cut(text, places)), Finish("stop")])
    assert shown(passed) == REDACTOR.text(text)
    assert isinstance(passed[-1], Finish)


def test_a_stream_holds_back_only_what_may_become_a_secret() -> None:
    stream = RedactingStream(REDACTOR)
    assert stream.chunks((TextDelta(0, "one tw"),)) == [TextDelta(0, "one tw")]
    assert stream.chunks((TextDelta(0, "o sk-can"),)) == [TextDelta(0, "o ")]
    assert stream.chunks((TextDelta(1, "beside"),)) == [TextDelta(1, "beside")]
    assert stream.chunks((TextDelta(0, "dle"),)) == [TextDelta(0, "sk-candle")]
    assert stream.chunks((TextDelta(0, KEY + "sk"),)) == [TextDelta(0, "[redacted:API_KEY]")]
    end = BlockEnd(0, TextBlock("x"))
    assert stream.chunks((end,)) == [TextDelta(0, "sk"), end]


def test_every_kind_of_chunk_is_redacted() -> None:
    call = CallId("c")
    passed = streamed(
        [
            BlockStart(0, "reasoning"),
            ReasoningDelta(0, KEY[:9]),
            ReasoningDelta(0, KEY[9:]),
            BlockEnd(0, ReasoningBlock(KEY)),
            ToolCallDelta(1, call, "bash", '{"command": "echo ' + KEY[:20]),
            ToolCallDelta(1, call, None, KEY[20:] + '"}'),
            BlockEnd(1, ToolCallBlock(call, "bash", f'{{"command": "echo {KEY}"}}')),
            TextDelta(2, KEY[:-1]),
            Finish("error", Failure(f"bad key {KEY}", "AUTH", 401), {"response": [KEY]}),
        ]
    )
    assert KEY[:12] not in json.dumps([chunk.to_json() for chunk in passed])
    mark = "[redacted:API_KEY]"
    assert passed == [
        BlockStart(0, "reasoning"),
        ReasoningDelta(0, mark),
        BlockEnd(0, ReasoningBlock(mark)),
        ToolCallDelta(1, call, "bash", '{"command": "echo '),
        ToolCallDelta(1, call, None, mark + '"}'),
        BlockEnd(1, ToolCallBlock(call, "bash", f'{{"command": "echo {mark}"}}')),
        TextDelta(2, mark),
        Finish("error", Failure(f"bad key {mark}", "AUTH", 401), {"response": [mark]}),
    ]


def test_a_stream_without_secrets_is_passed_on_as_it_is() -> None:
    chunks = (TextDelta(0, KEY), Finish("stop"))
    assert RedactingStream(Redactor({})).chunks(chunks) is chunks


def test_a_message_is_redacted_in_every_block_and_its_source() -> None:
    plain = user_message("m", "plain")
    assert REDACTOR.message(plain) is plain
    image = OpaqueBlock({"type": "image", "path": KEY})
    message = Message(
        MessageId("m"), "user", (TextBlock(KEY), image), PluginSource("p", None, {"from": f"{KEY}"})
    )
    clean = REDACTOR.message(message)
    assert KEY not in json.dumps(clean.to_json())
    assert clean.content == (
        TextBlock("[redacted:API_KEY]"),
        OpaqueBlock({"type": "image", "path": "[redacted:API_KEY]"}),
    )
    assert clean.source == PluginSource("p", None, {"from": "[redacted:API_KEY]"})
