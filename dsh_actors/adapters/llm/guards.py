"""What the end of a reply gives away: a prompt that was cut or never fitted, a call that is no call. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsh_actors.core.chunks import BlockEnd, Chunk, Failure, Finish, UsageChunk
from dsh_actors.core.messages import TextBlock

__all__ = ["has_call_markup", "is_prompt_cut", "overflow_of", "rough_tokens"]

FULL_SHARE = 0.99
CUT_SHARE = 0.6
"""A server that read less than this share of a careful estimate has left something out."""

MIN_ESTIMATE = 4_000
"""Below this an estimate says nothing."""

_CALL_MARKS = ("<tool_call>", "<function=", "<｜")
"""Of Hermes and Qwen, of Llama, and of DeepSeek."""

_RUNS = re.compile(rb"(.)\1{3,}", re.DOTALL)


def overflow_of(chunks: Sequence[Chunk], window: int | None) -> Failure | None:
    """The failure that a reply to too long a prompt really is, where its counts show that it was one.

    A stop after more tokens than the window holds, or a reply of nothing cut by length in a full window.
    """
    finish = chunks[-1]
    if window is None or len(chunks) < 2:
        return None
    usage = next((chunk.usage for chunk in chunks if isinstance(chunk, UsageChunk)), None)
    if usage is None or not isinstance(finish, Finish):
        return None
    prompt = usage.prompt
    is_over = finish.kind == "stop" and prompt > window
    is_full = finish.kind == "max-tokens" and usage.output == 0 and prompt >= FULL_SHARE * window
    if not is_over and not is_full:
        return None
    text = f"the prompt of {prompt} tokens does not fit the model's context of {window}"
    return Failure(text, "CONTEXT_WINDOW_EXCEEDED")


def is_prompt_cut(chunks: Sequence[Chunk], body: bytes) -> bool:
    """Whether the server counted far fewer tokens than ``body`` can have."""
    usage = next((chunk.usage for chunk in chunks if isinstance(chunk, UsageChunk)), None)
    if usage is None or b";base64," in body:
        return False
    # Long runs of one character are few tokens.
    estimate = rough_tokens(_RUNS.sub(rb"\1", body))
    return estimate > MIN_ESTIMATE and usage.prompt < CUT_SHARE * estimate


def has_call_markup(chunks: Sequence[Chunk]) -> bool:
    """Whether the text holds a model's own notation for calls, which the server should have parsed.

    It is not read as a call, since it may as well be an answer about that notation.
    """
    texts = [c.block.text for c in chunks if isinstance(c, BlockEnd) and isinstance(c.block, TextBlock)]
    return any(mark in text for text in texts for mark in _CALL_MARKS)


def rough_tokens(body: bytes) -> int:
    """Four bytes a token: about right for English and for code."""
    return len(body) // 4
