"""The parts of a step as HTML: messages, tool calls, and notices for everything else that happened.

Only the shapes of events are known here; when and where a part stands is decided by `transcript_fold`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dsh_actors.cli.transcript_prose import prose
from dsh_actors.cli.transcript_text import duration, escape, one_line, plural, pre, text_of_blocks
from dsh_actors.core.events import Event, Replace
from dsh_actors.core.text import JsonObject, JsonValue

__all__ = [
    "Call",
    "banner",
    "ending",
    "input_message",
    "limit_words",
    "notice",
    "remark",
    "reply",
    "request_header",
    "spliced",
]

PROSE_LIMIT = 100_000
_PREVIEW = 160
_TELLING = ("command", "path", "file_path", "pattern", "query", "url", "description", "prompt", "name")
"""The arguments that say best what a call is about."""


@dataclass(slots=True)
class Call:
    """One tool call of a step: asked for, perhaps decided about, started, answered."""

    id: str
    name: str
    arguments: str
    limit: int
    started: int | None = None
    ended: int | None = None
    result: str | None = None
    chip: str = ""
    why: str = ""
    notes: list[str] = field(default_factory=list)

    def answer(self, event: Event, limit: int, pictures: str = "") -> None:
        """Take in the ``tool/result`` event, and its images as HTML."""
        data = event.data
        block = data["message"]["content"][0]
        text = text_of_blocks(block["content"])
        meta = data.get("meta") or {}
        took = meta.get("durationMs")
        if self.started is not None:
            self.ended = self.started + took if type(took) is int and took >= 0 else event.time
        self.result = pre(text, limit) + pictures
        denied = meta.get("denied")
        if denied is not None:
            self.chip = "denied"
            self.why = str(denied.get("reason") or text)
            self.notes.append(_denial(denied))
        elif block.get("isError"):
            error = data.get("error") or {}
            code = str(error.get("code") or error.get("name") or "")
            self.chip = f"error {one_line(code, 40)}".strip()
            self.why = text
        rest = {key: value for key, value in meta.items() if key not in ("denied", "durationMs")}
        if rest:
            self.result += f'<p class="meta">{_pairs(rest)}</p>'

    def render(self) -> str:
        """The call, folded; its summary line says what was asked and how it went."""
        kind = "denied" if self.chip == "denied" else "bad" if self.chip else ""
        chip = f'<span class="chip {kind}">{escape(self.chip)}</span>' if self.chip else ""
        if self.result is None:
            kind, chip = "bad", '<span class="chip bad">no result</span>'
        why = f'<span class="why">{escape(one_line(self.why, _PREVIEW))}</span>' if self.why else ""
        took = ""
        if self.started is not None and self.ended is not None:
            took = f'<span class="dur">{duration(self.ended - self.started)}</span>'
        values, arguments = _arguments(self.arguments, self.limit)
        name, about = escape(one_line(self.name, 80) or "?"), escape(_about(values, self.arguments))
        return (
            f'<details class="call unit {kind}"><summary><span class="name">{name}</span> '
            f'<span class="about" dir="auto">{about}</span> {chip} {took}{why}'
            f'</summary><div class="body"><h4>Arguments</h4>{arguments}{"".join(self.notes)}'
            f"<h4>Result</h4>{self.result or '<p class=cut>The log holds no result of this call.</p>'}"
            "</div></details>"
        )


def _denial(denied: JsonObject) -> str:
    parts = [f"Denied by {escape(str(denied.get('rule') or 'a policy'))}"]
    if denied.get("hint"):
        parts.append(f"to allow it: <code>{escape(str(denied['hint']))}</code>")
    return f'<p class="meta">{"; ".join(parts)}</p>'


def _pairs(values: JsonObject) -> str:
    shown = (f"{escape(str(key))} {escape(one_line(_plain(value), 200))}" for key, value in values.items())
    return " · ".join(shown)


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _arguments(text: str, limit: int) -> tuple[JsonObject, str]:
    """Arguments as a list of names and values; as they are where they are no JSON object."""
    try:
        values = json.loads(text)
        rows = [_argument(key, value, limit) for key, value in values.items()] if values else []
    except (ValueError, RecursionError, AttributeError):
        return {}, pre(text, limit)
    if not isinstance(values, dict) or not values:
        return {}, '<p class="meta">none</p>' if values == {} else pre(text, limit)
    return values, f'<dl class="args">{"".join(rows)}</dl>'


def _argument(key: str, value: JsonValue, limit: int) -> str:
    name = f'<dt dir="auto">{escape(key)}</dt>'
    if isinstance(value, list | dict):
        value = json.dumps(value, indent=2, ensure_ascii=False)
    text = _plain(value)
    if "\n" in text or len(text) > 200:
        return f"{name}<dd>{pre(text, limit)}</dd>"
    return f'{name}<dd><code dir="auto">{escape(text)}</code></dd>'


def _about(values: JsonObject, raw: str) -> str:
    """What the summary line of a call says of its arguments."""
    texts = {key: value for key, value in values.items() if isinstance(value, str) and value}
    for key in _TELLING:
        if key in texts:
            return one_line(texts[key], _PREVIEW)
    if texts:
        return one_line(next(iter(texts.values())), _PREVIEW)
    return "" if raw == "{}" else one_line(raw, _PREVIEW)


# --- messages --------------------------------------------------------------------------------


def input_message(data: JsonObject, replaced: Replace | None, limit: int, pictures: str = "") -> str:
    """A message to the model: the user's open, context folded, a notice as one line.

    ``pictures`` are its images as HTML.
    """
    source = data["source"]
    text = text_of_blocks(data["content"])
    kind, body = str(source["kind"]), pre(text, limit, "words") + pictures
    if kind == "user" and replaced is None:
        return f'<section class="msg user unit"><h4>User</h4>{body}</section>'
    form = source.get("form")
    origin = str(source.get("plugin") or kind)
    if form == "notice":
        head = str(source.get("summary") or one_line(text, 120))
        return _folded("note", "Notice", f"{origin}: {head}", body)
    label = "Context" if form == "snapshot" else str(form or kind).replace("-", " ").capitalize()
    about = f"{origin} · {one_line(text, 90)}"
    if replaced is not None:
        label, about = "Summary", f"in place of the events {replaced.start} to {replaced.end} for the model"
    return _folded("context", label, about, body)


def reply(blocks: list[JsonObject], interrupted: bool, limit: int) -> list[str]:
    """The text and the reasoning of a model's reply, in order; calls are left to `Call`."""
    parts = []
    for block in blocks:
        kind = block["type"]
        text = str(block.get("text") or "")
        if kind == "reasoning" and text.strip():
            parts.append(_folded("think", "Reasoning", one_line(text, 110), pre(text, limit, "words")))
        elif kind == "text" and text.strip():
            body = prose(text) if len(text) <= min(limit, PROSE_LIMIT) else pre(text, limit, "words")
            parts.append(f'<section class="msg reply unit">{body}</section>')
        elif kind not in ("reasoning", "text", "tool-call"):
            parts.append(f'<p class="msg unit">{escape(text_of_blocks([block]))}</p>')
    if interrupted:
        parts.append(banner("warn", "The reply was interrupted; this is what had arrived."))
    elif not blocks:
        parts.append('<p class="note-line unit">The reply was empty.</p>')
    return parts


