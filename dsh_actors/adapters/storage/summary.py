"""What a list of sessions tells of one: a fold over its log that decodes no more than it needs."""

from __future__ import annotations

from collections.abc import Iterable

from dsh_actors.core.codec import ROW_TYPES, decode_line
from dsh_actors.core.events import KNOWN_TYPES, Event, wrong_payload
from dsh_actors.core.quoted_files import without_quoted_files
from dsh_actors.core.text import shorten

__all__ = ["MAX_TITLE", "SessionSummary"]

MAX_TITLE = 80

_SHOWN = frozenset({"turn/start", "turn/end", "user/message", "session/title"})
_SKIPPED = frozenset(kind.encode() for kind in (KNOWN_TYPES | ROW_TYPES) - _SHOWN)
# The codec writes the type first; a line that begins otherwise is decoded to find out.
_TYPE_PREFIX = b'{"type":"'


class SessionSummary:
    """A fold over a log: title, number of turns, and whether the last turn is open."""

    def __init__(self) -> None:
        self.turns = 0
        self.is_open = False
        self.is_empty = True
        self.given_title: str | None = None
        self.first_prompt: str | None = None

    @property
    def title(self) -> str | None:
        """The last title, else the beginning of the first prompt that has text, on one line."""
        return self.given_title or self.first_prompt

    @property
    def status(self) -> str:
        if self.is_empty:
            return "empty"
        return "interrupted" if self.is_open else "ok"

    def observe(self, event: Event) -> None:
        """Take in the next event. Raises `EventRefused` where its payload has the wrong shape."""
        self.is_empty = False
        try:
            match event.type:
                case "turn/start":
                    self.turns += 1
                    self.is_open = True
                case "turn/end":
                    self.is_open = False
                case "session/title":
                    self.given_title = _one_line(event.data["title"])
                case "user/message" if self.first_prompt is None and event.data["source"]["kind"] == "user":
                    blocks = event.data["content"]
                    text = "".join(block["text"] for block in blocks if block["type"] == "text")
                    self.first_prompt = _one_line(without_quoted_files(text))
        except (KeyError, TypeError, AttributeError) as error:
            raise wrong_payload(event, error) from error

    def observe_lines(self, lines: Iterable[bytes]) -> None:
        """As `observe`, decoding only what matters. Raises `SessionUnsupported` for an unknown type too."""
        for line in lines:
            self.is_empty = False
            if _type_of(line) in _SKIPPED:
                continue
            for event in decode_line(line):
                event.require_known()
                self.observe(event)


def _one_line(text: str) -> str | None:
    return shorten(" ".join(text.split()), MAX_TITLE) or None


def _type_of(line: bytes) -> bytes:
    if not line.startswith(_TYPE_PREFIX):
        return b""
    return line[len(_TYPE_PREFIX) : line.find(b'"', len(_TYPE_PREFIX))]
