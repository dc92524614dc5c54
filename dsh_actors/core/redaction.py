"""Takes known secret values out of text, JSON and bytes before they are stored or shown.

It knows the values it is given and nothing else: it does not guess what looks like a secret.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from dsh_actors.core.text import JsonValue

__all__ = ["MIN_SECRET", "Redactor"]

MIN_SECRET = 6
"""Shorter values are left alone: they would match ordinary text."""

_MIN_FRAGMENT = 8
_LONG_TEXT = 200


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


def _forms(value: str) -> Iterator[str]:
    """The texts under which ``value`` may appear, each once, without those too short to be safe."""
    raw = value.encode("utf-8", "surrogatepass")
    forms = {
        value: None,
        raw.decode("latin-1"): None,
        json.dumps(value)[1:-1]: None,
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
