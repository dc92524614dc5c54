"""Plan a task, execute it step by step with one agent, and let others that only look verify each step.

    dsh script plan_execute_verify.py "TASK"
"""

from __future__ import annotations

import sys

from dsh_actors.scripting import create, spawn

PLAN = {
    "type": "object",
    "required": ["steps"],
    "properties": {"steps": {"type": "array", "minItems": 1, "maxItems": 8, "items": {"type": "string"}}},
}
VERDICT = {
    "type": "object",
    "required": ["ok", "why"],
    "properties": {"ok": {"type": "boolean"}, "why": {"type": "string"}},
}
ROUNDS = 3
"""How often the work on one step is looked at before it is given up."""

def verified(step: str, report: str) -> tuple[bool, str]:
    """What somebody who did not do the work says of it."""
    prompt = f"Verify this by looking at the files yourself. Step: {step}\n\nReport of the worker:\n{report}"
    end = spawn(prompt, schema=VERDICT, tools=["read", "grep", "glob"], check=True)
    return end.structured["ok"], end.structured["why"]


def main(task: str) -> None:
    plan = spawn(f"Plan this task in a few steps; do not begin it. Task: {task}", schema=PLAN, check=True)
    with create() as worker:
        for number, step in enumerate(plan.structured["steps"], 1):
            order = f"The whole task: {task}\nDo step {number} of it now: {step}"
            for _ in range(ROUNDS):
                end = worker.run(order)
                if not end.completed:
                    sys.exit(f"step {number} ended early: {end.message}")
                ok, why = verified(step, end.answer or "")
                if ok:
                    print(f"step {number}: {step}: done")
                    break
                order = f"Step {number} is not done yet: {why}"
            else:
                sys.exit(f"step {number} was not done after {ROUNDS} rounds: {why}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('which task? dsh script plan_execute_verify.py "TASK"')
    main(sys.argv[1])
