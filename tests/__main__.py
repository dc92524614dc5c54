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
NO_TESTS = 5
"""What pytest exits with where it ran none, as the other run had claimed every file."""

_PROGRESS = re.compile(r"[.FEsxX]+ +\[ *\d+%\]\s*")
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|warnings?)")


class Run:
    """One run of pytest. Its progress is shown at once, the rest when it is over."""

    def __init__(self, *options: str) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [*PYTEST, *options],
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
        last = self.said[-1] if self.said else ""
        counts.update({word.rstrip("s"): int(number) for number, word in _COUNT.findall(last)})
        code = self._process.wait()
        return 0 if code == NO_TESTS else code


def main() -> int:
    began, counts = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory() as claims:
        shared = ("tests", f"--share={claims}", f"--ignore={BENCH}", "-p", "no:cacheprovider")
        runs = [Run(*shared) for _ in range(RUNS)]
        codes = [run.end(counts) for run in runs]
    codes.append(Run(BENCH).end(counts))
    said = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"==== {said or 'no tests ran'} in {time.monotonic() - began:.0f} s, {RUNS} runs side by side ====")
    return next((code for code in codes if code), 0 if counts["passed"] else NO_TESTS)


if __name__ == "__main__":
    sys.exit(main())
