"""A replica that fetches a session as a snapshot: in pages, resumable, shown all at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.client.wire import Line, Wire, state_of

from syncline.client import Notification, ReceiptState, Replica
from syncline.sync import Snapshot

RECORDS = 7


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch, wire: Wire) -> None:
    monkeypatch.setattr("syncline.server._answers.PAGE_ITEMS_MAX", 2)
    wire.options["bootstrap_entries_min"] = 0
    wire.serve(wire.store)


def _author(wire: Wire) -> Replica:
    ann = wire.open("ann")
    session = ann.session("s")
    for i in range(RECORDS):
        session.put("n", f"r{i}", {"i": i})
    session.append("said", {"text": "hi"})
    session.delete("n", "r3")
    wire.sync(ann)
    return ann


def _pages(line: Line) -> list[Snapshot]:
    return [frame for frame in line.sent if isinstance(frame, Snapshot)]


def _until(line: Line, done: Callable[[], bool]) -> None:
    while not done():
        line.send_one() if line.to_server else line.receive_one()


def test_BO1_a_fresh_replica_gets_records_events_and_conflicts_in_pages(wire: Wire) -> None:
    ann = _author(wire)
    bob = wire.open("bob")
    bob.session("s")
    line = wire.sync(bob)
    assert [page.after for page in _pages(line)][0] == b""
    assert len(_pages(line)) == 4
    assert state_of(bob, "s") == wire.state("s")
    assert bob.session("s").events() == ann.session("s").events()
    assert bob.session("s").count("n") == RECORDS - 1


@pytest.mark.parametrize("cuts", range(1, 5))
def test_BO1_a_bootstrap_that_is_cut_at_every_page_asks_for_no_page_twice(
    wire: Wire, cuts: int
) -> None:
    _author(wire)
    bob = wire.open("bob")
    session = bob.session("s")
    taken: list[bytes] = []
    for _ in range(12):
        line = wire.connect(bob)
        stored = 0
        while line.to_server or line.to_client:
            if line.to_server:
                line.send_one()
                continue
            before = bob._core.boot_after("s")
            line.receive_one()
            if bob._core.is_booting("s") and bob._core.boot_after("s") != before:
                if before is not None:
                    taken.append(before)
                stored += 1
                if stored == cuts:
                    break
        line.cut()
        if not bob._core.is_booting("s") and session.count("n"):
            break
    assert len(taken) == len(set(taken))
    wire.sync(bob)
    assert state_of(bob, "s") == wire.state("s")


def test_BO2_nothing_shows_until_the_head_of_the_last_page_is_reached(wire: Wire) -> None:
    _author(wire)
    bob = wire.open("bob")
    session = bob.session("s")
    mine = session.put("n", "mine", {"own": True})
    told: list[Notification] = []
    session.watch(told.append)
    line = wire.connect(bob)
    seen = set()
    while line.to_server or line.to_client:
        seen.add(tuple(id_ for id_, _ in session.records("n")))
        line.send_one() if line.to_server else line.receive_one()
    full = tuple(sorted(["mine", *(f"r{i}" for i in range(RECORDS) if i != 3)]))
    assert seen == {("mine",), full}
    assert [(n.origin, n.collection, n.ids) for n in told] == [("remote", None, None)]
    assert mine.state is ReceiptState.APPLIED


def test_BO2_entries_that_arrive_between_pages_are_folded_over_rows_that_lack_them(
    wire: Wire,
) -> None:
    ann = _author(wire)
    bob = wire.open("bob")
    session = bob.session("s")
    other = wire.connect(ann)
    other.deliver()
    for turn in range(3):
        line = wire.connect(bob)
        before = bob._core.boot_after("s")
        _until(line, lambda: bob._core.boot_after("s") not in (before, b"", None))  # noqa: B023
        line.cut()
        # One that is in the pages taken, one that is in those to come, and events.
        ann.session("s").put("n", "r0", {"turn": turn})
        ann.session("s").patch("n", "r6", {"turn": turn})
        ann.session("s").append("said", {"turn": turn})
        other.deliver()
        session.put("n", "local", {"turn": turn})
    wire.sync(bob)
    wire.sync(ann)
    wire.sync(bob)
    assert state_of(bob, "s") == wire.state("s")
    assert session.events() == ann.session("s").events()
    assert [r.payload for r in session.events()] == [
        {"text": "hi"}, {"turn": 0}, {"turn": 1}, {"turn": 2}
    ]  # fmt: skip
    assert session.get("n", "local") == {"turn": 2}


def test_BO3_own_ops_that_the_snapshot_holds_leave_the_outbox_when_it_shows(wire: Wire) -> None:
    _author(wire)
    bob = wire.open("bob")
    session = bob.session("s")
    wire.sync(bob)
    receipts = [session.put("n", f"b{i}", {"i": i}) for i in range(3)]
    line = wire.connect(bob)
    while line.to_server:
        line.send_one()
        while line.to_client and len(wire.log("s")) < RECORDS + 5:
            line.receive_one()
    line.cut()  # The server has all three; the answer is lost.
    assert [r.state for r in receipts] == [ReceiptState.SENT] * 3
    later = session.patch("n", "b1", {"later": True})
    with bob._core.database.transaction():
        bob._core.acquire_lease()
        bob._core.begin_bootstrap("s", afresh=True)
        bob._core.release_lease()
    states: list[list[ReceiptState]] = []
    line = wire.connect(bob)
    while line.to_server or line.to_client:
        line.send_one() if line.to_server else line.receive_one()
        now = [r.state for r in receipts]
        if not states or states[-1] != now:
            states.append(now)
        assert session.get("n", "b1") == {"i": 1, "later": True}
    assert states == [[ReceiptState.SENT] * 3, [ReceiptState.APPLIED] * 3]
    assert later.state is ReceiptState.APPLIED
    line.cut()
    assert state_of(bob, "s") == wire.state("s")
    assert len({entry.receipt_id for entry in wire.log("s")}) == len(wire.log("s"))


def test_BO3_what_is_pending_shows_on_top_of_the_snapshot_at_once(wire: Wire) -> None:
    _author(wire)
    bob = wire.open("bob")
    session = bob.session("s")
    session.put("n", "r0", {"mine": 1}, updated_at=wire.now + 1)
    session.delete("n", "r1", updated_at=wire.now + 1)
    line = wire.connect(bob)
    _until(line, lambda: bob._core.shown_seq("s") > 0)
    assert session.get("n", "r0") == {"mine": 1}
    assert session.get("n", "r1") is None
    assert session.get("n", "r2") == {"i": 2}
    line.cut()
    wire.sync(bob)
    assert state_of(bob, "s") == wire.state("s")
    assert {c.field for c in session.conflicts()} == {"i", "$alive"}


def test_BO1_conflicts_come_along_with_the_snapshot_open_and_closed(wire: Wire) -> None:
    ann = _author(wire)
    cyd = wire.open("cyd")
    wire.sync(cyd)
    for field in ("i", "j"):
        for replica in (ann, cyd):
            wire.now += 1
            replica.session("s").put("n", "r0", {field: replica.client_id})
        wire.sync(ann)
        wire.sync(cyd)
        wire.sync(ann)
    first, second = ann.session("s").conflicts()
    ann.session("s").resolve_conflict(first.id, "local")
    wire.sync(ann)
    bob = wire.open("bob")
    wire.sync(bob)
    assert bob.session("s").conflicts() == [second]
    assert state_of(bob, "s") == wire.state("s")
