"""A log with one of everything that a transcript shows, built event by event; and what reads the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from dsh_actors.cli.transcript_html import html
from dsh_actors.core.events import Event, Replace, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.outcome import Price

__all__ = ["HEADER", "Element", "LogBuilder", "Page", "asked", "page_of", "price_of", "rich_log"]

START = 1_767_225_600_000  # 2026-01-01 00:00:00 UTC
HEADER = SessionHeader(SessionId("s-1"), START, "/srv/shop")


def price_of(model: str) -> Price | None:
    return Price(2.0, 10.0, 0.5) if model == "acme/large" else None


class LogBuilder:
    """Numbers the events and moves the clock on only where it is told to."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = START
        self.turn = self.step = 0

    def add(self, kind: str, data: dict[str, Any], **envelope: Any) -> LogBuilder:
        self.events.append(Event(kind, len(self.events), self.now, data, **envelope))
        return self

    def wait(self, ms: int) -> LogBuilder:
        self.now += ms
        return self

    @property
    def place(self) -> dict[str, int]:
        return {"turn": self.turn, "step": self.step}

    def open_turn(self) -> LogBuilder:
        self.turn, self.step = self.turn + 1, 0
        return self.add("turn/start", {"turn": self.turn})

    def open_step(self) -> LogBuilder:
        self.step += 1
        return self.add("step/start", self.place)

    def close_step(self) -> LogBuilder:
        return self.add("step/end", self.place)

    def close_turn(self, **reason: Any) -> LogBuilder:
        return self.add("turn/end", {"turn": self.turn, "reason": reason or {"kind": "completed"}})

    def user(self, text: str, source: dict[str, Any] | None = None, op: Any = "append") -> LogBuilder:
        data = {"id": f"m{len(self.events)}", "role": "user", "content": [{"type": "text", "text": text}]}
        return self.add("user/message", data | {"source": source or {"kind": "user"}}, surface_op=op)

    def request(self, model: str = "large") -> LogBuilder:
        config = {"provider": "acme", "model": model, "temperature": 0.2}
        tools = [{"name": "bash", "description": "Runs a command.", "parameters": {}}]
        header = {"config": config, "system": "You are an agent.", "tools": tools}
        self.add("request/header", {"header": header, "reason": "initial"})
        return self.add("request/context", {"provider": "acme", "model": model})

    def reply(self, *blocks: dict[str, Any], usage: dict[str, int] | None = None, **more: Any) -> LogBuilder:
        source = {"kind": "model", "provider": "acme", "model": "large"}
        message = {
            "id": f"m{len(self.events)}",
            "role": "assistant",
            "content": list(blocks),
            "source": source,
        }
        data = self.place | {"message": message} | ({"usage": usage} if usage else {}) | more
        return self.add("assistant/message", data, surface_op="append")

    def call(self, call_id: str, name: str, arguments: str) -> LogBuilder:
        return self.add("tool/call", self.place | {"callId": call_id, "name": name, "arguments": arguments})

    def result(self, call_id: str, text: str, op: Any = "append", **more: Any) -> LogBuilder:
        block: dict[str, Any] = {
            "type": "tool-result",
            "toolCallId": call_id,
            "content": [{"type": "text", "text": text}],
        }
        if "error" in more or "denied" in (more.get("meta") or {}):
            block["isError"] = True
        source = {"kind": "tool", "callId": call_id}
        message = {"id": f"m{len(self.events)}", "role": "user", "content": [block], "source": source}
        return self.add("tool/result", self.place | {"message": message} | more, surface_op=op)


