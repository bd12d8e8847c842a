"""The planted faults: each still fits its line, and what should bite does."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from syncline.cli.__main__ import main
from syncline.sync import LocalError
from syncline.testing import Planted, bite, planted_faults
from syncline.testing._teeth import checkout, planted

FAULTS = planted_faults()
EACH = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
BITTEN_AT_ONCE = ("join-forgotten", "salt-not-looked-up", "outbox-deleted-on-send")


@EACH
def test_a_planted_fault_still_fits_its_line_and_leaves_python(fault: Planted) -> None:
    text = (checkout() / fault.file).read_text(encoding="utf-8")
    changed = planted(text, fault)
    assert changed != text
    ast.parse(changed)


@EACH
def test_a_planted_fault_is_one_line_and_says_what_it_breaks(fault: Planted) -> None:
    assert fault.new.count("\n") <= fault.old.count("\n")
    assert fault.breaks
    assert all((checkout() / path).exists() for path in fault.suite.split())


def test_there_are_faults_enough_in_every_part_each_with_a_name_of_its_own() -> None:
    parts = Counter(Path(fault.file).parts[0] for fault in FAULTS)
    assert len(FAULTS) >= 40
    assert min(parts[part] for part in ("sync", "server", "client")) >= 10
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_fault_that_does_not_fit_any_more_is_named() -> None:
    with pytest.raises(LocalError, match="gone: its old text occurs 0 times in a.py"):
        planted("x = 1\n", Planted("gone", "a.py", "y = 2", "y = 3", "nothing"))
    with pytest.raises(LocalError, match="occurs 2 times"):
        planted("x = 1\nx = 1\n", Planted("twice", "a.py", "x = 1", "x = 2", "nothing"))


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
