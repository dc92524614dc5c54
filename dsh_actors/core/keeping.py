"""What a session keeps of the prompt that it was begun with, so that its cached prefix stays valid."""

from __future__ import annotations

from dataclasses import replace

from dsh_actors.core.answers import with_schema_section, without_schema_section
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.request import RequestHeader
from dsh_actors.core.scope import KeptPrompt
from dsh_actors.core.state import SessionState

__all__ = ["is_new_fork", "kept_prompt", "with_kept_settings"]


def kept_prompt(options: AgentOptions, state: SessionState, appended: str, form: str) -> KeptPrompt | None:
    """The words a session began with; None for a prompt of its own.

    They are the whole prompt: the sections that are registered are in them already. ``appended`` and
    ``form``, the section of a schema, come from the options and may be empty: a form that was asked for
    before stays in the words, another one takes its place.
    """
    logged = state.request_header
    if logged is None or not logged.system or options.system_prompt is not None:
        return None
    if is_new_fork(state) and options.preset is not None:
        return None  # the preset has words of its own
    text = logged.system
    if appended and not without_schema_section(text).endswith(f"\n\n{appended}".rstrip("\n")):
        text = f"{text}\n\n{appended}"
    return KeptPrompt(with_schema_section(text, form) if form else text)


def is_new_fork(state: SessionState) -> bool:
    """Whether nothing has happened since the copy was made."""
    seed = state.header.seed_length
    return seed is not None and state.next_seq <= seed + 1


def with_kept_settings(asked: CallConfig, logged: RequestHeader | None) -> CallConfig:
    """What was not asked for now stays as it was asked for before, for the same model."""
    if logged is None or (logged.config.provider, logged.config.model) != (asked.provider, asked.model):
        return asked
    kept = logged.asked()
    return replace(
        asked,
        reasoning_effort=asked.reasoning_effort or kept.reasoning_effort,
        max_tokens=asked.max_tokens or kept.max_tokens,
    )
