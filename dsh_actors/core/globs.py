"""Globs on paths as regular expressions: ``*`` and ``?`` stay inside a name, ``**`` spans names.

Used by policies, the search tools and ignore files. Pure text; it never looks at a disk.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["has_magic", "nearest", "path_glob", "path_glob_source", "text_glob"]

_MAGIC = re.compile(r"[*?\[{]")


def has_magic(text: str) -> bool:
    """Whether ``text`` is a pattern rather than a plain name."""
    return _MAGIC.search(text) is not None


def nearest(word: str, known: list[str]) -> str | None:
    """The known word that ``word`` most likely means, for error messages."""
    import difflib  # only needed on the way to an error

    found = difflib.get_close_matches(word, known, 1, 0.5)
    return found[0] if found else None


@lru_cache(maxsize=512)
def text_glob(pattern: str) -> re.Pattern[str]:
    """A glob on a whole text, such as a command: ``*`` matches anything, newlines included."""
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            # Stars in a row would only add backtracking.
            if not parts or parts[-1] != ".*":
                parts.append(".*")
        elif char == "?":
            parts.append(".")
        elif char == "[":
            source, position = _char_class(pattern, position, "")
            parts.append(source)
        else:
            parts.append(re.escape(char))
    return re.compile("(?s:" + "".join(parts) + r")\Z")


@lru_cache(maxsize=512)
def path_glob(pattern: str, *, subtree: bool = False) -> re.Pattern[str]:
    """A glob with braces on a whole path. With ``subtree``, ``x/**`` also matches ``x`` itself."""
    return re.compile("(?s:" + path_glob_source(pattern, subtree=subtree) + r")\Z")


def path_glob_source(pattern: str, *, braces: bool = True, subtree: bool = False) -> str:
    """The regular expression of a path glob, without anchors.

    A backslash takes the next character literally. An unclosed bracket or brace is literal.
    """
    parts: list[str] = []
    closers = _closing_braces(pattern) if braces else {}
    open_until: list[int] = []
    position, end = 0, len(pattern)
    while position < end:
        char = pattern[position]
        start = position
        position += 1
        if char == "*":
            while position < end and pattern[position] == "*":
                position += 1
            source, position = _stars(pattern, start, position, subtree)
            if source.startswith("/?") and parts and parts[-1] == "/":
                parts.pop()
            if not parts or parts[-1] != source or source == "[^/]*":
                parts.append(source)
        elif char == "?":
            parts.append("[^/]")
        elif char == "[":
            source, position = _char_class(pattern, position, "/")
            parts.append(source)
        elif char == "\\" and position < end:
            parts.append(re.escape(pattern[position]))
            position += 1
        elif start in closers:
            open_until.append(closers[start])
            parts.append("(?:")
        elif open_until and start == open_until[-1]:
            open_until.pop()
            parts.append(")")
        elif char == "," and open_until:
            parts.append("|")
        else:
            parts.append(re.escape(char))
    return "".join(parts)


def _stars(pattern: str, start: int, position: int, subtree: bool) -> tuple[str, int]:
    """The source for a run of stars at ``start``, and where to go on."""
    at_start = start == 0 or pattern[start - 1] in "/{,"
    if position - start < 2 or not at_start:
        return "[^/]*", position
    if position == len(pattern):
        if subtree and start > 0:
            return "/?(?:(?<=/).*)?", position
        return ".+", position
    if pattern[position] == "/":
        return "(?:[^/]+/)*", position + 1
    if pattern[position] in ",}":
        return ".+", position
    return "[^/]*", position


def _char_class(pattern: str, position: int, never: str) -> tuple[str, int]:
    """The class whose ``[`` stands before ``position``, never matching ``never``; and where it ends."""
    end = position
    if pattern[end : end + 1] in ("!", "^"):
        end += 1
    if pattern[end : end + 1] == "]":
        end += 1
    end = pattern.find("]", end)
    if end < 0:
        return re.escape("["), position
    body = pattern[position:end]
    negated = body[:1] in ("!", "^")
    body = body[1:] if negated else body
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", body)
    source = f"[{'^' if negated else ''}{body}]"
    try:
        re.compile(source)
    except re.error:  # a reversed range such as [z-a] matches nothing
        source = "(?!)"
    return (f"(?![{re.escape(never)}]){source}" if never else source), end + 1


def _closing_braces(pattern: str) -> dict[int, int]:
    """Where each ``{`` that has a partner is closed. A backslash hides the next character."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position += 1
        elif char == "{":
            stack.append(position)
        elif char == "}" and stack:
            pairs[stack.pop()] = position
        position += 1
    return pairs
