"""What a turn consumed is in the ledger, in the transaction of its events, and verifies."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from syncline.cli.verify import verify_file
from syncline.server import erase, export_ledger

from .support import SESSION, World, now_us

PLACE = {
    "turnId": "t1",
    "stageId": "step-1",
    "seqWithinTurn": 4,
    "parentTurnId": "t0",
    "subagentDepth": 1,
}
COMPLETED = PLACE | {"requestId": "r1", "inputTokens": 7, "outputTokens": 3, "costMicros": 12}
ABORTED = PLACE | {"seqWithinTurn": 6, "outcome": "user-aborted", "inputTokens": 7, "x": "y" * 999}


def _turn(world: World) -> None:
    world.start()
    session = world.session("ann")
    with session.transaction():
        session.append("user.message", {"messageId": "m1", "text": "hello"})
        session.append("model.request.completed", COMPLETED)
    session.append("session.usage", ABORTED)
    world.sync("ann")


def _turns(path: Path) -> list[dict[str, Any]]:
    return [dict(line.facts) for line in export_ledger(path) if line.kind == "turn"]


def test_R1_9_a_turns_rows_have_the_whole_identity_tuple_and_what_was_consumed(
    world: World,
) -> None:
    _turn(world)
    tuple_ = {"turn": "t1", "stage": "step-1", "parent_turn": "t0", "depth": 1, "epoch": 1}
    first, second = _turns(world.data)
    assert first == tuple_ | {
        "event": "model.request.completed",
        "seq": 1,
        "index": 1,
        "dot": ["ann", 1],
        "seq_within_turn": 4,
        "request": "r1",
        "input_tokens": 7,
        "output_tokens": 3,
        "cost_micros": 12,
    }
    assert second == tuple_ | {
        "event": "session.usage",
        "seq": 2,
        "index": 0,
        "dot": ["ann", 2],
        "seq_within_turn": 6,
        "outcome": "user-aborted",
        "input_tokens": 7,
    }
    world.check()


def test_a_repeat_writes_no_second_row(world: World) -> None:
    _turn(world)
    world.settle()
    assert len(_turns(world.data)) == 2
    world.check()


def test_R1_7_a_turns_rows_outlive_the_deletion_of_their_session(world: World) -> None:
    _turn(world)
    before = _turns(world.data)
    world.replica("ann").delete_session(SESSION)
    world.sync("ann")
    assert _turns(world.data) == before
    world.check()


def test_a_turns_rows_outlive_the_erasure_of_who_ran_it(world: World) -> None:
    _turn(world)
    world.close()
    world.stop()
    before = _turns(world.data)
    erase(world.data, "ann", now=now_us())
    assert _turns(world.data) == before
    assert verify_file(world.data).all_problems() == []


@pytest.mark.parametrize("what", ["said", "missing"])
def test_a_ledger_that_says_otherwise_than_the_log_does_not_verify(world: World, what: str) -> None:
    """As somebody does who can write the whole file and mends every hash of the ledger."""
    from syncline.server._ledger import ledger_hash
    from syncline.sync import NO_HASH, pack, unpack

    _turn(world)
    world.close()
    world.stop()
    with closing(sqlite3.connect(world.data)) as db, db:
        rows = [unpack(row) for (row,) in db.execute("SELECT row FROM ledger ORDER BY n")]
        if what == "said":
            rows[-1][4]["input_tokens"] = 1
        else:
            del rows[-1]
        for name in ("ledger_keeps", "ledger_stands"):
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DELETE FROM ledger")
        db.execute("DELETE FROM ledger_identities WHERE n > ?", (len(rows),))
        previous = NO_HASH
        for row in rows:
            previous = ledger_hash(previous, pack(row))
            db.execute("INSERT INTO ledger VALUES (?, ?, ?)", (row[0], previous, pack(row)))
    (problem,) = verify_file(world.data).all_problems()
    assert ("says something else of a turn" if what == "said" else "no row for event 0") in problem
