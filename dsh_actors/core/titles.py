"""Session titles: the beginning of the first prompt, and what a model is asked for a better one.

Pure. A title is log-only: nothing of it is on the surface, so the requests of the conversation stay as
they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Failure, Finish, Usage
from dsh_actors.core.events import Event
from dsh_actors.core.ids import Ticket, derived_message_id
from dsh_actors.core.messages import Block, PluginSource, TextBlock, ToolCallBlock, user_message
from dsh_actors.core.quoted_files import without_quoted_files
from dsh_actors.core.request import ModelRequest, RequestHeader
from dsh_actors.core.text import JsonObject
from dsh_actors.core.title_results import TITLE_REJECTED
from dsh_actors.core.turn_env import TurnSink

__all__ = ["TITLE_TIMEOUT", "TitleCycle", "fallback_title", "judge_title", "normal_title"]

FALLBACK_WORDS = 5
FALLBACK_BYTES = 40
MAX_TITLE_BYTES = 80
MAX_INPUT_BYTES = 4_096
"""More than this of prompts is not sent: the title stays what it is."""

MAX_OUTPUT_TOKENS = 64
TITLE_TIMEOUT = "SESSION_TITLE_TIMEOUT"

SYSTEM = """\
You name conversations. The message holds what a person asked an agent for: do not do it and do not answer
it. Reply with a title and nothing else: about 5 words, or about 10 characters in Chinese, Japanese or
Korean; in the language of the request; on one line, without quotes, markup or a full stop."""

_LOOKED_AT = 4_096
"""Code points of a prompt that its title is made from."""


def normal_title(text: str, limit_bytes: int = MAX_TITLE_BYTES) -> str:
    """``text`` on one line, without what a terminal obeys or nobody sees, cut to bytes of UTF-8."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = " ".join(_visible(text).split())
    return line.encode("utf-8", "replace")[:limit_bytes].decode("utf-8", "ignore").rstrip()


def fallback_title(text: str) -> str:
    """The first words of a prompt; empty where not even one code point fits."""
    words = normal_title(text[:_LOOKED_AT], _LOOKED_AT).split()[:FALLBACK_WORDS]
    return normal_title(" ".join(words), FALLBACK_BYTES)


def judge_title(finish: Finish, blocks: Iterable[Block]) -> str | Failure:
    """The title that a reply holds, or why it holds none."""
    if finish.kind in ("error", "aborted"):
        return finish.failure or Failure("the model call failed", "UNKNOWN")
    found = tuple(blocks)
    if finish.kind == "tool-calls" or any(isinstance(block, ToolCallBlock) for block in found):
        return _rejected("the model asked for a tool instead of writing a title")
    if finish.kind == "max-tokens":
        return _rejected("the title was cut at the output limit")
    text = "".join(block.text for block in found if isinstance(block, TextBlock))
    return normal_title(text) or _rejected("the title has no text")


def _rejected(reason: str) -> Failure:
    return Failure(reason, TITLE_REJECTED)


def _visible(text: str) -> str:
    # Commands to a terminal: OSC with its text, CSI with its parameters, and the short ones.
    text = re.sub("\x1b\\][^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?", "", text)
    text = re.sub("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?", "", text)
    return "".join(character if character.isprintable() else _blank(character) for character in text)


def _blank(character: str) -> str:
    """Space for what separates words; nothing for controls and for what turns or hides text."""
    return " " if character.isspace() else ""


@dataclass(frozen=True, slots=True)
class _Prompt:
    seq: int
    text: str


