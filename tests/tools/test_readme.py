"""The README runs: its Python block as it stands, and its command lines one by one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from syncline.cli.__main__ import main
from syncline.server import MemoryStore, SyncServer

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ADDRESS = "ws://127.0.0.1:8787"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_quick_start_in_python_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = _blocks("python")
    with SyncServer(MemoryStore(), port=0) as server:
        exec(compile(code.replace(ADDRESS, server.url), "README.md", "exec"), {})
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == ["ReceiptState.APPLIED", "body black"]
    assert "'title': 'Tea', 'body': 'black'" in told[2]


def test_the_quick_start_on_the_command_line_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in _blocks("sh") if "syncline init" in block]
    with SyncServer(MemoryStore(), port=0) as server:
        for line in block.strip().splitlines():
            words = shlex.split(line.replace(ADDRESS, server.url))
            assert words[0] == "syncline"
            assert main(words[1:]) == 0, line
    out = capsys.readouterr().out
    assert "title\tTea" in out
    assert "state\tqueued" in out


def test_the_two_commands_are_those_that_the_checks_run() -> None:
    first, second = _blocks("sh")[:2]
    checks = (Path(__file__).parents[2] / ".ci" / "run").read_text(encoding="utf-8")
    assert first.strip().endswith("&& .venv/bin/syncline demo")
    assert second.strip().endswith("&& .venv/bin/python -m pytest")
    assert "\n.venv/bin/python -m pytest\n" in checks
    for command in (first, second):
        assert "python3 -m venv .venv && .venv/bin/python -m pip install" in command


@pytest.mark.parametrize("page", re.findall(r"\]\((\w+/[\w.]+|\w+\.md)\)", README))
def test_every_page_that_it_points_to_is_there(page: str) -> None:
    assert (Path(__file__).parents[2] / page).is_file()
