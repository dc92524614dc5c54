"""A stored session of format 1, as it was written once: it opens, verifies and is exported for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.cli.main import main
from dsh_actors.core.ids import SessionId
from tests.snapshots.make_format_1 import HEADER

HERE = Path(__file__).parent
EXPORTED = (HERE / "format-1.jsonl").read_bytes()
"""What `dsh session export` printed when the session was written."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(HERE / "format-1", tmp_path / "sessions")
    monkeypatch.setenv("DSH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_verifies_with_every_request(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["session", "verify", "golden", "--requests", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["status"], report["events"], report["requests"]) == ("ok", 82, 5)
    assert report["closers"] == 3


def test_it_is_exported_as_on_the_first_day(home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["session", "export", "golden"]) == 0
    assert capfdbinary.readouterr().out == EXPORTED


def test_it_is_opened_for_writing_and_goes_on(home: Path) -> None:
    storage = SegmentStorage(str(home / "sessions"), "test", lambda: 1)
    writer = storage.open(HEADER.id)
    log = list(writer.replay())
    assert (writer.header, writer.next_seq) == (HEADER, 82)
    assert [event.to_json() for event in log] == [json.loads(line) for line in EXPORTED.splitlines()[1:]]
    writer.append([type(log[0])("run/note", 82, 1, {}, ignorable=True)])
    writer.close()
    assert len(list(storage.read(SessionId("golden")))) == 83


def test_its_export_is_imported_as_the_same_session(
    home: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    shutil.rmtree(home / "sessions")
    assert main(["session", "import", str(HERE / "format-1.jsonl")]) == 0
    capfdbinary.readouterr()
    assert main(["session", "export", "golden"]) == 0
    assert capfdbinary.readouterr().out == EXPORTED
