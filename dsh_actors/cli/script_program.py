"""The program of a script: a file that runs as ``__main__``, and tracebacks of its own lines only."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from types import CodeType, ModuleType, TracebackType

from dsh_actors.errors import UsageError

__all__ = ["Program"]

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_EXAMPLES = os.path.join(_OURS, "examples")


class Program:
    """One file and its arguments; run once, in the main greenlet."""

    def __init__(self, path: str, arguments: tuple[str, ...]) -> None:
        self.path = path
        self._arguments = arguments
        self._code: CodeType | None = None

    def load(self) -> None:
        """Read and compile it. Raises `UsageError` for what is no Python program."""
        try:
            with open(self.path, "rb") as file:
                source = file.read()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot read the script {self.path}: {reason}") from error
        try:
            self._code = compile(source, self.path, "exec", dont_inherit=True)
        except SyntaxError as error:
            place = f"{self.path}, line {error.lineno}" if error.lineno else self.path
            raise UsageError(f"the script is no Python program: {place}: {error.msg}") from error
        except ValueError as error:
            raise UsageError(f"the script {self.path} is no Python program: {error}") from error

    def run(self) -> None:
        """All of it, as Python would run it. Raises whatever comes out of it."""
        code = self._code
        assert code is not None  # it is loaded before it is run
        main = ModuleType("__main__")
        main.__file__ = self.path
        sys.modules["__main__"] = main
        sys.argv = [self.path, *self._arguments]
        sys.path.insert(0, os.path.dirname(os.path.realpath(self.path)))
        exec(code, main.__dict__)
        self._join_threads()
        if not sys.stdout.closed:
            sys.stdout.flush()

    def finish(self) -> None:
        """What the program and its libraries wanted to have done at the end of the process."""
        atexit._run_exitfuncs()

    def _join_threads(self) -> None:
        """Threads that the program started and did not wait for belong to it, as they would without us."""
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()

    # --- what went wrong ---------------------------------------------------------------------

    def place_of(self, error: BaseException) -> str:
        """The last line of the program itself that the error went through."""
        lines = [line for name, line in _frames(error.__traceback__) if name == self.path]
        return f"{self.path}, line {lines[-1]}" if lines else self.path

    def traceback_of(self, error: BaseException) -> str:
        """What Python would print, without what is ours."""
        shown = traceback.TracebackException.from_exception(error)
        seen: list[traceback.TracebackException] = [shown]
        for each in seen:
            each.stack[:] = [frame for frame in each.stack if not _is_ours(frame.filename)]
            seen += [inner for inner in (each.__cause__, each.__context__) if inner and inner not in seen]
            seen += [inner for inner in each.exceptions or () if inner not in seen]
        return "".join(shown.format())


def _frames(trace: TracebackType | None) -> list[tuple[str, int]]:
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]


def _is_ours(filename: str) -> bool:
    path = os.path.abspath(filename)
    is_package = path.startswith(_OURS + os.sep) and not path.startswith(_EXAMPLES + os.sep)
    return is_package or f"{os.sep}gevent{os.sep}" in path or filename.startswith(("<frozen", "src/gevent"))
