"""The one walk over a directory tree that ``glob`` and ``grep`` share: in order, lazy, loop-free.

The rule for what is left out: ``.git``, linked worktrees of a repository inside the tree, and what the
``.gitignore`` files between the repository's root and the entry ignore. Dot files are ordinary. The
place that a search starts from is never left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from dsh_actors.adapters.tools.ignore import IgnoreFile, is_ignored, load_ignore_file, outer_ignore_files
from dsh_actors.adapters.tools.paths import check_cancel, decode_name, shown
from dsh_actors.ports import ToolContext

__all__ = ["Entry", "Walk"]

_NOTED_DIRECTORIES = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """``relative`` is the path below the start, decoded for matching. A link to a directory is one entry."""

    path: bytes
    relative: str
    is_directory: bool
    is_link: bool
    is_regular: bool


@dataclass(slots=True)
class Walk:
    """Iterate once over the entries below ``start``, sorted by path; then ask what was left out.

    ``max_depth`` counts names; None goes all the way down. Links to directories are not followed.
    """

    start: bytes
    context: ToolContext
    max_depth: int | None = None
    ignored: int = 0
    """Entries left out by the rule; a directory with all it holds counts once."""
    unreadable: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Entry]:
        start = os.path.realpath(self.start)
        chain = outer_ignore_files(start)
        stack = [self._directory(self.start, "", chain, start)]
        while stack:
            item = next(stack[-1], None)
            if item is None:
                stack.pop()
                continue
            entry, inner_chain, real = item
            yield entry
            deeper = self.max_depth is None or len(stack) < self.max_depth
            if deeper and entry.is_directory and not entry.is_link:
                stack.append(self._directory(entry.path, entry.relative + "/", inner_chain, real))

    def _directory(
        self, path: bytes, prefix: str, chain: tuple[IgnoreFile, ...], real: bytes
    ) -> Iterator[tuple[Entry, tuple[IgnoreFile, ...], bytes]]:
        """The kept entries of one directory in order, with the rules in force and its real path."""
        check_cancel(self.context)
        try:
            with os.scandir(path) as scan:
                entries = sorted(scan, key=_order)
        except OSError:
            self.unreadable.append(shown(path, self.context))
            return
        if any(entry.name == b".gitignore" for entry in entries):
            rules = load_ignore_file(path)
            chain = (*chain, _based(rules, real)) if rules else chain
        for entry in entries:
            if entry.name == b".git":
                continue
            is_link = entry.is_symlink()
            is_directory = _is_directory(entry)
            inner = os.path.join(real, entry.name)
            descends = is_directory and not is_link
            # To git a link is a file, also when it leads to a directory.
            if is_ignored(chain, decode_name(inner), descends) or (
                descends and _is_linked_worktree(entry.path)
            ):
                self.ignored += 1
                continue
            regular = not is_link and entry.is_file(follow_symlinks=False)
            relative = prefix + decode_name(entry.name)
            yield Entry(entry.path, relative, is_directory, is_link, regular), chain, inner

    def notes(self) -> list[str]:
        """What the reader of a result has to know about what was left out."""
        notes = [f"{self.ignored} entries skipped by ignore rules"] if self.ignored else []
        if self.unreadable:
            names = ", ".join(self.unreadable[:_NOTED_DIRECTORIES])
            more = ", …" if len(self.unreadable) > _NOTED_DIRECTORIES else ""
            notes.append(f"{len(self.unreadable)} directories could not be read ({names}{more})")
        return notes


def _order(entry: os.DirEntry[bytes]) -> bytes:
    """Sorts a directory where its contents sort, so that the walk is in the order of whole paths."""
    return entry.name + b"/" if _is_directory(entry) and not entry.is_symlink() else entry.name


def _is_directory(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _based(rules: IgnoreFile, real: bytes) -> IgnoreFile:
    return IgnoreFile(decode_name(real).rstrip("/") + "/", rules.rules, rules.any_rule)


def _is_linked_worktree(directory: bytes) -> bool:
    """Whether this is a second checkout of a repository, which would repeat every file in it."""
    try:
        fd = os.open(os.path.join(directory, b".git"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no repository
        return False
    try:
        link = os.read(fd, 4096)
    except OSError:  # a directory: a repository of its own
        return False
    finally:
        os.close(fd)
    return link.startswith(b"gitdir:") and b"/worktrees/" in link
