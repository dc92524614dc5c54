"""One measurement in a process of its own: `python -m tests.bench.worker KIND`, JSON in and out.

CPU is this process's alone, all threads, without children: the model server and the commands of the
tool are other processes.
"""

from __future__ import annotations

import gevent.monkey

gevent.monkey.patch_all()

import json  # noqa: E402  patching comes before everything else
import sys  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402


def bare(job: dict[str, Any]) -> dict[str, Any]:
    from tests.bench.bare_loop import run_bare_steps

    cpu_s = []
    for prompt in job["prompts"]:
        start = time.process_time()
        steps = run_bare_steps(job["url"], job["members"], prompt)
        cpu_s.append((time.process_time() - start) / steps)
    return {"cpu_s": cpu_s}


def steps(job: dict[str, Any]) -> dict[str, Any]:
    from tests.bench.harness_loop import run_harness_steps

    return {"marks": run_harness_steps(job["cwd"], job["prompts"])}


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


def imports(job: dict[str, Any]) -> dict[str, Any]:
    for name in job["modules"]:
        __import__(name)
    return {"cpu_s": time.process_time()}


def main() -> None:
    job = json.loads(sys.stdin.readline())
    result = {"bare": bare, "steps": steps, "in_turn": in_turn, "at_once": at_once, "imports": imports}[
        sys.argv[1]
    ](job)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
