"""The whole suite: two runs of pytest share the files of tests, then the benchmarks have the machine alone.

A test waits for processes and disks more than it computes, so two runs at once take little more than half
the time of one. The exit code is that of the first run that failed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = 2
BENCH = "tests/bench"
PYTEST = [sys.executable, "-W", "error", "-m", "gevent.monkey", "--module", "pytest", "-q"]
HANG_S = 200
"""A test that takes longer hangs, and ends its run."""
HANG = ["-o", f"faulthandler_timeout={HANG_S}", "-o", "faulthandler_exit_on_timeout=true"]
NO_TESTS = 5
"""What pytest exits with where it ran none, as the other run had claimed every file."""

_PROGRESS = re.compile(r"[.FEsxX]+ +\[ *\d+%\]\s*")
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|warnings?)")


class Run:
    """One run of pytest. Its progress is shown at once, the rest when it is over."""

    def __init__(self, *options: str, claims: Path | None = None) -> None:
        self.said: list[str] = []
        self._claims = claims
        self._process = subprocess.Popen(
            [*PYTEST, *HANG, *options],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if _PROGRESS.fullmatch(line):
                    print(line, end="", flush=True)
                else:
                    self.said.append(line)

    def end(self, counts: Counter[str]) -> int:
        """Wait for it, show what it had to say, count its tests; its exit code."""
        self._reader.join()
        print("".join(self.said), end="", flush=True)
        found = _COUNT.findall(self.said[-1] if self.said else "")
        counts.update({word.rstrip("s"): int(number) for number, word in found})
        code = self._process.wait()
        if not found and code not in (0, NO_TESTS):
            print(f"==== a run ended with {code} in the midst of {self._last_test()}", flush=True)
        return 0 if code == NO_TESTS else code


    def _last_test(self) -> str:
        last = self._claims and self._claims / f"at-{self._process.pid}"
        return last.read_text("utf-8") if last and last.exists() else "a test"


def main() -> int:
    began, counts = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as claims:
        shared = ("tests", f"--share={claims}", f"--ignore={BENCH}", "-p", "no:cacheprovider")
        # Each with files of its own: elsewhere pytest clears away what another run is looking at.
        runs = [
            Run(*shared, f"--basetemp={claims}/run-{number}", claims=Path(claims)) for number in range(RUNS)
        ]
        codes = [run.end(counts) for run in runs]
    codes.append(Run(BENCH).end(counts))
    said = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"==== {said or 'no tests ran'} in {time.monotonic() - began:.0f} s, {RUNS} runs side by side ====")
    return next((code for code in codes if code), 0 if counts["passed"] else NO_TESTS)


if __name__ == "__main__":
    sys.exit(main())
