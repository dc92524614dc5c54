"""Puts the fragments of streamed tool calls together, however a server numbers and names them.

Pure. Reports what it finds as `BlockStart` and `ToolCallDelta` chunks; `close` gives whole calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.core.chunks import BlockStart, Chunk, ToolCallDelta
from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import ToolCallBlock
from dsh_actors.core.text import JsonObject, clean_text

__all__ = ["Fragments", "ToolSlots"]


class Fragments:
    """Text that arrives in pieces; a surrogate pair may be cut in two between them."""

    __slots__ = ("_held", "parts")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._held = ""

    def add(self, text: str) -> str:
        """Take a piece; return the well-formed text that it completes."""
        if text.isascii() and not self._held:
            self.parts.append(text)
            return text
        text, self._held = self._held + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        text = clean_text(text)
        self.parts.append(text)
        return text

    def close(self) -> str:
        """What is left at the end: a replacement for half a pair, or nothing."""
        rest = "\ufffd" if self._held else ""
        self._held = ""
        self.parts.append(rest)
        return rest

    def text(self) -> str:
        return "".join(self.parts)


@dataclass(slots=True)
class _Slot:
    """One call. ``block`` is None until there is something to show."""

    number: int
    block: int | None = None
    id: CallId | None = None
    name: str = ""
    arguments: Fragments = field(default_factory=Fragments)

    def rename(self, name: str | None) -> bool:
        """Take a name, or a further piece of one; whether the name changed."""
        if not name or name == self.name:
            return False
        if self.name and any(self.arguments.parts):
            return False
        self.name += name
        return True

    def is_complete(self) -> bool:
        text = self.arguments.text()
        if not text.rstrip().endswith("}"):
            return False
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return False
        return True


class ToolSlots:
    """The calls of one message. ``open_block`` gives the next block index, ``new_id`` a unique id.

    ``warnings`` collects what was odd.
    """

    def __init__(
        self, open_block: Callable[[], int], new_id: Callable[[int], str], warnings: set[str]
    ) -> None:
        self._open_block = open_block
        self._new_id = new_id
        self._warnings = warnings
        self._slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}
        self._by_id: dict[str, _Slot] = {}

    def __bool__(self) -> bool:
        return any(slot.block is not None for slot in self._slots)

    def feed(self, raw: Any, out: list[Chunk]) -> None:
        """Take one element of a delta's ``tool_calls``."""
        if not isinstance(raw, dict):
            return
        function = raw.get("function")
        if not isinstance(function, dict):
            function = {}
        if self._go_on(raw, function, out):
            return
        call_id, name = _text(raw.get("id")), _text(function.get("name"))
        arguments = _arguments(function.get("arguments"))
        slot = self._find(_index(raw.get("index")), call_id, name, arguments)
        if call_id and slot.id is None:
            slot.id = CallId(call_id)
            self._by_id.setdefault(call_id, slot)
        renamed = slot.rename(name)
        added = slot.arguments.add(arguments)
        if slot.block is None:
            # Not yet worth a block: an id alone, or blanks that no name came with.
            if not slot.name and not added.strip():
                return
            slot.block = self._open_block()
            out.append(BlockStart(slot.block, "tool-call"))
            added = slot.arguments.text()
        elif not renamed and not added:
            return
        shown = slot.name if renamed else None
        out.append(ToolCallDelta(slot.block, self._id_of(slot), shown, added))

    def _go_on(self, raw: JsonObject, function: JsonObject, out: list[Chunk]) -> bool:
        """Take the usual element: more arguments for a call that has begun, and nothing else."""
        index, arguments = raw.get("index"), function.get("arguments")
        if type(index) is not int or type(arguments) is not str or raw.get("id") or function.get("name"):
            return False
        slot = self._by_index.get(index)
        if slot is None or slot.block is None or slot.id is None:
            return False
        added = slot.arguments.add(arguments)
        if added:
            out.append(ToolCallDelta(slot.block, slot.id, None, added))
        return True

    def _find(self, index: int | None, call_id: str | None, name: str | None, arguments: str) -> _Slot:
        if index is not None:
            slot = self._by_index.get(index)
            if slot is not None and name and self._is_another(slot, call_id, name, arguments):
                self._warnings.add("index_reused")
                slot = None
            if slot is None:
                slot = self._by_index[index] = self._open()
            return slot
        known = self._by_id.get(call_id) if call_id else None
        if known is not None:
            return known
        return self._open() if name or not self._slots else self._slots[-1]

    @staticmethod
    def _is_another(slot: _Slot, call_id: str | None, name: str, arguments: str) -> bool:
        """Whether a named delta under a known index begins a new call (all calls at index 0)."""
        if call_id and slot.id:
            return call_id != slot.id
        # Without ids only a finished call can be told from one whose name is said again and again.
        repeats = name == slot.name and not arguments.strip()
        return bool(slot.name) and not repeats and slot.is_complete()

    def _open(self) -> _Slot:
        slot = _Slot(len(self._slots))
        self._slots.append(slot)
        return slot

    def _id_of(self, slot: _Slot) -> CallId:
        return slot.id or CallId(self._new_id(slot.number))

    def close(self) -> tuple[dict[int, ToolCallBlock], bool]:
        """The whole calls by block index, and whether one of them has no name."""
        calls: dict[int, ToolCallBlock] = {}
        taken: set[str] = set()
        nameless = False
        for slot in self._slots:
            if slot.block is None:
                continue
            slot.arguments.close()
            arguments = slot.arguments.text()
            nameless = nameless or not slot.name
            call_id = unique = str(self._id_of(slot))
            number = 2
            while unique in taken:
                unique, number = f"{call_id}_{number}", number + 1
            taken.add(unique)
            calls[slot.block] = ToolCallBlock(
                CallId(unique), slot.name, arguments if arguments.strip() else "{}"
            )
        return calls, nameless


def _index(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: object) -> str | None:
    return clean_text(value) if isinstance(value, str) and value else None


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return ""
