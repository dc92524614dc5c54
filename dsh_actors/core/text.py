"""The one choke point that makes text well-formed, and the rule for what JSON can hold."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from dsh_actors.errors import EventRefused

__all__ = [
    "JsonObject",
    "JsonValue",
    "bound_text",
    "clean_json",
    "clean_text",
    "decode_output",
    "is_well_formed",
    "json_fault",
    "read_json",
    "require_lossless",
    "shape_fault",
    "shorten",
    "single_keys",
]

JsonValue = Any
JsonObject = dict[str, Any]

MAX_DEPTH = 500
"""Nesting that every JSON reader and writer on the way survives."""

_SURROGATES = re.compile("[\ud800-\udfff]")
# C0 controls but TAB, LF and CR, and DEL: providers refuse or mangle some of them.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def shape_fault(error: Exception) -> str:
    """What is wrong with data that could not be taken apart, for people who do not know this program."""
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r} is missing"
    if isinstance(error, TypeError | AttributeError | IndexError):
        return "a member has another form than it should"
    return str(error)


def json_fault(error: Exception) -> str:
    """Why a text could not be read as JSON: in words for whoever wrote it, not in those of the reader."""
    match error:
        case RecursionError():
            return "it is nested too deeply"
        case UnicodeDecodeError():
            return f"it is not UTF-8 (byte {error.start + 1})"
        case ValueError() if "integer string conversion" in str(error):
            return "a number has too many digits"
    return str(error)


def read_json(text: str) -> JsonValue:
    """What somebody hands over as JSON. Raises ValueError, also where readers of JSON would disagree: for a
    key that stands twice in an object, for NaN and Infinity; and RecursionError. `json_fault` words them.
    """
    return _strict(text)


def single_keys(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """The object of these members, as a hook of `json`. Raises ValueError for a key that stands twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shorten(twice, 60)!r} stands twice in one object")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


_strict = json.JSONDecoder(object_pairs_hook=single_keys, parse_constant=_refuse_constant).decode


def clean_text(text: str) -> str:
    """Replace lone surrogates by U+FFFD, joining the two halves of a split pair first."""
    if text.isascii() or _SURROGATES.search(text) is None:
        return text
    # A round trip through UTF-16 joins a high and a low surrogate that arrived separately.
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _SURROGATES.sub("\ufffd", joined)


def is_well_formed(text: str) -> bool:
    """Whether UTF-8 can hold it: names of the system that it cannot hold have lone surrogates."""
    return text.isascii() or _SURROGATES.search(text) is None


def clean_json(value: JsonValue) -> JsonValue:
    """``value`` with `clean_text` applied to every string and key; containers are copied.

    Raises `EventRefused` for what is cyclic, or nested deeper than `MAX_DEPTH`.
    """
    holder: list[JsonValue] = [None]
    # Not by recursion: the interpreter's limit is below ours, and nearer the deeper the caller is.
    work: list[tuple[JsonValue, JsonValue, int]] = [([value], holder, 0)]
    while work:
        source, copy, depth = work.pop()
        for key, inner in source.items() if isinstance(source, dict) else enumerate(source):
            clean = inner
            if isinstance(inner, str):
                clean = clean_text(inner)
            elif isinstance(inner, dict | list | tuple):
                if depth >= MAX_DEPTH:
                    raise EventRefused(f"cyclic, or nested deeper than {MAX_DEPTH} levels")
                clean = {} if isinstance(inner, dict) else [None] * len(inner)
                work.append((inner, clean, depth + 1))
            copy[clean_text(key) if isinstance(key, str) else key] = clean
    return holder[0]


def decode_output(raw: bytes) -> str:
    """Bytes of a tool or file as text: invalid UTF-8 is replaced, controls become visible escapes.

    The result never contains NUL, other C0 controls (but TAB, LF, CR) or lone surrogates.
    """
    text = raw.decode("utf-8", "replace")
    return _CONTROLS.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def shorten(text: str, limit: int) -> str:
    """``text`` cut to ``limit`` code points, with an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…"


def bound_text(text: str, limit_bytes: int) -> str:
    """``text`` cut in the middle to about ``limit_bytes`` of UTF-8, saying how much is gone."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return text
    half = max(0, limit_bytes - 60) // 2
    head = raw[:half].decode("utf-8", "ignore")
    tail = raw[len(raw) - half :].decode("utf-8", "ignore")
    return f"{head}\n[… {len(raw) - 2 * half} bytes left out …]\n{tail}"


def require_lossless(value: JsonValue, what: str) -> None:
    """Refuse what JSON cannot hold without loss.

    Allowed: None, bool, int, finite float other than -0.0, well-formed str, list, dict with str
    keys, to a depth of `MAX_DEPTH`. Raises `EventRefused` naming ``what``.
    """
    stack: list[tuple[JsonValue, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        kind = type(item)
        if kind is str:
            if not item.isascii() and _SURROGATES.search(item):
                raise EventRefused(f"{what}: lone surrogate in {shorten(ascii(item), 40)}")
        elif kind is dict or kind is list:
            if depth >= MAX_DEPTH:
                raise EventRefused(f"{what}: cyclic, or nested deeper than {MAX_DEPTH} levels")
            if kind is list:
                stack.extend((inner, depth + 1) for inner in item)
                continue
            for key, inner in item.items():
                if type(key) is not str or (not key.isascii() and _SURROGATES.search(key)):
                    raise EventRefused(f"{what}: {key!a} cannot be a key")
                stack.append((inner, depth + 1))
        elif kind is float:
            if not math.isfinite(item) or (item == 0 and math.copysign(1, item) < 0):
                raise EventRefused(f"{what}: {item!r} has no JSON form")
        elif item is not None and kind is not bool and kind is not int:
            raise EventRefused(f"{what}: a {kind.__name__} has no JSON form")
