"""What bytes say about an image, and references to images in messages and events."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsh_actors.core import images
from dsh_actors.core.events import Event
from dsh_actors.core.images import image_type, images_of, inspect_image, require_batch
from dsh_actors.core.messages import ImageBlock, ImageRef, Message, OpaqueBlock, block_from_json
from dsh_actors.errors import ImageRefused
from tests.image_samples import ALL_TYPES, block, chunk, gif, jpeg, png, webp, webp_canvas


def refusal(data: bytes) -> str:
    with pytest.raises(ImageRefused) as caught:
        inspect_image(data, "x")
    return caught.value.code


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_each_type_tells_its_size(kind: str) -> None:
    facts = inspect_image(ALL_TYPES[kind], "x")
    assert (facts.media_type, facts.width, facts.height) == (kind, 2, 3)


@pytest.mark.parametrize("make", [png, jpeg, gif, webp, webp_canvas])
def test_width_and_height_are_not_mixed_up_and_use_all_their_bytes(make: object) -> None:
    facts = inspect_image(make(300, 4097), "x")  # type: ignore[operator]
    assert (facts.width, facts.height) == (300, 4097)


def test_a_progressive_jpeg_is_one_too() -> None:
    assert inspect_image(jpeg(5, 6, frame=0xC2), "x").height == 6
    assert refusal(jpeg(5, 6, frame=0xC4)) == "INVALID_IMAGE"


@pytest.mark.parametrize("make", [png, jpeg, gif, webp, webp_canvas])
def test_what_is_cut_off_anywhere_is_refused(make: object) -> None:
    whole = make()  # type: ignore[operator]
    for size in range(len(whole)):
        assert refusal(whole[:size]) in ("INVALID_IMAGE", "UNSUPPORTED_IMAGE_TYPE")
    inspect_image(whole + b"what follows is nobody's business", "x")


def test_a_changed_byte_of_a_png_is_noticed() -> None:
    whole = png()
    for place in range(8, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x01
        assert refusal(bytes(damaged)) == "INVALID_IMAGE"


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"BM\0\0", b"RIFF\x04\0\0\0WAVE", b"<svg/>", b"\x89PNG\n", b"\xff\xd8 text"]
)
def test_other_data_is_no_image(data: bytes) -> None:
    assert image_type(data[:12]) is None
    assert refusal(data) == "UNSUPPORTED_IMAGE_TYPE"


def test_the_limits_hold_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inspect_image(png(8192, 1), "x").width == 8192
    assert refusal(png(8193, 1)) == "IMAGE_DIMENSION_TOO_LARGE"
    assert inspect_image(png(8000, 8000), "x").height == 8000
    assert refusal(png(8000, 8001)) == "IMAGE_TOO_MANY_PIXELS"
    assert refusal(png(0, 5)) == "INVALID_IMAGE"
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", len(png()))
    inspect_image(png(), "x")
    assert refusal(png() + b"x") == "IMAGE_TOO_LARGE"


def test_a_batch_is_bounded_in_number_and_bytes() -> None:
    require_batch(20, 32 << 20)
    with pytest.raises(ImageRefused, match="21 images") as many:
        require_batch(21, 0)
    with pytest.raises(ImageRefused, match="32 MiB") as large:
        require_batch(2, (32 << 20) + 1)
    assert (many.value.code, large.value.code) == ("TOO_MANY_IMAGES", "IMAGES_TOO_LARGE")


@pytest.mark.parametrize(
    "data",
    [
        png()[:33] + chunk(b"tEXt", b"") * 60 + png()[33:],
        b"\xff\xd8" + b"\xff\xe1\0\x02" * 60 + jpeg()[2:],
        b"\xff\xd8" + b"\xff\xd0" * 60 + jpeg()[2:],
        gif()[:-2] + b"\x01\0" * 60 + b"\0\x3b",
        gif()[:-1] + b"\x21\xfe\0" * 60 + b"\x3b",
        webp(parts=60),
    ],
)
def test_a_file_of_countless_parts_is_given_up(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    assert inspect_image(data, "x").width == 2
    monkeypatch.setattr(images, "MAX_PARTS", 50)
    with pytest.raises(ImageRefused, match="too many parts"):
        inspect_image(data, "x")


def test_any_number_of_fill_bytes_may_stand_before_a_marker() -> None:
    assert inspect_image(b"\xff\xd8" + b"\xff" * 500_000 + jpeg()[2:], "x").height == 3
    assert refusal(b"\xff\xd8" + b"\xff" * 500_000) == "INVALID_IMAGE"


MAGIC = st.sampled_from([data[:12] for data in ALL_TYPES.values()] + [webp_canvas()[:30]])


@given(MAGIC, st.binary(max_size=60))
@example(b"\xff\xd8\xff", b"\xff" * 50)
@example(b"GIF89a", b"\0" * 7 + b"\x3b")
def test_whatever_follows_is_refused_or_an_image_and_never_an_accident(head: bytes, rest: bytes) -> None:
    try:
        facts = inspect_image(head + rest, "x")
    except ImageRefused as error:
        assert "\n" not in error.message
    else:
        assert facts.width >= 1 and facts.height >= 1


REF = block(png(), "a.png").attachment


def test_a_reference_comes_back_from_the_log_as_it_was() -> None:
    foreign = {**REF.to_json(), "originalDimensions": {"width": 9, "height": 9}}
    for raw in (REF.to_json(), block(gif()).attachment.to_json(), foreign):
        read = block_from_json({"type": "image", "attachment": raw})
        assert isinstance(read, ImageBlock)
        assert json.dumps(read.to_json()) == json.dumps({"type": "image", "attachment": raw})
    assert REF.words() == "a.png, PNG, 2 × 3"


@pytest.mark.parametrize(
    "change",
    [
        {"attachmentId": "sha256:../../../../etc/passwd"},
        {"attachmentId": "sha256:" + "A" * 64},
        {"attachmentId": None},
        {"mediaType": "image/svg+xml"},
        {"mediaType": ["image/png"]},
        {"bytes": "12"},
        {"bytes": True},
        {"width": 0},
        {"height": 1.5},
        {"name": None},
        {"name": 5},
    ],
)
def test_a_reference_that_cannot_be_used_is_kept_and_not_followed(change: dict) -> None:
    data = {"type": "image", "attachment": {**REF.to_json(), **change}}
    assert block_from_json(data) == OpaqueBlock(data)


def test_a_block_with_more_than_its_reference_is_kept_as_it_is() -> None:
    data = {"type": "image", "attachment": REF.to_json(), "detail": "high"}
    assert block_from_json(data).to_json() == data


def test_images_are_found_however_deep_and_deltas_are_passed_over() -> None:
    image = ImageBlock(REF).to_json()
    result = {"type": "tool-result", "toolCallId": "c", "content": [image], "isError": False}
    message = {"id": "m", "role": "user", "content": [result], "source": {"kind": "tool", "callId": "c"}}
    assert Message.from_json(message).content[0].to_json()["content"] == [image]
    waiting = {"inserted": [{"content": [{"type": "text", "text": "x"}, image, image]}]}
    ended = {"chunk": {"type": "block-end", "index": 0, "block": image}}
    for kind, data, count in (
        ("tool/result", {"message": message}, 1),
        ("agent/inbox/spliced", waiting, 2),
        ("assistant/chunk", ended, 1),
        ("assistant/chunk", {"chunk": {"type": "text-delta", "attachmentId": REF.id}}, 0),
        ("assistant/chunk", {}, 0),
        ("turn/start", {"turn": 1}, 0),
    ):
        assert list(images_of(Event(kind, 0, 0, data))) == [REF] * count
    assert isinstance(REF, ImageRef)


def test_a_picture_without_a_byte_of_pixels_is_none() -> None:
    whole = png()
    empty = whole[:33] + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    assert refusal(empty) == "INVALID_IMAGE"
    assert inspect_image(empty[:-12] + whole[33:], "x").width == 2


@pytest.mark.parametrize("length", [b"\0\0", b"\0\1"])
def test_a_segment_is_no_shorter_than_its_length(length: bytes) -> None:
    with pytest.raises(ImageRefused, match="no length"):
        inspect_image(b"\xff\xd8\xff\xe1" + length + jpeg()[2:], "x")


def test_a_chunk_of_odd_length_is_padded() -> None:
    picture = webp(4, 5)[12:]
    odd = b"ICCP" + (3).to_bytes(4, "little") + b"abc\0"
    data = b"RIFF" + (4 + len(odd) + len(picture)).to_bytes(4, "little") + b"WEBP" + odd + picture
    assert inspect_image(data, "x").width == 4


def test_a_chunk_ends_within_its_file_whatever_follows() -> None:
    whole = webp()
    longer = whole[:16] + (99).to_bytes(4, "little") + whole[20:]
    assert refusal(longer + bytes(99)) == "INVALID_IMAGE"
