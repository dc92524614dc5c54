"""Takes known secret values out of text, JSON and bytes before they are stored or shown.

It knows the values it is given and nothing else: it does not guess what looks like a secret.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

from dsh_actors.core.chunks import (
    BlockEnd,
    Chunk,
    Failure,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from dsh_actors.core.messages import (
    Block,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    block_from_json,
    source_from_json,
)
from dsh_actors.core.text import JsonObject, JsonValue

__all__ = ["MIN_SECRET", "RedactingStream", "Redactor"]

MIN_SECRET = 6
"""Shorter values are left alone: they would match ordinary text."""

_Delta = TextDelta | ReasoningDelta | ToolCallDelta

_MIN_FRAGMENT = 8
_LONG_TEXT = 200
_HINT = 4
"""So many characters of a secret's beginning are a reason to look closer."""


class Redactor:
    """Replaces each secret by ``[redacted:NAME]``.

    Found are the value itself, its JSON-escaped, URL-quoted and base64 forms (also inside a longer
    encoded text), and, where truncation cut a value, a beginning or an end of it of at least 8
    characters and half its length. A shorter fragment, or a value broken up by line ends, stays.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """``secrets`` maps the name that may be shown to the value that may not."""
        self._forms: list[tuple[str, str]] = []
        for name, value in secrets.items():
            if len(value) >= MIN_SECRET:
                self._forms += [(form, f"[redacted:{name}]") for form in _forms(value)]
        # The longest first: of two secrets that begin alike, the whole longer one goes.
        self._forms.sort(key=lambda pair: -len(pair[0]))
        self._anchors: dict[str, None] = {}
        for form, _ in self._forms:
            length = max(_MIN_FRAGMENT, (len(form) + 1) // 2)
            whole = length >= len(form)
            self._anchors |= dict.fromkeys((form,) if whole else (form[:length], form[-length:]))
        self._beginnings: dict[str, list[str]] = {}
        hints: dict[str, None] = {}
        for start in dict.fromkeys((*(form for form, _ in self._forms), *self._anchors)):
            self._beginnings.setdefault(start[0], []).append(start)
            hints[_hint(start[:_HINT])] = None
        self._hint = re.compile("|".join(hints)) if hints else None
        self._first = re.compile(f"[{re.escape(''.join(self._beginnings))}]") if self._beginnings else None
        self._reach = 2 * max((len(form) for form, _ in self._forms), default=0)
        pieces = map(re.escape, self._anchors)
        self._pattern = re.compile("|".join(pieces)) if self._anchors else None

    def text(self, text: str) -> str:
        """``text`` without the secrets; the same object if it has none."""
        if not self._has_secret(text) or self._pattern is None:
            return text
        parts: list[str] = []
        done = 0
        while found := self._pattern.search(text, done):
            start, end, mark = self._extent(text, found, done)
            parts += (text[done:start], mark)
            done = end
        parts.append(text[done:])
        return "".join(parts)

    def json(self, value: JsonValue) -> JsonValue:
        """``value`` with every string and key redacted; the same object if it has no secret."""
        if not any(map(self._has_secret, _strings(value))):
            return value
        holder: list[JsonValue] = [None]
        work: list[tuple[JsonValue, JsonValue, JsonValue]] = [(value, holder, 0)]
        while work:
            item, parent, place = work.pop()
            if isinstance(item, str):
                parent[place] = self.text(item)
            elif isinstance(item, dict):
                copy: dict[JsonValue, JsonValue] = {}
                parent[place] = copy
                for key, inner in item.items():
                    clean = self.text(key) if isinstance(key, str) else key
                    copy[clean] = None  # fixes the order; the value follows
                    work.append((inner, copy, clean))
            elif isinstance(item, list | tuple):
                parent[place] = items = [None] * len(item)
                work.extend((inner, items, index) for index, inner in enumerate(item))
            else:
                parent[place] = item
        return holder[0]

    def bytes(self, data: bytes) -> bytes:
        """``data`` without the secrets' UTF-8 bytes; the same object if it has none."""
        if self._pattern is None:
            return data
        text = data.decode("latin-1")
        clean = self.text(text)
        return data if clean is text else clean.encode("latin-1", "replace")

    def message(self, message: Message) -> Message:
        """``message`` with all its blocks and its source redacted; the same object if it has no secret."""
        if self._pattern is None:
            return message
        content = tuple(map(self.block, message.content))
        data = message.source.to_json()
        clean = self.json(data)
        source = message.source if clean is data else source_from_json(clean)
        if source is message.source and all(
            new is old for new, old in zip(content, message.content, strict=True)
        ):
            return message
        return replace(message, content=content, source=source)

    def block(self, block: Block) -> Block:
        """``block`` without the secrets; the same object if it has none."""
        match block:
            case TextBlock() | ReasoningBlock():
                text = self.text(block.text)
                return block if text is block.text else replace(block, text=text)
            case ToolCallBlock():
                name, arguments = self.text(block.name), self.text(block.arguments)
                if name is block.name and arguments is block.arguments:
                    return block
                return replace(block, name=name, arguments=arguments)
        data = block.to_json()
        clean = self.json(data)
        return block if clean is data else block_from_json(clean)

    def open_end(self, text: str) -> int:
        """From where on ``text`` may be the beginning of a secret that goes on; its length if nowhere."""
        if self._first is None:
            return len(text)
        at = max(0, len(text) - self._reach)
        while found := self._first.search(text, at):
            at = found.start()
            rest = text[at : at + self._reach]
            whole = 0
            for start in self._beginnings[found[0]]:
                if len(rest) < len(start):
                    if start.startswith(rest):
                        return at
                elif rest.startswith(start):
                    whole = max(whole, len(start))
            # What ends here is complete: its own end is not the beginning of another.
            at += whole or 1
        return len(text)

    def first_look(self, text: str) -> int:
        """From where on ``text`` may be the beginning of a secret, its length if nowhere; nothing before it
        is one. Negative where that takes a closer look: by `text`, after the cut at `open_end`.
        """
        found = None if self._hint is None else self._hint.search(text)
        if found is None:
            return len(text)
        start, end = found.span()
        return start if end - start < _HINT else -1

    @property
    def is_empty(self) -> bool:
        """Whether there is no secret to look for."""
        return self._pattern is None

    def _has_secret(self, text: str) -> bool:
        if self._pattern is None:
            return False
        if len(text) > _LONG_TEXT:
            # A plain search for each anchor is several times faster than one alternation.
            return any(anchor in text for anchor in self._anchors)
        return self._pattern.search(text) is not None

    def _extent(self, text: str, found: re.Match[str], floor: int) -> tuple[int, int, str]:
        """How far the secret that an anchor belongs to really reaches, and what replaces it.

        Several forms may share the anchor: the one that reaches farthest, then the complete one, wins.
        """
        anchor = found[0]
        best: tuple[int, bool, int, int, str] | None = None
        for form, mark in self._forms:
            start, end = found.span()
            if form.startswith(anchor):
                known = len(anchor)
                while known < len(form) and end < len(text) and text[end] == form[known]:
                    known, end = known + 1, end + 1
            elif form.endswith(anchor):
                left = len(form) - len(anchor)
                while left > 0 and start > floor and text[start - 1] == form[left - 1]:
                    left, start = left - 1, start - 1
            else:
                continue
            candidate = (end - start, end - start == len(form), start, end, mark)
            if best is None or candidate[:2] > best[:2]:
                best = candidate
        assert best is not None  # every anchor is the beginning or the end of a form
        return best[2:]


