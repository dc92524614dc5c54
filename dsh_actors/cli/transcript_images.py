"""The images of a session inside its HTML page: as data, so that the page needs nothing but itself."""

from __future__ import annotations

import base64
from collections.abc import Callable

from dsh_actors.cli.transcript_text import escape
from dsh_actors.core.messages import ImageRef
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import AttachmentError

__all__ = ["Pictures", "ReadImage"]

MAX_PAGE_BYTES = 64 << 20
"""Bytes of images in one page; what comes after is named only."""

ReadImage = Callable[[ImageRef], bytes]


class Pictures:
    """Shows the images of blocks. ``read`` None: there are none to be had."""

    def __init__(self, read: ReadImage | None = None) -> None:
        self._read = read
        self._left = MAX_PAGE_BYTES

    def of(self, blocks: list[JsonObject]) -> str:
        """Each image of the blocks as a figure; empty where there is none."""
        given = (block.get("attachment") for block in blocks if block.get("type") == "image")
        return "".join(self._figure(ref) for ref in map(ImageRef.from_json, given) if ref is not None)

    def _figure(self, ref: ImageRef) -> str:
        words = escape(ref.words())
        if self._read is None or ref.size > self._left:
            return f'<p class="cut">{words} is left out here.</p>'
        try:
            data = self._read(ref)
        except AttachmentError as error:
            return f'<p class="cut">{escape(error.message)}</p>'
        self._left -= len(data)
        text = base64.b64encode(data).decode("ascii")
        return (
            f'<figure class="picture"><img src="data:{ref.media_type};base64,{text}" alt="{words}" '
            f'width="{ref.width}" height="{ref.height}"><figcaption dir="auto">{words}</figcaption></figure>'
        )
