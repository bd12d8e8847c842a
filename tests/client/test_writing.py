"""What a local write stores, what it refuses before it stores anything, and what a reader sees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.client.wire import NOW, Wire, state_of

from syncline.client import ReceiptState, Replica, Session
from syncline.sync import (
    Delete,
    Event,
    InvalidValue,
    LocalError,
    NotFound,
    OutboxFull,
    Patch,
    Put,
    RecordChange,
    SyncError,
    TimedOut,
    TooLarge,
    UnknownRecord,
    unpack,
)


@pytest.fixture
def ann(wire: Wire) -> Replica:
    return wire.open("ann")


@pytest.fixture
def session(ann: Replica) -> Session:
    return ann.session("s")


def _ops(session: Session) -> list[tuple[Any, ...]]:
    return [op.changes for op in session.pending()]


def _stamps(session: Session) -> list[list[int]]:
    with session._core.database.reading() as db:
        rows = db.execute("SELECT stamps FROM syncline_outbox ORDER BY session, n").fetchall()
    return [unpack(data) for (data,) in rows]


# What a write is.


def test_each_write_is_one_op_with_what_its_author_saw_as_its_context(session: Session) -> None:
    session.put("n", "r", {"a": 1, "b": 2})
    session.patch("n", "r", {"b": 3})
    session.put("n", "q", {})
    session.delete("n", "r")
    session.append("said", {"text": "hi"})
    assert _ops(session) == [
        (Put("n", "r", {}, {"a": 1, "b": 2}),),
        (Patch("n", "r", {"ann": 1}, {"b": 3}),),
        (Put("n", "q", {}, {}),),
        (Delete("n", "r", {"ann": 2}),),
        (Event("said", {"text": "hi"}),),
    ]
    assert [op.n for op in session.pending()] == [1, 2, 3, 4, 5]


def test_WR2_the_context_names_what_others_wrote_once_it_shows_here(wire: Wire) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    ann.session("s").put("n", "r", {"a": 1})
    ann.session("s").put("n", "other", {})
    wire.sync(ann)
    wire.sync(bob)
    session = bob.session("s")
    session.put("n", "mine", {})
    session.patch("n", "r", {"b": 1})
    session.patch("n", "r", {"c": 1})
    assert _ops(session)[1:] == [
        (Patch("n", "r", {"ann": 1}, {"b": 1}),),
        (Patch("n", "r", {"ann": 1, "bob": 2}, {"c": 1}),),
    ]


def test_WR4_edits_of_one_record_in_one_op_are_folded_into_one_change(session: Session) -> None:
    session.put("n", "old", {"x": 1})
    with session.transaction():
        session.put("n", "r", {"a": 1, "b": 1})
        session.patch("n", "r", {"b": 2, "c": 2})
        session.patch("n", "old", {"y": 1})
        session.patch("n", "old", {"y": 2, "z": 2})
        session.put("n", "gone", {"x": 1})
        session.delete("n", "gone")
        session.append("said", {"i": 1})
        session.append("said", {"i": 2})
    assert _ops(session)[1] == (
        Put("n", "r", {}, {"a": 1, "b": 2, "c": 2}),
        Patch("n", "old", {"ann": 1}, {"y": 2, "z": 2}),
        Delete("n", "gone", {}),
        Event("said", {"i": 1}),
        Event("said", {"i": 2}),
    )
    assert session.get("n", "r") == {"a": 1, "b": 2, "c": 2}
    assert session.get("n", "old") == {"x": 1, "y": 2, "z": 2}
    assert session.get("n", "gone") is None


def test_WR4_what_the_folded_op_shows_is_what_the_log_makes_of_it(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    session.put("n", "r", {"a": 1})
    wire.sync(ann)
    with session.transaction() as receipt:
        session.delete("n", "r")
        session.put("n", "r", {"b": 1})
        session.put("n", "q", {"x": 1})
        session.delete("n", "q")
    shown = (session.get("n", "r"), session.get("n", "q"))
    wire.sync(ann)
    assert receipt.state is ReceiptState.APPLIED
    assert (session.get("n", "r"), session.get("n", "q")) == shown == ({"b": 1}, None)
    assert state_of(ann, "s") == wire.state("s")


def test_WR1_each_change_of_an_op_has_its_own_stamp(session: Session) -> None:
    with session.transaction():
        session.put("n", "r", {}, updated_at=NOW + 9)
        session.put("n", "q", {}, updated_at=5)
        session.patch("n", "q", {"x": 1})
        session.append("e", {}, updated_at=7)
        session.patch("n", "r", {"x": 1}, updated_at=3)
    session.put("n", "q", {}, updated_at=4)
    assert _stamps(session) == [[NOW + 9, NOW, 7], [NOW + 1]]


@pytest.mark.parametrize("at", [-1, 2**63 - 1, 1.5, "now", True])
def test_a_time_that_is_none_is_refused_and_nothing_is_stored(session: Session, at: Any) -> None:
    writes: list[Callable[[], object]] = [
        lambda: session.put("n", "r", {}, updated_at=at),
        lambda: session.delete("n", "r", updated_at=at),
        lambda: session.append("e", {}, updated_at=at),
    ]
    for write in writes:
        with pytest.raises(InvalidValue, match="updated_at"):
            write()
    assert session.pending() == []


def test_WR3_numbers_of_each_session_run_without_holes_also_after_the_file_is_reopened(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    ann.session("s").put("n", "r", {})
    ann.session("t").put("n", "r", {})
    with pytest.raises(InvalidValue):
        ann.session("s").put("n", "r", {"x": float("nan")})
    ann.session("s").put("n", "r", {})
    wire.sync(ann)
    ann.close()
    ann = wire.open("ann")
    ann.session("s").put("n", "r", {})
    assert [(op.n) for op in ann.session("s").pending()] == [3]
    assert ann.session("t").pending() == []


# What is refused before anything is stored.

DEEP: Any = "bottom"
for _ in range(64):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "f"),
        (float("inf"), "f"),
        (2**63, "f"),
        (-(2**63) - 1, "f"),
        ("\ud800", "f"),
        (object(), "f"),
        ({1: 2}, "f"),
        ([0, {"label": float("nan")}], "f[1].label"),
        ({"a": [{"b": {3}}]}, "f.a[0].b"),
        ((1, 2), "f"),
        (bytearray(b"x"), "f"),
        (DEEP, None),
    ],
)
def test_VA2_a_value_that_cannot_be_stored_is_refused_with_its_path_and_nothing_is_stored(
    session: Session, value: Any, path: str | None
) -> None:
    session.put("n", "r", {"x": 1})
    writes: list[Callable[[], object]] = [
        lambda: session.put("n", "r", {"good": 1, "f": value}),
        lambda: session.patch("n", "r", {"f": value}),
        lambda: session.append("e", {"f": value}),
    ]
    for write in writes:
        with pytest.raises(InvalidValue) as caught:
            write()
        if path is not None:
            assert caught.value.detail["path"] == path
    assert session.get("n", "r") == {"x": 1}
    assert len(session.pending()) == 1 and session.events() == []


@pytest.mark.parametrize("name", ["", "$mine", "x" * 256, "a\x00b", "a\nb", "\ud800", 5, None])
def test_VA5_a_name_that_is_none_is_refused_and_nothing_is_stored(
    session: Session, name: Any
) -> None:
    writes: list[Callable[[], object]] = [
        lambda: session.put(name, "r", {}),
        lambda: session.put("n", "r", {name: 1}),
        lambda: session.patch(name, "r", {}),
        lambda: session.delete(name, "r"),
        lambda: session.append(name, {}),
        lambda: session.get(name, "r"),
        lambda: list(session.records(name)),
        lambda: session.count(name),
    ]
    if name != "$mine" and name != "x" * 256:  # Record ids are freer.
        writes += [lambda: session.put("n", name, {}), lambda: session.get("n", name)]
    for write in writes:
        with pytest.raises(InvalidValue):
            write()
    assert session.pending() == [] and session.collections() == []


def test_VA7_the_header_takes_patches_only(session: Session) -> None:
    writes: list[Callable[[], object]] = [
        lambda: session.put("$session", "header", {}),
        lambda: session.delete("$session", "header"),
        lambda: session.patch("$session", "another", {}),
    ]
    for write in writes:
        with pytest.raises(InvalidValue):
            write()
    session.patch("$session", "header", {"label": "mine"})
    assert session.label == "mine"


def test_ST2_a_patch_of_what_is_not_there_or_deleted_is_refused(session: Session) -> None:
    session.put("n", "gone", {})
    session.delete("n", "gone")
    for id_ in ("never", "gone"):
        with pytest.raises(UnknownRecord):
            session.patch("n", id_, {"x": 1})
    with pytest.raises(UnknownRecord), session.transaction():
        session.put("n", "r", {})
        session.delete("n", "r")
        session.patch("n", "r", {"x": 1})
    assert len(session.pending()) == 2 and session.count("n") == 0


def test_VA6_what_is_too_large_is_refused_and_nothing_is_stored(session: Session) -> None:
    half, mib = "x" * (600 << 10), "x" * (1 << 20)
    session.put("n", "r", {"a": half})
    with pytest.raises(TooLarge):
        session.put("n", "q", {"a": mib})
    with pytest.raises(TooLarge):
        session.append("e", {"a": mib})
    with pytest.raises(TooLarge, match="n/r"):
        session.patch("n", "r", {"b": half})  # The record that two patches make.
    with pytest.raises(TooLarge), session.transaction():
        for i in range(7):
            session.put("n", f"r{i}", {"a": half})
    assert session.get("n", "r") == {"a": half}
    assert len(session.pending()) == 1 and session.count("n") == 1


def test_a_full_outbox_refuses_writes_until_there_is_room(wire: Wire) -> None:
    ann = wire.open("ann", outbox_ops_max=3)
    session = ann.session("s")
    for _ in range(3):
        session.append("e", {})
    with pytest.raises(OutboxFull) as caught:
        session.append("e", {})
    assert caught.value.code == 3007 and caught.value.detail == {"ops_max": 3}
    ann.session("t").append("e", {})
    wire.sync(ann)
    session.append("e", {})
    assert len(session.pending()) == 1


# Transactions and batches.


def test_an_exception_in_a_transaction_or_a_batch_stores_nothing(
    ann: Replica, session: Session
) -> None:
    told: list[object] = []
    session.watch(told.append)
    with pytest.raises(KeyError), session.transaction():
        session.put("n", "r", {})
        session.append("e", {})
        raise KeyError
    with pytest.raises(KeyError), ann.batch():
        session.put("n", "r", {})
        ann.session("t").put("n", "r", {})
        raise KeyError
    assert session.pending() == ann.session("t").pending() == []
    assert session.get("n", "r") is None and session.events() == [] and told == []


def test_reads_inside_a_transaction_see_it(session: Session) -> None:
    session.put("n", "r", {"x": 1})
    with session.transaction():
        session.patch("n", "r", {"x": 2})
        session.put("n", "q", {})
        assert session.get("n", "r") == {"x": 2}
        assert session.get("n", "q") == {}
        session.delete("n", "r")
        assert session.get("n", "r") is None


def test_reads_inside_a_batch_see_it(ann: Replica, session: Session) -> None:
    with ann.batch():
        receipt = session.put("n", "r", {"x": 1})
        session.append("e", {})
        assert session.get("n", "r") == {"x": 1}
        assert [id_ for id_, _ in session.records("n")] == ["r"]
        assert (session.count("n"), session.collections()) == (1, ["n"])
        assert receipt.state is ReceiptState.QUEUED
        assert len(session.events()) == 1 and len(session.pending()) == 2
        session.patch("n", "r", {"y": 1})
    assert _ops(session)[2] == (Patch("n", "r", {"ann": 1}, {"y": 1}),)


def test_transactions_of_two_sessions_may_be_nested_and_are_two_ops_of_one_commit(
    ann: Replica, session: Session
) -> None:
    other = ann.session("t")
    with session.transaction() as outer:
        session.put("n", "r", {"x": 1})
        with other.transaction() as inner, session.transaction() as same:
            other.put("n", "q", {"x": 2})
            session.put("n", "p", {"x": 3})
        assert session.get("n", "p") == {"x": 3}
    assert outer.id == same.id != inner.id
    assert [len(changes) for changes in _ops(session)] == [2]
    assert _ops(other) == [(Put("n", "q", {}, {"x": 2}),)]
    with pytest.raises(KeyError), session.transaction():
        session.put("n", "r", {"x": "lost"})
        other.put("n", "q", {"x": "lost"})
        raise KeyError
    assert (session.get("n", "r"), other.get("n", "q")) == ({"x": 1}, {"x": 2})


def test_a_refused_write_that_the_app_swallows_leaves_the_rest_of_its_batch_whole(
    ann: Replica, session: Session
) -> None:
    with ann.batch():
        session.put("n", "r", {"x": 1})
        with pytest.raises(InvalidValue):
            session.put("n", "q", {"x": float("nan")})
        with pytest.raises(UnknownRecord):
            session.patch("n", "q", {"x": 1})
        session.put("n", "p", {"x": 3})
    assert [op.n for op in session.pending()] == [1, 2]
    assert [id_ for id_, _ in session.records("n")] == ["p", "r"]


def test_an_op_that_fails_while_it_is_being_stored_takes_its_batch_along(
    ann: Replica, session: Session
) -> None:
    with pytest.raises(LocalError, match="nothing was stored"), ann.batch():
        session.put("n", "r", {"x": 1})
        with pytest.raises(TooLarge):
            session.put("n", "q", {"x": "x" * (1 << 20)})
    assert session.pending() == [] and session.count("n") == 0


def test_a_transaction_without_a_change_is_no_op(session: Session) -> None:
    with session.transaction() as receipt:
        assert session.get("n", "r") is None
    assert session.pending() == []
    with pytest.raises(NotFound):
        _ = receipt.state


def test_a_batch_is_durable_at_its_end(wire: Wire, ann: Replica, session: Session) -> None:
    with ann.batch():
        receipts = [session.put("n", f"r{i}", {"i": i}) for i in range(2500)]
    with Replica(ann.path) as other:
        assert other.session("s").count("n") == 2500
        assert other.receipt(receipts[-1].id).state is ReceiptState.QUEUED
    wire.sync(ann)
    assert state_of(ann, "s") == wire.state("s")


def test_VA1_what_goes_in_comes_out_equal_and_of_the_same_type_and_is_nobody_elses(
    session: Session,
) -> None:
    value: dict[str, Any] = {"a": [None, True, 1, 1.0, "é", b"\x00", [], {}], "b": {"deep": [1]}}
    session.put("n", "r", value)
    value["a"].clear()
    got: Any = session.get("n", "r")
    assert got == {"a": [None, True, 1, 1.0, "é", b"\x00", [], {}], "b": {"deep": [1]}}
    types = [type(None), bool, int, float, str, bytes, list, dict]
    assert [type(item) for item in got["a"]] == types
    got["b"]["deep"].append(2)
    assert session.get("n", "r") != got


# Receipts.

STATE = """
import sys
from syncline.client import Replica
with Replica(sys.argv[1]) as replica:
    receipt = replica.receipt(sys.argv[2])
    print(receipt.state.value, receipt.wait(0.0).value if not receipt.state.pending else "")