class RedactingStream:
    """Redacts the chunks of one model stream, also where a secret is spread over several of them.

    The end of a delta that may be the beginning of a secret is held back until the next delta of its
    block, the block's end or the stream's `Finish`; that is less than the longest form of a secret.
    """

    __slots__ = ("_altered", "_held", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        # By block: its last delta, and the text held back.
        self._held: dict[int, tuple[_Delta, str]] = {}
        self._altered: set[int] = set()

    def chunks(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """``chunks`` as they may be passed on: possibly none, or more than came."""
        if self._redactor.is_empty:
            return chunks
        passed: list[Chunk] = []
        find, held = self._redactor.first_look, self._held
        for chunk in chunks:
            kind = type(chunk)
            if kind is TextDelta or kind is ReasoningDelta:
                text, name = chunk.text, None  # type: ignore[union-attr]
            elif kind is ToolCallDelta:
                text, name = chunk.arguments, chunk.name  # type: ignore[union-attr]
            else:
                self._other(chunk, passed)
                continue
            if name is None and not held:
                # Nearly all chunks end here.
                end = find(text)
                if end == len(text):
                    passed.append(chunk)
                    continue
                if end > 0:
                    held[chunk.index] = chunk, text[end:]  # type: ignore[assignment, union-attr]
                    passed.append(_with_content(chunk, text[:end], None))  # type: ignore[arg-type]
                    continue
            self._delta(chunk, text, name, passed)  # type: ignore[arg-type]
        return passed

    def _other(self, chunk: Chunk, passed: list[Chunk]) -> None:
        match chunk:
            case BlockEnd():
                self._release(chunk.index, passed)
                block = self._redactor.block(chunk.block)
                if block is not chunk.block:
                    self._altered.add(chunk.index)
                    chunk = BlockEnd(chunk.index, block)
            case Finish():
                for index in list(self._held):
                    self._release(index, passed)
                chunk = self._finish(chunk)
        passed.append(chunk)

    def _delta(self, chunk: _Delta, text: str, name: str | None, passed: list[Chunk]) -> None:
        held = self._held.pop(chunk.index, None) if self._held else None
        whole = text
        if held is not None:
            if type(held[0]) is type(chunk):
                whole = held[1] + text
            else:
                passed.append(self._clean(held[0], held[1], None))  # a stream that is wrong anyway
        end = self._redactor.first_look(whole)
        is_clear = end >= 0
        if not is_clear:
            end = self._redactor.open_end(whole)
        if end < len(whole):
            self._held[chunk.index] = (chunk, whole[end:])
            if not end and name is None:
                return
        shown = whole[:end]  # the same object where nothing is cut
        if not is_clear or name is not None:
            passed.append(self._clean(chunk, shown, name))
        else:
            passed.append(chunk if shown is text else _with_content(chunk, shown, None))

    def _release(self, index: int, passed: list[Chunk]) -> None:
        held = self._held.pop(index, None)
        if held is not None:
            passed.append(self._clean(held[0], held[1], None))

    def _clean(self, chunk: _Delta, text: str, name: str | None) -> Chunk:
        redact = self._redactor.text
        return _with_content(chunk, redact(text), None if name is None else redact(name))

    def _finish(self, chunk: Finish) -> Finish:
        failure, state = chunk.failure, chunk.replay_state
        if failure is not None:
            clean = Failure.from_json(self._redactor.json(failure.to_json()))
            failure = replace(
                clean, should_retry=failure.should_retry, fitting_output=failure.fitting_output
            )
        if state is not None:
            state = self._redactor.json(self._without_altered(state))
        return replace(chunk, failure=failure, replay_state=state)

    def _without_altered(self, state: JsonObject) -> JsonObject:
        """A provider's seal on a block that was changed here would be refused with the block."""
        entries = state.get("blocks")
        if not self._altered or not isinstance(entries, list):
            return state
        kept = [None if index in self._altered else entry for index, entry in enumerate(entries)]
        return {**state, "blocks": kept}


def _with_content(chunk: _Delta, text: str, name: str | None) -> _Delta:
    """``chunk`` with another text and, if it is of a call, another name; the same object if they are its."""
    if isinstance(chunk, ToolCallDelta):
        same = text is chunk.arguments and name is chunk.name
        return chunk if same else ToolCallDelta(chunk.index, chunk.id, name, text)
    return chunk if text is chunk.text else type(chunk)(chunk.index, text)


def _strings(value: JsonValue) -> Iterator[str]:
    """Every string and key in ``value``."""
    work = [value]
    while work:
        item = work.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            work.extend(item)
            work.extend(item.values())
        elif isinstance(item, list | tuple):
            work.extend(item)


def _hint(start: str) -> str:
    """A pattern that finds ``start``, or the first characters of it at the end of a text."""
    pattern = ""
    for character in reversed(start):
        pattern = re.escape(character) + (f"(?:\\Z|{pattern})" if pattern else "")
    return pattern


def _forms(value: str) -> Iterator[str]:
    """The texts under which ``value`` may appear, each once, without those too short to be safe."""
    raw = value.encode("utf-8", "surrogatepass")
    forms = {
        value: None,
        raw.decode("latin-1"): None,
        json.dumps(value)[1:-1]: None,
        json.dumps(value, ensure_ascii=False)[1:-1]: None,
        quote(raw, safe=""): None,
        quote(raw): None,
    }
    for shift in range(3):
        # What encloses the value changes the first and last characters only; the middle is the same.
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        first = (shift * 8 + 5) // 6
        last = (shift + len(raw)) * 8 // 6
        for form in (encoded[first:last], encoded[first:last].translate(_URL_SAFE)):
            if len(form) >= _MIN_FRAGMENT:
                forms[form] = None
    return iter(forms)


_URL_SAFE = str.maketrans("+/", "-_")
