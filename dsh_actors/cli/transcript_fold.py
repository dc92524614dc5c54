"""A session's events folded into finished parts of an HTML page, one step at a time.

Holds one open step, a short record of each turn and the totals; what is finished goes to the spool,
so that a page can begin with what is known only at the end. Stream chunks are counted, not shown.
"""

from __future__ import annotations

import tempfile
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO

from dsh_actors.cli import transcript_blocks as blocks
from dsh_actors.cli.transcript_images import Pictures
from dsh_actors.cli.transcript_text import (
    clock,
    count,
    duration,
    money,
    one_line,
    text_of_blocks,
)
from dsh_actors.cli.transcript_timing import Bar, BarKind, Lap, Waterfall, step_bar
from dsh_actors.core.events import Event, Replace
from dsh_actors.core.outcome import OutcomeFold
from dsh_actors.core.pricing import PriceOf, Tokens
from dsh_actors.core.text import JsonObject

__all__ = ["Fold", "PriceOf", "Spool", "Turn", "token_words"]

TEXT_LIMIT = 200_000
RESULT_LIMIT = 60_000
TIGHT_LIMIT = 2_000
"""The longest text once the page is large: the end of a long session must not make it unreadable."""

LARGE_PAGE = 24 * 1024 * 1024
_IN_MEMORY = 4 * 1024 * 1024
_PIECE = 256 * 1024

_SILENT = frozenset(
    {
        "request/digest",
        "llm/retry-started",
        "session/title",
        "session/title-llm-request",
        "session/title-llm-result",
        "hook/invoked",
    }
)


