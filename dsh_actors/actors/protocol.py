"""Every message between actors. One frozen class a message; `message_rules` says who may send it to whom.

The turn machine's own inputs (`core/turn_io.py`) are messages to the agent too: that is how its
workers answer. Asks go down the ranks only; everything else is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dsh_actors.core import turn_io
from dsh_actors.core.chunks import Failure
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import CallId, SessionId, Ticket
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.request import ModelRequest
from dsh_actors.core.scope import Scope
from dsh_actors.core.state import SessionState
from dsh_actors.core.text import JsonObject
from dsh_actors.ports import CancelToken, Checkpoint, PreparedCall, RequestEncoder, Tool, ToolContext

# --- to the session store ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReserveSession:
    """Reserve an id for a session that is not yet on disk. Replies with `Opened`.

    ``on_broken`` is called when events of the session could not be made durable.
    """

    header: SessionHeader
    on_broken: Callable[[Failure], None] = field(hash=False)
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Take a stored session over for writing and close what a crash left open. Replies with `Opened`."""

    session_id: SessionId
    on_broken: Callable[[Failure], None] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ForkSession:
    """Copy a session up to ``at_seq`` (None: its end) and hold that; ``depth``: for a sub-agent.."""

    session_id: SessionId
    child_id: SessionId
    at_seq: int | None
    preset: str | None
    now_ms: int
    on_broken: Callable[[Failure], None] = field(hash=False)
    ephemeral: bool = False
    depth: int = 0


@dataclass(frozen=True, slots=True)
class RecoverSession:
    """Rebuild the state of a session that this store holds, after its agent died. Replies with `Opened`."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class Opened:
    """``closers``: events that close an interrupted turn; ``state`` has them, whether they are stored or not.

    ``checkpoint_below``: where the checkpoint that was used ends, 0 for none.
    """

    header: SessionHeader
    state: SessionState
    closers: tuple[Event, ...] = ()
    checkpoint_below: int = 0


@dataclass(frozen=True, slots=True)
class InspectSession:
    """Fold what is stored, in memory only, without a lock. Replies with `Opened`."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class LoadSession:
    """Close what a crash left open, on the disk, and let the session go again. Replies with `Opened`."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class PrepareSession:
    """Read a session and keep it locked for an `OpenSession` to come. Replies with `Opened`."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class ReleaseSession:
    """Give a prepared session up; nothing happens if it was opened meanwhile. Replies when done."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Keep the state of all that was appended so far, once it is durable; failing changes nothing."""

    session_id: SessionId
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class AppendEvents:
    session_id: SessionId
    events: tuple[Event, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class FlushSession:
    """Make everything appended so far durable; ``reply`` hears `turn_io.Flushed` with the ticket."""

    session_id: SessionId
    ticket: Ticket | None
    reply: Callable[[turn_io.Flushed], None] | None = field(hash=False)


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Flush, save the ``checkpoint``, give up the lock, forget. Replies when done.
    ``discard`` drops what was not written, and a fresh fork altogether."""

    session_id: SessionId
    discard: bool = False
    checkpoint: Checkpoint | None = None


# --- to the projector -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The index may be stale for this session."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class SettleIndex:
    """Replies when every session that is no longer live has been looked at."""


# --- to the telemetry sink ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordEvents:
    """What was counted since the last one."""

    counts: Mapping[tuple[str, ...], float] = field(hash=False)


@dataclass(frozen=True, slots=True)
class FlushTelemetry:
    """Replies when everything told before has been taken in."""


# --- to the model gateway ---------------------------------------------------------------------


class Owner(NamedTuple):
    """Whose work it is: one life of a session's agent. A rebuilt or resumed agent is another owner."""

    session: SessionId
    life: int


@dataclass(frozen=True, slots=True)
class OpenModelStream:
    """``owner`` and ``ticket`` name the stream; ``reply`` hears its chunks, the last with a `Finish`."""

    owner: Owner
    ticket: Ticket
    call: PreparedCall
    encoder: RequestEncoder
    request: ModelRequest
    interceptors: tuple[Callable[..., Any], ...] = field(hash=False)
    reply: Callable[[turn_io.Chunks], None] = field(hash=False)


@dataclass(frozen=True, slots=True)
class AbortModelStream:
    owner: Owner
    ticket: Ticket


# --- to the tool pool -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunToolCall:
    """``tool`` None: no such tool. ``reply`` hears one `turn_io.ToolRan` for each call the pool received."""

    owner: Owner
    ticket: Ticket
    index: int
    call: turn_io.Call
    tool: Tool | None
    make_context: Callable[[CallId, CancelToken, Tool], ToolContext] = field(hash=False)
    interceptors: tuple[Callable[..., Any], ...] = field(hash=False)
    reply: Callable[[turn_io.ToolRan], None] = field(hash=False)


@dataclass(frozen=True, slots=True)
class CancelToolCall:
    owner: Owner
    ticket: Ticket
    cause: JsonObject = field(hash=False)


# --- to the approvals actor -------------------------------------------------------------------

Outcome = Literal["allowed-once", "rejected", "cancelled", "unavailable"]


@dataclass(frozen=True, slots=True)
class RequestApproval:
    owner: SessionId
    approval_id: str
    tool: str
    arguments: JsonObject = field(hash=False)
    reason: str
    reply: Callable[[Outcome], None] = field(hash=False)


@dataclass(frozen=True, slots=True)
class DropApproval:
    """Whoever waits for the answer has gone."""

    approval_id: str


# --- to an agent ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WhenIdle:
    """Replies once the agent is idle; ``settled``: and no title is being written."""

    settled: bool = False


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Replies with `AgentStatus`."""


@dataclass(frozen=True, slots=True)
class GetSnapshot:
    """Replies with a `Checkpoint` of everything the agent has appended."""


@dataclass(frozen=True, slots=True)
class ApprovalAnswered:
    ticket: Ticket
    index: int
    approval_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """``tool`` is running, ``context``: tokens of the next request, ``turn_seq``: where its last turn is."""

    status: Literal["idle", "running"]
    phase: str
    turn: int
    step: int | None
    tool: str | None
    next_turn: int
    next_step: int
    next_seq: int
    context: int | None = None
    context_window: int | None = None
    turn_seq: int | None = None


# --- to the supervisor ------------------------------------------------------------------------

Setup = Callable[[Scope], Callable[[], None] | None]


@dataclass(frozen=True, slots=True)
class CreateAgent:
    """Replies with `AgentEntry` once the agent is published; an error leaves nothing behind."""

    options: AgentOptions
    header: SessionHeader
    setup: Setup | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class ResumeAgent:
    options: AgentOptions
    session_id: SessionId
    setup: Setup | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class ForkAgent:
    """Create an agent whose session begins as a copy of another one, live or stored."""

    options: AgentOptions
    session_id: SessionId
    child_id: SessionId
    at_seq: int | None = None
    setup: Setup | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class DisposeAgent:
    """Cancel, wait until idle, flush, unregister; replies then. ``keep_inbox``: what is queued stays so.

    ``scope`` is that of the agent which is meant, as no later one of its session is; None: any one.
    """

    session_id: SessionId
    timeout_s: float = 30.0
    keep_inbox: bool = False
    scope: Scope | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class GetAgents:
    """Replies with the published `AgentEntry` list, oldest first."""


@dataclass(frozen=True, slots=True)
class AwaitAgent:
    """Replies once it is up (again); raises `ActorGone` where it is not coming back. ``scope``: see above."""

    session_id: SessionId
    scope: Scope | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Dispose of every agent. Replies when done."""

    timeout_s: float = 30.0
