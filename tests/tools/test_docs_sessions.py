"""The page about sessions is true: its examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_R3_2_the_example_of_the_event_log_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "log.py").write_text(EXAMPLES["log.py"], encoding="utf-8")
    assert run(tmp_path, "log.py").splitlines() == [
        "None user.message",
        "None weather.rain",
        "['hello']",
        "['hello']",
    ]


def test_R3_4_the_example_of_a_turn_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "turn.py").write_text(EXAMPLES["turn.py"], encoding="utf-8")
    step = ["model.request.started", "agent.message", "model.request.completed"]
    assert run(tmp_path, "turn.py").splitlines() == [
        "completed It rains.",
        "user.message",
        "session.status",
        *step,
        "tool.call.started",
        "tool.call.completed",
        *step,
        "session.usage",
        "session.status",
    ]


def test_the_example_of_the_runtime_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "runtime.py").write_text(EXAMPLES["runtime.py"], encoding="utf-8")
    executed = ["SessionLoaded", "SessionActionExecuted", "SessionSaved"]
    assert run(tmp_path, "runtime.py").splitlines() == [
        "SessionSaved",
        *executed,
        "SessionLoaded",
        *executed,
        "3121 load again, and decide",
        *executed,
        "4 completed ['What is 2 + 2?', 'helper heard: What is 2 + 2?']",
    ]


def test_R2_12_the_store_of_the_page_passes_the_suite(tmp_path: Path) -> None:
    name = "test_my_store.py"
    (tmp_path / name).write_text(EXAMPLES[name], encoding="utf-8")
    out = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", name)
    (passed,) = re.findall(r"^(\d+) passed in", out, re.MULTILINE)
    assert int(passed) >= 28


def test_R1_11_the_example_of_the_past_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "past.py").write_text(EXAMPLES["past.py"], encoding="utf-8")
    assert run(tmp_path, "past.py").splitlines() == [
        "{'title': 'Tea', 'body': 'green'}",
        "changed notes n1 {'body': 'black'}",
        "added notes n2 {'title': 'Milk'}",
        "{'body': 'green', 'title': 'Tea'} None",
        "{'body': 'black', 'title': 'Tea'} {'title': 'Milk'}",
        "another try {'body': 'white', 'title': 'Tea'} {'body': 'black', 'title': 'Tea'}",
        "3121",
        "['later'] later",
        "[] True",
    ]
