"""Every place where the outside world enters, as Protocols. Adapters implement them.

Implementations are plain blocking Python. What is marked *native* runs in a native thread and
uses no lock, socket, sleep or process of the patched standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dsh_actors.core.chunks import CallConfig, Chunk
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import CallId, SessionId
from dsh_actors.core.jobs import JobReading, JobView
from dsh_actors.core.messages import ImageBlock, Message
from dsh_actors.core.request import ModelRequest
from dsh_actors.core.retry import RetryPolicy
from dsh_actors.core.text import JsonObject


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, ms since the epoch: for event times only."""

    def monotonic(self) -> float:
        """Seconds that never jump: for every duration and deadline."""


class CancelToken(Protocol):
    """A one-way switch. ``reason`` is ``None`` until it is thrown; the first reason stays."""

    @property
    def reason(self) -> object | None: ...

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when it is thrown (at once if it was); returns the undo."""


# --- models -----------------------------------------------------------------------------------


class RequestEncoder(Protocol):
    def encode(self, request: ModelRequest) -> bytes:
        """The request body. A request that extends the previous one costs what it adds."""


class PreparedCall(Protocol):
    """A call with the exact model's defaults filled in. Not changed before it is sent."""

    @property
    def config(self) -> CallConfig: ...
    @property
    def adapter_defaults(self) -> frozenset[str]: ...
    @property
    def context_window(self) -> int | None: ...
    @property
    def input_modalities(self) -> tuple[str, ...]:
        """``text`` and what else may be sent: ``image``. What may not is sent as a text that names it."""

    def encoder(self) -> RequestEncoder: ...


class StreamControl(Protocol):
    """The gateway's hold on a running stream."""

    @property
    def aborted(self) -> str | None:
        """``None``, ``"cancelled"`` or ``"timeout"``. Check before each read and before judging EOF."""

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Register what wakes a blocked read (shut the socket down). Called at most once."""

    def expect_within(self, seconds: float, otherwise: str | None = None) -> None:
        """Abort with ``"timeout"`` unless this is called again, or the stream ends, in time.

        ``otherwise`` is what to say of a stream that had to be ended without a word of its own.
        """


class LlmProvider(Protocol):
    name: str
    retry_policy: RetryPolicy

    def prepare(self, config: CallConfig) -> PreparedCall:
        """Quick, no I/O. Raises `UsageError` (unknown model) or `CredentialError`."""

    def stream(self, call: PreparedCall, body: bytes, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        """One HTTP attempt. Yields what each read brought; the last chunk is a `Finish`.

        May raise; the gateway turns that into a `Finish` with a failure.
        """


# --- tools ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """``changes``: may change something (needs a durable record first; refused when read-only).
    ``native``: `execute` is file work only and runs in a native thread.
    ``path_argument``: the argument that names a path, for policies.
    ``timeout_s``: None for the configured default. ``delegates``: what changes nothing itself sets others
    to work (it needs a durable record first, too). ``holds_slot``: False for a call that only waits, which
    must not keep others from running.
    """

    name: str
    description: str
    parameters: JsonObject = field(hash=False)
    changes: bool = True
    native: bool = False
    path_argument: str | None = None
    timeout_s: float | None = None
    delegates: bool = False
    holds_slot: bool = True


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool answers. ``code`` is set on errors that have a stable one.

    ``events`` are log-only facts to commit before the result: (type, data).
    ``contexts`` become user messages of the next step. ``concludes``: no follow-up request.
    ``images`` are stored ones (`ToolContext.attach`) and follow the text.
    """

    text: str
    is_error: bool = False
    code: str | None = None
    meta: JsonObject | None = field(default=None, hash=False)
    events: tuple[tuple[str, JsonObject], ...] = field(default=(), hash=False)
    contexts: tuple[Message, ...] = ()
    concludes: bool = False
    images: tuple[ImageBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """``output``: stdout and stderr as they came, the middle cut where ``omitted`` bytes are gone.

    ``exit_code``: negative for a signal, None if it was killed by us. ``left_running``: the command
    left processes behind. ``ended_by``: None, ``"timeout"`` or ``"cancelled"``.
    """

    exit_code: int | None
    output: bytes
    omitted: int
    ended_by: str | None
    left_running: bool
    duration_s: float


class RunningProcess(Protocol):
    def wait(self, *, timeout_s: float, cancel: CancelToken) -> ProcessResult:
        """Wait for the end of the command, as `ProcessRunner.run` does; its output is not in the result.

        Called once for each command that was started.
        """


class ProcessRunner(Protocol):
    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float,
        cancel: CancelToken,
        output_limit_bytes: int,
    ) -> ProcessResult:
        """Run a command in its own session and group and wait for it, not for its pipes.

        On timeout or cancel the whole group gets TERM, a grace period, KILL. Raises `ToolError`
        when it cannot be started.
        """

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        on_output: Callable[[bytes], None],
        on_errors: Callable[[bytes], None] | None = None,
        stdin: bytes | None = None,
    ) -> RunningProcess:
        """Start a command that goes on, as `run` starts it. ``stdin`` is its whole input, None for none.

        ``on_output`` hears what it writes as it comes, quickly; what it writes to standard error too,
        unless ``on_errors`` does.
        """


