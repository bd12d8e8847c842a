"""kill -9 of client, server and both at random moments under load: see ``killing``."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.kill9 import main, run
from tests.faults.killing import Life, Tally, Writer
from tests.faults.nursery import Nursery

KINDS = ("lost", "doubled", "holes", "problems")
QUICK_ROUNDS = 12


def test_kills_at_random_moments_lose_double_and_tear_nothing(tmp_path: Path) -> None:
    result = run(QUICK_ROUNDS, 1, tmp_path, progress=False)
    assert {kind: result[kind] for kind in KINDS} == dict.fromkeys(KINDS, [])
    assert sum(result["kills"].values()) == result["rounds"] == QUICK_ROUNDS
    assert result["writes_returned"] >= QUICK_ROUNDS and result["seen_settled"] > 0
    assert result["log_entries"] == result["writes_returned"] + result["in_the_log_but_untold"]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_thousand_kills_lose_double_and_tear_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--rounds", "2000", "--folder", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {kind: result[kind] for kind in KINDS} == dict.fromkeys(KINDS, [])
    assert result["rounds"] == 2000 and len(result["kills"]) == 4


# The checks themselves have teeth.


def test_a_write_that_is_nowhere_and_an_entry_that_is_gone_are_findings(tmp_path: Path) -> None:
    tally = Tally()
    with Nursery() as nursery:
        life = Life(tmp_path, 3, nursery, tally)
        life.play(2)
    assert tally.findings == []
    writer = life._writers[0]

    writer.told["f" * 32] = "never written"
    writer.fresh.append("f" * 32)
    life._check_replica(writer)
    assert tally.lost.pop() == f"ann: {'f' * 32} returned and is in no table"
    life._compare_with_diaries()
    assert tally.lost.pop(0) == f"ann: {'f' * 32} returned and is not in the log"
    del writer.told["f" * 32]
    id_ = next(iter(writer.told))
    writer.told[id_] = "something else"
    life._compare_with_diaries()
    assert tally.lost.pop() == f"ann: {id_} has other content in the log"

    writer.settled = {"e" * 32}
    life._check_log()
    assert tally.lost.pop() == f"ann: {'e' * 32} was seen in the log and is gone"
    writer.settled.clear()
    with closing(sqlite3.connect(tmp_path / "server.db")) as db, db:
        for (trigger,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type='trigger'"
        ).fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        ((hash_,),) = db.execute("SELECT hash FROM log WHERE seq=1")
        db.execute("DELETE FROM log WHERE seq=2")
    life._head = (1, bytes(hash_))
    life._check_log()
    assert tally.holes[0] == "entry 3 stands at 2"
    assert tally.doubled != []
    life._head = (1, b"another")
    life._check_log()
    assert tally.holes[-1] == "what stood at 1 has gone or changed"


def test_a_child_that_ends_by_itself_is_not_taken_for_a_killed_one(tmp_path: Path) -> None:
    with Nursery() as nursery:
        pid = nursery.start("server", path=str(tmp_path / "no folder" / "server.db"), port=1)
        assert nursery.wait(pid) == 1


def test_a_line_that_a_kill_cut_off_was_never_told(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "ann")
    writer.diary.write_bytes(b'\n{"wrote": "a", "v": "1"}\n{"wrote": "b", "v"')
    writer.read()
    assert writer.told == {"a": "1"}
    with open(writer.diary, "ab") as file:
        file.write(b'\n{"wrote": "c", "v": "3"}\n{"settled": "a"}\n')
    writer.read()
    assert (writer.told, writer.settled) == ({"a": "1", "c": "3"}, {"a"})
