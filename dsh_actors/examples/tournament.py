"""Let several agents answer the same question, and judges choose between two answers until one is left.

    dsh script --max-tokens 1000000 tournament.py "QUESTION"
"""

from __future__ import annotations

import sys

from dsh_actors.scripting import gather, pipeline, spawn

ANGLES = ("Be brief.", "Think of what could go wrong.", "Look at the files first.", "Question the question.")
CHOICE = {"type": "object", "required": ["better"], "properties": {"better": {"enum": ["first", "second"]}}}


def better(question: str, first: str, second: str) -> str:
    """The better of two answers; the first where the judge gives no verdict, as when a limit is reached."""
    prompt = f"Question: {question}\n\nFirst answer:\n{first}\n\nSecond answer:\n{second}\n\nWhich is better?"
    end = spawn(prompt, schema=CHOICE, tools=[])
    return second if end.completed and end.structured["better"] == "second" else first


def main(question: str) -> None:
    ends = gather(*(f"{question}\n\n{angle}" for angle in ANGLES), concurrency=len(ANGLES))
    answers = [end.answer for end in ends if end.completed and end.answer]
    if not answers:
        sys.exit(f"nobody answered: {ends[0].message}")
    while len(answers) > 1:
        pairs = list(zip(answers[::2], answers[1::2], strict=False))
        left_over = answers[len(pairs) * 2 :]
        answers = pipeline(pairs, lambda pair: better(question, *pair)) + left_over
    print(answers[0])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('which question? dsh script tournament.py "QUESTION"')
    main(sys.argv[1])
