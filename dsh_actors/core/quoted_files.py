"""Files that go with a prompt: how texts are written before a person's words, and those words alone. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["ImageFile", "quoted_file", "without_quoted_files"]

_BREAKS = re.compile(r"[\r\n]+")
_HEAD = re.compile(r"File [^\n]+:\n(```+)\n")


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image to go with the prompt, whole and within the limits. ``name`` is the path as it was given."""

    name: str
    data: bytes = field(repr=False)


def quoted_file(name: str, text: str) -> str:
    """``text`` under its name, fenced so that its own fences do no harm."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"File {_BREAKS.sub(' ', name)}:\n{fence}\n{text.removesuffix(chr(10))}\n{fence}"


def without_quoted_files(prompt: str) -> str:
    """What follows the files at the beginning of a prompt; the prompt itself where nothing does."""
    start = 0
    while (head := _HEAD.match(prompt, start)) is not None:
        close = f"\n{head[1]}\n\n"
        end = prompt.find(close, head.end())
        if end < 0:
            break
        start = end + len(close)
    return prompt[start:] if prompt[start:].strip() else prompt