"""


def test_a_receipt_is_read_from_any_process(wire: Wire, ann: Replica, session: Session) -> None:
    receipt = session.put("n", "r", {})

    def elsewhere() -> list[str]:
        run = [sys.executable, "-c", STATE, str(ann.path), receipt.id]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert elsewhere() == ["queued"]
    wire.sync(ann)
    assert elsewhere() == ["applied", "applied"]


def test_a_receipt_moves_from_queued_over_sent_to_its_outcome(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    receipt = session.put("n", "r", {})
    seen = [receipt.state]
    line = wire.connect(ann)
    while line.to_server or line.to_client:
        line.send_one() if line.to_server else line.receive_one()
        if receipt.state is not seen[-1]:
            seen.append(receipt.state)
    assert [state.value for state in seen] == ["queued", "sent", "applied"]
    assert receipt.wait() is ReceiptState.APPLIED


def test_the_outcomes_are_those_of_the_log(wire: Wire) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    ann.session("s").put("n", "r", {"x": 0, "y": 0})
    wire.sync(ann)
    wire.sync(bob)
    wire.now += 1
    lost = ann.session("s").patch("n", "r", {"x": 1})
    merged = ann.session("s").append("e", {})
    wire.now += 1
    first = bob.session("s").patch("n", "r", {"x": 2})
    wire.sync(bob)
    wire.sync(ann)
    assert [r.state.value for r in (lost, merged, first)] == ["lost", "applied", "applied"]
    wire.now += 10
    won = ann.session("s").patch("n", "r", {"x": 5})
    other = bob.session("s").patch("n", "r", {"x": 4, "y": 4}, updated_at=wire.now - 1)
    wire.sync(bob)
    wire.sync(ann)
    assert [r.state.value for r in (won, other)] == ["won", "merged"]


def test_waiting_for_a_receipt_ends_in_time_and_the_write_stays(session: Session) -> None:
    receipt = session.put("n", "r", {})
    with pytest.raises(TimedOut, match="still queued"):
        receipt.wait(0.01)
    assert receipt.state is ReceiptState.QUEUED


@pytest.mark.parametrize("id_", ["", "no hex", "00" * 16, "00"])
def test_a_receipt_that_this_replica_does_not_know_is_not_found(ann: Replica, id_: str) -> None:
    with pytest.raises(NotFound):
        ann.receipt(id_)


# Sessions and events.


def test_R1_1_a_session_is_made_offline_with_its_label(ann: Replica) -> None:
    made = ann.create_session("notes")
    assert made.label == "notes"
    (change,) = _ops(made)[0]
    assert isinstance(change, RecordChange)
    assert change.fields == {"label": "notes", "status": "active", "created_at": NOW}  # type: ignore[union-attr]
    assert ann.create_session(session_id="given").id == "given"
    assert [s.id for s in ann.sessions()] == sorted([made.id, "given"])
    # It is the client's first op there, durable at once, under an id that the runtime mints.
    assert [op.n for op in made.pending()] == [1]
    assert UUID(made.id).version == 7
    with Replica(ann.path) as other:
        assert other.session(made.id, create=False).label == "notes"


def test_a_session_that_is_not_there_is_not_found_unless_it_may_be_made(ann: Replica) -> None:
    with pytest.raises(NotFound):
        ann.session("s", create=False)
    assert ann.sessions() == []
    with pytest.raises(SyncError):
        ann.session("not an id!")


def test_R3_2_events_come_in_pages_that_split_no_op_and_those_that_wait_come_last(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    session.append("e", {"i": 0})
    with session.transaction():
        session.put("n", "r", {})
        session.append("e", {"i": 1})
        session.append("f", {"i": 2})
    session.put("n", "q", {})
    session.append("e", {"i": 3})
    wire.sync(ann)
    wire.now += 5
    session.append("e", {"i": 4})
    rows = session.events()
    assert [(e.seq, e.index, e.type, e.payload["i"], e.at, e.client) for e in rows] == [
        (1, 0, "e", 0, NOW, "ann"),
        (2, 1, "e", 1, NOW, "ann"),
        (2, 2, "f", 2, NOW, "ann"),
        (4, 0, "e", 3, NOW, "ann"),
        (None, 0, "e", 4, NOW + 5, "ann"),
    ]
    assert session.events(limit=2) == rows[:3]
    assert session.events(after=2, limit=1) == rows[3:4]
    assert session.events(after=2) == rows[3:]
    assert session.events(after=4, limit=1) == rows[4:]
    assert session.events(limit=0) == []
    paged, after = [], 0
    while page := session.events(after, 1):
        paged += page
        if page[-1].seq is None:
            break
        after = page[-1].seq
    assert paged == rows


def test_EN3_an_op_is_in_the_outbox_or_in_the_log_at_every_moment_and_never_in_both(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    receipts = [session.append("e", {"i": i}) for i in range(5)]
    line = wire.connect(ann)
    while line.to_server or line.to_client:
        line.send_one() if line.to_server else line.receive_one()
        with ann._core.database.reading() as db:
            waiting = {s.hex() for (s,) in db.execute("SELECT salt FROM syncline_outbox")}
            held = {
                salt.hex()
                for (salt,) in db.execute("SELECT salt FROM syncline_entries WHERE salt NOT NULL")
            }
            (seq,) = db.execute("SELECT seq FROM syncline_sessions").fetchone()
        assert waiting | held == {receipt.id for receipt in receipts}
        assert not waiting & held
        assert len(held) == seq
        assert [e.payload["i"] for e in session.events()] == list(range(5))
