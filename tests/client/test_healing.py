"""A server that lost its log, or a part of it, gets back what any replica still holds."""

from __future__ import annotations

import copy
import re
from collections import deque
from typing import Any

import pytest
from tests.client.wire import Line, Wire, new_store, restored, state_of

from syncline.client import Notification, Receipt, ReceiptState, Replica
from syncline.server import MemoryStore
from syncline.sync import (
    Compare,
    Open,
    Push,
    Sessions,
    VoidOp,
    decode_op,
    encode_frame,
    events_in,
)

ENTRIES = 8


class Past:
    """Two replicas that wrote eight ops, and the store as it was after each of them."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.ann, self.bob = wire.open("ann"), wire.open("bob")
        self.receipts: dict[Replica, list[Receipt]] = {self.ann: [], self.bob: []}
        self.stores: list[MemoryStore] = [copy.deepcopy(wire.store)]
        a, b = self.ann.session("s"), self.bob.session("s")
        self._kept(self.ann, a.put("n", "r", {"x": 1, "y": 1}))
        self._kept(self.bob, b.put("n", "q", {"x": 1}))
        self._kept(self.ann, a.patch("n", "q", {"x": 2}))
        self._kept(self.bob, b.append("said", {"text": "hi"}))
        self._kept(self.bob, b.patch("n", "r", {"y": 2}))
        self._kept(self.ann, a.delete("n", "q"))
        self._kept(self.ann, a.append("said", {"text": "ho"}))
        self._kept(self.bob, b.put("n", "r", {"z": 3}))

    def _kept(self, author: Replica, receipt: Receipt) -> None:
        self.receipts[author].append(receipt)
        for replica in (author, self.ann, self.bob):
            self.wire.sync(replica)
        self.stores.append(copy.deepcopy(self.wire.store))

    @property
    def all_receipts(self) -> list[Receipt]:
        return self.receipts[self.ann] + self.receipts[self.bob]

    def heal(self) -> None:
        for _ in range(2):
            for replica in (self.ann, self.bob):
                self.wire.sync(replica)

    def check(self) -> None:
        """Everybody's ops are in the log once, and everybody shows the same."""
        salts = [entry.receipt_id for entry in self.wire.log("s")]
        assert sorted(salts) == sorted(receipt.id for receipt in self.all_receipts)
        state = self.wire.state("s")
        for replica in (self.ann, self.bob):
            assert state_of(replica, "s") == state
            for receipt in self.receipts[replica]:
                assert not receipt.state.pending
        # Copies of them may use the old numbers for other ops, and the server could not tell.
        assert _renamed(self.ann.client_id, "ann") and _renamed(self.bob.client_id, "bob")


def _renamed(client: str, name: str) -> bool:
    return re.fullmatch(rf"{name}-[0-9a-f]{{8}}", client) is not None


@pytest.mark.parametrize("seq", range(ENTRIES + 1))
@pytest.mark.parametrize("pending", [False, True])
def test_HE3_a_server_restored_to_any_seq_gets_back_every_op_with_its_number_and_salt(
    wire: Wire, seq: int, pending: bool
) -> None:
    past = Past(wire)
    before = {e.receipt_id: (e.dot, e.body) for e in wire.log("s")}
    shown = [past.ann.session("s").get("n", id_) for id_ in "rq"]
    if pending:
        past.receipts[past.ann].append(past.ann.session("s").patch("n", "r", {"w": 4}))
        past.receipts[past.bob].append(past.bob.session("s").put("n", "new", {}))
    wire.serve(restored(past.stores[seq], 2))
    past.heal()
    past.check()
    after = {e.receipt_id: (e.dot, e.body) for e in wire.log("s")}
    assert before.items() <= after.items()
    if not pending:
        assert [past.ann.session("s").get("n", id_) for id_ in "rq"] == shown


@pytest.mark.parametrize("seq", range(ENTRIES + 1))
def test_HE1_entries_after_a_restore_stand_in_the_new_epoch(wire: Wire, seq: int) -> None:
    past = Past(wire)
    wire.serve(restored(past.stores[seq], 7))
    past.heal()
    assert [e.epoch for e in wire.log("s")] == [1] * seq + [7] * (ENTRIES - seq)
    assert past.ann.status().sessions[0].epoch == (7 if seq < ENTRIES else 1)