def request_header(data: JsonObject, limit: int) -> str:
    """The request header: route, system prompt and tools, folded."""
    header = data["header"]
    config = header["config"]
    tools = header.get("tools") or []
    route = f"{config['provider']}/{config['model']}"
    about = f"{route} · {plural(len(tools), 'tool')} · {data.get('reason', '')}"
    settings = {key: value for key, value in config.items() if key not in ("provider", "model")}
    parts = [f'<p class="meta">{_pairs(settings)}</p>'] if settings else []
    if header.get("system"):
        parts.append(f"<h4>System prompt</h4>{pre(str(header['system']), limit, 'words')}")
    if tools:
        rows = (_argument(str(tool.get("name")), str(tool.get("description") or ""), limit) for tool in tools)
        parts.append(f'<h4>Tools</h4><dl class="args">{"".join(rows)}</dl>')
    return _folded("context", "Request", about, "".join(parts))


def _folded(css: str, label: str, about: str, body: str) -> str:
    return (
        f'<details class="{css} unit"><summary><span class="label">{escape(label)}</span> '
        f'<span class="about" dir="auto">{escape(about)}</span></summary>'
        f'<div class="body">{body}</div></details>'
    )


# --- what else happened ----------------------------------------------------------------------


def banner(css: str, text: str) -> str:
    """A line that a reader must not miss: ``warn`` or ``bad``; a search finds it by itself."""
    return f'<p class="banner unit {css}" dir="auto">{escape(text)}</p>'


