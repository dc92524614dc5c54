"""One measurement in a process of its own: `python -m tests.bench.worker KIND`, lines of JSON in and out.

CPU is this process's alone, all threads, without children: the model server and the commands of the
tool are other processes.
"""

from __future__ import annotations

import gevent.monkey

gevent.monkey.patch_all()

import json  # noqa: E402  patching comes before everything else
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from typing import Any  # noqa: E402


def bare(job: dict[str, Any]) -> None:
    """Answers each line, a prompt, with the CPU seconds a step of that turn took."""
    from tests.bench.bare_loop import run_bare_steps

    for prompt in _lines():
        start = time.process_time()
        steps = run_bare_steps(job["url"], job["members"], prompt)
        _answer((time.process_time() - start) / steps)


def steps(job: dict[str, Any]) -> None:
    """Answers each line, a prompt, with the CPU times at the start and at each end of a step of that turn."""
    from tests.bench.harness_loop import run_harness_steps

    for marks in run_harness_steps(job["cwd"], _lines()):
        _answer(marks)


def in_turn(job: dict[str, Any]) -> dict[str, Any]:
    from tests.bench.harness_loop import run_agents_in_turn

    run_agents_in_turn(job["cwd"], job["warm_up"])
    start = time.process_time()
    answers = run_agents_in_turn(job["cwd"], job["prompts"])
    return {"cpu_s": time.process_time() - start, "answers": answers}


def at_once(job: dict[str, Any]) -> dict[str, Any]:
    from tests.bench.harness_loop import run_agents_at_once, run_agents_in_turn

    run_agents_in_turn(job["cwd"], job["warm_up"])
    start = time.process_time()
    # The starter releases the gate when every request has arrived.
    answers = run_agents_at_once(job["cwd"], job["prompts"], lambda: print("started", flush=True))
    return {"cpu_s": time.process_time() - start, "answers": answers}


def bare_at_once(job: dict[str, Any]) -> dict[str, Any]:
    from tests.bench.bare_loop import run_bare_steps

    for prompt in job["warm_up"]:
        run_bare_steps(job["url"], job["members"], prompt)
    start = time.monotonic()
    jobs = [gevent.spawn(run_bare_steps, job["url"], job["members"], prompt) for prompt in job["prompts"]]
    gevent.joinall(jobs, raise_error=True)
    return {"seconds": time.monotonic() - start, "steps": sum(each.value for each in jobs)}


def hosting(job: dict[str, Any]) -> dict[str, Any]:
    """Calls the measurement ``what`` of `host_loop`."""
    from tests.bench import host_loop

    measure = getattr(host_loop, f"run_{job.pop('what')}")
    return dict(measure(**job))


def imports(job: dict[str, Any]) -> dict[str, Any]:
    for name in job["modules"]:
        __import__(name)
    return {"cpu_s": time.process_time()}


def _lines() -> Iterator[Any]:
    for line in sys.stdin:
        yield json.loads(line)


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    job = json.loads(sys.stdin.readline())
    kind = sys.argv[1]
    talking = {"bare": bare, "steps": steps}
    if kind in talking:
        talking[kind](job)
    else:
        kinds = {"in_turn": in_turn, "at_once": at_once, "imports": imports}
        kinds |= {"bare_at_once": bare_at_once, "hosting": hosting}
        _answer(kinds[kind](job))


if __name__ == "__main__":
    main()
