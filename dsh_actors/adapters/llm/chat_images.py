"""Images in the chat-completions wire: as parts of user messages, and after the tool results that hold them.

A ``tool`` message takes text only there. So the images of a run of tool results go into one user
message behind the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsh_actors.adapters.llm.images import ImageEncoder, ImageReader
from dsh_actors.adapters.llm.wire_parts import shown_text
from dsh_actors.core.messages import Block, ImageBlock, Message, ToolResultBlock
from dsh_actors.core.text import JsonObject, clean_text

__all__ = ["IMAGES_FOLLOW", "ChatImages"]

IMAGES_FOLLOW = "Images of the tool results above:"
"""The first text of a message with images of tool results."""


class ChatImages:
    """The images of one conversation, met in its order. ``read`` None: a text stands for each."""

    def __init__(self, read: ImageReader | None = None) -> None:
        self._encoder = ImageEncoder(read)
        self._held: list[JsonObject] = []

    def restart(self) -> None:
        """The conversation is encoded from its beginning again."""
        self._encoder.restart()
        self._held = []

    def content(self, blocks: Iterable[Block]) -> str | list[JsonObject]:
        """What a user says: a text where that is all there is, else parts. Raises `AttachmentError`."""
        parts: list[JsonObject] = []
        text = ""
        for block in blocks:
            if not isinstance(block, ImageBlock):
                text += shown_text(block)
                continue
            image = self._encoder.encode(block)
            if isinstance(image, str):
                text = _on_new_line(text, image)
                continue
            parts += _text_parts(text)
            text = ""
            parts += _image_parts(image.handle, image.data_url)
        return [*parts, *_text_parts(text)] if parts else clean_text(text)

    def result_text(self, result: ToolResultBlock) -> str:
        """The text of a tool result; its images are held for `held_message`. Raises `AttachmentError`."""
        text = ""
        for block in result.content:
            if not isinstance(block, ImageBlock):
                text += shown_text(block)
                continue
            image = self._encoder.encode(block)
            if isinstance(image, str):
                text = _on_new_line(text, image)
            else:
                self._held += _image_parts(image.handle, image.data_url)
        return text

    def due_before(self, message: Message) -> JsonObject | None:
        """The message with the held images, where ``message`` ends the run of results; taken by that."""
        if not self._held:
            return None
        if message.content and all(isinstance(block, ToolResultBlock) for block in message.content):
            return None
        due, self._held = self.held_message(), []
        return due

    def held_message(self) -> JsonObject | None:
        """The message with the held images, which stay held: another result may follow."""
        if not self._held:
            return None
        return {"role": "user", "content": [{"type": "text", "text": IMAGES_FOLLOW}, *self._held]}


def _text_parts(text: str) -> list[JsonObject]:
    return [{"type": "text", "text": clean_text(text)}] if text else []


def _image_parts(handle: str, data_url: str) -> list[JsonObject]:
    return [*_text_parts(handle), {"type": "image_url", "image_url": {"url": data_url}}]


def _on_new_line(text: str, more: str) -> str:
    return f"{text}\n{more}" if text and not text.endswith("\n") else text + more