@pytest.mark.parametrize("seq", range(ENTRIES + 1))
def test_HE2_a_server_with_other_content_at_the_same_seqs_keeps_it_and_gets_the_rest(
    wire: Wire, seq: int
) -> None:
    past = Past(wire)
    wire.serve(restored(past.stores[seq], 2))
    cyd = wire.open("cyd")
    session = cyd.session("s")
    wire.sync(cyd)
    made = [
        session.put("n", "q", {"cyd": 1}),
        session.append("said", {}),
        session.put("m", "x", {}),
    ]
    wire.sync(cyd)
    past.heal()
    wire.sync(cyd)
    past.receipts[cyd] = made
    salts = [entry.receipt_id for entry in wire.log("s")]
    assert salts[seq : seq + 3] == [receipt.id for receipt in made]
    assert sorted(salts) == sorted(r.id for receipts in past.receipts.values() for r in receipts)
    for replica in (past.ann, past.bob, cyd):
        assert state_of(replica, "s") == wire.state("s")


def test_HE2_the_common_seq_is_found_by_asking_about_few_points_at_a_time(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    stores = []
    for i in range(300):
        session.append("e", {"i": i})
        if i == 137:
            wire.sync(ann)
            stores.append(copy.deepcopy(wire.store))
    wire.sync(ann)
    wire.serve(restored(stores[0], 2))
    wire.sync(ann)
    asked = [f for line in wire.last_sync for f in line.sent if isinstance(f, Compare)]
    assert 1 <= len(asked) <= 3
    assert all(len(frame.points) <= 24 for frame in asked)
    assert [n.detail for n in ann.status().notices if n.kind == "healed"] == [
        {"common": 138, "was_at": 300, "requeued": 162}
    ]
    assert [event.payload["i"] for event in session.events()] == list(range(300))


def test_HE3_a_server_that_lost_everything_even_its_name_is_given_everything(wire: Wire) -> None:
    past = Past(wire)
    wire.serve(new_store("another"))
    past.heal()
    past.check()
    assert [e.epoch for e in wire.log("s")] == [1] * ENTRIES


def test_HE3_a_server_restored_over_and_over_to_different_pasts_still_gets_every_op(
    wire: Wire,
) -> None:
    past = Past(wire)
    for epoch, seq in enumerate((5, 8, 2, 8, 0, 3), 2):
        wire.serve(restored(past.stores[seq], epoch))
        past.heal()
        past.check()


@pytest.mark.parametrize("cut_after", range(12))
def test_HE3_a_healing_that_is_cut_at_any_frame_is_finished_by_the_next_connection(
    wire: Wire, cut_after: int
) -> None:
    past = Past(wire)
    wire.serve(restored(past.stores[3], 2))
    for _ in range(2):
        line = wire.connect(past.ann)
        for _ in range(cut_after):
            if line.to_server:
                line.send_one()
            if line.to_client and line.up:
                line.receive_one()
        line.cut()
    past.heal()
    past.check()


def test_HE3_a_restore_in_the_middle_of_a_bootstrap_leaves_no_row_of_the_lost_log(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._answers.PAGE_ITEMS_MAX", 2)
    wire.options["bootstrap_entries_min"] = 0
    wire.serve(wire.store)
    ann, dee = wire.open("ann"), wire.open("dee")
    session = ann.session("s")
    for i in range(6):
        session.put("n", f"r{i}", {"i": i})
    wire.sync(ann)
    early = copy.deepcopy(wire.store)
    dee.session("s")
    line = wire.connect(dee)
    _take_page(line)
    session.put("n", "r2", {"i": "lost"})
    wire.sync(ann)
    _take_page(line)  # It has the row that will be lost, and the first page's head will not be.
    wire.serve(restored(early, 2))
    other = wire.open("eve")
    other.session("s").put("n", "another", {})
    wire.sync(other)
    wire.sync(dee)
    assert state_of(dee, "s") == wire.state("s")
    assert dee.session("s").get("n", "r2") == {"i": 2}


def _take_page(line: Line) -> None:
    before = line.core.boot_after("s")
    while line.core.boot_after("s") in (before, b""):
        line.send_one() if line.to_server else line.receive_one()


def _deliver_unlisted(line: Line) -> None:
    """Everything but listings arrives: no client takes a new id as long as it waits for one."""
    for _ in range(100):
        line.to_client = deque(
            encode_frame(frame) for frame in line.waiting() if not isinstance(frame, Sessions)
        )
        if line.to_server:
            line.send_one()
        elif line.to_client:
            line.receive_one()
    line.cut()


@pytest.mark.parametrize("first", range(3, ENTRIES))
def test_HE2_a_healing_that_got_no_page_looks_anew_for_what_is_common(
    wire: Wire, first: int
) -> None:
    """What it had in common with a server that was then restored again is no history."""
    past = Past(wire)
    wire.serve(restored(past.stores[first], 2))
    line = wire.connect(past.ann)
    while not past.ann._core.is_booting("s"):
        line.send_one() if line.to_server else line.receive_one()
    line.cut()
    wire.serve(restored(past.stores[2], 3))
    for replica in (past.bob, past.ann, past.bob, past.ann):
        wire.sync(replica)
    past.check()
    log = {entry.seq: entry.encode() for entry in wire.log("s")}
    with past.ann._core.database.reading() as db:
        held = dict(db.execute("SELECT seq, entry FROM syncline_entries").fetchall())
    assert {seq: log.get(seq) for seq in held} == held


def test_HE3_an_own_entry_that_a_second_restore_puts_elsewhere_keeps_its_receipt(
    wire: Wire,
) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    session = ann.session("s")
    session.put("n", "r", {"x": 1})
    wire.sync(ann)
    early = copy.deepcopy(wire.store)
    bob.session("s").put("n", "q", {})
    wire.sync(bob)
    receipt = session.patch("n", "r", {"x": 2})
    wire.sync(ann)
    late = copy.deepcopy(wire.store)
    wire.serve(restored(early, 2))
    _deliver_unlisted(wire.connect(ann))
    assert [entry.seq for entry in wire.log("s") if entry.receipt_id == receipt.id] == [2]
    wire.serve(restored(late, 3))
    wire.sync(ann)
    assert [entry.seq for entry in wire.log("s") if entry.receipt_id == receipt.id] == [3]
    assert receipt.state is ReceiptState.APPLIED
    assert state_of(ann, "s") == wire.state("s")


@pytest.mark.parametrize("diverged", [False, True])
def test_HE3_an_op_that_a_restored_server_refused_and_another_holds_is_refused_no_longer(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, diverged: bool
) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    session = ann.session("s")
    session.put("n", "r", {"x": 1})
    wire.sync(ann)
    early = copy.deepcopy(wire.store)
    receipt = session.put("n", "large", {"x": "x" * 400})
    wire.sync(ann)
    late = copy.deepcopy(wire.store)
    wire.serve(restored(early, 2))
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 300)
    _deliver_unlisted(wire.connect(ann))
    assert receipt.state is ReceiptState.REFUSED
    if diverged:
        bob.session("s").put("n", "q", {})
        wire.sync(bob)
        _deliver_unlisted(wire.connect(ann))
    monkeypatch.undo()
    wire.serve(restored(late, 3))
    wire.sync(ann)
    assert receipt.state.value == "applied"
    assert session.refused() == []
    assert [entry.receipt_id for entry in wire.log("s")][1] == receipt.id
    assert state_of(ann, "s") == wire.state("s")


@pytest.mark.parametrize("frames", range(7, 10))
def test_HE3_an_op_that_was_refused_and_that_an_overtaken_healing_brought_is_not_forgotten(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    monkeypatch.setattr("syncline.server._answers.PAGE_ITEMS_MAX", 1)
    ann, bob = wire.open("ann"), wire.open("bob")
    session = ann.session("s")
    session.put("n", "r", {"x": 1})
    wire.sync(ann)
    early = copy.deepcopy(wire.store)
    receipt = session.put("n", "large", {"x": "x" * 400})
    session.put("n", "r", {"x": 2})
    wire.sync(ann)
    late = copy.deepcopy(wire.store)
    wire.serve(restored(early, 2))
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 300)
    bob.session("s").put("n", "q", {})
    wire.sync(bob)
    _deliver_unlisted(wire.connect(ann))
    assert receipt.state is ReceiptState.REFUSED
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 1000)
    wire.serve(restored(late, 3))
    line = wire.connect(ann)
    for _ in range(frames):
        if line.to_server:
            line.send_one()
        if line.to_client and line.up:
            line.receive_one()
    line.cut()
    wire.serve(restored(early, 4))
    for replica in (ann, bob, ann):
        wire.sync(replica)
    assert receipt.state in (ReceiptState.APPLIED, ReceiptState.REFUSED)
    assert state_of(ann, "s") == wire.state("s")


