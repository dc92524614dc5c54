"""How a run ended, folded from the facts in its log, and everything ``run.end`` says about it.

The outcome follows from the last terminal event alone: an error that a retry recovered from leaves
nothing but a count. Pure: the caller brings what the log does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from dsh_actors.core.chunks import Usage
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import EXIT_CODES, exit_code_of
from dsh_actors.core.retry import reason_of
from dsh_actors.core.text import JsonObject, clean_text, decode_output, shorten

__all__ = ["Circumstances", "OutcomeFold", "Price", "RunEnd", "Tokens", "error_line"]

MAX_ERROR_LINE = 1_000
"""Code points of a message on standard error: long enough for any reason, short enough for one line."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a model, each for a million tokens, in ``currency``."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    currency: str = "USD"

    def cost(self, usage: Usage) -> float:
        """What ``usage`` costs. A cache price that is not known is the price of input."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        total = usage.input * self.input + usage.output * self.output
        total += (usage.cache_read or 0) * read + (usage.cache_write or 0) * write
        return total / 1_000_000


@dataclass(slots=True)
class Tokens:
    """Token totals. ``input`` was not cached; ``reasoning`` is a part of ``output``."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    def add(self, usage: Usage) -> None:
        self.input += usage.input
        self.cache_read += usage.cache_read or 0
        self.cache_write += usage.cache_write or 0
        self.output += usage.output
        self.reasoning += usage.reasoning or 0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the log does not know about the end of a run.

    ``reason`` overrides the log's (``usage``, ``busy``, ``pipe``, ``internal``, …) and comes with
    ``message``. ``signal`` is the signal that stopped the run; ``sandbox`` is bwrap, none or off.
    """

    session_id: str | None = None
    signal: str | None = None
    reason: str | None = None
    message: str | None = None
    duration_ms: int = 0
    sandbox: str | None = None
    warnings: tuple[str, ...] = ()
    fail_on_denied: bool = True
    simple_exit: bool = False


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run. ``message`` says in one line why, ``error`` is the failure as logged."""

    reason: str
    exit_code: int
    session_id: str | None
    message: str
    answer: str | None = None
    structured: JsonObject | None = field(default=None, hash=False)
    partial: bool = False
    turns: int = 0
    steps: int = 0
    tool_calls: int = 0
    usage: JsonObject = field(default_factory=dict, hash=False)
    cost: float | None = None
    duration_ms: int = 0
    denied: tuple[JsonObject, ...] = field(default=(), hash=False)
    tool_errors: int = 0
    abandoned: tuple[str, ...] = ()
    retries: int = 0
    sandbox: str | None = None
    warnings: tuple[str, ...] = ()
    limit: JsonObject | None = field(default=None, hash=False)
    signal: str | None = None
    error: JsonObject | None = field(default=None, hash=False)

    @property
    def status(self) -> str:
        """The name of the exit code's row; stays the same under ``--simple-exit``."""
        return EXIT_CODES[self.reason].name

    @property
    def completed(self) -> bool:
        return self.reason == "completed"

    def to_json(self) -> JsonObject:
        """The ``run.end`` object. ``limit``, ``signal`` and ``error`` appear where there is one."""
        data: JsonObject = {"type": "run.end", "status": self.status, "reason": self.reason}
        data |= {"exit_code": self.exit_code, "session_id": self.session_id, "message": self.message}
        data |= {"answer": self.answer, "structured": self.structured, "partial": self.partial}
        data |= {"turns": self.turns, "steps": self.steps, "tool_calls": self.tool_calls}
        data |= {"usage": self.usage, "cost": self.cost, "duration_ms": self.duration_ms}
        data |= {"denied": list(self.denied), "tool_errors": self.tool_errors}
        data |= {"abandoned": list(self.abandoned), "retries": self.retries, "sandbox": self.sandbox}
        data["warnings"] = list(self.warnings)
        optional = {"limit": self.limit, "signal": self.signal, "error": self.error}
        return data | {key: value for key, value in optional.items() if value is not None}

    def printed_answer(self, partial_ok: bool) -> str | None:
        """What text mode prints: the answer of a completed run; of another only if that is wanted."""
        return self.answer if self.completed or partial_ok else None

    def error_line(self) -> str | None:
        """The one line on standard error, None on success."""
        return None if self.completed else error_line(self.status, self.message, self.session_id)


