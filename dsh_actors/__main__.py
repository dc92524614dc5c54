"""The program's entry: patch, import, run, exit. The only place that patches.

Before anything is read from the disk, an early signal can end the program without a traceback.
"""

import _signal  # type: ignore[import-not-found]  # this and the next are part of the interpreter
import posix
import sys


def _leave(number: int, _frame: object) -> None:
    """The end by a signal that comes before there is anything to end."""
    posix._exit(128 + number)


for _number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
    # A caller that had a signal ignored (nohup) meant it.
    if _signal.getsignal(_number) is not _signal.SIG_IGN:
        _signal.signal(_number, _leave)

if _signal.getsignal(_signal.SIGUSR1) is _signal.SIG_DFL:
    # It asks what the agents are doing, and must not be the end of a program that has none yet.
    _signal.signal(_signal.SIGUSR1, _signal.SIG_IGN)

import os  # noqa: E402


def main() -> None:
    """Run the command line and leave with its exit code."""
    _speak_utf8()
    if sys.flags.no_site:
        # bin/dsh leaves this to us: importing it is the first thing that takes time.
        import site

        site.main()
    stdin_missing = sys.stdin is None
    # A descriptor that the caller closed would be handed out to the next file or pipe that is opened.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)

    from gevent import monkey

    monkey.patch_all()

    from dsh_actors.cli.main import main as run

    code = run(sys.argv[1:], stdin_missing=stdin_missing)
    # Everything is flushed by now. Leaving at once: a native thread that hangs in a system call
    # must not hold the process.
    os._exit(code)


def _speak_utf8() -> None:
    """Start over in UTF-8 mode where the locale would have it that names of files are not UTF-8."""
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode or not sys.executable:
        return
    try:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    except OSError:
        # It still works for names in ASCII.
        return


if __name__ == "__main__":
    main()