def _refusing(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> tuple[Replica, list[Receipt]]:
    """Ann's three ops, of which the server has refused the second for good."""
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 300)
    ann = wire.open("ann")
    session = ann.session("s")
    receipts = [
        session.put("n", "r", {"x": 1}),
        session.put("n", "large", {"x": "x" * 400}),
        session.put("n", "r", {"x": 2}),
    ]
    wire.sync(ann)
    assert [r.state.value for r in receipts] == ["applied", "refused", "applied"]
    return ann, receipts


def test_HE3_a_number_that_a_refusal_consumed_is_sent_again_as_a_void_op(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, receipts = _refusing(wire, monkeypatch)
    wire.serve(restored(new_store(), 2))
    wire.sync(ann)
    pushes = [f for line in wire.last_sync for f in line.sent if isinstance(f, Push)]
    pushed = [decode_op(op) for frame in pushes for op in frame.ops]
    assert [(op.n, isinstance(op, VoidOp)) for op in pushed] == [(1, False), (2, True), (3, False)]
    assert [e.n for e in wire.log("s")] == [1, 3]
    assert [r.state.value for r in receipts] == ["applied", "refused", "applied"]
    assert [(op.code, op.receipt.id) for op in ann.session("s").refused()] == [
        (3011, receipts[1].id)
    ]
    assert _renamed(ann.client_id, "ann")
    assert state_of(ann, "s") == wire.state("s")


def test_HE4_a_number_that_only_a_refusal_had_is_given_back_though_the_logs_agree(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 300)
    ann = wire.open("ann")
    session = ann.session("s")
    session.put("n", "r", {"x": 1})
    wire.sync(ann)
    early = copy.deepcopy(wire.store)
    session.put("n", "large", {"x": "x" * 400})
    wire.sync(ann)
    wire.serve(restored(early, 2))
    receipt = session.put("n", "r", {"x": 2})
    wire.sync(ann)
    opened = [[f for f in line.sent if isinstance(f, Open)] for line in wire.last_sync]
    assert [len(frames) for frames in opened] == [1, 1]  # The second one under the new id.
    assert receipt.state is ReceiptState.APPLIED
    assert [e.dot for e in wire.log("s")] == [("ann", 1), (ann.client_id, 1)]


def test_HE4_a_client_that_no_longer_holds_a_number_asked_for_takes_a_new_id(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, receipts = _refusing(wire, monkeypatch)
    with ann._core.database.transaction() as db:
        db.execute("DELETE FROM syncline_consumed")
    wire.serve(restored(new_store(), 2))
    pending = ann.session("s").put("n", "r", {"x": 3})
    wire.sync(ann)
    assert ann.client_id != "ann"
    # All that it still holds is in the log again, once, under the new id.
    assert [e.receipt_id for e in wire.log("s")] == [receipts[0].id, receipts[2].id, pending.id]
    assert {e.client for e in wire.log("s")} == {ann.client_id}
    assert ann.session("s").get("n", "r") == {"x": 3}
    assert pending.state is ReceiptState.APPLIED


def test_HE2_a_healing_is_told_to_watchers_and_kept_as_a_notice(wire: Wire) -> None:
    past = Past(wire)
    told: list[Notification] = []
    past.ann.session("s").watch(told.append)
    wire.serve(restored(past.stores[6], 2))
    wire.sync(past.ann)
    assert told[0] == Notification("s", "healing", None, ids=None)
    notice, renamed = past.ann.status().notices
    assert renamed.kind == "new client id"
    assert (notice.kind, notice.session) == ("healed", "s")
    assert notice.detail == {"common": 6, "was_at": 8, "requeued": 1}
    assert past.ann.status().pending == 0


def test_HE3_nothing_shows_halfway_while_a_replica_heals(wire: Wire) -> None:
    past = Past(wire)
    session = past.ann.session("s")
    seen: list[Any] = []
    wire.serve(restored(past.stores[1], 2))
    line = wire.connect(past.ann)
    while line.to_server or line.to_client:
        line.send_one() if line.to_server else line.receive_one()
        now = (session.get("n", "r"), session.get("n", "q"))
        if not seen or seen[-1] != now:
            seen.append(now)
    line.cut()
    # Before: all of it; then the server's past with ann's own ops on top (the delete of q).
    assert seen[0] == ({"z": 3}, None)
    assert seen[1:] == [({"x": 1, "y": 1}, None)]
    past.heal()
    assert (session.get("n", "r"), session.get("n", "q")) == ({"z": 3}, None)


def test_HE5_what_was_never_settled_is_sent_under_a_new_id_only(wire: Wire) -> None:
    past = Past(wire)
    wire.serve(restored(past.stores[4], 2))
    fresh = past.ann.session("s").put("n", "fresh", {})
    wire.sync(past.ann)
    dots = {e.receipt_id: e.dot for e in wire.log("s")}
    assert {dots[receipt.id].client for receipt in past.receipts[past.ann]} == {"ann"}
    assert dots[fresh.id] == (past.ann.client_id, 1)


def test_HE5_a_copy_that_uses_forgotten_numbers_anew_is_told_apart(wire: Wire) -> None:
    """The original's op 2 was seen by bob and forgotten; the copy's own op 2 is another one."""
    ann, bob = wire.open("ann"), wire.open("bob")
    ann.session("s").put("n", "r", {"x": 1})
    for replica in (ann, bob):
        wire.sync(replica)
    early = copy.deepcopy(wire.store)
    copied = wire.copy(ann, "copy")
    ann.session("s").patch("n", "r", {"x": 2})
    for replica in (ann, bob):
        wire.sync(replica)
    wire.serve(restored(early, 2))
    copied.session("s").patch("n", "r", {"x": "copy"})
    built = bob.session("s").patch("n", "r", {"x": "bob, who saw 2"})
    for replica in (copied, bob, ann, copied, bob):
        wire.sync(replica)
    assert len({entry.dot for entry in wire.log("s")}) == len(wire.log("s")) == 4
    assert built.state.value in ("won", "merged")
    (conflict,) = [c for c in bob.session("s").conflicts() if c.value == "copy"]
    assert conflict.loser.client == copied.client_id != "ann"


@pytest.mark.parametrize("frames", range(4, 9))
@pytest.mark.parametrize("second", [2, 8])
def test_HE2_a_healing_that_is_overtaken_by_another_restore_leaves_no_entry_of_its_own(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, frames: int, second: int
) -> None:
    """What it brought so far is of a log that is gone; the next may even be the first one again."""
    monkeypatch.setattr("syncline.server._answers.PAGE_ITEMS_MAX", 2)
    past = Past(wire)
    wire.serve(restored(past.stores[3], 2))
    cyd = wire.open("cyd")
    for i in range(3):
        cyd.session("s").append("said", {"cyd": i})
    wire.sync(cyd)
    line = wire.connect(past.ann)
    for _ in range(frames):
        if line.to_server:
            line.send_one()
        if line.to_client and line.up:
            line.receive_one()
    line.cut()
    wire.serve(restored(past.stores[second], 3))
    past.heal()
    wire.sync(cyd)
    past.heal()
    log = {entry.seq: entry.encode() for entry in wire.log("s")}
    for replica in (past.ann, past.bob, cyd):
        assert _held(replica).items() <= log.items()
        assert state_of(replica, "s") == wire.state("s")
        assert [event.seq for event in replica.session("s").events()] == [
            entry.seq for entry in wire.log("s") if events_in([a.change for a in entry.read()])
        ]
    for receipt in past.receipts[past.ann]:
        assert not receipt.state.pending


@pytest.mark.parametrize("frames", range(7, 10))
def test_HE2_an_own_entry_that_an_overtaken_healing_brought_is_not_mistaken_for_another(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    """A copy has put it there; the server of the first log has it elsewhere."""
    monkeypatch.setattr("syncline.server._answers.PAGE_ITEMS_MAX", 1)
    past = Past(wire)
    copied = wire.copy(past.ann, "copy")
    wire.serve(restored(past.stores[4], 2))
    _deliver_unlisted(wire.connect(copied))
    assert [entry.dot for entry in wire.log("s")][4:] == [("ann", 3), ("ann", 4)]
    for _ in range(2):
        wire.connect(past.ann).cut()
    line = wire.connect(past.ann)
    for _ in range(frames):
        if line.to_server:
            line.send_one()
        if line.to_client and line.up:
            line.receive_one()
    line.cut()
    wire.serve(restored(past.stores[8], 3))
    for replica in (past.ann, past.bob, copied, past.ann):
        wire.sync(replica)
    past.check()
    for replica in (past.ann, past.bob, copied):
        assert _held(replica).items() <= {e.seq: e.encode() for e in wire.log("s")}.items()


def _held(replica: Replica) -> dict[int, bytes]:
    with replica._core.database.reading() as db:
        return dict(db.execute("SELECT seq, entry FROM syncline_entries").fetchall())