def remark(css: str, text: str) -> str:
    """The same within a call, which is found as a whole."""
    return f'<p class="banner {css}" dir="auto">{escape(text)}</p>'


def failure_words(failure: JsonObject) -> str:
    status = f" (HTTP {failure['status']})" if failure.get("status") is not None else ""
    return f"{failure.get('code', 'UNKNOWN')}{status}: {one_line(str(failure.get('message', '')), 500)}"


def limit_words(data: JsonObject) -> str:
    kind = str(data["kind"])
    if kind == "stuck":
        return f"Stopped: the same call came back with the same result {data['value']} times."
    return f"Limit reached: {kind.replace('_', ' ')} {data.get('value', '')}".strip() + "."


def ending(reason: JsonObject) -> tuple[str, str, str]:
    """How a turn ended: a css class, one or two words, and a sentence (empty where all is well)."""
    kind = str(reason.get("kind"))
    cause = reason.get("reason") or {}
    match kind:
        case "completed":
            return "ok", "completed", ""
        case "error":
            return "bad", "failed", f"The turn failed. {failure_words(reason.get('error') or {})}"
        case "aborted":
            who = {
                "user": "by the user",
                "parent": "by the parent agent",
                "disposed": "as the agent was closed",
            }
            why = str(cause.get("reason") or cause.get("kind") or "")
            return (
                "warn",
                "cancelled",
                f"The turn was cancelled {who.get(str(cause.get('kind')), f'({why})')}.",
            )
        case "interrupted":
            return (
                "warn",
                "interrupted",
                "The run was interrupted here; the turn was closed when it was resumed.",
            )
        case "max-tokens":
            return "bad", "cut off", "The reply was cut at the model's output limit."
        case "blocked":
            return "bad", "blocked", "The turn was refused before its next step."
    return "warn", kind, f"The turn ended: {kind}."


def spliced(data: JsonObject) -> str:
    """A change of the inbox: only withdrawn input is worth a line."""
    if data.get("outcome") != "canceled":
        return ""
    return '<p class="note-line unit">Input that was waiting has been withdrawn.</p>'


def notice(event: Event, limit: int) -> str:
    """Any other event that is worth a line."""
    data = event.data
    match event.type:
        case "llm/retry":
            most = f" of {data['maxRetries']}" if data.get("maxRetries") is not None else ""
            wait = duration(int(data["delayMs"]))
            text = f"{failure_words(data['failure'])} — retry {data['retry']}{most} after {wait}"
            return banner("warn", text)
        case "limit/reached":
            return banner("bad", limit_words(data))
        case "todo/write":
            return _todos(data["todos"])
        case "compaction/summary":
            return _folded(
                "context",
                "Compaction",
                "earlier messages were summarised for the model",
                pre(text_of_blocks(data["summary"]), limit, "words"),
            )
        case "compaction/end" if data.get("error"):
            return banner("warn", f"Compaction failed: {data['error']}")
        case "compaction/start" | "compaction/end" | "compaction/prune":
            words = {"start": "began", "end": "ended", "prune": "shortened old results for the model"}
            return f'<p class="note-line unit">Compaction {words[event.type.partition("/")[2]]}.</p>'
        case "tool/result":
            return '<p class="note-line unit">An earlier result was shortened for the model.</p>'
        case "session/end-seed":
            text = "What stands above came with the session; here it was continued."
            return f'<p class="note-line unit">{text}</p>'
    body = pre(json.dumps(data, indent=2, ensure_ascii=False), limit)
    return _folded("note", "Event", f"{event.type} · {one_line(_plain(data), 90)}", body)


def _todos(todos: list[JsonObject]) -> str:
    words = {"completed": "done", "in_progress": "in progress", "pending": "open"}
    marks = {"completed": "✓", "in_progress": "▸"}
    rows = "".join(
        f'<li class="{"done" if todo["status"] == "completed" else ""}" dir="auto">'
        f'<span aria-hidden="true">{marks.get(todo["status"], "○")}</span> {escape(str(todo["content"]))}'
        f'<span class="sr"> ({words.get(todo["status"], "")})</span></li>'
        for todo in todos
    )
    return f'<section class="todos unit"><h4>To do</h4><ul>{rows}</ul></section>'
