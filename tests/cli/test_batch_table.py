"""What `dsh batch` shows while it runs: as wide as the terminal, and nothing that is in the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from dsh_actors.cli.batch_table import clock, fitted, table
from tests.cli.batch_kit import on, write_tasks
from tests.cli.dsh_process import Dsh, read_some
from tests.model_server import T

MODEL = ("-m", "openai/test")
COLOUR = re.compile(rb"\x1b\[\d*m")


def test_a_row_is_as_wide_as_the_terminal_at_most() -> None:
    rows = [("日本語" * 20, 3, "bash", 1234, 61.0), ("a\x1b[2J", 1, "model", 0, 3661.0)]
    for width in (20, 60, 200):
        for line in table(rows, width, 10):
            wide = sum(2 if ord(character) > 0x2E80 else 1 for character in line)
            assert wide <= width and "\x1b" not in line
    assert "1,234 tokens" in table(rows, 200, 10)[0] and table(rows, 200, 10)[0].endswith("1:01")


def test_what_does_not_fit_is_counted() -> None:
    rows = [(str(number), 1, "model", 0, 0.0) for number in range(10)]
    assert len(table(rows, 80, 10)) == 10
    lines = table(rows, 80, 4)
    assert len(lines) == 4 and lines[-1] == "… and 7 more"


def test_text_is_cut_between_characters() -> None:
    assert fitted("日本", 3) == "日" and fitted("日本", 3, pad=True) == "日 "
    assert fitted("e\u0301e\u0301", 1) == "e\u0301"
    assert (clock(7), clock(3661)) == ("0:07", "1:01:01")


@pytest.mark.parametrize("no_color", [None, "1"])
def test_on_a_terminal_a_table_is_drawn_in_place_and_gone_at_the_end(dsh: Dsh, no_color: str | None) -> None:
    dsh.server.script(quick=[T("1")], slow=[T("2", hold="gate")])
    tasks = write_tasks(dsh, on("quick"), on("slow"))
    master, slave = os.openpty()
    running = dsh.start(
        "batch", *MODEL, tasks, stderr=slave, env={"TERM": "xterm", "NO_COLOR": no_color}
    )
    os.close(slave)
    seen = b""
    while b"slow" not in seen or b"1 done" not in COLOUR.sub(b"", seen):
        seen += read_some(master)
    dsh.server.release("gate")
    try:
        while piece := os.read(master, 65536):
            seen += piece
    except OSError:  # how a terminal says that nobody has its other side any more
        os.close(master)
    assert running.wait().code == 0
    assert seen.endswith(b"\x1b[J"), "the last thing that is drawn takes the table away"
    assert bool(COLOUR.search(seen)) == (no_color is None)


def test_elsewhere_progress_is_plain_lines_and_only_where_it_is_wanted(dsh: Dsh) -> None:
    dsh.server.script(T("answer"), after="repeat")
    tasks = write_tasks(dsh, {"prompt": "one"}, {"prompt": "two"})
    assert dsh.call("batch", *MODEL, tasks).err == ""
    shown = dsh.call("batch", *MODEL, "--progress", tasks).err
    assert "\x1b" not in shown
    assert re.search(r"^dsh: [12] completed \| 1 done \| 0 failed \| ", shown, re.MULTILINE), shown


def test_a_run_does_not_load_what_only_a_batch_needs() -> None:
    code = "import sys, dsh_actors.cli.main, dsh_actors.cli.run, dsh_actors.runs; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "batch" not in loaded
