"""Every example runs, and ends where it says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_to_its_end(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_shared_notes_end_settled_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES[-1].with_name("shared_notes.py")), run_name="__main__")
    out = capsys.readouterr().out
    assert "offline, the laptop's edit is queued" in out
    assert "lost: days = " in out
    assert "settled by hand: {'boat': True, 'days': 7, 'name': 'Lake'}" in out
