"""Review files side by side: one agent a file, findings that fit a schema, one table at the end.

    dsh script fan_out_review.py FILE…
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from dsh_actors.scripting import Limits, gather, spawn

FINDINGS: dict[str, Any] = {
    "type": "object",
    "required": ["findings"],
    "properties": {
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["line", "severity", "text"],
                "properties": {
                    "line": {"type": "integer", "minimum": 1},
                    "severity": {"enum": ["high", "medium", "low"]},
                    "text": {"type": "string", "minLength": 1},
                },
            },
        }
    },
}


def review(path: str) -> list[dict[str, Any]]:
    """The findings of one file. One that cannot be reviewed is named and costs the others nothing."""
    end = spawn(
        f"Review the file {path} for mistakes. Report only what you are sure of.",
        schema=FINDINGS,
        tools=["read", "grep", "glob"],
        limits=Limits(max_steps=30, max_tokens=500_000),
        timeout=600,
    )
    if not end.completed:
        print(f"{path}: not reviewed: {end.message}", file=sys.stderr)
        return []
    found: list[dict[str, Any]] = end.structured["findings"]
    return [{"file": path, **each} for each in found]


def main(paths: list[str]) -> None:
    reviews = gather(*(partial(review, path) for path in paths), concurrency=4)
    findings = [each for found in reviews for each in found]
    for each in sorted(findings, key=lambda each: ["high", "medium", "low"].index(each["severity"])):
        print(f"{each['severity']:6} {each['file']}:{each['line']}: {each['text']}")
    print(f"{len(findings)} findings in {len(paths)} files")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("which files? dsh script fan_out_review.py FILE…")
    main(sys.argv[1:])
