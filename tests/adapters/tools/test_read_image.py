"""`read` on an image: the image itself where the model takes images, a note where it does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.attachments import MemoryAttachments
from dsh_actors.adapters.tools.read import ReadTool
from dsh_actors.core import images
from dsh_actors.core.messages import ImageBlock
from dsh_actors.errors import ToolError
from tests.adapters.tools.file_kit import Workspace, workspace_at
from tests.image_samples import ALL_TYPES, png

TOOL = ReadTool()


@pytest.fixture
def store() -> MemoryAttachments:
    return MemoryAttachments()


@pytest.fixture
def work(tmp_path: Path, store: MemoryAttachments) -> Workspace:
    place = workspace_at(tmp_path)

    def attach(data: bytes, name: str) -> ImageBlock:
        return ImageBlock(store.put(data, name))

    place.context = dataclasses.replace(place.context, attach=attach)
    return place


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_an_image_comes_as_itself_with_a_line_about_it(
    work: Workspace, store: MemoryAttachments, kind: str
) -> None:
    work.file("art/picture", ALL_TYPES[kind])
    output = work.run(TOOL, path="art/picture")
    (image,) = output.images
    assert (image.attachment.name, image.attachment.media_type) == ("art/picture", kind)
    assert store.read(image.attachment) == ALL_TYPES[kind]
    assert output.text == f"[image {image.attachment.words()}, {len(ALL_TYPES[kind])} bytes]"


def test_a_model_that_reads_text_is_told_what_the_file_is(tmp_path: Path) -> None:
    work = workspace_at(tmp_path)
    work.file("p.png", png())
    output = work.run(TOOL, path="p.png")
    assert output.images == ()
    facts = f"p.png is an image (image/png, {len(png())} bytes)"
    assert output.text == f"[{facts}; this model reads text only; its bytes: p.png#byte=0]"


def test_a_damaged_image_is_an_error_with_a_way_to_its_bytes(work: Workspace) -> None:
    work.file("p.png", png()[:-1])
    with pytest.raises(ToolError, match=r"p\.png is no whole PNG image.*p\.png#byte=0") as caught:
        work.run(TOOL, path="p.png")
    assert caught.value.code == "INVALID_IMAGE"
    output = work.run(TOOL, path="p.png#byte=0")
    assert output.images == () and "PNG" in output.text


def test_an_image_that_is_too_large_is_not_read_to_its_end(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsh_actors.adapters.tools import read_image

    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 100)
    monkeypatch.setattr(read_image, "MAX_IMAGE_BYTES", 100)
    monkeypatch.setattr(read_image, "_BLOCK", 64)
    path = work.file("p.png", png())
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ToolError) as caught:
        work.run(TOOL, path="p.png")
    assert caught.value.code == "IMAGE_TOO_LARGE"


def test_text_that_only_begins_like_an_image_is_text(work: Workspace) -> None:
    work.file("a", "RIFF and GIF8 are words\n")
    assert work.text(TOOL, path="a").startswith("     1\tRIFF and")
