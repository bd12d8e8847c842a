"""A replica's file that was copied: both go on, under two ids, and nothing is lost or doubled."""

from __future__ import annotations

import pytest
from tests.client.wire import SECOND, Line, Wire, state_of

from syncline.client import ReceiptState, Replica
from syncline.sync import Dot, OpRefused, Put

ORDERS = [("ann", "copy"), ("copy", "ann")]


def _converge(wire: Wire, *replicas: Replica) -> None:
    for _ in range(3):
        for replica in replicas:
            wire.sync(replica)
    for replica in replicas:
        assert state_of(replica, "s") == wire.state("s")


def _salts(wire: Wire) -> list[str]:
    return sorted(entry.receipt_id for entry in wire.log("s"))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("synced", [False, True])
def test_CL2_an_op_that_was_pending_when_the_file_was_copied_enters_the_log_once(
    wire: Wire, order: tuple[str, str], synced: bool
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    kept = [session.put("n", "r", {"x": 0})]
    if synced:
        wire.sync(ann)
    kept += [session.put("n", "r", {"x": 1}), session.patch("n", "r", {"y": 1})]
    ends = {"ann": ann, "copy": wire.copy(ann, "copy")}
    kept.append(ends["copy"].session("s").patch("n", "r", {"z": "copy"}))
    kept.append(session.patch("n", "r", {"w": "ann"}))
    _converge(wire, *(ends[name] for name in order))
    assert _salts(wire) == sorted(receipt.id for receipt in kept)
    assert [ends[name].client_id == "ann" for name in order] == [True, False]
    for replica in ends.values():
        assert replica.session("s").get("n", "r") == {"x": 1, "y": 1, "z": "copy", "w": "ann"}
        assert replica.session("s").conflicts() == []
    for receipt in kept:
        assert not receipt.state.pending


@pytest.mark.parametrize("order", ORDERS)
def test_CL1_of_two_copies_without_pending_ops_the_second_to_connect_takes_a_new_id(
    wire: Wire, order: tuple[str, str]
) -> None:
    ann = wire.open("ann")
    ann.session("s").put("n", "r", {"x": 0})
    wire.sync(ann)
    ends = {"ann": ann, "copy": wire.copy(ann, "copy")}
    for name in order:
        wire.sync(ends[name])
    first, second = (ends[name] for name in order)
    assert first.client_id == "ann"
    assert second.client_id not in ("ann", "copy")
    (notice,) = second.status().notices
    assert (notice.kind, notice.detail["was"]) == ("new client id", "ann")
    assert notice.detail["now"] == second.client_id
    for number, replica in enumerate((first, second)):
        replica.session("s").patch("n", "r", {f"f{number}": 1})
    _converge(wire, first, second)
    dots = [entry.dot for entry in wire.log("s")]
    assert dots == [("ann", 1), ("ann", 2), (second.client_id, 1)]


def test_CL1_renumbered_ops_keep_salts_and_stamps_and_name_their_dots_and_contexts_anew(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    session.put("n", "r", {"x": 0})
    wire.sync(ann)
    copied = wire.copy(ann, "copy")
    wire.sync(ann)
    mine = copied.session("s")
    receipts = [mine.put("n", "r", {"x": 1}), mine.put("n", "q", {}), mine.put("n", "r", {"x": 2})]
    before = {op.receipt.id: op for op in mine.pending()}
    line = wire.connect(copied)
    line.deliver()
    assert not line.up
    new = copied.client_id
    after = mine.pending()
    assert [op.n for op in after] == [1, 2, 3]
    assert [op.receipt.id for op in after] == [r.id for r in receipts] == list(before)
    assert [op.changes for op in after] == [
        (Put("n", "r", {"ann": 1}, {"x": 1}),),
        (Put("n", "q", {}, {}),),
        (Put("n", "r", {new: 1, "ann": 1}, {"x": 2}),),
    ]
    with copied._core.database.reading() as db:
        rows = db.execute("SELECT former_client, former_n FROM syncline_outbox").fetchall()
    assert rows == [("ann", 2), ("ann", 3), ("ann", 4)]
    assert all(receipt.state.pending for receipt in receipts)
    wire.sync(copied)
    assert [r.state for r in receipts] == [ReceiptState.APPLIED] * 3
    assert mine.get("n", "r") == {"x": 2}
    _converge(wire, ann, copied)


def test_CL1_an_op_renumbered_twice_still_names_the_dot_that_it_was_written_under(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    session.put("n", "r", {"x": 0})
    wire.sync(ann)
    session.patch("n", "r", {"x": 1})
    second = wire.copy(ann, "second")
    wire.sync(wire.copy(ann, "first"))  # It goes on as ann, with that op.
    for _ in range(2):
        second._core.acquire_lease()
        second._core.become_new_client("a test")
    second._core.release_lease()
    with second._core.database.reading() as db:
        rows = db.execute("SELECT n, former_client, former_n FROM syncline_outbox").fetchall()
    assert rows == [(1, "ann", 2)]


@pytest.mark.parametrize("chain", [False, True])
def test_CL2_a_file_that_was_copied_twice_makes_three_clients_and_no_op_double(
    wire: Wire, chain: bool
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    kept = [session.put("n", "r", {"x": 0}), session.append("said", {"by": "ann"})]
    one = wire.copy(ann, "one")
    if chain:
        wire.sync(ann)
        wire.sync(one)  # It is another client now, and is copied itself.
        kept.append(one.session("s").append("said", {"by": "one"}))
    two = wire.copy(one, "two")
    for replica in (two, one, ann):
        kept.append(replica.session("s").append("said", {"by": replica.path.name}))
    _converge(wire, two, one, ann)
    assert _salts(wire) == sorted(receipt.id for receipt in kept)
    assert len({replica.client_id for replica in (ann, one, two)}) == 3


def test_CL2_a_copy_that_waits_with_the_old_number_does_not_double_the_op_that_was_renumbered(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    receipt = ann.session("s").put("n", "r", {"x": 0})
    copied = wire.copy(ann, "copy")
    line = wire.connect(copied)
    while not line.to_server or not _is_push(line):
        line.send_one() if line.to_server else line.receive_one()
    # The copy is about to push as ann; meanwhile ann is renumbered and pushes the same op.
    wire.sync(ann)
    assert ann.client_id != "ann"
    line.deliver()
    line.cut()
    _converge(wire, copied, ann)
    assert _salts(wire) == [receipt.id]


def _is_push(line: Line) -> bool:
    return type(line.sent[-1]).__name__ == "Push"


def test_CL1_a_number_that_the_server_knows_with_other_content_makes_a_new_client(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    receipt = session.put("n", "r", {"x": 0})
    line = wire.connect(ann)
    line.deliver()
    receipt2 = session.patch("n", "r", {"x": 1})
    line.to_server.clear()
    line.receive(OpRefused(session="s", n=2, code=3006, reason="another op here", detail={"n": 2}))
    assert not line.up
    assert ann.client_id != "ann"
    wire.sync(ann)
    assert [receipt.state, receipt2.state] == [ReceiptState.APPLIED, ReceiptState.APPLIED]
    assert [entry.dot for entry in wire.log("s")] == [Dot("ann", 1), Dot(ann.client_id, 1)]


def test_CL1_a_conflict_being_closed_when_the_replica_is_renumbered_is_closed_all_the_same(
    wire: Wire,
) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    ann.session("s").put("n", "r", {"x": 0})
    _converge(wire, ann, bob)
    ann.session("s").patch("n", "r", {"x": 1})
    wire.now += 1
    bob.session("s").patch("n", "r", {"x": 2})
    _converge(wire, ann, bob)
    copied = wire.copy(ann, "copy")
    wire.sync(ann)
    (conflict,) = copied.session("s").conflicts()
    # What ann's file wrote under its old name is still its own.
    receipt = copied.session("s").resolve_conflict(conflict.id, "local")
    assert copied.session("s").conflicts() == []
    line = wire.connect(copied)
    line.deliver()
    assert copied.client_id != "ann"
    assert copied.session("s").conflicts() == []
    _converge(wire, copied, ann, bob)
    assert receipt.state is ReceiptState.APPLIED
    for replica in (ann, bob, copied):
        assert replica.session("s").conflicts() == []
        assert replica.session("s").get("n", "r") == {"x": 1}


def test_CL1_a_lease_that_was_copied_along_is_waited_out_and_no_longer(wire: Wire) -> None:
    ann = wire.open("ann")
    ann.session("s")
    line = wire.connect(ann)
    line.deliver()
    copied = wire.copy(ann, "copy")
    with copied._core.database.transaction() as db:
        db.execute(
            "INSERT INTO syncline_lease VALUES (1, ?, ?)",
            (ann._core._holder, wire.now + 10 * SECOND),
        )
    assert not copied._core.acquire_lease()
    wire.now += 10 * SECOND
    assert copied._core.acquire_lease()
