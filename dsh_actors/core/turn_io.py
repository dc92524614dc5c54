"""What goes into the turn machine (inputs) and what comes out (effects): plain frozen data.

An effect that starts outside work carries a `Ticket`; the reply to it carries the same one. A
reply whose ticket is over is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.core.chunks import CallConfig, Chunk, Failure, Usage
from dsh_actors.core.events import Event
from dsh_actors.core.ids import CallId, Ticket
from dsh_actors.core.inbox import Target
from dsh_actors.core.messages import ImageBlock, Message
from dsh_actors.core.request import ModelRequest, ToolSchema
from dsh_actors.core.retry import GiveUp, Retry
from dsh_actors.core.text import JsonObject

# --- inputs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deliver:
    """Queue a message. ``wake`` starts a turn if the agent is idle."""

    message: Message
    target: Target = "next-turn"
    wake: bool = True


@dataclass(frozen=True, slots=True)
class Wake:
    """Start a turn if the agent is idle and something is pending."""


@dataclass(frozen=True, slots=True)
class EditInbox:
    """``message`` None removes the pending message ``message_id``, otherwise takes its place."""

    message_id: str
    message: Message | None = None


@dataclass(frozen=True, slots=True)
class ClearInbox:
    pass


@dataclass(frozen=True, slots=True)
class Cancel:
    """``cause``: ``{"kind": "user" | "parent" | "disposed"}`` or ``{"kind": "hook", "reason": …}``.

    ``keep_title``: a title that is being written may come to its end.
    """

    cause: JsonObject = field(hash=False)
    keep_inbox: bool = False
    keep_title: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A log-only fact that a part of the harness wants in the log (a title, an approval)."""

    type: str
    data: JsonObject = field(hash=False)
    ignorable: bool = False
    is_checked: bool = False
    """A part of the harness has looked at it already, as there may be much of it."""


@dataclass(frozen=True, slots=True)
class TitleWritten:
    """The end of a `WriteTitle`: the title or why there is none, and what it used as far as reported."""

    ticket: Ticket
    outcome: str | Failure
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class StorageBroken:
    """Events could not be made durable: nothing more may be started."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class BeginMaintenance:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class EndMaintenance:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class PromptReady:
    """``context``: facts of this moment, logged as a user message when they changed."""

    ticket: Ticket
    system: str | None
    tools: tuple[ToolSchema, ...]
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Enter:
    """Go on with these messages. ``series`` starts a new request sequence."""

    messages: tuple[Message, ...]
    series: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    pass


@dataclass(frozen=True, slots=True)
class PreStepDecided:
    ticket: Ticket
    decision: Enter | Reject


@dataclass(frozen=True, slots=True)
class CallReady:
    ticket: Ticket
    config: CallConfig
    adapter_defaults: frozenset[str]
    context_window: int | None


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Prompt assembly, an interceptor or a listener of the turn failed."""

    ticket: Ticket
    failure: Failure


@dataclass(frozen=True, slots=True)
class Flushed:
    ticket: Ticket
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Chunks:
    ticket: Ticket
    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class ErrorDecided:
    ticket: Ticket
    decision: Retry | GiveUp


