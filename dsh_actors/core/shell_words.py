"""Splits a shell command into its simple commands, for policy rules. Not a shell parser.

It errs on the side of more pieces: a piece too many can only make a policy stricter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CommandPart", "command_parts"]

_ASSIGNMENT = re.compile(r"\w+\+?=(?:'[^']*'|\"(?:\\.|[^\"])*\"|\\.|[^\s'\"\\])*(?:\s+|\Z)", re.DOTALL)
_KEYWORD = re.compile(r"(?:if|then|elif|else|while|until|do|time|!|\{)(?:\s+|\Z)")
_WRAPPER = re.compile(
    r"(?:\S*/)?(?:env|command|builtin|exec|nohup|sudo|doas|nice|setsid|stdbuf|eval)"
    r"(?:\s+-[ug]\s+\S+|\s+-\S+)*(?:\s+|\Z)"
)
_REDIRECT_FIRST = re.compile(r"\d*(?:<|>>?)&?\s*[^\s<>]+\s+")
_HARMLESS_REDIRECT = re.compile(r"(?:>&\d|>>?\s*/dev/null)(?![\w/.])")
_ROUGH_CUT = re.compile(r"[;&|()`\n]+")


@dataclass(frozen=True, slots=True)
class CommandPart:
    """``text``: one simple command as written. ``forms``: the texts that a refusing rule looks at.

    ``writes``: it sends output to a file.
    """

    text: str
    forms: tuple[str, ...]
    writes: bool


def command_parts(command: str) -> list[CommandPart]:
    """The simple commands of ``command`` in order, at least one, without blanks around them.

    Splits at ``; & | newline ( )`` and the borders of substitutions, but not inside quotes.
    """
    splitter = _Splitter(command)
    parts = [
        CommandPart(text, _forms(text), writes) for text, writes in splitter.split() if not _is_noise(text)
    ]
    return parts or [CommandPart(command.strip(), _forms(command.strip()), False)]


def _is_noise(text: str) -> bool:
    """Pieces that run nothing: blanks, comments, closing keywords, the rest of a quoted text."""
    return not text.strip("\"'`$ \t") or text.startswith("#") or text in ("}", "fi", "done", "esac")


def _forms(text: str) -> tuple[str, ...]:
    forms = _plain_forms(text)
    if "\n" in text:
        # A quote in a here-document hides the lines after it from the splitter.
        for piece in _ROUGH_CUT.split(text):
            forms += _plain_forms(piece.strip())
    return tuple(dict.fromkeys(forms))


def _plain_forms(text: str) -> list[str]:
    forms = [text]
    stripped = text
    while True:
        before = stripped
        for prefix in (_KEYWORD, _ASSIGNMENT, _WRAPPER, _REDIRECT_FIRST):
            found = prefix.match(stripped)
            if found and found.end() < len(stripped):
                stripped = stripped[found.end() :]
                forms.append(stripped)
        if stripped == before:
            break
    plain = " ".join(re.sub(r"\\(.)|['\"]", r"\1", stripped, flags=re.DOTALL).split())
    forms.append(plain)
    program, _, rest = plain.partition(" ")
    forms.append(f"{program.rpartition('/')[2]} {rest}".rstrip())
    return forms


class _Splitter:
    """One pass over a command with a stack of quoting states, one for each open substitution."""

    def __init__(self, command: str) -> None:
        self._text = command.replace("\\\n", "")
        self._pieces: list[tuple[str, bool]] = []
        self._start = 0
        self._writes = False
        self._escaped = -1

    def split(self) -> list[tuple[str, bool]]:
        text, position = self._text, 0
        quotes = [""]
        while position < len(text):
            char, quote = text[position], quotes[-1]
            if quote == "'":
                quotes[-1] = "" if char == "'" else quote
            elif char == "\\":
                position += 1
                self._escaped = position
            elif quote == "$'":
                quotes[-1] = "" if char == "'" else quote
            elif char == "`":
                self._cut(position, position + 1)
            elif char == "$" and text[position : position + 2] == "$(":
                self._cut(position, position + 2)
                quotes.append("")
                position += 1
            elif char == '"':
                quotes[-1] = "" if quote else '"'
            elif quote == "":
                position = self._unquoted(position, char, quotes)
            position += 1
        self._cut(len(text), len(text))
        return self._pieces

    def _unquoted(self, position: int, char: str, quotes: list[str]) -> int:
        """One character outside all quotes; the position of the last character it used."""
        text = self._text
        if char == "'":
            ansi = text[position - 1 : position] == "$" and self._escaped != position - 1
            quotes[-1] = "$'" if ansi else "'"
        elif char == "#" and (position == 0 or text[position - 1] in " \t\n;&|("):
            line_end = text.find("\n", position)
            return (len(text) if line_end < 0 else line_end) - 1
        elif char in ";|\n":
            self._cut(position, position + 1)
        elif char == "&":
            if text[position - 1 : position] not in ("<", ">") and text[position + 1 : position + 2] != ">":
                self._cut(position, position + 1)
        elif char == "(":
            self._cut(position, position + 1)
            quotes.append("")
        elif char == ")":
            self._cut(position, position + 1)
            if len(quotes) > 1:
                quotes.pop()
        elif char == ">":
            harmless = _HARMLESS_REDIRECT.match(text, position)
            if harmless:
                return harmless.end() - 1
            self._writes = True
        return position

    def _cut(self, end: int, start: int) -> None:
        self._pieces.append((self._text[self._start : end].strip(), self._writes))
        self._start, self._writes = start, False
