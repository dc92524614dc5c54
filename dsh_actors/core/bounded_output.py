"""Output of a command within bounds: how it is kept while it comes, and how it is shown as text. Pure."""

from __future__ import annotations

from dsh_actors.core.text import decode_output

__all__ = ["BoundedOutput", "exit_words", "visible", "without_cut_end"]

_SIGNALS = (
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
)
"""Linux's names, from 1."""


class BoundedOutput:
    """The first and the last half of at most ``limit`` bytes, and the count of all."""

    __slots__ = ("_head", "_head_limit", "_tail", "_tail_limit", "_total")

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, piece: bytes) -> None:
        self._total += len(piece)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        self._tail += piece[-self._tail_limit :] if self._tail_limit else b""
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def parts(self) -> tuple[bytes, int]:
        """What is kept, and how many bytes between its halves are not.

        Where the count is not 0, the first ``limit // 2`` bytes are the head.
        """
        tail = self._tail[max(0, len(self._tail) - self._tail_limit) :]
        output = bytes(self._head + tail)
        return output, self._total - len(output)


def visible(output: bytes, omitted: int, limit: int) -> tuple[str, int]:
    """Kept ``output`` as text of about ``limit`` bytes, and how many bytes of output it leaves out.

    ``omitted`` bytes are missing in the middle already, where `BoundedOutput.parts` says.
    """
    whole = decode_output(output)
    if not omitted and len(whole.encode()) <= limit:
        return whole, 0
    middle = min(limit // 2, len(output))
    head, used_by_head = _fit(output[:middle], limit // 2, from_end=False)
    tail, used_by_tail = _fit(output[middle:], limit - limit // 2, from_end=True)
    omitted += len(output) - used_by_head - used_by_tail
    return f"{head}\n[{omitted} bytes omitted here]\n{tail}", omitted


def exit_words(exit_code: int) -> str:
    """How a command ended, in words; a negative code is a signal."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    number = -exit_code
    name = f"SIG{_SIGNALS[number - 1]}" if number <= len(_SIGNALS) else str(number)  # a real-time signal
    return f"ended by signal {name}"


def _fit(raw: bytes, budget: int, from_end: bool) -> tuple[str, int]:
    """The longest start or end of ``raw`` that fits as text, and its bytes. Binary data grows when shown."""
    low, high = 0, len(raw)
    size = high
    while True:
        part = _without_cut_start(raw[len(raw) - size :]) if from_end else without_cut_end(raw[:size])
        text = decode_output(part)
        if len(text.encode()) <= budget:
            low = size
        else:
            high = size - 1
        if low >= high:
            if size == low:
                return text, len(part)
            size = low
        else:
            size = (low + high + 1) // 2


def without_cut_end(raw: bytes) -> bytes:
    """``raw`` without the start of a UTF-8 character whose rest is cut off."""
    for back in range(1, min(3, len(raw)) + 1):
        byte = raw[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return raw[:-back] if length > back else raw
        if byte < 0x80:
            break
    return raw


def _without_cut_start(raw: bytes) -> bytes:
    """``raw`` without the rest of a UTF-8 character whose start is cut off."""
    skip = 0
    while skip < min(3, len(raw)) and 0x80 <= raw[skip] < 0xC0:
        skip += 1
    return raw[skip:]
