"""Another way to write a request that a server refused for its form. Pure.

Servers of one kind disagree about reasoning in history and about names of members. What one of them
wants is learnt from its refusal, once a process.
"""

from __future__ import annotations

import dataclasses
import re

from dsh_actors.config.profiles import Profile

__all__ = ["other_form"]

_MISSING = re.compile(r"reasoning_?content.{0,80}(pass(ed)? back|missing|required|must )", re.I | re.S)
_NO = r"(unsupported|unknown|unrecognized|unexpected|not (allowed|permitted|supported)|extra)"
_MEMBER = r"\breasoning(_content|_details|_text)?\b"
_UNWELCOME = re.compile(f"{_NO}.{{0,80}}{_MEMBER}|{_MEMBER}.{{0,80}}{_NO}", re.I | re.S)
_REPLAYED = re.compile(rb'"reasoning(_content|_details|_text)?":["\[]')


def other_form(profile: Profile, message: str, body: bytes) -> Profile | None:
    """The profile to try next after a refusal with this message; None where the form is not to blame.

    Calls of another provider have no reasoning. Servers that insist on it take an empty text, or a
    sentence in its place; the order of attempts is omit, empty, placeholder.
    """
    if _UNWELCOME.search(message) and profile.replay_reasoning != "never" and _REPLAYED.search(body):
        return dataclasses.replace(profile, replay_reasoning="never", missing_reasoning="omit")
    if _MISSING.search(message) and b'"tool_calls":' in body:
        match profile.missing_reasoning:
            case "omit":
                return dataclasses.replace(profile, missing_reasoning="empty")
            case "empty":
                return dataclasses.replace(profile, missing_reasoning="placeholder")
        return None
    if "max_completion_tokens" in message and b'"max_tokens":' in body:
        return dataclasses.replace(profile, max_tokens_field="max_completion_tokens")
    if "stream_options" in message and profile.stream_options and b'"stream_options":' in body:
        return dataclasses.replace(profile, stream_options=False)
    return None
