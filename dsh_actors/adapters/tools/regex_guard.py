"""Compiles a model's regular expression, and refuses those whose matching may take for ever.

Python's matcher cannot be interrupted and holds up the whole process, so an expression that may
backtrack exponentially must not start. The check is cautious: it also refuses some harmless ones.
"""

from __future__ import annotations

import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from dataclasses import dataclass
from typing import Any

from dsh_actors.errors import ToolError

__all__ = ["SafePattern", "compile_safely"]

_MANY = 8
"""A repetition that may exceed this counts as unlimited."""

_MAX_PATTERN = 2000
_LINE_CHARS = (1_000_000, 10_000, 1_500, 400)
"""How much of a line is searched, by the number of unlimited repetitions: bounds polynomial matching."""

_PROBES = [chr(code) for code in range(256)] + ["\u0416", "\u4e2d", "\u2028", "\U0001f600"]
_ZERO_WIDTH = (op.AT, op.ASSERT, op.ASSERT_NOT)


@dataclass(frozen=True, slots=True)
class SafePattern:
    """``needle``: text that every match contains, or ''. ``max_chars``: how much of a line to search."""

    regex: re.Pattern[str]
    needle: str
    max_chars: int


def compile_safely(pattern: str, *, ignore_case: bool) -> SafePattern:
    """Raises `ToolError` that says what is wrong with ``pattern``, or why it may not run."""
    if not pattern or len(pattern) > _MAX_PATTERN:
        raise ToolError(f"the pattern must have 1 to {_MAX_PATTERN} characters", code="INVALID_ARGS")
    try:
        regex = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
        tree = list(parser.parse(pattern, regex.flags))
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolError(f"not a valid regular expression: {error}", code="INVALID_ARGS") from error
    check = _Check(regex.flags)
    check.sequence(tree, repeated=False)
    needle = "" if regex.flags & re.IGNORECASE else _needle(tree)
    if "\n" in needle:
        raise ToolError(
            "a pattern matches within one line: it cannot contain a line end", code="INVALID_ARGS"
        )
    return SafePattern(regex, needle, _LINE_CHARS[min(check.unlimited, len(_LINE_CHARS) - 1)])


def _needle(tree: list[Any]) -> str:
    """The longest run of plain characters that a match must contain."""
    best = run = ""
    for kind, value in tree:
        if kind is op.LITERAL:
            run += chr(value)
        elif kind not in _ZERO_WIDTH:
            run = ""
        best = max(best, run, key=len)
    return best


class _Check:
    """Walks the parsed expression. ``unlimited`` counts the repetitions without a small upper limit."""

    def __init__(self, flags: int) -> None:
        self._flags = flags
        self.unlimited = 0

    def sequence(self, items: list[Any], *, repeated: bool) -> None:
        for kind, value in items:
            if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
                self._repetition(value)
            else:
                for inner in _inside(kind, value):
                    self.sequence(inner, repeated=repeated)
        self._neighbours(items)

    def _repetition(self, value: Any) -> None:
        _, high, body = value
        if high > _MANY:
            self.unlimited += 1
            items = _flat(list(body))
            if not (len(items) == 1 and _is_single(items[0])) and not self._unambiguous(items):
                raise _refusal("a repetition inside a repetition")
        self.sequence(list(body), repeated=True)

    def _unambiguous(self, items: list[Any]) -> bool:
        """Whether a text can be cut into rounds of a repeated ``items`` in one way only.

        So it is if a round has a fixed form, or holds a fixed character that nothing variable in it can
        be (or two variable parts that must be there and share nothing with the others).
        """
        if any(kind is op.BRANCH for kind, _ in items):
            return len(items) == 1 and self._distinct_choices(items[0][1][1])
        varying = [item for item in items if _varies(item)]
        if not varying:
            return True
        if not all(_is_single(_body(item)) for item in varying) or self._neighbours_share(items):
            return False
        marks = 0
        for item in filter(_is_required, items):
            others = [other for other in items if other is not item and not _is_literal(other)]
            if not any(self._characters(item) & self._characters(other) for other in others):
                marks += 1 if _varies(item) else 2
        return marks >= 2

    def _neighbours_share(self, items: list[Any]) -> bool:
        """Whether two variable parts share characters without a required, different one between them."""
        sets = [self._characters(item) for item in items]
        places = [index for index, item in enumerate(items) if _varies(item)]
        return any(
            sets[left] & sets[right]
            and not any(
                _is_required(items[between]) and not sets[between] & (sets[left] | sets[right])
                for between in range(left + 1, right)
            )
            for left in places
            for right in places
            if left < right
        )

    def _distinct_choices(self, choices: list[Any]) -> bool:
        """Whether the first character decides between the choices, and each has a fixed form."""
        seen: set[str] = set()
        for choice in choices:
            items = _flat(list(choice))
            if not items or any(_varies(item) for item in items):
                return False
            first = self._characters(items[0])
            if first & seen:
                return False
            seen |= first
        return True

    def _neighbours(self, items: list[Any]) -> None:
        """Three unlimited repetitions side by side that may share characters take cubic time."""
        run: list[set[str]] = []
        for item in _flat(items):
            if _varies(item) and item[1][1] > _MANY:
                run.append(self._characters(item))
                if len(run) >= 3 and run[-1] & run[-2] & run[-3]:
                    raise _refusal("three repetitions in a row of the same characters")
            elif _is_required(item):
                run = []

    def _characters(self, item: Any) -> set[str]:
        """Which of the probe characters may stand somewhere in a match of ``item``."""
        kind, value = item
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            return set().union(*(self._characters(inner) for inner in _flat(list(value[2]))))
        if kind is op.LITERAL:
            return {chr(value), chr(value).swapcase()} if self._flags & re.IGNORECASE else {chr(value)}
        if kind is op.NOT_LITERAL:
            return {char for char in _PROBES if ord(char) != value}
        if kind is op.ANY:
            return set(_PROBES)
        if kind is op.IN:
            return _class_members(value, self._flags)
        if kind in _ZERO_WIDTH:
            return set()
        inside = [inner for part in _inside(kind, value) for inner in _flat(part)]
        return set().union(*(self._characters(inner) for inner in inside)) if inside else set(_PROBES)