class Jobs(Protocol):
    """The background jobs of one agent. Ids are its own; an unknown one raises `ToolError` (``NO_SUCH_JOB``).

    The end of a job that nobody read, waited for or asked for is told to the agent.
    """

    def start(
        self,
        label: str,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float | None,
        output_limit_bytes: int,
    ) -> JobView:
        """Start a command as a job. Between two reads ``output_limit_bytes`` of its output are kept.

        Raises `ToolError` when it cannot be started or too many go on (``TOO_MANY_JOBS``), `ActorGone` for
        an agent that is being disposed of.
        """

    def all(self) -> tuple[JobView, ...]:
        """Oldest first; of those that have ended, the latest."""

    def read(self, job_id: str) -> JobReading:
        """What was not read before. A job goes on with the end of a character or of a secret kept back."""

    def stop(self, job_id: str) -> JobView:
        """Begin to end it; nothing happens if it has ended."""

    def wait(
        self, ids: Sequence[str], *, first: bool = False, timeout_s: float, cancel: CancelToken
    ) -> tuple[JobView, ...]:
        """Wait until all of these, or the ``first``, have ended; at most ``timeout_s``. How they stand then.

        Raises `Cancelled`, where nothing has ended, when ``cancel`` is thrown.
        """


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What one call may use. ``roots`` are the directories it may write below (real paths).

    ``protected`` are directories it may not write below whatever the roots say, ``secret_files`` files
    it may neither read nor write (real paths). ``env`` is for child processes and holds no secret of
    the harness. ``wrap`` puts a command into the sandbox. ``attach`` stores an image under a name,
    natively, and raises `ImageRefused` for what is none; it is None where the model reads text only.
    ``jobs`` is None where nothing can go on in the background.
    """

    session_id: SessionId
    call_id: CallId
    cwd: str
    roots: tuple[str, ...]
    env: Mapping[str, str] = field(hash=False)
    cancel: CancelToken
    timeout_s: float
    output_limit_bytes: int
    processes: ProcessRunner
    wrap: Callable[[Sequence[str], str], Sequence[str]] = field(hash=False)
    protected: tuple[str, ...] = ()
    secret_files: tuple[str, ...] = ()
    attach: Callable[[bytes, str], ImageBlock] | None = field(default=None, hash=False)
    jobs: Jobs | None = field(default=None, hash=False)


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    def is_parallel(self, arguments: JsonObject) -> bool:
        """Whether this call may run beside others. Quick, no I/O."""

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """``arguments`` fit the schema. Raises `ToolError` (`ToolDenied` for a refusal)."""


# --- sessions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folded state after all events below ``next_seq``, as JSON (`core/snapshot.py` reads it)."""

    next_seq: int
    state: JsonObject = field(hash=False)


class SessionWriter(Protocol):
    """*Native.* The one writer of a session; holds its lock until closed."""

    @property
    def header(self) -> SessionHeader: ...
    @property
    def next_seq(self) -> int: ...

    def checkpoint(self) -> Checkpoint | None:
        """The newest usable checkpoint; None where everything has to be replayed."""

    def replay(self, from_seq: int = 0) -> Iterator[Event]:
        """The stored events from ``from_seq`` on, once, before anything is appended.

        ``from_seq`` is 0 or the ``next_seq`` of the `checkpoint`.
        """

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint of events that are all durable.

        Raises `EventRefused` for a state without a JSON form, `StorageFull` or `StorageError`.
        """

    def append(self, events: Sequence[Event]) -> None:
        """Durable on return; on failure nothing is written and the same call may be made again.

        Raises `SessionBusy` (a stale writer), `StorageFull` or `StorageError`.
        """

    def close(self) -> None: ...


class SessionDraft(Protocol):
    """*Native.* A session that is being copied: nobody sees any of it before it is published, or at all if
    its process ends before.
    """

    @property
    def next_seq(self) -> int: ...

    def append(self, events: Sequence[Event]) -> None:
        """Raises as `SessionWriter.append` does."""

    def publish(self) -> SessionWriter:
        """Let the session appear, whole, and go on with it. Called once.

        Raises `SessionExists`, `StorageFull` or `StorageError`; nothing is left of it then.
        """

    def discard(self) -> None:
        """Leave nothing of a draft that was not published. May be called again."""


@dataclass(frozen=True, slots=True)
class SessionListing:
    """``status``: ok, live, interrupted, corrupt, unsupported, empty. Times are ms since the epoch.

    ``parent``: for a sub-agent's session, whose sub-agent it is.
    """

    id: SessionId
    cwd: str | None
    title: str | None
    created: int
    updated: int
    turns: int
    status: str
    parent: SessionId | None = None


class SessionStorage(Protocol):
    """*Native.*"""

    def create(self, header: SessionHeader) -> SessionWriter:
        """Reserve an id; nothing is on disk before the first append. Raises `SessionExists`."""

    def draft(self, header: SessionHeader) -> SessionDraft:
        """Reserve an id for a copy. Raises `SessionExists`."""

    def open(self, session_id: SessionId) -> SessionWriter:
        """Raises `SessionNotFound`, `SessionBusy` with the holder, `SessionCorrupt`, `SessionUnsupported`."""

    def header(self, session_id: SessionId) -> SessionHeader: ...

    def read(self, session_id: SessionId, from_seq: int = 0) -> Iterator[Event]:
        """Stream what is stored, without a lock and without any repair."""

    def list(self, cwd: str | None = None) -> Iterator[SessionListing]:
        """Newest first; a damaged session is listed as such and raises nothing."""

    def checkpoint(self, session_id: SessionId) -> Checkpoint | None:
        """The newest usable checkpoint, read without a lock. Raises `SessionNotFound`."""

    def revision(self, session_id: SessionId) -> str:
        """An opaque text that changes whenever the stored session does. Raises `SessionNotFound`."""

    def delete(self, session_id: SessionId) -> int:
        """Remove a session that nobody holds; the bytes freed. Raises `SessionBusy`, `SessionNotFound`."""

    def path(self, session_id: SessionId) -> str:
        """The session's directory. Raises `SessionNotFound`."""
