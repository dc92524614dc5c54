"""What ``read`` gives for an image: the image itself for a model that takes images, a note for any other."""

from __future__ import annotations

import os
from io import BufferedReader

from dsh_actors.adapters.tools.paths import check_cancel
from dsh_actors.core.images import HEAD_BYTES, MAX_IMAGE_BYTES, image_type
from dsh_actors.errors import ImageRefused, ToolError
from dsh_actors.ports import ToolContext, ToolOutput

__all__ = ["read_image"]

_BLOCK = 1 << 18


def read_image(file: BufferedReader, name: str, context: ToolContext) -> ToolOutput | None:
    """None where ``file``, which stands at its beginning, does not begin as an image does.

    Raises `ToolError` for an image that is damaged or too large.
    """
    kind = image_type(file.peek(HEAD_BYTES)[:HEAD_BYTES])
    if kind is None:
        return None
    size = os.fstat(file.fileno()).st_size
    way = f"its bytes: {name}#byte=0"
    if context.attach is None:
        return ToolOutput(f"[{name} is an image ({kind}, {size} bytes); this model reads text only; {way}]")
    pieces: list[bytes] = []
    length = 0
    while length <= MAX_IMAGE_BYTES and (piece := file.read(_BLOCK)):
        check_cancel(context)
        pieces.append(piece)
        length += len(piece)
    try:
        image = context.attach(b"".join(pieces), name)
    except ImageRefused as error:
        raise ToolError(f"{error.message}; {way}", code=error.code) from error
    return ToolOutput(f"[image {image.attachment.words()}, {length} bytes]", images=(image,))