@dataclass(frozen=True, slots=True)
class TimerFired:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class StoppingDone:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The final, committed form of one call's outcome.

    ``code`` and ``name`` identify an error durably; ``events`` are log-only facts of the tool;
    ``images`` follow the text.
    """

    text: str
    is_error: bool = False
    code: str | None = None
    name: str | None = None
    meta: JsonObject | None = field(default=None, hash=False)
    events: tuple[tuple[str, JsonObject], ...] = field(default=(), hash=False)
    contexts: tuple[Message, ...] = ()
    concludes: bool = False
    images: tuple[ImageBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolPrepared:
    """The policy stage is over: ``refusal`` None lets the call run."""

    ticket: Ticket
    index: int
    refusal: ToolResult | None = None


@dataclass(frozen=True, slots=True)
class ToolRan:
    ticket: Ticket
    index: int
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ToolFinalised:
    ticket: Ticket
    index: int
    result: ToolResult


Input = (
    Deliver
    | Wake
    | EditInbox
    | ClearInbox
    | Cancel
    | Record
    | TitleWritten
    | StorageBroken
    | BeginMaintenance
    | EndMaintenance
    | PromptReady
    | PreStepDecided
    | CallReady
    | WorkFailed
    | Flushed
    | Chunks
    | ErrorDecided
    | TimerFired
    | StoppingDone
    | ToolPrepared
    | ToolRan
    | ToolFinalised
)

Reply = (
    EndMaintenance
    | PromptReady
    | PreStepDecided
    | CallReady
    | WorkFailed
    | Flushed
    | Chunks
    | ErrorDecided
    | TimerFired
    | StoppingDone
)
"""Inputs that answer the work of one phase."""

# --- effects ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the pool gets it. ``problem`` says why the arguments cannot be used."""

    id: CallId
    name: str
    arguments: Any
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class AssemblePrompt:
    ticket: Ticket
    turn: int
    step: int


@dataclass(frozen=True, slots=True)
class AskPreStep:
    """``claimed`` is what listeners see; ``default`` is what is entered if none changes it."""

    ticket: Ticket
    turn: int
    step: int
    claimed: tuple[Message, ...]
    default: Enter


@dataclass(frozen=True, slots=True)
class AskRequest:
    ticket: Ticket
    turn: int
    step: int
    proposal: CallConfig


@dataclass(frozen=True, slots=True)
class Flush:
    """Make everything so far durable. ``ticket`` None: nobody waits for the answer."""

    ticket: Ticket | None


@dataclass(frozen=True, slots=True)
class OpenStream:
    ticket: Ticket
    turn: int
    step: int
    request: ModelRequest


@dataclass(frozen=True, slots=True)
class WriteTitle:
    """Ask a model for the session's title, beside the turn."""

    ticket: Ticket
    request: ModelRequest


@dataclass(frozen=True, slots=True)
class AskRequestError:
    """``retries`` counts this step's, ``retries_of_code`` those for the same failure code."""

    ticket: Ticket
    turn: int
    step: int
    provider: str
    failure: Failure
    retries: int
    retries_of_code: int


@dataclass(frozen=True, slots=True)
class StartTimer:
    ticket: Ticket
    delay_ms: int


@dataclass(frozen=True, slots=True)
class PrepareTool:
    ticket: Ticket
    index: int
    call: Call


@dataclass(frozen=True, slots=True)
class RunTool:
    ticket: Ticket
    index: int
    call: Call


@dataclass(frozen=True, slots=True)
class FinaliseTool:
    ticket: Ticket
    index: int
    call: Call
    result: ToolResult


@dataclass(frozen=True, slots=True)
class AskStopping:
    """``reason`` is that of the end of the turn, if nobody gives it more to do."""

    ticket: Ticket
    turn: int
    reason: JsonObject = field(hash=False)


@dataclass(frozen=True, slots=True)
class CancelWork:
    """Stop the work of a ticket. Running tools still report back; nothing else needs to."""

    ticket: Ticket
    cause: JsonObject = field(hash=False)


@dataclass(frozen=True, slots=True)
class Notify:
    """A live notification for observers; never durable."""

    kind: str
    payload: Mapping[str, Any] = field(hash=False)


Effect = (
    AssemblePrompt | AskPreStep | AskRequest | Flush | OpenStream | WriteTitle | AskRequestError
    | StartTimer | PrepareTool | RunTool | FinaliseTool | AskStopping | CancelWork | Notify
)


@dataclass(frozen=True, slots=True)
class Transition:
    """What one input led to: facts for the log, then work to start, both in order."""

    events: tuple[Event, ...]
    effects: tuple[Effect, ...]
