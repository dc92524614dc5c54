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

__all__ = ["ImageData", "ImageEncoder", "ImageLimits", "ImageReader"]

ImageReader = Callable[[ImageRef], bytes]
"""The bytes of a stored image. Raises `AttachmentError`. May wait: it is called in a stream's own task."""

_LOST = frozenset({"ATTACHMENT_NOT_FOUND", "ATTACHMENT_CORRUPT"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What one request may hold: images, bytes of base64 over all, and of each.

    The defaults are DeepSeek's: 600 images in a body of about 48 MiB, which has to hold the text too.
    """

    count: int = 600
    encoded_bytes: int = 44 << 20
    each_encoded_bytes: int = 44 << 20


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

    def __init__(self, read: ImageReader | None, limits: ImageLimits | None = None) -> None:
        self._read = read
        self._limits = limits or ImageLimits()
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
        size, limits = -(-ref.size // 3) * 4, self._limits
        if size > limits.each_encoded_bytes:
            return f"[image {ref.words()}: not shown, it is larger than this provider takes]"
        if self._count == limits.count or self._bytes + size > limits.encoded_bytes:
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
