"""C008: the other person's field stays, and whoever loses a value is told."""

from __future__ import annotations

import pytest

from syncline.client import Notification
from syncline.server import SqliteStore, check_ledger
from syncline.sync import unpack

from .support import SECOND, World, now_us

DAY = 86_400 * SECOND


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_C008_edits_of_different_fields_are_merged_in_either_order(
    world: World, order: str
) -> None:
    world.start()
    a, b = world.session("a"), world.session("b")
    at = now_us()
    a.put("notes", "r", {"title": "t0", "status": "open", "n": 1})
    world.settle()
    of_a = a.patch("notes", "r", {"title": "tA"}, updated_at=at + SECOND)
    of_b = b.patch("notes", "r", {"status": "done"}, updated_at=at + 2 * SECOND)
    world.sync(*order)
    world.settle()
    merged = {"title": "tA", "status": "done", "n": 1}
    assert a.get("notes", "r") == b.get("notes", "r") == merged
    assert {of_a.state.value, of_b.state.value} == {"applied", "merged"}
    assert a.conflicts() == b.conflicts() == []
    world.check()


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_C008_the_author_of_a_value_that_lost_is_told_and_can_put_it_back(
    world: World, order: str
) -> None:
    """Three weeks offline: the old text loses to yesterday's, and is kept whole."""
    world.start()
    a, b = world.session("a"), world.session("b")
    now = now_us()
    a.put("notes", "r", {"note": "", "n": 1}, updated_at=now - 30 * DAY)
    world.settle()
    told: list[Notification] = []
    a.watch(told.append)
    text = "a" * 2048
    lost = a.patch("notes", "r", {"note": text}, updated_at=now - 21 * DAY)
    stands = b.patch("notes", "r", {"note": "yesterday"}, updated_at=now - DAY)
    world.sync(*order)
    world.settle()

    assert a.get("notes", "r") == b.get("notes", "r") == {"note": "yesterday", "n": 1}
    (conflict,) = a.conflicts()
    assert b.conflicts() == [conflict]
    assert (conflict.field, conflict.value) == ("note", text)
    assert (conflict.loser.client, conflict.winner.client) == ("a", "b")
    assert [n.conflict_ids for n in told if n.origin == "conflict"] == [(conflict.id,)]
    # The reply is the op's outcome: it lost if it came second, else the later one has won over it.
    late, early = (stands, lost) if order == "ab" else (lost, stands)
    assert (late.state.value, early.state.value) == (
        "won" if order == "ab" else "lost",
        "applied",
    )
    assert a.pending() == []

    a.resolve_conflict(conflict.id, "local")
    world.settle()
    assert a.get("notes", "r") == b.get("notes", "r") == {"note": text, "n": 1}
    assert a.conflicts() == b.conflicts() == []
    world.check()
    store = SqliteStore(world.data)
    rows = store.ledger(0, 1000)
    store.close()
    check_ledger(rows)
    (row,) = [fields for fields in (unpack(r.row) for r in rows) if fields[2] == "lost"]
    facts = row[4]
    assert (facts["collection"], facts["id"], facts["field"]) == ("notes", "r", "note")
    assert facts["loser"] == [now - 21 * DAY, "a", conflict.loser.n]


def test_C008_whole_puts_of_both_sides_name_every_value_that_was_lost(world: World) -> None:
    world.start()
    a, b = world.session("a"), world.session("b")
    at = now_us()
    a.put("notes", "r", {"title": "t0", "file": ""})
    world.settle()
    a.put("notes", "r", {"title": "t0", "file": "a.pdf"}, updated_at=at + SECOND)
    b.put("notes", "r", {"title": "tB", "file": ""}, updated_at=at + 2 * SECOND)
    world.settle()
    assert a.get("notes", "r") == b.get("notes", "r") == {"title": "tB", "file": ""}
    assert {(c.field, c.value) for c in a.conflicts()} == {("file", "a.pdf"), ("title", "t0")}
    world.check()
