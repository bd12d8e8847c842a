"""Watchers: told after the commit, of what shows anew, once, and unable to break anything."""

from __future__ import annotations

import logging

import pytest
from tests.client.wire import Wire

from syncline.client import Notification


def test_a_local_write_is_told_once_it_is_durable_with_its_receipt(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    told: list[tuple[Notification, object, bool]] = []
    session.watch(
        lambda n: told.append((n, session.get("n", "r"), ann._core.database.in_transaction))
    )
    receipt = session.put("n", "r", {"x": 1})
    assert told == [
        (Notification("s", "local", "n", ("r",), receipt_id=receipt.id), {"x": 1}, False)
    ]


def test_an_op_is_told_per_collection_and_a_batch_after_its_end(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    told: list[Notification] = []
    session.watch(told.append)
    with session.transaction() as receipt:
        session.put("n", "b", {})
        session.put("n", "a", {})
        session.put("m", "c", {})
        session.append("e", {})
        session.append("e", {})
        assert told == []
    assert told == [
        Notification("s", "local", "m", ("c",), receipt_id=receipt.id),
        Notification("s", "local", "n", ("a", "b"), receipt_id=receipt.id),
        Notification("s", "local", None, events=2, receipt_id=receipt.id),
    ]
    told.clear()
    with ann.batch():
        receipts = [session.put("n", "b", {"i": i}) for i in range(2)]
        ann.session("t").put("n", "b", {})
        assert told == []
    assert [n.receipt_id for n in told] == [receipt.id for receipt in receipts]


def test_R1_3_remote_changes_conflicts_and_events_are_told_by_origin(wire: Wire) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    ann.session("s").put("n", "r", {"x": 0})
    wire.sync(ann)
    wire.sync(bob)
    told: list[Notification] = []
    bob.session("s").watch(told.append)
    wire.now += 1
    with ann.session("s").transaction():
        ann.session("s").patch("n", "r", {"y": 1})
        ann.session("s").append("e", {})
    wire.sync(ann)
    wire.sync(bob)
    assert told == [
        Notification("s", "remote", "n", ("r",)),
        Notification("s", "remote", None, events=1),
    ]
    told.clear()
    ann.session("s").patch("n", "r", {"x": 1})
    wire.now += 1
    bob.session("s").patch("n", "r", {"x": 2})
    del told[0]
    wire.sync(ann)
    wire.sync(bob)
    (conflict,) = bob.session("s").conflicts()
    # Bob's value stands before and after: nothing shows anew but the conflict.
    assert told == [Notification("s", "conflict", None, conflict_ids=(conflict.id,))]
    told.clear()
    ann.session("s")
    wire.sync(ann)
    ann.session("s").resolve_conflict(conflict.id, "remote")
    wire.sync(ann)
    wire.sync(bob)
    assert told == [Notification("s", "conflict", None, conflict_ids=(conflict.id,))]


def test_what_shows_as_before_is_not_told(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    session.put("n", "r", {"x": 1})
    told: list[Notification] = []
    session.watch(told.append)
    wire.sync(ann)  # Its own op comes back as an entry.
    assert told == []
    bob = wire.open("bob")
    bob.session("s").put("n", "r", {"x": 1}, updated_at=wire.now + 1)  # The same value again.
    wire.sync(bob)
    wire.sync(ann)
    assert told == []


def test_a_watcher_of_one_collection_is_told_of_it_and_of_what_concerns_them_all(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    told: list[Notification] = []
    session.watch(told.append, collection="n")
    session.put("m", "r", {})
    ann.session("t").put("n", "r", {})
    session.put("n", "r", {})
    session.append("e", {})
    assert [(n.collection, n.events) for n in told] == [("n", 0), (None, 1)]


def test_a_watcher_that_fails_is_logged_and_breaks_nothing(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    told: list[Notification] = []

    def fails(_: Notification) -> None:
        raise RuntimeError("a bug of the app")

    session.watch(fails)
    stop = session.watch(told.append)
    with caplog.at_level(logging.ERROR, "syncline.client"):
        session.put("n", "r", {})
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] != []
    assert len(told) == 1 and session.get("n", "r") == {}
    stop()
    stop()
    session.put("n", "r", {})
    assert len(told) == 1


def test_a_watcher_may_write(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")

    def answer(n: Notification) -> None:
        if n.collection == "n":
            session.put("answers", n.ids[0] if n.ids else "", {"seen": True})

    session.watch(answer)
    line = wire.connect(ann)
    line.deliver()
    session.put("n", "r", {})
    assert session.get("answers", "r") == {"seen": True}
    line.deliver()
    assert ann.status().pending == 0
