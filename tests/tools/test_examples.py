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


def test_the_agent_on_three_devices_is_taken_over_and_answers_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = EXAMPLES[-1].with_name("agent_on_three_devices.py")
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "offline: queued"
    assert out[1:] == [
        "phone user.message",
        "tablet session.status",
        "tablet model.request.started",
        "tablet agent.message",
        "tablet model.request.completed",
        "tablet tool.call.started",
        "laptop session.resumed",
        "laptop tool.call.completed",
        "laptop model.request.started",
        "laptop agent.message",
        "laptop model.request.completed",
        "laptop session.usage",
        "laptop session.status",
        "['How is the lake?', 'Let me look.', 'Sunny: go!']",
    ]
