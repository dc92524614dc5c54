"""Images on their way into a request body: bytes by reference, or a text where they cannot go.

What becomes of an image depends on what stands before it in the conversation alone, so that a longer
conversation begins with the same bytes.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass

from dsh_actors.core.messages import ImageBlock, ImageRef
from dsh_actors.errors import AttachmentError

__all__ = ["MAX_ENCODED_BYTES", "MAX_REQUEST_IMAGES", "ImageData", "ImageEncoder", "ImageReader"]

MAX_REQUEST_IMAGES = 600
"""DeepSeek's documented ceiling for one request."""

MAX_ENCODED_BYTES = 44 << 20
"""Of base64 in one request: bodies may have about 48 MiB (DeepSeek's documentation), text included."""

ImageReader = Callable[[ImageRef], bytes]
"""The bytes of a stored image. Raises `AttachmentError`. May wait: it is called in a stream's own task."""

_LOST = frozenset({"ATTACHMENT_NOT_FOUND", "ATTACHMENT_CORRUPT"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImageData:
    """An image as a wire carries it: ``base64`` of its bytes, and a ``handle`` that names it in text."""

    media_type: str
    base64: str
    handle: str

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


class ImageEncoder:
    """Encodes the images of one conversation in their order. ``read`` None: the model reads text only."""

    def __init__(self, read: ImageReader | None) -> None:
        self._read = read
        self._count = self._bytes = 0

    def restart(self) -> None:
        """The conversation is encoded from its beginning again."""
        self._count = self._bytes = 0

    def encode(self, block: ImageBlock) -> ImageData | str:
        """The image, or the text that stands for it.

        An image that is lost stays a text, or one missing file would end its session. Raises
        `AttachmentError` where reading failed and may succeed another time.
        """
        ref = block.attachment
        if self._read is None:
            return f"[image {ref.words()}: not shown, this model reads text only]"
        size = -(-ref.size // 3) * 4
        if self._count == MAX_REQUEST_IMAGES or self._bytes + size > MAX_ENCODED_BYTES:
            return f"[image {ref.words()}: not shown, the conversation holds as many images as it may]"
        try:
            data = self._read(ref)
        except AttachmentError as error:
            if error.code not in _LOST:
                raise
            _log.info("%s", error.message)
            return f"[image {ref.words()}: not shown, it is no longer stored]"
        self._count, self._bytes = self._count + 1, self._bytes + size
        return ImageData(ref.media_type, base64.b64encode(data).decode("ascii"), f"[image {ref.words()}]")