def error_line(name: str, message: str, session_id: str | None = None) -> str:
    """``dsh: NAME: reason (session ID)``, on one line whatever the message holds."""
    text = shorten(_plain(message), MAX_ERROR_LINE)
    return f"dsh: {name}: {text}" + (f" (session {_plain(session_id)})" if session_id else "")


def _plain(text: str) -> str:
    return " ".join(decode_output(clean_text(text).encode()).split())


PriceOf = Callable[[str], Price | None]


def _no_price(_model: str) -> Price | None:
    return None


class OutcomeFold:
    """Feed it the events of a run as they happen; it costs nothing for stream chunks.

    ``price_of`` gives the price of ``PROVIDER/MODEL``, None where it is not known.
    What precedes the run's first turn (the closing of an interrupted one on resume) is not counted.
    """

    def __init__(self, price_of: PriceOf = _no_price) -> None:
        self._price_of = price_of
        self._price: Price | None = None
        self._cost: float | None = 0.0
        self._tokens = Tokens()
        self._unbilled: Usage | None = None
        self._end: JsonObject | None = None
        self._limit: JsonObject | None = None
        self._text: str | None = None
        self._cut = False
        self._replied = False
        self._open_calls: dict[str, str] = {}
        self._denied: list[JsonObject] = []
        self._step_retries = 0
        self._made: dict[str, int] = {}
        self.turns = self.steps = self.tool_calls = self.tool_errors = self.retries = 0
        self.tool: str | None = None
        """The tool that was started last in the open step, for a progress display."""

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    @property
    def has_ended(self) -> bool:
        """Whether the latest turn has a recorded end."""
        return self._end is not None

    @property
    def cost(self) -> float | None:
        """The cost so far, None where the price of a model that was used is not known."""
        return None if self._price is None or self._cost is None else round(self._cost, 9)

    def apply(self, event: Event) -> None:
        """Take one event of the run, in order."""
        kind, data = event.type, event.data
        if kind == "assistant/chunk":
            chunk = data["chunk"]
            if chunk["type"] == "usage" and self.turns:
                self._unbilled = Usage.from_json(chunk["usage"])
        elif kind == "turn/start":
            self.turns += 1
            self._end = self._limit = None
            self._replied = False
            self._open_calls.clear()
        elif self.turns:
            self._fold(kind, data)

    def _fold(self, kind: str, data: JsonObject) -> None:
        match kind:
            case "request/header":
                config = data["header"]["config"]
                self._price = self._price_of(f"{config['provider']}/{config['model']}")
            case "step/start":
                self.steps += 1
                self._step_retries = 0
            case "assistant/message":
                self._fold_reply(data)
            case "tool/call":
                self.tool_calls += 1
                self.tool = name = data["name"]
                self._made[name] = self._made.get(name, 0) + 1
            case "tool/result":
                self._fold_result(data)
            case "session/title-llm-result" if data.get("usage"):
                price = self._price_of(f"{data['provider']}/{data['model']}")
                self._count(Usage.from_json(data["usage"]), price)
            case "llm/retry":
                self._settle()
                self.retries += 1
                self._step_retries += 1
            case "limit/reached":
                self._limit = {"kind": data["kind"], "value": data["value"]}
            case "step/end":
                self._settle()
                self.tool = None
            case "turn/end":
                self._settle()
                self._end = data["reason"]

    def _fold_reply(self, data: JsonObject) -> None:
        usage = data.get("usage")
        self._unbilled = Usage.from_json(usage) if usage else self._unbilled
        self._settle()
        blocks = data["message"]["content"]
        self._text = "".join(block["text"] for block in blocks if block["type"] == "text")
        self._cut = bool(data.get("interrupted"))
        self._replied = True
        for block in blocks:
            if block["type"] == "tool-call":
                self._open_calls[block["id"]] = block["name"]

    def _fold_result(self, data: JsonObject) -> None:
        block = data["message"]["content"][0]
        name = self._open_calls.pop(block["toolCallId"], "")
        denial = (data.get("meta") or {}).get("denied")
        if denial is not None:
            self._denied.append({"tool": name, "call_id": block["toolCallId"], **denial})
        elif block.get("isError"):
            self.tool_errors += 1

    def _settle(self) -> None:
        if self._unbilled is not None:
            self._count(self._unbilled, self._price)
            self._unbilled = None

    def _count(self, usage: Usage, price: Price | None) -> None:
        self._tokens.add(usage)
        self._cost = None if price is None or self._cost is None else self._cost + price.cost(usage)

    # --- the end -----------------------------------------------------------------------------

    def end(self, facts: Circumstances) -> RunEnd:
        """The run's outcome, once nothing more will happen."""
        self._settle()
        reason, message = self._judge(facts)
        if reason == "storage_full" and self._made:
            # The log may lack their results: what they did is done all the same.
            message += f"; calls already made: {', '.join(f'{n} {name}' for name, n in self._made.items())}"
        answer = self._text if self._text and self._text.strip() else None
        whole = reason in ("completed", "denied", "pipe") and not self._cut
        return RunEnd(
            reason=reason,
            exit_code=exit_code_of(reason, facts.signal, simple=facts.simple_exit),
            session_id=facts.session_id,
            message=message,
            answer=answer,
            partial=answer is not None and not whole,
            turns=self.turns,
            steps=self.steps,
            tool_calls=self.tool_calls,
            usage={"own": asdict(self._tokens), "children": asdict(Tokens())},
            cost=self.cost,
            duration_ms=facts.duration_ms,
            denied=tuple(self._denied),
            tool_errors=self.tool_errors,
            retries=self.retries,
            sandbox=facts.sandbox,
            warnings=facts.warnings,
            limit=self._limit,
            signal=facts.signal if reason == "interrupted" else None,
            error=(self._end or {}).get("error"),
        )

    def _judge(self, facts: Circumstances) -> tuple[str, str]:
        if facts.reason is not None:
            return facts.reason, facts.message or facts.reason
        end = self._end or {"kind": "none"}
        if self._limit is not None:
            return self._limit["kind"], _limit_text(self._limit)
        match end["kind"]:
            case "completed":
                return self._judge_completed(facts.fail_on_denied)
            case "max-tokens":
                return "output_truncated", "the answer was cut at the model's output limit"
            case "blocked":
                return "blocked", "the turn was refused before its next step"
            case "error":
                return self._judge_error(end["error"])
            case "aborted":
                return _judge_aborted(end.get("reason") or {}, facts.signal)
        if facts.signal is not None:
            return "interrupted", f"stopped by {facts.signal}"
        return "internal", "the run ended without an answer and without a recorded end"

    def _judge_completed(self, fail_on_denied: bool) -> tuple[str, str]:
        if self._open_calls:
            return "internal", f"the turn ended with unanswered calls: {', '.join(self._open_calls.values())}"
        if not (self._replied and self._text and self._text.strip()):
            return "empty_response", "the model's answer has no text"
        if self._denied and fail_on_denied:
            return "denied", _denied_text(self._denied)
        return "completed", "completed"

    def _judge_error(self, failure: JsonObject) -> tuple[str, str]:
        text = failure.get("message") or failure.get("code") or "unknown failure"
        status = failure.get("status")
        if status is not None and str(status) not in text:
            text = f"HTTP {status}: {text}"
        if self._step_retries:
            text += f"; {self._step_retries + 1} attempts"
        reason = reason_of(failure.get("code", "UNKNOWN"))
        # The line on standard error begins with the name of the exit code.
        return reason, text if reason == EXIT_CODES[reason].name else f"{reason}: {text}"


