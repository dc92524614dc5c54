"""How a run ended, folded from the facts in its log, and everything ``run.end`` says about it.

The outcome follows from the last terminal event alone: an error that a retry recovered from leaves
nothing but a count. Pure: the caller brings what the log does not know.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from dsh_actors.core.answers import STRUCTURED, FinalReply, json_text, rejection_summary
from dsh_actors.core.children import ChildUse
from dsh_actors.core.chunks import Usage
from dsh_actors.core.end_texts import denied_text, judge_aborted, limit_text
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import EXIT_CODES, error_line, exit_code_of
from dsh_actors.core.jobs import UnreadNotices
from dsh_actors.core.pricing import Bill, Price, PriceOf, Rates, Tokens
from dsh_actors.core.retry import reason_of
from dsh_actors.core.text import JsonObject, JsonValue
from dsh_actors.core.title_results import is_uncounted

__all__ = ["Circumstances", "OutcomeFold", "Price", "RunEnd", "Tokens"]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the log does not know about the end of a run.

    ``reason`` overrides the log's (``usage``, ``busy``, ``pipe``, ``internal``, …) and comes with
    ``message``. ``signal`` is the signal that stopped the run; ``sandbox``: bwrap, none or off.
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
    abandoned: tuple[str, ...] = ()
    """What the run had started and what still went on when it ended."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run. ``message`` says in one line why, ``error`` is the failure as logged.

    ``structured`` is the value of an answer that fits the schema of the run, ``schema`` is ``{"errors"}``
    where the last answer does not fit it.
    """

    reason: str
    exit_code: int
    session_id: str | None
    message: str
    answer: str | None = None
    structured: JsonValue = field(default=None, hash=False)
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
    schema: JsonObject | None = field(default=None, hash=False)

    @property
    def status(self) -> str:
        """The name of the exit code's row; stays the same under ``--simple-exit``."""
        return EXIT_CODES[self.reason].name

    @property
    def completed(self) -> bool:
        return self.reason == "completed"

    def to_json(self) -> JsonObject:
        """The ``run.end`` object. ``limit``, ``signal``, ``error``, ``schema`` appear where there is one."""
        data: JsonObject = {"type": "run.end", "status": self.status, "reason": self.reason}
        data |= {"exit_code": self.exit_code, "session_id": self.session_id, "message": self.message}
        data |= {"answer": self.answer, "structured": self.structured, "partial": self.partial}
        data |= {"turns": self.turns, "steps": self.steps, "tool_calls": self.tool_calls}
        data |= {"usage": self.usage, "cost": self.cost, "duration_ms": self.duration_ms}
        data |= {"denied": list(self.denied), "tool_errors": self.tool_errors}
        data |= {"abandoned": list(self.abandoned), "retries": self.retries, "sandbox": self.sandbox}
        data["warnings"] = list(self.warnings)
        optional = {"limit": self.limit, "signal": self.signal, "error": self.error, "schema": self.schema}
        return data | {key: value for key, value in optional.items() if value is not None}

    def printed_answer(self, partial_ok: bool) -> str | None:
        """What text mode prints: the answer of a completed run; of another only if that is wanted."""
        return self.answer if self.completed or partial_ok else None

    def error_line(self) -> str | None:
        """The one line on standard error, None on success."""
        return None if self.completed else error_line(self.status, self.message, self.session_id)


def _no_price(_model: str) -> Price | None:
    return None


