"""What a full-text search finds of an event: the words of people, models and tools, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from dsh_actors.core.events import Event
from dsh_actors.core.text import JsonObject

__all__ = ["document_text"]


def document_text(event: Event) -> str | None:
    """The document of an event; None where it has none. Reasoning and images are left out.

    Raises KeyError or TypeError for a payload of the wrong shape.
    """
    parts = (" ".join(part.split("\0")).strip() for part in _parts(event.type, event.data))
    return "\n".join(part for part in parts if part) or None


def _parts(kind: str, data: JsonObject) -> Iterator[str]:
    match kind:
        case "user/message":
            yield from _block_texts(data["content"])
        case "assistant/message":
            yield from _block_texts(data["message"]["content"])
        case "tool/call":
            yield data["name"]
            yield data["arguments"]
        case "tool/result":
            yield from _block_texts(data["message"]["content"])
            error = data.get("error") or {}
            yield from (str(error[name]) for name in ("name", "code") if error.get(name))
        case "session/title":
            if (data.get("source") or {}).get("kind") != "fallback":
                yield data["title"]
        case "todo/write":
            for item in data["todos"]:
                yield item["status"]
                yield item["content"]
        case "turn/end":
            yield from _ending(data["reason"])


def _block_texts(blocks: list[JsonObject]) -> Iterator[str]:
    for block in blocks:
        match block["type"]:
            case "text":
                yield block["text"]
            case "tool-call":
                yield block["name"]
                yield block["arguments"]
            case "tool-result":
                yield from _block_texts(block["content"])


def _ending(reason: JsonObject) -> Iterator[str]:
    match reason["kind"]:
        case "error":
            yield "error"
            yield str(reason.get("error", {}).get("message", ""))
        case "aborted" | "max-tokens" | "interrupted":
            yield reason["kind"]
