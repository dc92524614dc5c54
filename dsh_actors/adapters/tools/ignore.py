"""Ignore rules of the search tools: ``.gitignore`` files as git reads them, and nothing else.

Not read: excludes outside the tree (``.git/info/exclude``, the user's own), other ignore files.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import pairwise

from dsh_actors.adapters.tools.paths import decode_name
from dsh_actors.core.globs import path_glob_source

__all__ = ["IgnoreFile", "is_ignored", "load_ignore_file", "outer_ignore_files"]

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _IgnoreRule:
    pattern: re.Pattern[str]
    directories_only: bool
    negated: bool


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """The rules of one ``.gitignore``; ``base`` is its directory, with a slash at the end."""

    base: str
    rules: tuple[_IgnoreRule, ...]
    any_rule: re.Pattern[str]

    def verdict(self, path: str, is_directory: bool) -> bool | None:
        """Whether the absolute ``path`` below ``base`` is ignored; None if no rule speaks of it."""
        relative = path[len(self.base) :]
        if not self.any_rule.match(relative):
            return None
        for rule in reversed(self.rules):
            if (is_directory or not rule.directories_only) and rule.pattern.match(relative):
                return not rule.negated
        return None


def load_ignore_file(directory: bytes) -> IgnoreFile | None:
    """The rules in ``directory``, if it has any that can be read."""
    try:
        fd = os.open(os.path.join(directory, b".gitignore"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # none, or not readable: git goes on without it, too
        return None
    try:
        content = os.read(fd, _MAX_BYTES)
    except OSError:  # a directory or a FIFO of that name holds no rules
        return None
    finally:
        os.close(fd)
    rules: list[_IgnoreRule] = []
    sources: list[str] = []
    for line in decode_name(content).removeprefix("\ufeff").split("\n"):
        parsed = _parse(line.removesuffix("\r"))
        if parsed is not None:
            source, rule = parsed
            sources.append(source)
            rules.append(rule)
    if not rules:
        return None
    base = decode_name(directory).rstrip("/") + "/"
    return IgnoreFile(base, tuple(rules), re.compile("(?s:" + "|".join(sources) + r")\Z"))


def _parse(line: str) -> tuple[str, _IgnoreRule] | None:
    """One line as the source of its expression and a rule; None for blanks, comments and nonsense."""
    line = re.sub(r"(?<!\\)[ \t]+\Z", "", line)
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    line = line[1:] if negated else line
    directories_only = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    anchored = "/" in line
    source = path_glob_source(line.removeprefix("/"), braces=False)
    source = source if anchored else f"(?:[^/]+/)*{source}"
    try:
        pattern = re.compile(f"(?s:{source})\\Z")
    except re.error:  # whatever odd text stands in the file must not stop a search
        return None
    return source, _IgnoreRule(pattern, directories_only, negated)


def outer_ignore_files(directory: bytes) -> tuple[IgnoreFile, ...]:
    """The rules that hold for what is in ``directory`` from above it, the outermost first.

    They begin at the root of the repository around it. Empty outside of a repository, and where
    ``directory`` is itself ignored: who names an ignored directory wants to see what is in it.
    """
    above: list[bytes] = []
    current = directory
    while not os.path.lexists(os.path.join(current, b".git")):
        parent = os.path.dirname(current)
        if parent == current:
            return ()
        above.append(parent)
        current = parent
    chain: list[IgnoreFile] = []
    names = [*reversed(above), directory]
    for outer, inner in pairwise(names):
        loaded = load_ignore_file(outer)
        chain += [loaded] if loaded else []
        if is_ignored(chain, decode_name(inner), True):
            return ()
    return tuple(chain)


def is_ignored(chain: list[IgnoreFile] | tuple[IgnoreFile, ...], path: str, is_directory: bool) -> bool:
    """Whether the rules in force, the innermost last, ignore ``path``: the last word counts."""
    for rules in reversed(chain):
        verdict = rules.verdict(path, is_directory)
        if verdict is not None:
            return verdict
    return False