def _judge_aborted(cause: JsonObject, signal: str | None) -> tuple[str, str]:
    kind, word = cause.get("kind"), str(cause.get("reason"))
    if kind == "hook" and word in EXIT_CODES and word != "completed":
        return word, _STOPPED.get(word, f"stopped: {word}")
    if signal is not None:
        return "interrupted", f"stopped by {signal}"
    if kind == "hook":
        return "interrupted", f"stopped: {word}"
    if kind == "disposed":
        return "internal", "the agent was disposed of before its turn was over"
    return "interrupted", "cancelled"


_STOPPED = {"timeout": "--timeout passed", "deadline": "--deadline passed"}


def _limit_text(limit: JsonObject) -> str:
    kind, value = limit["kind"], limit["value"]
    if kind == "stuck":
        return f"the same call came back with the same result {value} times"
    if kind in _STOPPED:
        return _STOPPED[kind]
    return f"--{kind.replace('_', '-')} {value} reached"


def _denied_text(denied: Sequence[JsonObject]) -> str:
    first = denied[0]
    text = f"{first['tool']} was denied by {first.get('rule') or 'a policy'}"
    if first.get("reason"):
        text += f": {first['reason']}"
    if first.get("hint"):
        text += f"; to allow it: {first['hint']}"
    return text + (f" (and {len(denied) - 1} more)" if len(denied) > 1 else "")
