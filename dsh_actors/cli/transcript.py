"""A session as Markdown for people: what was asked, what was done, what was answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.images import images_of
from dsh_actors.core.messages import ImageRef
from dsh_actors.core.text import JsonObject, shorten

__all__ = ["markdown"]

_RESULT_LIMIT = 4_000


PathOf = Callable[[ImageRef], str]


def markdown(
    header: SessionHeader, events: Iterable[Event], image_path: PathOf | None = None
) -> Iterator[str]:
    """Pieces of the text, each ending in a newline. ``image_path``: where an image is, to show it."""
    yield f"# Session {header.id}\n\n"
    if header.agent_above is not None:
        yield f"A sub-agent of `{header.agent_above}`\n\n"
    if header.cwd is not None:
        yield f"Directory: `{header.cwd}`\n\n"
    for event in events:
        try:
            pieces = list(_piece(event))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            # The log may be of other hands: what has an unexpected shape is shown as it is.
            text = json.dumps(event.data, ensure_ascii=False)
            pieces = [f"**Unreadable {event.type}:**\n\n{_fenced(shorten(text, _RESULT_LIMIT), 'json')}\n\n"]
        yield from pieces
        if image_path is not None and event.type in _WITH_IMAGES:
            yield from (f"![{_alt(ref)}](<{image_path(ref)}>)\n\n" for ref in images_of(event))


_WITH_IMAGES = frozenset({"user/message", "assistant/message", "tool/result"})


def _alt(ref: ImageRef) -> str:
    return " ".join(ref.words().translate(_NOT_IN_ALT).split())


_NOT_IN_ALT = str.maketrans("[]\\", "()/")


def _piece(event: Event) -> Iterator[str]:
    data = event.data
    match event.type:
        case "turn/start":
            yield f"## Turn {data['turn']}\n\n"
        case "user/message":
            source = data["source"]
            who = "User" if source["kind"] == "user" else source.get("plugin", source["kind"])
            yield f"**{who}:**\n\n{_text(data['content'])}\n\n"
        case "assistant/message":
            yield from _reply(data["message"]["content"])
        case "tool/result":
            yield from _result(data)
        case "turn/end" if data["reason"]["kind"] != "completed":
            yield f"*Turn ended: {_reason(data['reason'])}*\n\n"


def _reply(blocks: list[JsonObject]) -> Iterator[str]:
    for block in blocks:
        match block["type"]:
            case "text" if block["text"].strip():
                yield f"**Assistant:**\n\n{block['text']}\n\n"
            case "reasoning" if block["text"].strip():
                quoted = "\n".join(f"> {line}" for line in block["text"].splitlines())
                yield f"{quoted}\n\n"
            case "tool-call":
                yield f"**Call** `{block['name']}`:\n\n{_fenced(block['arguments'], 'json')}\n\n"


def _result(data: JsonObject) -> Iterator[str]:
    block = data["message"]["content"][0]
    head = "**Error:**" if block.get("isError") else "**Result:**"
    yield f"{head}\n\n{_fenced(shorten(_text(block['content']), _RESULT_LIMIT))}\n\n"


def _text(blocks: list[JsonObject]) -> str:
    return "".join(block["text"] if block["type"] == "text" else _named(block) for block in blocks)


def _named(block: JsonObject) -> str:
    ref = ImageRef.from_json(block.get("attachment"))
    return f"[{block['type']}]" if ref is None else f"\n[image {ref.words()}]"


def _reason(reason: JsonObject) -> str:
    detail = (reason.get("error") or {}).get("message") or (reason.get("reason") or {}).get("reason")
    return f"{reason['kind']}: {detail}" if detail else str(reason["kind"])


def _fenced(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.removesuffix(chr(10))}\n{fence}"