def asked(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool-call", "id": call_id, "name": name, "arguments": arguments}


def rich_log() -> list[Event]:
    """Two turns: one of three steps that completes, one that fails."""
    log = LogBuilder().add("session/title", {"title": "Mend the discount"}).open_turn()
    _first_step(log)
    _second_step(log)
    mended = {"type": "text", "text": "The discount is **mended**."}
    log.open_step().reply(mended, usage={"inputTokens": 0, "outputTokens": 0}).close_step().close_turn()
    log.wait(5_000).open_turn().open_step().user("And the cart?")
    log.wait(40).reply({"type": "text", "text": "The cart"}, interrupted=True).close_step()
    log.add("limit/reached", {"kind": "max_steps", "value": 4}, ignorable=True)
    log.close_turn(
        kind="error", error={"message": "no more keys", "code": "INVALID_CREDENTIAL", "status": 401}
    )
    return log.events


def _first_step(log: LogBuilder) -> None:
    log.open_step().user("Mend the discount; touch nothing else.")
    log.user("Working directory: /srv/shop", {"kind": "plugin", "plugin": "context", "form": "snapshot"})
    log.request().wait(200)
    chunk = {"type": "text-delta", "index": 0, "text": "a streamed piece"}
    log.add("assistant/chunk", log.place | {"chunk": chunk}).wait(800)
    log.reply(
        {"type": "reasoning", "text": "Look before anything is changed."},
        {"type": "text", "text": "Looking first."},
        asked("c1", "bash", '{"command": "run-tests\\n--all", "timeout_s": 20}'),
        asked("c2", "read", '{"path": "price.py"}'),
        usage={"inputTokens": 1_000, "cacheReadTokens": 4_000, "outputTokens": 300, "reasoningTokens": 120},
    )
    log.call("c1", "bash", "…").call("c2", "read", "…").wait(1_500)
    log.result("c1", "1 failed", error={"name": "ToolFailed", "code": "EXIT_STATUS"}, meta={"exitCode": 1})
    log.result("c2", "PRICE = 3", meta={"durationMs": 12}).close_step()


def _second_step(log: LogBuilder) -> None:
    failure = {"message": "slow down", "code": "RATE_LIMIT", "status": 429}
    retry = {"retryId": "r", "provider": "acme", "retry": 1, "maxRetries": 5, "delayMs": 2_000}
    log.open_step().wait(100).add("llm/retry", log.place | retry | {"failure": failure})
    log.wait(2_000).add("llm/retry-started", log.place | {"retryId": "r", "retry": 1}).wait(500)
    log.user(
        "Say something.", {"kind": "plugin", "plugin": "empty-reply", "form": "notice", "summary": "empty"}
    )
    log.reply(
        asked("c3", "bash", '{"command": "sudo reboot"}'),
        usage={"inputTokens": 500, "outputTokens": 100},
    )
    log.add("approval/asked", {"id": "a", "toolName": "bash", "callId": "c3", "reason": "it needs root"})
    log.add("approval/decided", {"id": "a", "outcome": "rejected"})
    denied = {"tool": "bash", "rule": "no-root", "reason": "root is not allowed", "hint": "--approve all"}
    log.call("c3", "bash", "…").result("c3", "Error: root is not allowed", meta={"denied": denied})
    log.add("todo/write", {"todos": [{"content": "mend", "status": "completed"}]})
    log.add("compaction/summary", {"summary": [{"type": "text", "text": "so far"}], "compactionId": "k"})
    log.user("What happened so far", {"kind": "plugin", "plugin": "compact"}, Replace(4, 5))
    log.add("run/note", {"text": "a note of the run"}, ignorable=True).close_step()


# --- reading a page --------------------------------------------------------------------------

_VOID = {"meta", "input", "br", "hr", "rect"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element | str] = field(default_factory=list)

    @property
    def classes(self) -> set[str]:
        return set(self.attributes.get("class", "").split())

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str | None = None, css: str | None = None) -> list[Element]:
        """The elements below this one, in order."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if (tag is None or child.tag == tag) and (css is None or css in child.classes):
                    found.append(child)
                found += child.all(tag, css)
        return found

    def one(self, tag: str | None = None, css: str | None = None) -> Element:
        found = self.all(tag, css)
        assert len(found) == 1, (tag, css, len(found))
        return found[0]

    @property
    def is_folded(self) -> bool:
        """Whether a closed ``<details>`` hides it."""
        child, node = self, self.parent
        while node is not None:
            if node.tag == "details" and "open" not in node.attributes and child.tag != "summary":
                return True
            child, node = node, node.parent
        return False


class Page(HTMLParser):
    """The tree of a page. Tags that do not close as they should fail at once."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = text
        self.root = self._open = Element("#root", {})
        self.feed(text)
        self.close()
        assert self._open is self.root, f"<{self._open.tag}> was not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> names an attribute twice"
        element = Element(tag, {name: value or "" for name, value in attrs}, self._open)
        self._open.children.append(element)
        if tag not in _VOID:
            self._open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return  # a rect with a title is closed by hand; its children hang on its parent
        assert self._open.tag == tag, f"</{tag}> closes <{self._open.tag}>"
        assert self._open.parent is not None
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        self._open.children.append(data)


def page_of(events: Iterable[Event], header: SessionHeader = HEADER) -> Element:
    return Page("".join(html(header, events, price_of=price_of))).root
