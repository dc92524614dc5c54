"""`python -m tests.bench [steps|growth|startup|many|listing]…`: run the benchmarks and print a table.

Run it on a quiet machine. The limits are those of the project, ratios where a ratio is promised.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.listing import Listing
from tests.bench.measure import Bench
from tests.model_server import ModelServer

NAMES = ("steps", "growth", "startup", "many", "listing")

Row = tuple[str, str, str, float, float]


def rows(bench: Bench, names: list[str]) -> Iterator[Row]:
    """(what, ours, compared with, figure, limit)."""
    if "steps" in names:
        for tool, title in (("note", "a step, tool in process"), ("bash", "a step, shell command")):
            steps = bench.steps(tool)
            yield title, f"{steps.harness_ms:.2f} ms", f"bare {steps.bare_ms:.2f} ms", steps.ratio, 2.5
    if "growth" in names:
        yield "step 1,000", "", "step 10", bench.growth(), 1.3
    if "startup" in names:
        startup = bench.startup()
        compared = f"imports {startup.imports_s:.2f} s"
        yield "start to first request", f"{startup.run_s:.2f} s", compared, startup.run_s, 0.6
    if "many" in names:
        many = bench.many()
        title = f"{many.agents} agents at once, {many.lost} lost"
        yield title, f"{many.at_once_s:.2f} s", f"in turn {many.in_turn_s:.2f} s", many.ratio, 1.5
    if "listing" in names:
        listing = Listing.measure(bench.cwd)
        title = f"the newest 20 of {listing.sessions} sessions"
        yield title, f"{listing.ours_ms:.0f} ms", f"scan {listing.bare_ms:.0f} ms", listing.ratio, 1.5
        program_ms = listing.program_ms
        yield "the program `dsh session ls -n 20`", f"{program_ms:.0f} ms", "", program_ms, 300


def main() -> int:
    names = sys.argv[1:] or list(NAMES)
    if set(names) - set(NAMES):
        print(f"unknown benchmark; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    within = True
    print(f"{'CPU of':<34}{'ours':>10}{'compared with':>20}{'figure':>9}{'limit':>8}")
    with ModelServer() as server, tempfile.TemporaryDirectory() as root:
        for title, ours, compared, figure, limit in rows(Bench(server, Path(root)), names):
            within = within and figure <= limit
            print(f"{title:<34}{ours:>10}{compared:>20}{figure:>9.2f}{limit:>8}", flush=True)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
