"""`python -m tests.bench [NAME]…`: run the benchmarks of `NAMES`, or all of them, and print a table.

Run it on a quiet machine. The limits are those of the project, ratios where a ratio is promised.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tests.bench import hosting, storage, streams
from tests.bench.batches import Batches
from tests.bench.listing import Listing
from tests.bench.measure import Bench
from tests.model_server import ModelServer

NAMES = ("steps", "growth", "startup", "many", "batch", "listing", "storage", "streams", "hosting", "day")

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
    if "batch" in names:
        found = Batches.measure(bench)
        ours = f"{found.batch_ms:.1f} ms"
        yield "a task of a batch", ours, f"a run {found.run_ms:.0f} ms", found.against_runs, 0.1
        yield "the same", ours, f"an agent {found.agent_ms:.1f} ms", found.against_agents, 1.5
    if "listing" in names:
        listing = Listing.measure(bench.cwd)
        title = f"the newest 20 of {listing.sessions} sessions"
        yield title, f"{listing.ours_ms:.0f} ms", f"scan {listing.bare_ms:.0f} ms", listing.ratio, 1.5
        program_ms = listing.program_ms
        yield "the program `dsh session ls -n 20`", f"{program_ms:.0f} ms", "", program_ms, 300


def storage_rows(root: Path) -> Iterator[Row]:
    """Shares and ratios of wall time. Where more is better, the figure is the inverse."""
    size = storage.size(root / "size")
    yield "a sealed session on disk", f"{size.ours:,} B", f"plain {size.plain:,} B", size.ratio, 0.65
    opening = storage.opening(root / "opening")
    compared = f"folding {1000 * opening.folding_s:.0f} ms"
    ours = f"{1000 * opening.with_checkpoint_s:.1f} ms"
    yield "opening 100,000 events", ours, compared, 1 / opening.ratio, 0.05
    append = storage.append(root / "append")
    compared = f"plain {1e6 * append.plain_s:.0f}, sync {1e6 * append.ready_s:.0f} µs"
    yield "a durable append of a step", f"{1e6 * append.ours_s:.0f} µs", compared, append.ratio, 1.3
    many = storage.many(root / "many")
    compared = f"plain {many.plain:,.0f}/s"
    yield f"{many.sessions} sessions at once", f"{many.ours:,.0f}/s", compared, 1 / many.ratio, 1.43


def stream_rows(bench: Bench) -> Iterator[Row]:
    """Parsing is a ratio of CPU; of many streams the figure is how many were lost or taken for silent."""
    for kind in streams.KINDS:
        parsing = streams.parsing(kind)
        compared = f"libraries {parsing.bare_us:.2f} µs"
        yield f"an event of a stream, {kind}", f"{parsing.ours_us:.2f} µs", compared, parsing.ratio, 1.5
    many = streams.many_streams(bench, 1_000, 250, 50, idle_timeout_s=1.0)
    title = f"{many.streams} streams of 50 chunks/s"
    ours = f"{100 * many.cpu_share:.0f} % CPU"
    compared = f"lag {1000 * many.lag_median_s:.0f}, worst {1000 * many.lag_worst_s:.0f} ms"
    yield title, ours, compared, many.lost + many.silent, 0
    first = streams.first_delta(bench, repeats=9)
    compared = f"worst {first.worst_ms:.1f} ms"
    yield "the first delta on stdout", f"{first.median_ms:.1f} ms", compared, first.median_ms, 20


def hosting_rows(bench: Bench) -> Iterator[Row]:
    """Memory is in MB, times are CPU; of many at work the figure is the bare loop's rate over ours."""
    idle = hosting.idle(bench, 10_000)
    each = f"{idle.each_kb:.1f} kB each"
    yield f"{idle.agents:,} idle agents", f"{idle.total_mb:.0f} MB", each, idle.total_mb, hosting.IDLE_MB
    asleep = hosting.asleep(bench, 100_000)
    title = f"{asleep.agents:,} asleep"
    yield title, f"{asleep.total_mb:.0f} MB", "", asleep.total_mb, hosting.ASLEEP_MB
    yield "a list of all of them", f"{asleep.listing_s:.2f} s", "", asleep.listing_s, hosting.LISTING_S
    yield "waking an agent", "", "creating one", hosting.waking(bench, 500), hosting.WAKING
    work = hosting.at_work(bench, 1_000)
    title = f"{work.agents:,} agents at work, {work.lost} lost"
    yield title, f"{work.ours:.0f}/s", f"bare {work.bare:.0f} steps/s", work.ratio, hosting.AT_WORK


def day_rows(bench: Bench) -> Iterator[Row]:
    """A day in minutes: what is held at the end over what was held after the first 200 agents."""
    day = hosting.day(bench, 20_000, 200, 200, 50)
    compared = f"at first {day.early_mb:.1f} MB"
    yield f"memory after {day.agents:,} agents", f"{day.late_mb:.1f} MB", compared, day.memory, hosting.DAY
    early, late = day.descriptors
    yield "descriptors", f"{late}", f"at first {early}", day.open_files, hosting.DAY


def main() -> int:
    names = sys.argv[1:] or list(NAMES)
    if set(names) - set(NAMES):
        print(f"unknown benchmark; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    within = True
    print(f"{'cost of':<34}{'ours':>10}{'compared with':>24}{'figure':>9}{'limit':>8}")
    with ModelServer() as server, tempfile.TemporaryDirectory() as root:
        bench = Bench(server, Path(root))
        found = rows(bench, names)
        if "streams" in names:
            found = chain(found, stream_rows(bench))
        if "hosting" in names:
            found = chain(found, hosting_rows(bench))
        if "day" in names:
            found = chain(found, day_rows(bench))
        if "storage" in names:
            found = chain(found, storage_rows(Path(root)))
        for title, ours, compared, figure, limit in found:
            within = within and figure <= limit
            print(f"{title:<34}{ours:>10}{compared:>24}{figure:>9.2f}{limit:>8}", flush=True)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
