"""One session that the store writes: what is not durable yet, and who waits for it.

Batches and checkpoints of a session go through one slot, one after the other; other sessions have slots
of their own. The rewriting of sealed segments runs beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsh_actors.actors.boundary import failure_of
from dsh_actors.core.chunks import Failure
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.ports import Checkpoint, SessionStorage, SessionWriter
from dsh_actors.runtime.files import start_native
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.timers import Timer, after

__all__ = ["HeldSession", "WindowOver", "WorkEnded"]

Settle = Callable[[Failure | None], None]


@dataclass(frozen=True, slots=True)
class WindowOver:
    """The batch window of a session has passed."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """A piece of a session's native work has ended; ``accept`` takes its error."""

    session_id: SessionId
    accept: Callable[[BaseException | None], None]
    error: BaseException | None


class HeldSession:
    """Outlives the store's incarnations; ``tell`` reaches whichever is the store by then.

    Used by the store only, which hands `WindowOver` and `WorkEnded` back to it.
    """

    def __init__(
        self,
        writer: SessionWriter,
        storage: SessionStorage,
        on_broken: Callable[[Failure], None],
        tell: Callable[[Any], None],
        window_s: float,
        *,
        checkpoint_below: int = 0,
        is_new_copy: bool = False,
    ) -> None:
        self.id = writer.header.id
        self.writer = writer
        self.storage = storage
        self.on_broken = on_broken
        self.is_new_copy = is_new_copy
        """Whether a discard must take back what is on the disk already."""
        self.closing: list[GeventFuture] = []
        """Who waits until the session is closed; nothing is taken in any more then."""
        self._tell = tell
        self._window_s = window_s
        self._pending: list[Event] = []
        self._durable_below = writer.next_seq
        self._waiters: list[tuple[int, Settle]] = []
        self._when_free: list[Callable[[], None]] = []
        self._timer: Timer | None = None
        self._is_due = False
        self._is_busy = False
        self._is_writing = False
        self._is_rewriting = False
        self._checkpoint: Checkpoint | None = None
        self._checkpoint_below = checkpoint_below
        self._may_rewrite = True
        self._native_calls = 0
        self._native_over: GeventFuture | None = None

    # --- what the store asks for -------------------------------------------------------------

    def append(self, events: tuple[Event, ...]) -> None:
        """Take events in; they are written when the window is over, or with the next flush."""
        self._pending.extend(events)
        if self._timer is None and not self._is_due:
            self._timer = after(self._window_s, lambda: self._tell(WindowOver(self.id)))

    def when_durable(self, settle: Settle) -> None:
        """Write everything appended so far at once; ``settle`` hears None or why it failed."""
        below = self._pending[-1].seq + 1 if self._pending else self._durable_below
        if not self._pending and not self._is_writing:
            settle(None)
            return
        self._waiters.append((max(below, self._durable_below), settle))
        self._work()

    def keep(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint of all that was appended so far, once that is durable. The newest wins."""
        if checkpoint.next_seq > self._checkpoint_below:
            self._checkpoint = checkpoint
            self._work()

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call back when no native work uses the writer any more; only a checkpoint is still saved."""
        self._may_rewrite = False
        if self._checkpoint is not None:
            self._work()
        self._when_free.append(callback)
        self._tell_free()

    def window_over(self) -> None:
        self._timer, self._is_due = None, bool(self._pending)
        self._work()

    def resume(self) -> None:
        """A new incarnation of the store took over: timers of the last one may be lost."""
        self._timer, self._is_due = None, bool(self._pending)
        self._work()

    def drop_pending(self) -> None:
        """Forget what was not written: the session is discarded."""
        self._pending.clear()
        self._checkpoint = None

    def wait_for_native(self, timeout_s: float) -> bool:
        """Wait until no native thread uses the writer; whether it is so."""
        return self._native_over is None or self._native_over.wait(timeout_s)

    def unwritten(self) -> list[Event]:
        """What the writer does not have yet, oldest first."""
        return [event for event in self._pending if event.seq >= self.writer.next_seq]

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the slot ----------------------------------------------------------------------------

    def _work(self) -> None:
        """Start the next piece of native work, unless one is under way: its end starts the next."""
        if self._is_busy:
            return
        checkpoint = self._checkpoint
        if checkpoint is not None and checkpoint.next_seq < self._durable_below:
            checkpoint = self._checkpoint = None  # more was appended after it: no batch begins there
        if checkpoint is not None and checkpoint.next_seq == self._durable_below:
            self._save(checkpoint)
        elif self._pending:
            self._write(checkpoint)

    def _occupy(self, work: Callable[[], None], accept: Callable[[BaseException | None], None]) -> None:
        self._is_busy = True
        self._start(work, accept)

    def _start(self, work: Callable[[], None], accept: Callable[[BaseException | None], None]) -> None:
        def ended(_none: None, error: BaseException | None) -> None:
            self._native_calls -= 1
            over = self._native_over
            if not self._native_calls and over is not None:
                self._native_over = None
                over.set(None)
            self._tell(WorkEnded(self.id, accept, error))

        if not self._native_calls:
            self._native_over = GeventFuture()
        self._native_calls += 1
        start_native(work, ended)

    def work_ended(self, message: WorkEnded) -> None:
        message.accept(message.error)
        self._tell_free()

    def _tell_free(self) -> None:
        if not self._is_busy and not self._is_rewriting:
            waiting, self._when_free = self._when_free, []
            for callback in waiting:
                callback()

    def _write(self, checkpoint: Checkpoint | None) -> None:
        batch, self._pending = self._pending, []
        if checkpoint is not None:
            # A checkpoint points at the start of a batch, so one must end where it was taken.
            cut = checkpoint.next_seq - batch[0].seq
            batch, self._pending = batch[:cut], batch[cut:]
        if not self._pending:
            self.stop_timer()
            self._is_due = False
        self._is_writing = True
        self._occupy(partial(self.writer.append, batch), partial(self._written, batch))

    def _written(self, batch: list[Event], error: BaseException | None) -> None:
        self._is_busy = self._is_writing = False
        if error is not None:
            self._write_failed(batch, error)
            return
        self._durable_below = batch[-1].seq + 1
        ready = [settle for below, settle in self._waiters if below <= self._durable_below]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > self._durable_below]
        for settle in ready:
            settle(None)
        self._go_on()
        self._rewrite()

    def _write_failed(self, batch: list[Event], error: BaseException) -> None:
        # Kept in order for the next flush; nobody retries by itself on a disk that refuses.
        self._pending[:0] = batch
        self._is_due, self._checkpoint = False, None
        failure = failure_of(error, "STORAGE_FAILED")
        waiters, self._waiters = self._waiters, []
        for _below, settle in waiters:
            settle(failure)
        self.on_broken(failure)

    def _save(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = None
        before, self._checkpoint_below = self._checkpoint_below, checkpoint.next_seq
        self._occupy(partial(self.writer.save_checkpoint, checkpoint), partial(self._saved, before))

    def _saved(self, before: int, error: BaseException | None) -> None:
        self._is_busy = False
        if error is not None:
            # Without it the session opens more slowly and no differently: there is nobody to tell.
            self._checkpoint_below = before
        self._go_on()

    def _go_on(self) -> None:
        """Work that somebody waits for; a window that is still open is left alone."""
        if self._waiters or self._is_due or self._checkpoint is not None:
            self._work()

    def _rewrite(self) -> None:
        if self._may_rewrite and not self._is_rewriting and getattr(self.writer, "needs_rewrite", False):
            self._is_rewriting = True
            rewrite: Callable[[], None] = self.writer.compact  # type: ignore[attr-defined]  # has it then
            self._start(rewrite, self._rewritten)

    def _rewritten(self, _error: BaseException | None) -> None:
        # What could not be rewritten stays readable as it is; the writer knows when to try again.
        self._is_rewriting = False
