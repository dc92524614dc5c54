"""The runner of the whole suite: it shares the files out, and tells of a test that hangs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_a_test_that_hangs_ends_its_run_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "tests" / "bench").mkdir(parents=True)
    shutil.copy(TESTS / "conftest.py", tmp_path / "tests")
    runner = (TESTS / "__main__.py").read_text("utf-8")
    assert "\nHANG_S = 200\n" in runner
    (tmp_path / "tests" / "__main__.py").write_text(runner.replace("HANG_S = 200", "HANG_S = 1"))
    (tmp_path / "tests" / "test_first.py").write_text(
        "import os\n\ndef test_well():\n    pass\n\ndef test_hangs():\n    os.read(os.pipe()[0], 1)\n"
    )
    for name in ("test_second.py", "bench/test_third.py"):
        (tmp_path / "tests" / name).write_text("def test_well():\n    pass\n")
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "tests" / "__main__.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        text=True,
    )
    assert ran.returncode == 1
    assert "in the midst of tests/test_first.py::test_hangs" in ran.stdout
    assert "in test_hangs" in ran.stdout, "its stack"
    # What the other run did meanwhile depends on which of the files each took first.
    assert ran.stdout.rstrip().splitlines()[-1].startswith(("==== 1 passed", "==== 2 passed"))
