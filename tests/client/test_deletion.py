"""A replica and the end of a session: deleted here, deleted elsewhere, and what waited then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.client.wire import SECOND, Wire, state_of

from syncline.client import ReceiptState
from syncline.sync import (
    CHECKPOINT_COLLECTION,
    HEADER_COLLECTION,
    HEADER_ID,
    NotFound,
    SessionDeleted,
)


def test_SD4_a_deleted_session_is_read_and_not_written(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.create_session("mine", session_id="s")
    session.put("notes", "n1", {"a": 1})
    receipt = ann.delete_session("s")
    writes: list[Callable[[], object]] = [
        lambda: session.put("notes", "n1", {"a": 2}),
        lambda: session.append("said", {}),
        lambda: session.patch(HEADER_COLLECTION, HEADER_ID, {"status": "active"}),
        lambda: ann.delete_session("s"),
    ]
    for write in writes:
        with pytest.raises(SessionDeleted, match="session s is deleted"):
            write()
    assert session.deleted
    assert session.get("notes", "n1") == {"a": 1}
    assert len(session.pending()) == 3
    wire.sync(ann)
    assert receipt.state is ReceiptState.APPLIED
    assert state_of(ann, "s") == wire.state("s")
    with pytest.raises(NotFound):
        ann.delete_session("never-there")


def test_SD4_what_is_written_in_one_batch_after_the_deletion_fails_and_stores_nothing(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    session = ann.create_session(session_id="s")
    with pytest.raises(SessionDeleted), ann.batch():
        ann.delete_session("s")
        session.put("notes", "n1", {"a": 2})
    assert not session.deleted
    session.put("notes", "n1", {"a": 2})


def test_SD4_what_waited_when_the_deletion_came_is_kept_with_the_reason(wire: Wire) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    ann.create_session(session_id="s")
    wire.sync(ann)
    wire.sync(bob)
    ann.delete_session("s")
    wire.sync(ann)
    wire.now += 10 * SECOND
    later = bob.session("s")
    note = later.put("notes", "n1", {"a": 1})
    # A status that is newer than the deletion, by a device that does not know of it.
    revived = later.patch(HEADER_COLLECTION, HEADER_ID, {"status": "active"})
    wire.sync(bob)
    assert (note.state, revived.state) == (ReceiptState.REFUSED, ReceiptState.REFUSED)
    assert [refused.code for refused in later.refused()] == [3014, 3014]
    assert later.get(HEADER_COLLECTION, HEADER_ID) == ann.session("s").get(
        HEADER_COLLECTION, HEADER_ID
    )
    assert later.deleted
    wire.sync(ann)
    assert state_of(bob, "s") == state_of(ann, "s") == wire.state("s")


def test_SD4_a_replica_that_heard_of_the_deletion_takes_no_write_though_its_own_status_shows(
    wire: Wire,
) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    ann.create_session(session_id="s")
    wire.sync(ann)
    wire.sync(bob)
    ann.delete_session("s")
    wire.sync(ann)
    wire.now += 10 * SECOND
    bob.session("s").patch(HEADER_COLLECTION, HEADER_ID, {"status": "active"})
    line = wire.connect(bob)
    while line.core.cursor("s") < 2:
        line.send_one() if line.to_server else line.receive_one()
    line.cut()
    shown = bob.session("s").get(HEADER_COLLECTION, HEADER_ID)
    assert shown is not None and shown["status"] == "active"
    assert bob.session("s").deleted
    with pytest.raises(SessionDeleted):
        bob.session("s").put("notes", "n1", {"a": 1})


def test_SD2_a_deletion_by_a_slow_clock_still_wins(wire: Wire) -> None:
    ann, bob = wire.open("ann"), wire.open("bob", skew=-30 * SECOND)
    ann.create_session(session_id="s")
    wire.sync(ann)
    wire.sync(bob)
    receipt = bob.delete_session("s")
    wire.now += SECOND
    ann.session("s").patch(HEADER_COLLECTION, HEADER_ID, {"status": "suspended"})
    wire.sync(ann)
    wire.sync(bob)
    assert receipt.state is ReceiptState.WON
    wire.sync(ann)
    shown = ann.session("s").get(HEADER_COLLECTION, HEADER_ID)
    assert shown is not None and shown["status"] == "deleted"
    assert state_of(ann, "s") == state_of(bob, "s") == wire.state("s")
    # What lost is listed as ever.
    assert [c.value for c in ann.session("s").conflicts()] == ["suspended"]


def test_SD5_a_deletion_takes_the_checkpoints_along_and_leaves_the_rest(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.create_session(session_id="s")
    session.put("notes", "n1", {"a": 1})
    for name in ("c1", "c2"):
        session.put(CHECKPOINT_COLLECTION, name, {"label": name})
    ann.delete_session("s")
    wire.sync(ann)
    assert list(session.records(CHECKPOINT_COLLECTION)) == []
    assert session.get("notes", "n1") == {"a": 1}
    assert len(wire.log("s")) == 5