class Spool:
    """Finished text in order, in memory while it is short, else in an unnamed temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self.size = 0

    def write(self, text: str) -> None:
        self.size += self._file.write(text.encode())

    def read(self, start: int, end: int) -> Iterator[str]:
        """What was written from one size to another, in pieces; both are ends of a write."""
        decoder = getincrementaldecoder("utf-8")()
        while start < end:
            self._file.seek(start)
            data = self._file.read(min(_PIECE, end - start))
            start += len(data)
            yield decoder.decode(data)

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class Turn:
    """What the head of a turn tells; ``place`` is where its body stands in the spool."""

    number: int
    started: int
    tokens: Tokens
    cost: float | None
    ended: int = 0
    place: tuple[int, int] = (0, 0)
    prompt: str = ""
    reason: JsonObject | None = None
    steps: int = 0
    calls: int = 0
    lap: Lap = field(default_factory=Lap)
    spent: str = ""
    waterfall: Waterfall = field(default_factory=Waterfall)

    @property
    def anchor(self) -> str:
        return f"t{self.number}"


@dataclass(slots=True)
class _Step:
    number: int
    started: int
    tokens: Tokens
    cost: float | None
    inputs: list[str] = field(default_factory=list)
    parts: list[str | blocks.Call] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    model_since: int | None = None
    wait_since: int | None = None
    latency: int | None = None

    def calls(self) -> Iterator[blocks.Call]:
        return (part for part in self.parts if isinstance(part, blocks.Call))

    def close_bars(self, now: int, failed: bool = False) -> None:
        """End what the step was waiting for."""
        kinds: tuple[tuple[BarKind, int | None], ...] = (
            ("model", self.model_since),
            ("wait", self.wait_since),
        )
        for kind, since in kinds:
            if since is not None:
                self.bars.append(Bar(kind, since, now, kind, failed and kind == "model"))
        self.model_since = self.wait_since = None


class Fold:
    """Feed it the events of a log in order, then `finish`. Raises OSError where the spool cannot grow."""

    def __init__(self, price_of: PriceOf, pictures: Pictures) -> None:
        self.spool = Spool()
        self.turns: list[Turn] = []
        self.outcome = OutcomeFold(price_of)
        self.lap = Lap()
        self.models: dict[str, None] = {}
        self.title: str | None = None
        self.last_time: int | None = None
        self._price_of = price_of
        self._pictures = pictures
        self.currency = "USD"
        self._turn: Turn | None = None
        self._step: _Step | None = None
        self._approvals: dict[str, blocks.Call] = {}

    def apply(self, event: Event) -> None:
        """Take in the next event. A payload of an unexpected shape is shown as it is."""
        self.last_time = event.time
        try:
            self.outcome.apply(event)
            if event.type != "assistant/chunk":
                self._fold(event)
            elif self._step is not None and self._step.latency is None:
                self._step.latency = event.time - (self._step.model_since or event.time)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError):
            self._part(
                blocks.notice(replace(event, type=f"unreadable {event.type}"), self._limit(TEXT_LIMIT))
            )

    def finish(self) -> None:
        """Close what the log left open."""
        if self._step is not None:
            self._end_step(self.last_time or 0)
        if self._turn is not None:
            self._end_turn(self.last_time or 0, None)

    def _limit(self, usual: int) -> int:
        return usual if self.spool.size < LARGE_PAGE else TIGHT_LIMIT

    def _part(self, text: str | blocks.Call) -> None:
        if self._step is not None:
            self._step.parts.append(text)
        else:
            self.spool.write(text if isinstance(text, str) else text.render())

    def _fold(self, event: Event) -> None:
        data, step = event.data, self._step
        match event.type:
            case "turn/start":
                self.finish()
                place = (self.spool.size, 0)
                self._turn = Turn(int(data["turn"]), event.time, *self._spent(), place=place)
            case "turn/end":
                self._on_turn_end(event)
            case "step/start":
                self._step = _Step(int(data["step"]), event.time, *self._spent(), model_since=event.time)
            case "step/end" if step is not None:
                self._end_step(event.time)
            case "user/message":
                self._on_input(event)
            case "assistant/message":
                self._on_reply(event)
            case "tool/call" | "tool/result" | "approval/asked" | "approval/decided":
                self._on_call(event)
            case "llm/retry" | "llm/retry-started":
                self._on_retry(event)
            case "request/header" | "request/context":
                self._on_request(event)
            case "session/title":
                self.title = str(data["title"])
            case "agent/inbox/spliced":
                self._part(blocks.spliced(data))
            case kind if kind not in _SILENT:
                self._part(blocks.notice(event, self._limit(RESULT_LIMIT)))

    # --- messages and requests ---------------------------------------------------------------

    def _on_input(self, event: Event) -> None:
        op = event.surface_op if isinstance(event.surface_op, Replace) else None
        shown = self._pictures.of(event.data["content"])
        text = blocks.input_message(event.data, op, self._limit(TEXT_LIMIT), shown)
        if event.data["source"]["kind"] == "user" and op is None:
            words = one_line(text_of_blocks(event.data["content"]), 200)
            if self.title is None:
                self.title = words
            if self._turn is not None and not self._turn.prompt:
                self._turn.prompt = words
        if self._step is not None and not self._step.parts:
            self._step.inputs.append(text)
        else:
            self._part(text)

    def _on_request(self, event: Event) -> None:
        data = event.data
        config = data["header"]["config"] if event.type == "request/header" else data
        model = f"{config['provider']}/{config['model']}"
        self.models[model] = None
        price = self._price_of(model)
        self.currency = price.currency if price is not None else self.currency
        if event.type == "request/header":
            text = blocks.request_header(data, self._limit(RESULT_LIMIT))
            if self._step is not None:
                self._step.inputs.append(text)
            else:
                self._part(text)

    def _on_reply(self, event: Event) -> None:
        data = event.data
        content = data["message"]["content"]
        if self._step is not None:
            self._step.close_bars(event.time)
        for block in content:
            if block["type"] == "tool-call":
                self._part(self._new_call(block["id"], block["name"], block["arguments"]))
            else:
                for text in blocks.reply([block], False, self._limit(TEXT_LIMIT)):
                    self._part(text)
                self._part(self._pictures.of([block]))
        if data.get("interrupted") or not content:
            for text in blocks.reply([], bool(data.get("interrupted")), 0):
                self._part(text)

    def _on_retry(self, event: Event) -> None:
        step = self._step
        if event.type == "llm/retry":
            if step is not None:
                step.close_bars(event.time, failed=True)
                step.wait_since = event.time
            self._part(blocks.notice(event, TIGHT_LIMIT))
        elif step is not None:
            step.close_bars(event.time)
            step.model_since, step.latency = event.time, None

    # --- calls -------------------------------------------------------------------------------

    def _on_call(self, event: Event) -> None:
        data = event.data
        match event.type:
            case "tool/call":
                call = self._call(data["callId"], lambda call: call.started is None)
                if call is None:
                    call = self._new_call(data["callId"], data["name"], data["arguments"])
                    self._part(call)
                call.started = event.time
            case "tool/result" if isinstance(event.surface_op, Replace):
                self._part(blocks.notice(event, 0))
            case "tool/result":
                self._on_result(event)
            case "approval/asked":
                call = self._call(data.get("callId"), lambda call: call.result is None)
                text = f"Approval was asked for: {one_line(str(data.get('reason') or data['toolName']), 300)}"
                if call is not None:
                    self._approvals[data["id"]] = call
                self._remark(call, "warn", text)
            case "approval/decided":
                call = self._approvals.pop(data["id"], None)
                good = "ok" if data["outcome"] == "allowed-once" else "bad"
                self._remark(call, good, f"Approval: {str(data['outcome']).replace('-', ' ')}")

    def _remark(self, call: blocks.Call | None, css: str, text: str) -> None:
        if call is None:
            self._part(blocks.banner(css, text))
        else:
            call.notes.append(blocks.remark(css, text))

    def _on_result(self, event: Event) -> None:
        result = event.data["message"]["content"][0]
        call_id = result["toolCallId"]
        call = self._call(call_id, lambda call: call.result is None)
        is_new = call is None
        if call is None:
            call = self._new_call(call_id, "", "{}")
        call.answer(event, self._limit(RESULT_LIMIT), self._pictures.of(result["content"]))
        if is_new:
            self._part(call)
        if self._step is not None and call.started is not None and call.ended is not None:
            failed = bool(call.chip)
            self._step.bars.append(Bar("tool", call.started, call.ended, call.name, failed))

    def _new_call(self, call_id: object, name: object, arguments: object) -> blocks.Call:
        return blocks.Call(str(call_id), str(name), str(arguments), self._limit(RESULT_LIMIT))

    def _call(self, call_id: str | None, wanted: Callable[[blocks.Call], bool]) -> blocks.Call | None:
        """The first call with this id that fits; a provider may give one id to two calls."""
        if self._step is None:
            return None
        return next((call for call in self._step.calls() if call.id == call_id and wanted(call)), None)

    # --- ends --------------------------------------------------------------------------------

    def _end_step(self, now: int) -> None:
        step, turn = self._step, self._turn
        assert step is not None
        self._step = None
        self._approvals.clear()
        step.close_bars(now, failed=True)
        lap = Lap.of(step.bars, step.started, now)
        anchor = f"{turn.anchor if turn else 't'}-s{step.number}"
        if turn is not None:
            turn.steps += 1
            turn.calls += sum(1 for _ in step.calls())
            turn.lap.add(lap)
            turn.waterfall.add(step.number, anchor, step.started, now, step.bars)
        self.lap.add(lap)
        spent = self._spent_since(step.tokens, step.cost)
        latency = f" · first token {duration(step.latency)}" if step.latency else ""
        self.spool.write(
            f'<article class="step" id="{anchor}">{"".join(step.inputs)}<header class="head">'
            f'<h3><a href="#{anchor}">Step {step.number}</a></h3>{step_bar(lap)}'
            f'<p class="facts"><span>{lap.words()}{latency}</span><span>{spent}</span>'
            f"<span>{clock(step.started)}</span></p></header>"
        )
        for part in step.parts:
            self.spool.write(part if isinstance(part, str) else part.render())
        self.spool.write("</article>\n")

    def _on_turn_end(self, event: Event) -> None:
        if self._step is not None:
            self._end_step(event.time)
        reason = event.data["reason"]
        css, _, sentence = blocks.ending(reason)
        if sentence:
            self._part(blocks.banner(css, sentence))
        if self._turn is not None:
            self._end_turn(event.time, reason)

    def _end_turn(self, now: int, reason: JsonObject | None) -> None:
        turn = self._turn
        assert turn is not None
        self._turn = None
        turn.ended, turn.reason = now, reason
        turn.place = (turn.place[0], self.spool.size)
        turn.spent = self._spent_since(turn.tokens, turn.cost)
        self.turns.append(turn)

    def _spent(self) -> tuple[Tokens, float | None]:
        return replace(self.outcome.tokens), self.outcome.cost or 0.0

    def _spent_since(self, before: Tokens, cost: float | None) -> str:
        now = self.outcome.tokens
        used = Tokens(
            now.input - before.input,
            now.cache_read - before.cache_read,
            now.cache_write - before.cache_write,
            now.output - before.output,
            now.reasoning - before.reasoning,
        )
        if used == Tokens():
            return ""
        total = self.outcome.cost
        price = "" if total is None or cost is None else f" · {money(max(0.0, total - cost), self.currency)}"
        return token_words(used) + price


def token_words(tokens: Tokens) -> str:
    """``in 1,093 · cached 20,480 · out 89 · reasoning 40``; what is zero is left out, but in and out."""
    parts = [
        ("in", tokens.input, True),
        ("cached", tokens.cache_read, False),
        ("cache write", tokens.cache_write, False),
        ("out", tokens.output, True),
        ("reasoning", tokens.reasoning, False),
    ]
    return " · ".join(f"{word} {count(number)}" for word, number, always in parts if number or always)
