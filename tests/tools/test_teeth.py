"""The planted faults: each still fits its line, and what should bite does."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from syncline.cli.__main__ import main
from syncline.sync import LocalError
from syncline.testing import Bite, Planted, _teeth, bite, planted_faults
from syncline.testing._teeth import checkout, planted

FAULTS = planted_faults()
EACH = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
BITTEN_AT_ONCE = ("join-forgotten", "salt-not-looked-up", "outbox-deleted-on-send")


def test_every_planted_fault_still_fits_its_line() -> None:
    """When this fails, code was changed that a fault is planted in: its message says what to do."""
    sources: dict[str, str] = {}
    misfits = []
    for fault in FAULTS:
        if fault.file not in sources:
            sources[fault.file] = (checkout() / fault.file).read_text(encoding="utf-8")
        try:
            assert planted(sources[fault.file], fault) != sources[fault.file]
        except LocalError as error:
            misfits.append(error.reason)
    assert misfits == []


@pytest.mark.long
@EACH
def test_a_planted_fault_leaves_python(fault: Planted) -> None:
    ast.parse(planted((checkout() / fault.file).read_text(encoding="utf-8"), fault))


def test_a_planted_fault_is_one_line_and_says_what_it_breaks() -> None:
    for fault in FAULTS:
        assert fault.new.count("\n") <= fault.old.count("\n"), fault.name
        assert fault.breaks, fault.name
        assert all((checkout() / path).exists() for path in fault.suite.split()), fault.name


def test_there_are_faults_enough_in_every_part_each_with_a_name_of_its_own() -> None:
    parts = Counter(Path(fault.file).parts[0] for fault in FAULTS)
    assert len(FAULTS) >= 40
    assert min(parts[part] for part in ("sync", "server", "client")) >= 10
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_fault_that_does_not_fit_any_more_is_named() -> None:
    with pytest.raises(LocalError, match="gone does not fit: its `old` occurs 0 times in a.py"):
        planted("x = 1\n", Planted("gone", "a.py", "y = 2", "y = 3", "nothing"))
    with pytest.raises(LocalError, match="occurs 2 times in a.py.*planted.toml, write its `old`"):
        planted("x = 1\nx = 1\n", Planted("twice", "a.py", "x = 1", "x = 2", "nothing"))


@pytest.mark.parametrize("failing", ["killed", "late"])
def test_a_hunt_that_is_killed_or_never_ends_is_no_catch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: str,
) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if failing == "late":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, -signal.SIGKILL, "FAILED a test\n")

    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr("subprocess.run", run)
    found = _teeth._bite(tmp_path, Planted("one", "a.py", "x = 1", "x = 2", "it"), 3)
    why = "killed by SIGKILL" if failing == "killed" else "took longer than 7200 s"
    assert (found.layer, found.unasked) == (None, f"suite: {why}")

    monkeypatch.setattr("syncline.cli._teeth.bite", lambda *args, **options: [found])
    assert main(["teeth", "--only", FAULTS[0].name]) == 1
    assert f"nobody knows: suite: {why}; again" in capsys.readouterr().out


def test_a_fault_that_is_caught_by_one_layer_is_caught_though_the_other_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "pytest" in command:
            return subprocess.CompletedProcess(command, 1, "FAILED a test\n")
        return subprocess.CompletedProcess(command, -signal.SIGSEGV, "")

    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr("subprocess.run", run)
    found = _teeth._bite(tmp_path, Planted("one", "a.py", "x = 1", "x = 2", "it"), 3)
    assert (found.layer, found.how) == ("suite", "FAILED a test")
    assert found.unasked == "simulator: killed by SIGSEGV"


def test_a_fault_that_is_no_python_is_not_planted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(SyntaxError):
        _teeth._bite(tmp_path, Planted("one", "a.py", "x = 1", "x = = 1", "it"), 3)
    assert (tmp_path / "a.py").read_text() == "x = 1\n"


def test_a_world_that_hangs_ends_the_hunt_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    out = "Timeout (0:02:00)!\nThread 0x1 (most recent call first):\n"
    done = subprocess.CompletedProcess([], 1, out)
    monkeypatch.setattr("subprocess.run", lambda *args, **options: done)
    assert _teeth._simulator(Path(), 3) == (0, "live: it hangs")


ROW = re.compile(r"\| `([a-z-]+)` \| `([a-z/_.]+)` \| (.+) \| (world (\d+)|suite|nobody) \|")
FIGURES = re.compile(
    r"planted on purpose: (\d+) of them.*\*\*(\d+) of (\d+) are noticed\*\*: (\d+) by the simulator"
    r" \((\d+) of them within 10 worlds, the last within (\d+)\), (\d+) by the suite",
    re.DOTALL,
)


def test_the_page_lists_every_planted_fault_and_what_became_of_it() -> None:
    """docs/teeth.md and planted.toml, both ways; `syncline teeth --table` prints its rows."""
    page = (checkout() / "docs/teeth.md").read_text(encoding="utf-8")
    rows = [match.groups() for line in page.splitlines() if (match := ROW.fullmatch(line))]
    assert [row[:3] for row in rows] == [
        (fault.name, fault.file.replace("/syncline/", "/").split("/", 1)[1], fault.breaks)
        for fault in FAULTS
    ]
    survivors = [row[0] for row in rows if row[3] == "nobody"]
    assert survivors == [fault.name for fault in FAULTS if fault.survives]
    assert survivors == re.findall(r"^- `([a-z-]+)` \(", page, re.MULTILINE)
    for fault in FAULTS:
        assert fault.survives in page
    worlds = [int(row[4]) for row in rows if row[4] is not None]
    suite = sum(row[3] == "suite" for row in rows)
    figures = FIGURES.search(page)
    assert figures is not None
    assert tuple(map(int, figures.groups())) == (
        len(rows),
        len(rows) - len(survivors),
        len(rows),
        len(worlds),
        sum(world <= 10 for world in worlds),
        max(worlds),
        suite,
    )


def test_the_command_prints_the_rows_of_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = {fault.name: fault for fault in FAULTS}
    bites = [
        Bite(faults["join-forgotten"], "simulator", 2, "causal: it"),
        Bite(faults["chain-not-checked"], "suite", 500, "FAILED a test"),
        Bite(faults["row-seq-not-checked"], None, 500, ""),
    ]
    monkeypatch.setattr("syncline.cli._teeth.bite", lambda *args, **options: bites)
    assert main(["teeth", "--table"]) == 0
    page = (checkout() / "docs/teeth.md").read_text(encoding="utf-8")
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line in page.splitlines()] == out
    assert len(out) == 3


def test_faults_that_show_at_once_are_caught_within_a_few_worlds() -> None:
    bites = bite([fault for fault in FAULTS if fault.name in BITTEN_AT_ONCE], 20)
    assert {found.fault.name: found.layer for found in bites} == dict.fromkeys(
        BITTEN_AT_ONCE, "simulator"
    )


def test_a_change_that_breaks_nothing_is_not_noticed() -> None:
    harmless = Planted(
        "a-comment",
        "sync/syncline/sync/_vectors.py",
        "    joined = dict(a)",
        "    joined = {**a}",
        "nothing",
        tests="tests/sync/test_vectors.py",
    )
    (found,) = bite([harmless], 3)
    assert (found.layer, found.seeds, found.how) == (None, 3, "")


def test_the_command_prints_what_noticed_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teeth", "--only", "join-forgotten", "--seeds", "20", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["planted"], told["caught"]) == (1, 1)
    (row,) = told["faults"]
    assert (row["name"], row["caught_by"]) == ("join-forgotten", "simulator")
    assert 1 <= row["seeds"] <= 20


def test_an_unknown_fault_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teeth", "--only", "gremlin"]) == 1
    assert "there is no planted fault gremlin" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(14_400)
def test_every_planted_fault_is_caught_but_those_that_cannot_be() -> None:
    bites = bite(FAULTS, 500)
    holes = [found.fault.name for found in bites if found.layer is None]
    assert holes == [fault.name for fault in FAULTS if fault.survives]