def _refusal(what: str) -> ToolError:
    return ToolError(
        f"the pattern has {what}, which may take for ever to match; write it more simply, "
        "for example (\\w+,)* instead of (\\w+,?)*",
        code="INVALID_ARGS",
    )


def _inside(kind: Any, value: Any) -> list[list[Any]]:
    """The sequences inside one parsed item other than a repetition."""
    if kind is op.SUBPATTERN:
        return [list(value[3])]
    if kind is op.ATOMIC_GROUP:
        return [list(value)]
    if kind is op.BRANCH:
        return [list(choice) for choice in value[1]]
    if kind in (op.ASSERT, op.ASSERT_NOT):
        return [list(value[1])]
    if kind is op.GROUPREF_EXISTS:
        return [list(part) for part in value[1:] if part is not None]
    return []


def _flat(items: list[Any]) -> list[Any]:
    """The sequence with its plain groups dissolved."""
    flat: list[Any] = []
    for kind, value in items:
        if kind is op.SUBPATTERN:
            flat += _flat(list(value[3]))
        elif kind not in _ZERO_WIDTH:
            flat.append((kind, value))
    return flat


def _body(item: Any) -> Any:
    """What a repetition of one thing repeats; anything else is its own body."""
    kind, value = item
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        inner = _flat(list(value[2]))
        return inner[0] if len(inner) == 1 else (op.BRANCH, (None, []))
    return item


def _is_single(item: Any) -> bool:
    return item[0] in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)


def _is_literal(item: Any) -> bool:
    return item[0] is op.LITERAL


def _varies(item: Any) -> bool:
    kind, value = item
    return kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT) and value[0] != value[1]


def _is_required(item: Any) -> bool:
    """Whether at least one character of ``item`` stands in every match."""
    kind, value = item
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return bool(value[0] >= 1) and _is_single(_body(item))
    return _is_single(item)


def _class_members(items: list[Any], flags: int) -> set[str]:
    """The probe characters, and the class's own, that a character class takes."""
    negated = bool(items) and items[0][0] is op.NEGATE
    members: set[str] = set()
    for kind, value in items[negated:]:
        if kind is op.LITERAL:
            members.add(chr(value))
        elif kind is op.RANGE:
            members |= {char for char in _PROBES if value[0] <= ord(char) <= value[1]}
            members |= {chr(value[0]), chr(value[1])}
        else:
            members |= {char for char in _PROBES if _in_category(value, char)}
    if flags & re.IGNORECASE:
        members |= {char.swapcase() for char in members}
    return set(_PROBES) - members if negated else members


_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}


def _in_category(category: Any, char: str) -> bool:
    return re.match(_CATEGORIES[category], char) is not None