def _prompt_of(event: Event) -> _Prompt | None:
    """What a person said in words, attached files aside; None for other messages, and for images alone."""
    if event.type != "user/message" or event.data["source"]["kind"] != "user":
        return None
    blocks = event.data["content"]
    text = "\n".join(block["text"] for block in blocks if block["type"] == "text").strip()
    text = without_quoted_files(text)
    return _Prompt(event.seq, text) if normal_title(text[:_LOOKED_AT]) else None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A title that a model was asked for by the ``session/title-llm-request`` at ``seq`` and ``began``."""

    seq: int
    began: int
    message_seqs: tuple[int, ...]
    effect: io.WriteTitle

    @property
    def ticket(self) -> Ticket:
        return self.effect.ticket

    @property
    def config(self) -> CallConfig:
        return self.effect.request.config


class TitleCycle:
    """Decides about the title of one session, beside its turns: it never waits and nothing waits for it."""

    def __init__(self, turn: TurnSink) -> None:
        self._turn = turn
        self._prompts: list[_Prompt] | None = None
        self._is_due = False
        self._asked: _Asked | None = None
        self._is_sent = False

    @property
    def is_under_way(self) -> bool:
        """Whether a model writes a title now."""
        return self._asked is not None and self._is_sent

    def on_user_message(self, event: Event) -> None:
        """A message was logged: the first with words names the session; a better name may be due."""
        policy, state = self._turn.env.titles, self._turn.state
        if policy is None or (prompt := _prompt_of(event)) is None:
            return
        if self._prompts is not None:
            self._prompts.append(prompt)
        if state.title is None:
            first = self._all_prompts()[0]
            is_new = first == prompt and state.header.parent_session is None
            self._is_due = is_new and policy.mode == "first-prompt"
            title = fallback_title(first.text)
            if title:
                self._emit_title(title, (first.seq,), {"kind": "fallback"})
        if policy.mode == "all-prompts":
            self._is_due = not state.title_pinned

    def on_call(self, config: CallConfig) -> None:
        """A request of the conversation is about to be made durable: log the one for a title before it."""
        policy = self._turn.env.titles
        if not self._is_due or policy is None:
            return
        self._is_due = False
        self.cancel({"kind": "hook", "reason": "superseded"})
        prompts = self._all_prompts()
        if policy.mode == "first-prompt":
            prompts = prompts[:1]
        provider, model = policy.route or (config.provider, config.model)
        text = "\n\n".join(prompt.text for prompt in prompts)
        if len(text.encode("utf-8", "replace")) > MAX_INPUT_BYTES:
            too_long = _rejected(f"the prompts have more than {MAX_INPUT_BYTES} bytes")
            self._emit_result(None, provider, model, too_long)
            return
        self._ask(CallConfig(provider, model, "off", max_tokens=MAX_OUTPUT_TOKENS), text, prompts)

    def on_flushed(self) -> None:
        """The request is durable: let the model write."""
        if self._asked is not None and not self._is_sent:
            self._is_sent = True
            self._turn.do(self._asked.effect)

    def on_written(self, message: io.TitleWritten) -> None:
        """What became of it. A title that a person gave meanwhile stays."""
        asked = self._asked
        if asked is None or message.ticket != asked.ticket:
            return  # it was given up
        self._asked = None
        config, usage = asked.config, message.usage
        failure = message.outcome if isinstance(message.outcome, Failure) else None
        self._bill(asked, usage, failure)
        extra = {} if usage is None else {"usage": usage.to_json()}
        self._emit_result(asked.seq, config.provider, config.model, failure, extra)
        if isinstance(message.outcome, str) and not self._turn.state.title_pinned:
            route = {"provider": config.provider, "model": config.model}
            self._emit_title(
                message.outcome, asked.message_seqs, {"kind": "provider", "provider": "model", "model": route}
            )

    def _bill(self, asked: _Asked, usage: Usage | None, failure: Failure | None) -> None:
        """Count what it cost; a whole reply that nobody counted by estimate, for a limit that must hold."""
        config, env = asked.config, self._turn.env
        is_whole = failure is None or failure.code == TITLE_REJECTED
        if usage is None and is_whole and env.watch.limits.max_cost is not None:
            from dsh_actors.core.tokens import TokenMeter  # only where nothing was counted

            usage = Usage(TokenMeter().measure(asked.effect.request).tokens, MAX_OUTPUT_TOKENS)
        if usage is not None:
            env.watch.spend(env.cost_of(f"{config.provider}/{config.model}", usage, asked.began))

    def cancel(self, cause: JsonObject) -> None:
        """Give up the title under way; what is late does not count."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        if self._is_sent:
            self._turn.do(io.CancelWork(asked.ticket, cause))
        failure = Failure("the title was given up", "ABORTED")
        self._emit_result(asked.seq, asked.config.provider, asked.config.model, failure)

    def _ask(self, config: CallConfig, text: str, prompts: list[_Prompt]) -> None:
        turn, seqs = self._turn, tuple(prompt.seq for prompt in prompts)
        session = turn.state.header.id
        message_id = derived_message_id(session, turn.state.next_seq)
        message = user_message(message_id, text, PluginSource("session-title"))
        data: JsonObject = {
            "titleProvider": "model",
            "messageSeqs": list(seqs),
            "route": {"provider": config.provider, "model": config.model},
            "system": SYSTEM,
            "messages": [message.to_json()],
            "maxTokens": MAX_OUTPUT_TOKENS,
        }
        event = turn.emit("session/title-llm-request", data)
        request = ModelRequest(RequestHeader(config, system=SYSTEM), [message], session)
        self._asked = _Asked(event.seq, event.time, seqs, io.WriteTitle(turn.new_ticket(), request))
        self._is_sent = False

    def _all_prompts(self) -> list[_Prompt]:
        if self._prompts is None:
            found = map(_prompt_of, self._turn.state.surface.nodes)
            self._prompts = [prompt for prompt in found if prompt is not None]
        return self._prompts

    def _emit_title(self, title: str, seqs: tuple[int, ...], source: JsonObject) -> None:
        self._turn.emit("session/title", {"title": title, "messageSeqs": list(seqs), "source": source})

    def _emit_result(
        self,
        request_seq: int | None,
        provider: str,
        model: str,
        failure: Failure | None,
        extra: JsonObject | None = None,
    ) -> None:
        """How asking a model ended, and what it used. ``request_seq`` None: it was not asked at all."""
        data: JsonObject = {"requestSeq": request_seq, "provider": provider, "model": model, **(extra or {})}
        if failure is not None:
            data["failure"] = failure.to_json()
        self._turn.emit("session/title-llm-result", data, ignorable=True)
