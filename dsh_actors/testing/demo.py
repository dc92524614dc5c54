"""The script behind ``scripted/demo``: looks around with real tools and reports what it found.

A deterministic function of the request: what to do next follows from the calls and results that
the conversation already holds. It is no model and says so. No I/O here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from dsh_actors.core.answers import schema_in
from dsh_actors.core.messages import Message, TextBlock, ToolCallBlock, ToolResultBlock, UserSource, text_of
from dsh_actors.core.request import ModelRequest
from dsh_actors.core.text import JsonObject, shorten
from dsh_actors.testing.demo_values import demo_value

__all__ = ["demo_entry"]

LOOK_COMMAND = "ls; git status --short --branch 2>/dev/null | head -n 20; true"
MAX_READS = 2
READ_LINES = 40

_COMMON = (
    "a about all also an and any are as at be by can do does file files find for from give has have how i in "
    "into is it its list look me my of on or please project read show some summarise summarize tell that the "
    "their them then there these this to use was what where which who why will with you your"
)
_STOP_WORDS = frozenset(_COMMON.split())
_TEXT_ENDINGS = (".md", ".txt", ".rst", ".py", ".toml", ".cfg", ".json", ".c", ".h", ".rs", ".go", ".js")
_GREP_LINE = re.compile(r"^(?P<path>[^\s:][^:]*):(?P<line>\d+):")


@dataclass(frozen=True, slots=True)
class _Answered:
    """One call and what came back."""

    tool: str
    arguments: JsonObject
    text: str
    failed: bool


@dataclass(slots=True)
class _Findings:
    """What the conversation holds since the last prompt."""

    prompt: str
    calls: list[_Answered] = field(default_factory=list)

    def of(self, tool: str) -> list[_Answered]:
        return [call for call in self.calls if call.tool == tool]

    def lines(self, tool: str) -> list[str]:
        good = (call.text for call in self.of(tool) if not call.failed)
        return [line.strip() for text in good for line in text.splitlines() if line.strip()]

    def asked(self, tool: str) -> bool:
        return bool(self.of(tool))


def demo_entry(request: ModelRequest) -> JsonObject:
    """The next entry of the demo, in the vocabulary of `scripted`."""
    found = _findings(request)
    tools = {tool.name for tool in request.header.tools}
    calls = _look_around(found, tools) or _search(found, tools) or _read(found, tools)
    if not calls:
        schema = schema_in(request.header.system or "")
        if schema is not None:
            return {"text": json.dumps(demo_value(schema), ensure_ascii=False)}
        return {"text": _answer(found, tools)}
    entry: JsonObject = {"calls": calls}
    if not found.calls:
        entry["text"] = "I am scripted/demo, a fixed script and not a model. Looking around first."
    return entry


def _findings(request: ModelRequest) -> _Findings:
    start = 0
    for index, message in enumerate(request.messages):
        if message.role == "user" and _is_prompt(message):
            start = index
    prompt = text_of(request.messages[start]) if request.messages else ""
    found = _Findings(prompt)
    asked: dict[str, ToolCallBlock] = {}
    for message in request.messages[start:]:
        for block in message.content:
            if isinstance(block, ToolCallBlock):
                asked[block.id] = block
            elif isinstance(block, ToolResultBlock) and block.tool_call_id in asked:
                call = asked[block.tool_call_id]
                text = "".join(part.text for part in block.content if isinstance(part, TextBlock))
                found.calls.append(_Answered(call.name, _arguments(call), text, block.is_error))
    return found


def _arguments(call: ToolCallBlock) -> JsonObject:
    """The call's arguments; a real model that answered before may have written anything."""
    try:
        value = json.loads(call.arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_prompt(message: Message) -> bool:
    return isinstance(message.source, UserSource) and bool(text_of(message).strip())


def _look_around(found: _Findings, tools: set[str]) -> list[JsonObject]:
    calls = []
    if "glob" in tools and not found.asked("glob"):
        calls.append({"tool": "glob", "arguments": {"pattern": "**/*"}})
    if "bash" in tools and not found.asked("bash"):
        calls.append({"tool": "bash", "arguments": {"command": LOOK_COMMAND, "timeout_s": 20}})
    return calls


def _search(found: _Findings, tools: set[str]) -> list[JsonObject]:
    words = _words(found.prompt)
    if "grep" not in tools or found.asked("grep") or not words:
        return []
    pattern = "|".join(map(re.escape, words))
    return [{"tool": "grep", "arguments": {"pattern": pattern, "ignore_case": True, "limit": 30}}]


def _read(found: _Findings, tools: set[str]) -> list[JsonObject]:
    if "read" not in tools or found.asked("read"):
        return []
    return [
        {"tool": "read", "arguments": {"path": path, "limit": READ_LINES}}
        for path in _candidates(found)[:MAX_READS]
    ]


def _words(prompt: str) -> list[str]:
    """The words of the prompt worth looking for, in order, at most five."""
    words = (word.lower() for word in re.findall(r"[^\W_][\w\-]{2,40}", prompt))
    return list(dict.fromkeys(word for word in words if word not in _STOP_WORDS))[:5]


def _paths(found: _Findings) -> list[str]:
    """What looks like a path in the listings; notes of the tools hold blanks and brackets."""
    listed = found.lines("glob") or found.lines("bash")
    return [line for line in listed if not re.search(r"[\s()\[\]:#]", line) and not line.endswith("/")]


def _matches(found: _Findings) -> list[str]:
    return [line for line in found.lines("grep") if _GREP_LINE.match(line)]


def _candidates(found: _Findings) -> list[str]:
    """The files worth reading: a README first, then files of the prompt, of the search, any text."""
    paths = _paths(found)
    prompt = found.prompt.lower()
    readme = [path for path in paths if path.rsplit("/", 1)[-1].lower().startswith("readme")]
    named = [path for path in paths if path.rsplit("/", 1)[-1].lower() in prompt]
    matched = [match["path"] for match in map(_GREP_LINE.match, _matches(found)) if match]
    plain = [path for path in paths if path.lower().endswith(_TEXT_ENDINGS)]
    by_depth = sorted(readme, key=lambda path: (path.count("/"), path))
    return list(dict.fromkeys([*by_depth[:1], *named, *matched, *plain]))


def _answer(found: _Findings, tools: set[str]) -> str:
    lines = [
        "This is scripted/demo: a fixed script, not a model. It cannot do the task; it shows what it found.",
        f"Asked: {shorten(' '.join(found.prompt.split()), 200) or '(nothing)'}",
    ]
    lines.extend(_listing(found))
    lines.extend(_search_report(found))
    for call in found.of("read"):
        if not call.failed:
            lines.append(f"{call.arguments.get('path')} begins: {_beginning(call.text)}")
    lines.extend(_trouble(found, tools))
    return "\n".join(lines)


def _listing(found: _Findings) -> list[str]:
    paths = _paths(found)
    branch = [line for line in found.lines("bash") if line.startswith("## ")]
    report = []
    if paths:
        more = f", and {len(paths) - 8} more" if len(paths) > 8 else ""
        report.append(f"Files here: {', '.join(paths[:8])}{more}.")
    elif any(not call.failed for call in (*found.of("glob"), *found.of("bash"))):
        report.append("There are no files here.")
    if branch:
        report.append(f"Git: {branch[0][3:]}.")
    return report


def _search_report(found: _Findings) -> list[str]:
    searches = [call for call in found.of("grep") if not call.failed]
    if not searches:
        return []
    words = " ".join(_words(found.prompt))
    matches = _matches(found)
    if not matches:
        return [f"No file mentions: {words}."]
    shown = [f"  {shorten(line, 120)}" for line in matches[:3]]
    return [f"Lines that mention one of: {words}", *shown]


def _beginning(text: str) -> str:
    """The first line that says something, without the number that the tool puts before it."""
    for line in text.splitlines():
        plain = re.sub(r"^\s*\d+[\t:|→ ]\s*", "", line).strip(" #=-*\t")
        if plain:
            return f"“{shorten(plain, 120)}”"
    return "(empty)"


def _trouble(found: _Findings, tools: set[str]) -> list[str]:
    report = [
        f"{call.tool} did not work: {shorten(' '.join(call.text.split()), 120)}"
        for call in found.calls
        if call.failed
    ]
    missing = sorted({"glob", "grep", "bash", "read"} - tools)
    if missing:
        report.append(f"Tools that I was not given: {', '.join(missing)}.")
    return report
