"""The durable state of a session: the fold of its log, and nothing that the log does not say."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsh_actors.core.children import fold_child
from dsh_actors.core.chunks import Usage
from dsh_actors.core.events import Event, SessionHeader, wrong_payload
from dsh_actors.core.inbox import Inbox
from dsh_actors.core.jobs import JobLog
from dsh_actors.core.loop_guard import LoopGuard
from dsh_actors.core.request import RequestHeader
from dsh_actors.core.surface import Surface
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused

__all__ = ["CallRecord", "Counters", "SessionState"]


@dataclass(slots=True)
class Counters:
    """Totals over the whole session. Tokens are as reported; a replaced sample is not counted twice."""

    turns: int = 0
    steps: int = 0
    tool_calls: int = 0
    retries: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def add(self, usage: Usage) -> None:
        self.input += usage.input
        self.output += usage.output
        self.cache_read += usage.cache_read or 0
        self.cache_write += usage.cache_write or 0
        self.reasoning += usage.reasoning or 0

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


@dataclass(slots=True)
class CallRecord:
    """A call the model asked for. ``seq`` is its ``tool/call`` event, None while it was not started."""

    name: str
    arguments: str
    seq: int | None = None
    started: int = 0


@dataclass(slots=True)
class SessionState:
    """Apply events in order. `apply` raises `EventRefused` when one does not fit; drop the state then."""

    header: SessionHeader
    next_seq: int = 0
    last_time: int = 0
    last_turn: int = 0
    open_turn: int | None = None
    open_step: int | None = None
    inbox: Inbox = field(default_factory=Inbox)
    surface: Surface = field(default_factory=Surface)
    request_header: RequestHeader | None = None
    request_context: JsonObject | None = None
    open_calls: dict[str, CallRecord] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    guard: LoopGuard = field(default_factory=LoopGuard)
    todos: list[JsonObject] | None = None
    title: str | None = None
    children: dict[str, JsonObject] = field(default_factory=dict)
    """Sub-agents by id: those that work, and those that can be asked to work again."""
    jobs: JobLog = field(default_factory=JobLog)
    turn_seq: int | None = None
    """Where the latest turn begins, as far as that was seen; no checkpoint holds it."""
    title_pinned: bool = False
    """Whether a person gave the title: then nothing else changes it."""
    unbilled: Usage | None = None
    """Usage of an attempt that has not (yet) become an assistant message."""

    def apply(self, event: Event) -> None:
        if event.seq != self.next_seq:
            raise EventRefused(f"event {event.seq}: expected seq {self.next_seq}")
        if event.type == "assistant/chunk":
            chunk = event.data["chunk"]
            if chunk["type"] == "usage":
                self.unbilled = Usage.from_json(chunk["usage"])
        else:
            self.surface.apply(event)
            try:
                self._fold(event)
            except (KeyError, TypeError) as error:
                raise wrong_payload(event, error) from error
        self.next_seq += 1
        self.last_time = event.time

    def _fold(self, event: Event) -> None:
        data = event.data
        match event.type:
            case "turn/start":
                self.last_turn = self.open_turn = data["turn"]
                self.turn_seq = event.seq
                self.open_step = None
                self.counters.turns += 1
                self.todos = None
                self.open_calls.clear()
            case "turn/end":
                self._settle_usage()
                self.open_turn = self.open_step = None
                self.open_calls.clear()
            case "step/start":
                self.open_step = data["step"]
                self.counters.steps += 1
                self.guard.begin_step()
            case "step/end":
                self._settle_usage()
                self.open_step = None
                self.open_calls.clear()
            case "user/message":
                if data["source"]["kind"] == "user":
                    self.guard.reset()
            case "assistant/message":
                self._fold_reply(data)
            case "tool/call":
                call = self.open_calls.setdefault(data["callId"], CallRecord(data["name"], data["arguments"]))
                call.seq, call.started = event.seq, event.time
                self.counters.tool_calls += 1
            case "tool/result":
                self._fold_result(event)
            case "agent/inbox/spliced":
                # A fork does not inherit what its parent had pending.
                if event.seq >= (self.header.seed_length or 0):
                    self.inbox.apply(data, event.seq)
            case "request/header":
                self.request_header = RequestHeader.from_json(data["header"])
            case "request/context":
                self.request_context = data
            case "llm/retry":
                self._settle_usage()
                self.counters.retries += 1
            case "todo/write":
                self.todos = data["todos"]
            case _:
                self._fold_beside(event)

    def _fold_beside(self, event: Event) -> None:
        """What goes on beside the turns."""
        match event.type:
            case "session/title":
                self._fold_title(event.data)
            case "session/title-llm-result":
                self._fold_title_call(event.data)
            case "subagent/started" | "subagent/ended":
                # A fork is the parent of none of them.
                if event.seq >= (self.header.seed_length or 0):
                    fold_child(self.children, event.type, event.data)
            case "job/started" | "job/ended":
                own = event.seq >= (self.header.seed_length or 0)
                self.jobs.apply(event.type, event.data, own=own)

    def _fold_reply(self, data: JsonObject) -> None:
        usage = data.get("usage")
        self.unbilled = Usage.from_json(usage) if usage else self.unbilled
        self._settle_usage()
        for block in data["message"]["content"]:
            if block["type"] == "tool-call":
                self.open_calls[block["id"]] = CallRecord(block["name"], block["arguments"])

    def _fold_result(self, event: Event) -> None:
        if event.surface_op != "append":
            return  # a pruned result answers nothing anew
        block = event.data["message"]["content"][0]
        call = self.open_calls.pop(block["toolCallId"], None)
        if call is not None and call.seq is not None:
            self.guard.observe(call.name, call.arguments, block, event.time - call.started)

    def _fold_title(self, data: JsonObject) -> None:
        source = data.get("source")
        self.title = data["title"]
        self.title_pinned = isinstance(source, dict) and source.get("kind") == "user"

    def _fold_title_call(self, data: JsonObject) -> None:
        usage = data.get("usage")
        if usage:
            self.counters.add(Usage.from_json(usage))

    def _settle_usage(self) -> None:
        if self.unbilled is not None:
            self.counters.add(self.unbilled)
            self.unbilled = None

    def fingerprint(self) -> JsonObject:
        """Everything the fold knows, as JSON: equal for equal logs (tests, checkpoints)."""
        header = self.request_header
        return {
            "next_seq": self.next_seq,
            "last_time": self.last_time,
            "turn": [self.last_turn, self.open_turn, self.open_step],
            "inbox": self.inbox.snapshot(),
            "surface": [event.to_json() for event in self.surface.nodes],
            "replace_generation": self.surface.replace_generation,
            "messages": [message.to_json() for message in self.surface.messages()],
            "request": [header and header.to_json(), self.request_context],
            "open_calls": {k: [c.name, c.arguments, c.seq, c.started] for k, c in self.open_calls.items()},
            "counters": [getattr(self.counters, name) for name in Counters.__slots__],
            "todos": self.todos,
            "title": [self.title, self.title_pinned],
            "guard": self.guard.snapshot(),
            "unbilled": self.unbilled and self.unbilled.to_json(),
            "children": self.children,
            "jobs": self.jobs.to_json(),
        }