class OutcomeFold:
    """Feed it the events of a run as they happen; it costs nothing for stream chunks.

    ``price_of`` gives the rates of ``PROVIDER/MODEL``, None where they are not known; the time at
    which a request began decides. What a sub-agent used is told by `add_child`. What precedes the run's
    first turn (the closing of an interrupted one on resume) is not counted.
    """

    def __init__(self, price_of: PriceOf = _no_price) -> None:
        self._price_of = price_of
        self._model: str | None = None
        self._rates: Rates | None = None
        self._request_at = 0
        self._title_at: int | None = None
        self._bill = Bill()
        self._tokens = Tokens()
        self._child_tokens = Tokens()
        self._unbilled: Usage | None = None
        self._unpriced: list[tuple[Usage, int]] = []
        self.context: int | None = None
        """Tokens of the newest request and its reply, as reported: what the next request begins with."""
        self.context_window: int | None = None
        self._end: JsonObject | None = None
        self._limit: JsonObject | None = None
        self._is_limit_unknown = False
        self._text: str | None = None
        self._final = FinalReply()
        self._cut = False
        self._replied = False
        self._open_calls: dict[str, str] = {}
        self._denied: list[JsonObject] = []
        self._step_retries = 0
        self._notices = UnreadNotices()
        self._made: dict[str, int] = {}
        self.turns = self.steps = self.tool_calls = self.tool_errors = self.retries = 0
        self.tool: str | None = None
        """The tool that was started last in the open step, for a progress display."""

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    @property
    def child_tokens(self) -> Tokens:
        """What sub-agents have used, as far as they have told."""
        return self._child_tokens

    @property
    def has_ended(self) -> bool:
        """Whether the latest turn has a recorded end."""
        return self._end is not None

    @property
    def cost(self) -> float | None:
        """The cost so far with that of sub-agents, None where a part of it is not known.

        It is not known where a price is not, where a whole reply came without a count of tokens, and
        where models are paid in different currencies.
        """
        return None if self._rates is None or self._unpriced else self._bill.total

    def add_child(self, tokens: Tokens, cost: float | None, currency: str | None) -> None:
        """Count what a sub-agent used, with its own sub-agents; ``cost`` None is not known."""
        self._child_tokens.sum(tokens)
        self._bill.add(cost, currency)

    @property
    def currency(self) -> str | None:
        """What `cost` is in; None where nothing had a price so far."""
        return self._bill.currency

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
            self._final.apply(event)
        elif self.turns:
            self._fold(event)

    def _fold(self, event: Event) -> None:
        data = event.data
        match event.type:
            case "request/header":
                config = data["header"]["config"]
                self._set_model(config["provider"], config["model"])
            case "request/context":
                self.context_window = data.get("contextWindow")
            case "request/digest" | "llm/retry-started":
                self._request_at = event.time
            case "step/start":
                self.steps += 1
                self._step_retries = 0
                self._request_at = event.time
            case "assistant/message":
                self._fold_reply(data)
            case "answer/structured" | "answer/rejected":
                self._final.apply(event)
            case "tool/call":
                self.tool_calls += 1
                self.tool = name = data["name"]
                self._made[name] = self._made.get(name, 0) + 1
            case "tool/result":
                self._fold_result(data)
            case "subagent/ended":
                self._count_child(data)
            case "session/title-llm-request":
                self._title_at = event.time
            case "session/title-llm-result":
                self._count_title(data, event.time)
            case "agent/inbox/spliced":
                self._notices.queued(data)
            case "user/message":
                self._notices.read(data)
            case "llm/retry":
                self._settle()
                self.retries += 1
                self._step_retries += 1
            case "limit/reached":
                self._limit = {"kind": data["kind"], "value": data["value"]}
                self._is_limit_unknown = data.get("unknown") is True
            case "step/end":
                self._settle()
                self.tool = None
            case "turn/end":
                self._settle()
                self._end = data["reason"]

    def _fold_reply(self, data: JsonObject) -> None:
        usage, source = data.get("usage"), data["message"].get("source", {})
        self._unbilled = Usage.from_json(usage) if usage else self._unbilled
        if self._model is None and "provider" in source and "model" in source:
            # An agent that goes on does not log again which model it calls.
            self._set_model(source["provider"], source["model"])
        if self._unbilled is None and not data.get("interrupted"):
            self._bill.add(None, None)
        elif self._unbilled is not None:
            self.context = self._unbilled.total
        self._settle()
        self._final.verdict = None
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

    def _count_child(self, data: JsonObject) -> None:
        used = ChildUse.from_json(data)
        self.add_child(used.tokens, used.cost, used.currency)
        self._denied.extend(used.denied)
        self.tool_errors += used.tool_errors

    def _settle(self) -> None:
        if self._unbilled is not None:
            self._tokens.add(self._unbilled)
            self._unpriced.append((self._unbilled, self._request_at))
            self._unbilled = None
        if self._unpriced and self._model is not None:
            for usage, time in self._unpriced:
                self._bill.charge(usage, self._rates, time)
            self._unpriced.clear()

    def _set_model(self, provider: str, model: str) -> None:
        name = f"{provider}/{model}"
        if name != self._model:
            self._model, self._rates = name, self._price_of(name)

    def _count_title(self, data: JsonObject, now_ms: int) -> None:
        """Count a title; ``now_ms`` stands in where it was asked for before this run."""
        if data.get("usage"):
            usage = Usage.from_json(data["usage"])
            self._tokens.add(usage)
            rates = self._price_of(f"{data['provider']}/{data['model']}")
            self._bill.charge(usage, rates, now_ms if self._title_at is None else self._title_at)
        elif is_uncounted(data):
            self._bill.add(None, None)

    # --- the end -----------------------------------------------------------------------------

    def end(self, facts: Circumstances) -> RunEnd:
        """The run's outcome, once nothing more will happen."""
        self._settle()
        reason, message = self._judge(facts)
        if reason == "completed" and facts.abandoned:
            reason, message = "abandoned", f"given up while it went on: {', '.join(facts.abandoned)}"
        elif reason == "completed" and (unread := self._notices.jobs):
            reason, message = "abandoned", f"the agent did not hear of the end of {', '.join(unread)}"
        if reason == "storage_full" and self._made:
            # The log may lack their results: what they did is done all the same.
            message += f"; calls already made: {', '.join(f'{n} {name}' for name, n in self._made.items())}"
        answer = self._text if self._text and self._text.strip() else None
        errors, structured = self._final.errors, None
        if errors is not None and reason != "schema":
            message += f"; {rejection_summary(errors)}"
        if answer is not None and self._final.verdict is not None and self._final.verdict.type == STRUCTURED:
            # What is asked for is the value: a fence around it would be in the way of who reads it.
            answer, structured = json_text(answer), self._final.verdict.data.get("value")
        whole = reason in ("completed", "denied", "pipe") and not self._cut
        return RunEnd(
            reason=reason,
            exit_code=exit_code_of(reason, facts.signal, simple=facts.simple_exit),
            session_id=facts.session_id,
            message=message,
            answer=answer,
            structured=structured,
            partial=answer is not None and not whole,
            turns=self.turns,
            steps=self.steps,
            tool_calls=self.tool_calls,
            usage={"own": asdict(self._tokens), "children": asdict(self._child_tokens)},
            cost=self.cost,
            duration_ms=facts.duration_ms,
            denied=tuple(self._denied),
            tool_errors=self.tool_errors,
            abandoned=facts.abandoned,
            retries=self.retries,
            sandbox=facts.sandbox,
            warnings=facts.warnings,
            limit=self._limit,
            signal=facts.signal if reason == "interrupted" else None,
            error=(self._end or {}).get("error"),
            schema=None if errors is None else {"errors": errors},
        )

    def _judge(self, facts: Circumstances) -> tuple[str, str]:
        if facts.reason is not None:
            return facts.reason, facts.message or facts.reason
        end = self._end or {"kind": "none"}
        if self._limit is not None:
            return self._limit["kind"], limit_text(self._limit, self._is_limit_unknown)
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
                return judge_aborted(end.get("reason") or {}, facts.signal)
        if facts.signal is not None:
            return "interrupted", f"stopped by {facts.signal}"
        return "internal", "the run ended without an answer and without a recorded end"

    def _judge_completed(self, fail_on_denied: bool) -> tuple[str, str]:
        if self._open_calls:
            return "internal", f"the turn ended with unanswered calls: {', '.join(self._open_calls.values())}"
        if not (self._replied and self._text and self._text.strip()):
            return "empty_response", "the model's answer has no text"
        if (errors := self._final.errors) is not None:
            return "schema", rejection_summary(errors)
        if self._denied and fail_on_denied:
            return "denied", denied_text(self._denied)
        return "completed", "completed"

    def _judge_error(self, failure: JsonObject) -> tuple[str, str]:
        text = failure.get("message") or failure.get("code") or "unknown failure"
        status = failure.get("status")
        if status is not None and str(status) not in text:
            text = f"HTTP {status}: {text}"
        if self._step_retries:
            text += f"; {self._step_retries + 1} attempts"
        if isinstance(asked := failure.get("providerRetryAfterMs"), int):
            text += f"; the server asks to wait {asked / 1000:,.0f} s"
        reason = reason_of(failure.get("code", "UNKNOWN"))
        # The line on standard error begins with the name of the exit code.
        return reason, text if reason == EXIT_CODES[reason].name else f"{reason}: {text}"
