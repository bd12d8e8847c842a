"""What every store must do. To run it against yours, subclass and define the fixture ``store``:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> Iterator[Store]:
            ...

Each test gets a fresh store, empty and in epoch one; closing it is the fixture's. The rows are made
up: no store looks into entries, states or hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from syncline.server import (
    Device,
    Head,
    LastOp,
    LedgerRow,
    LogRow,
    RecordKey,
    RecordRow,
    RefusalRow,
    SessionRow,
    SnapshotPart,
    Store,
    Transaction,
    check_ledger,
)
from syncline.sync import (
    Closed,
    Conflict,
    Dot,
    MalformedFrame,
    Stamp,
    SyncError,
    UnknownRecord,
    pack,
    unpack,
)

from ._extra import needs_extra

with needs_extra("syncline.testing.StoreContract"):
    import pytest

ALL = 1 << 30
GENESIS = sha256(b"genesis").digest()


def log_row(seq: int, client: str = "ann", *, events: int = 0, entry: bytes = b"entry") -> LogRow:
    """An entry whose number is its seq."""
    digest = sha256(b"%d" % seq).digest()
    return LogRow(seq, digest, client, seq, events, entry, digest[:16])


def conflict(id_: str, value: object = "lost") -> Conflict:
    return Conflict(id_, "notes", "n1", "title", value, Stamp(1, "ann", 1), Stamp(2, "bob", 1))


def closed(id_: str, n: int = 9) -> Closed:
    return Closed(id_, Dot("bob", n))


def add_entries(tx: Transaction, rows: list[LogRow], session: str = "s") -> None:
    """Append, and move the head with it."""
    head = tx.head(session)
    assert head is not None
    tx.append(session, rows)
    tx.set_head(session, Head(head.epoch, rows[-1].seq, rows[-1].hash, head.genesis, 0))


def make_session(store: Store, entries: int = 0, session: str = "s") -> list[LogRow]:
    rows = [log_row(seq) for seq in range(1, entries + 1)]
    with store.transaction() as tx:
        tx.create(session, GENESIS, 1)
        if rows:
            add_entries(tx, rows, session)
    return rows


class Abandoned(Exception):
    """Thrown by a test to leave a transaction."""


class StoreContract:
    """The conformance suite of stores; see the module."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        raise NotImplementedError("define the fixture 'store'")

    def test_a_store_has_an_id_of_its_own_and_begins_in_epoch_one(self, store: Store) -> None:
        identity = store.identity()
        assert (len(identity.store_id), identity.epoch) == (32, 1)
        assert store.identity() == identity

    def test_a_new_session_has_an_empty_log_at_its_genesis(self, store: Store) -> None:
        with store.transaction() as tx:
            assert tx.head("s") is None
            made = tx.create("s", GENESIS, 7)
            assert tx.head("s") == made
        assert made == Head(store.identity().epoch, 0, GENESIS, GENESIS, 0, "")
        assert store.head("s") == made

    def test_an_unknown_session_reads_as_empty(self, store: Store) -> None:
        with store.transaction() as tx:
            assert tx.head("s") is None
            assert tx.last_ops("s", ["ann"]) == {}
            assert tx.records("s", [RecordKey("notes", "n1")]) == {}
            assert tx.entry_at("s", Dot("ann", 1)) is None
            assert tx.refusal_at("s", Dot("ann", 1)) is None
        assert store.head("s") is None
        assert store.last_op("s", "ann") is None
        assert store.entries("s", 0, ALL, ALL) == []
        assert store.hash_at("s", 0) is None
        assert store.sessions("", 10) == []
        with pytest.raises(UnknownRecord):
            store.snapshot("s", b"", "ann", 1, ALL, ALL)

    def test_a_session_cannot_be_made_twice_or_written_before_it_is(self, store: Store) -> None:
        make_session(store)
        with pytest.raises(AssertionError), store.transaction() as tx:
            tx.create("s", GENESIS, 1)
        with pytest.raises(AssertionError), store.transaction() as tx:
            tx.append("t", [log_row(1)])
        with pytest.raises(AssertionError), store.transaction() as tx:
            tx.put_records("t", [RecordRow("notes", "n1", 1, b"state")])

    def test_the_genesis_of_a_session_never_changes(self, store: Store) -> None:
        make_session(store)
        with pytest.raises(AssertionError), store.transaction() as tx:
            tx.set_head("s", Head(1, 0, GENESIS, bytes(32), 0))

    def test_the_head_is_kept_as_it_was_set(self, store: Store) -> None:
        make_session(store)
        head = Head(3, 0, b"h" * 32, GENESIS, 0, "Groceries · 買い物")
        with store.transaction() as tx:
            tx.set_head("s", head)
            assert tx.head("s") == head
        assert store.head("s") == head

    def test_sessions_are_listed_by_id_after_the_one_named(self, store: Store) -> None:
        for session in ("c", "a", "d", "b"):
            make_session(store, 2 if session == "b" else 0, session)
        assert [row.id for row in store.sessions("", 3)] == ["a", "b", "c"]
        assert [row.id for row in store.sessions("c", 3)] == ["d"]
        assert [row.id for row in store.sessions("bb", 3)] == ["c", "d"]
        assert store.sessions("a", 1) == [SessionRow("b", "", 1, 2)]

    def test_entries_come_back_as_they_were_stored_in_order(self, store: Store) -> None:
        rows = make_session(store, 5)
        assert store.entries("s", 0, ALL, ALL) == rows
        assert store.entries("s", 3, ALL, ALL) == rows[3:]
        assert store.entries("s", 5, ALL, ALL) == []
        assert store.entries("s", 99, ALL, ALL) == []

    def test_a_page_of_entries_is_cut_at_its_bounds_but_never_empty(self, store: Store) -> None:
        rows = make_session(store, 5)
        size = len(rows[0].entry)
        assert store.entries("s", 1, ALL, 2) == rows[1:3]
        assert store.entries("s", 1, 3 * size, ALL) == rows[1:4]
        assert store.entries("s", 1, 3 * size - 1, ALL) == rows[1:3]
        assert store.entries("s", 1, 1, ALL) == rows[1:2]

    @pytest.mark.parametrize("seqs", [[2], [1, 3], [1, 1], [2, 1]])
    def test_a_gap_in_the_log_is_an_error_and_stores_nothing(
        self, store: Store, seqs: list[int]
    ) -> None:
        make_session(store)
        with pytest.raises(AssertionError), store.transaction() as tx:
            tx.append("s", [log_row(seq) for seq in seqs])
        assert store.entries("s", 0, ALL, ALL) == []

    def test_appending_goes_on_after_what_the_same_transaction_appended(self, store: Store) -> None:
        rows = [log_row(seq) for seq in range(1, 5)]
        with store.transaction() as tx:
            tx.create("s", GENESIS, 1)
            tx.append("s", rows[:2])
            tx.append("s", [])
            tx.append("s", rows[2:])
            tx.set_head("s", Head(1, 4, rows[3].hash, GENESIS, 0))
        assert store.entries("s", 0, ALL, ALL) == rows
        with pytest.raises(AssertionError), store.transaction() as tx:
            tx.append("s", [log_row(4)])

    def test_a_dot_enters_the_log_of_a_session_once(self, store: Store) -> None:
        make_session(store, 1)
        make_session(store, 1, "t")
        again = LogRow(2, b"h" * 32, "ann", 1, 0, b"other", b"s" * 16)
        with pytest.raises(AssertionError), store.transaction() as tx:
            tx.append("s", [again])
        assert len(store.entries("s", 0, ALL, ALL)) == 1

    def test_an_entry_is_found_by_its_dot(self, store: Store) -> None:
        rows = make_session(store, 3)
        with store.transaction() as tx:
            assert tx.entry_at("s", Dot("ann", 2)) == rows[1]
            salts = [row.salt for row in rows]
            assert tx.entries_of("s", [salts[2], b"?" * 16, salts[1]]) == dict(
                zip(salts[1:], rows[1:], strict=True)
            )
            assert tx.entries_of("s", []) == tx.entries_of("t", salts) == {}
            assert tx.entry_at("s", Dot("ann", 4)) is None
            assert tx.entry_at("s", Dot("bob", 2)) is None

    def test_the_chain_has_a_hash_at_each_seq_up_to_the_head(self, store: Store) -> None:
        rows = make_session(store, 3)
        found = [store.hash_at("s", seq) for seq in range(-1, 5)]
        assert found == [None, GENESIS, rows[0].hash, rows[1].hash, rows[2].hash, None]

    def test_records_come_back_by_key_and_the_last_state_stands(self, store: Store) -> None:
        make_session(store)
        make_session(store, 0, "t")
        with store.transaction() as tx:
            tx.put_records(
                "s", [RecordRow("notes", "é", 1, b"one"), RecordRow("todo", "é", 1, b"")]
            )
            tx.put_records("t", [RecordRow("notes", "é", 1, b"another's")])
        with store.transaction() as tx:
            tx.put_records("s", [RecordRow("notes", "é", 2, b"two")])
            keys = [RecordKey("notes", "é"), RecordKey("todo", "é"), RecordKey("notes", "e")]
            expected = {keys[0]: b"two", keys[1]: b""}
            assert tx.records("s", keys) == expected
        with store.transaction() as tx:
            assert tx.records("s", keys) == expected

    def test_last_ops_are_kept_by_client(self, store: Store) -> None:
        make_session(store)
        with store.transaction() as tx:
            tx.set_last_ops("s", {"ann": LastOp(1, b"1" * 32), "bob": LastOp(4, b"4" * 32)})
            tx.set_last_ops("s", {"ann": LastOp(2, b"2" * 32)})
            expected = {"ann": LastOp(2, b"2" * 32), "bob": LastOp(4, b"4" * 32)}
            assert tx.last_ops("s", ["ann", "bob", "eve"]) == expected
            assert tx.last_ops("s", ["bob"]) == {"bob": LastOp(4, b"4" * 32)}
        assert store.last_op("s", "bob") == LastOp(4, b"4" * 32)
        assert store.last_op("s", "eve") is None

    def test_refusals_come_back_by_dot_whatever_they_are(self, store: Store) -> None:
        make_session(store)
        rows = [
            RefusalRow("ann", 1, 3019, "a value", {"path": "tags[2]", "n": -1}, b"d" * 32),
            RefusalRow("ann", 2, 0, "", {}, b"d" * 32, Dot("bob", 7)),
            RefusalRow("ann", 3, 0, "", {}, None),
        ]
        with store.transaction() as tx:
            tx.put_refusals("s", rows)
        with store.transaction() as tx:
            assert [tx.refusal_at("s", Dot("ann", n)) for n in (1, 2, 3, 4)] == [*rows, None]
        with pytest.raises(AssertionError), store.transaction() as tx:
            tx.put_refusals("s", rows[:1])

    def test_incarnations_are_kept_by_client(self, store: Store) -> None:
        with store.transaction() as tx:
            assert tx.device("ann") == Device(0, None)
            tx.set_device("ann", Device(3, "Ann"))
            assert tx.device("ann") == Device(3, "Ann")
        with store.transaction() as tx:
            tx.set_device("ann", Device(4, None))
        with store.transaction() as tx:
            assert (tx.device("ann"), tx.device("bob")) == (Device(4, None), Device(0, None))

    @pytest.mark.parametrize(
        ("arriving", "standing"),
        [
            ([conflict("c", 1), conflict("c", 2)], conflict("c", 1)),
            ([conflict("c"), closed("c")], closed("c")),
            ([closed("c"), conflict("c")], closed("c")),
            ([closed("c", 1), closed("c", 2)], closed("c", 1)),
        ],
        ids=["open twice", "open then closed", "closed then open", "closed twice"],
    )
    @pytest.mark.parametrize("at_once", [True, False])
    def test_a_conflict_opens_once_and_stays_closed(
        self,
        store: Store,
        arriving: list[Conflict | Closed],
        standing: Conflict | Closed,
        at_once: bool,
    ) -> None:
        make_session(store)
        for rows in [arriving] if at_once else [[row] for row in arriving]:
            with store.transaction() as tx:
                tx.put_conflicts("s", rows)
        assert store.snapshot("s", b"", "ann", 1, ALL, ALL).conflicts == (standing,)

    def test_an_exception_rolls_all_of_a_transaction_back(self, store: Store) -> None:
        make_session(store, 2)
        fill(store)
        before = everything(store)
        with pytest.raises(Abandoned), store.transaction() as tx:
            tx.create("new", GENESIS, 1)
            add_entries(tx, [log_row(3), log_row(4, events=1)])
            tx.put_records("s", [RecordRow("notes", "n1", 3, b"new"), RecordRow("a", "a", 3, b"")])
            tx.put_conflicts("s", [closed("c1"), conflict("c0")])
            tx.put_refusals("s", [RefusalRow("bob", 9, 3001, "", {}, None)])
            tx.set_last_ops("s", {"ann": LastOp(4, b"4" * 32), "eve": LastOp(1, b"1" * 32)})
            tx.set_device("ann", Device(99, None))
            tx.write_ledger([ledger_row(9)])
            raise Abandoned
        assert everything(store) == before
        with store.transaction() as tx:
            assert tx.refusal_at("s", Dot("bob", 9)) is None
            assert tx.entry_at("s", Dot("ann", 3)) is None
            assert tx.device("ann") == Device(1, None)
            # Nothing of the session that was rolled back is remembered.
            assert tx.records("new", [RecordKey("a", "a")]) == {}
            tx.create("new", GENESIS, 1)
            add_entries(tx, [log_row(3)])
        assert store.hash_at("s", 3) == log_row(3).hash

    def test_a_session_that_was_rolled_back_leaves_no_trace_in_the_next(self, store: Store) -> None:
        with pytest.raises(Abandoned), store.transaction() as tx:
            tx.create("s", GENESIS, 1)
            tx.put_records("s", [RecordRow("notes", "n1", 1, b"abandoned")])
            raise Abandoned
        make_session(store, 0, "t")
        make_session(store, 0, "s")
        with store.transaction() as tx:
            tx.put_records("s", [RecordRow("notes", "n1", 1, b"mine")])
        with store.transaction() as tx:
            assert tx.records("t", [RecordKey("notes", "n1")]) == {}
            assert list(tx.records("s", [RecordKey("notes", "n1")]).values()) == [b"mine"]

    def test_a_failed_transaction_leaves_the_store_usable(self, store: Store) -> None:
        for _ in range(3):
            with pytest.raises(Abandoned), store.transaction():
                raise Abandoned
        assert len(make_session(store, 2)) == 2

    def test_transactions_do_not_nest(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.create("s", GENESIS, 1)
            with pytest.raises(AssertionError), store.transaction():
                pass
        assert store.head("s") is not None

    def test_the_ledger_is_numbered_and_chained_across_transactions(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.write_ledger([])
            tx.write_ledger([ledger_row(1), ledger_row(2)])
        with store.transaction() as tx:
            tx.write_ledger([ledger_row(3)])
        rows = store.ledger(0, ALL)
        assert check_ledger(rows) == 3
        assert store.ledger(1, 1) == rows[1:2]
        assert store.ledger(3, 1) == []
        n, at, kind, session, facts, digest = unpack(rows[2].row)
        assert (n, at, kind, session, facts) == (3, 3, "lost", "s", {"seq": 3})
        assert len(digest) == 32
        assert not any(b"alice" in row.row for row in rows)

    def test_a_snapshot_in_one_part_holds_everything_and_the_vector(self, store: Store) -> None:
        make_session(store, 2)
        records = fill(store)
        part = store.snapshot("s", b"", "eve", 1, ALL, ALL)
        assert part == SnapshotPart(
            head=store.head("s"),  # type: ignore[arg-type]
            rows=tuple(records),
            conflicts=(conflict("c1"), closed("c2")),
            entries=(),
            after=None,
            vector={"ann": 2, "bob": 5},
        )

    def test_a_snapshot_has_entries_with_events_and_those_of_the_client_that_asks(
        self, store: Store
    ) -> None:
        rows = [
            log_row(1, "ann"),
            log_row(2, "bob", events=2),
            log_row(3, "ann", events=1),
            log_row(4, "ann"),
            log_row(5, "bob"),
        ]
        make_session(store)
        with store.transaction() as tx:
            add_entries(tx, rows)
        assert walk(store, "eve", 1, ALL, ALL)[2] == [rows[1], rows[2]]
        assert walk(store, "ann", 2, ALL, ALL)[2] == [rows[1], rows[2], rows[3]]
        assert walk(store, "ann", 1, ALL, 1)[2] == rows[:4]
        assert walk(store, "bob", 6, ALL, 1)[2] == [rows[1], rows[2]]

    @pytest.mark.parametrize("items_max", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    def test_the_parts_of_a_snapshot_join_without_loss_or_repeat(
        self, store: Store, items_max: int
    ) -> None:
        make_session(store, 2)
        records = fill(store)
        with store.transaction() as tx:
            add_entries(tx, [log_row(3, events=1), log_row(4), log_row(5, events=1)])
        found = walk(store, "eve", 1, ALL, items_max)
        assert found[0] == records
        assert found[1] == [conflict("c1"), closed("c2")]
        assert [row.seq for row in found[2]] == [3, 5]
        assert found[3] == -(-8 // items_max)

    def test_a_part_is_cut_by_bytes_but_never_empty(self, store: Store) -> None:
        make_session(store)
        records = [RecordRow("c", str(n), 1, bytes(100 if n < 3 else 1000)) for n in range(6)]
        with store.transaction() as tx:
            tx.put_records("s", records)
        assert walk(store, "eve", 1, 1, ALL)[3] == 6
        assert walk(store, "eve", 1, 350, ALL)[3] == 4
        assert walk(store, "eve", 1, ALL, ALL)[3] == 1

    def test_a_later_part_shows_the_head_and_the_state_at_its_own_moment(
        self, store: Store
    ) -> None:
        make_session(store, 2)
        records = fill(store)
        first = store.snapshot("s", b"", "eve", 1, ALL, 2)
        assert (first.head.seq, list(first.rows), first.vector) == (2, records[:2], None)
        newer = RecordRow(records[2].collection, records[2].id, 3, b"newer")
        with store.transaction() as tx:
            add_entries(tx, [log_row(3)])
            tx.put_records("s", [newer, RecordRow("a", "before the cursor", 3, b"")])
            tx.set_last_ops("s", {"ann": LastOp(3, b"3" * 32)})
        assert first.after is not None
        second = store.snapshot("s", first.after, "eve", 1, ALL, ALL)
        assert (second.head.seq, second.rows[0], second.vector) == (3, newer, {"ann": 3, "bob": 5})
        # Asked again, by whom so ever, the same part comes.
        assert store.snapshot("s", first.after, "eve", 1, ALL, ALL) == second

    def test_a_snapshot_follows_what_is_written_and_what_is_rolled_back(self, store: Store) -> None:
        make_session(store, 2)
        records = fill(store)
        assert walk(store, "eve", 1, ALL, ALL)[0] == records
        added = RecordRow("notes", "n2", 2, b"")
        with pytest.raises(Abandoned), store.transaction() as tx:
            tx.put_records("s", [added])
            raise Abandoned
        assert walk(store, "eve", 1, ALL, ALL)[0] == records
        with store.transaction() as tx:
            tx.put_records("s", [added])
        assert walk(store, "eve", 1, ALL, ALL)[0] == [*records[:2], added, *records[2:]]

    @pytest.mark.parametrize(
        "after",
        [
            b"x",
            b"\xc1",
            pack([]),
            pack([0, "notes"]),
            pack([1, 2]),
            pack([2, -1]),
            pack([2, 2**63]),
            pack([2, "1"]),
            pack([3, "x"]),
            pack({"0": 1}),
            pack([0, "a", "b"]) + b"\x00",
        ],
    )
    def test_what_is_no_cursor_is_refused(self, store: Store, after: bytes) -> None:
        make_session(store, 1)
        with pytest.raises(MalformedFrame):
            store.snapshot("s", after, "ann", 1, ALL, ALL)

    def test_the_empty_session_has_a_snapshot_too(self, store: Store) -> None:
        make_session(store)
        part = store.snapshot("s", b"", "ann", 1, ALL, ALL)
        assert part[1:] == ((), (), (), None, {})

    def test_house_keeping_changes_nothing(self, store: Store) -> None:
        make_session(store, 2)
        fill(store)
        before = everything(store)
        store.checkpoint()
        assert everything(store) == before


def ledger_row(n: int) -> LedgerRow:
    return LedgerRow("lost", n, "s", {"seq": n}, {"principal": "alice", "client": "ann"})


def fill(store: Store) -> list[RecordRow]:
    """Something in every table; returns the records in the order of their keys."""
    records = [
        RecordRow("$session", "header", 1, b"0"),
        RecordRow("notes", "n1", 1, b"1"),
        RecordRow("notes", "é", 2, b"2"),
        RecordRow("é", "\U0001f600", 2, b"3"),
    ]
    with store.transaction() as tx:
        tx.put_records("s", reversed(records))
        tx.put_conflicts("s", [closed("c2"), conflict("c1")])
        tx.put_refusals("s", [RefusalRow("bob", 5, 3001, "bad", {}, None)])
        tx.set_last_ops("s", {"ann": LastOp(2, b"2" * 32), "bob": LastOp(5, b"5" * 32)})
        tx.set_device("ann", Device(1, None))
        tx.write_ledger([ledger_row(1)])
    return records


def everything(store: Store) -> list[Any]:
    """All that can be seen of a store, to compare."""
    sessions = store.sessions("", ALL)
    return [
        store.identity(),
        sessions,
        [store.head(row.id) for row in sessions],
        [store.entries(row.id, 0, ALL, ALL) for row in sessions],
        [store.snapshot(row.id, b"", "ann", 1, ALL, ALL) for row in sessions],
        [store.last_op(row.id, client) for row in sessions for client in ("ann", "bob", "eve")],
        store.ledger(0, ALL),
    ]


def walk(
    store: Store, client: str, pending_from: int, bytes_max: int, items_max: int
) -> tuple[list[RecordRow], list[Conflict | Closed], list[LogRow], int]:
    """A whole snapshot, and in how many parts it came."""
    rows: list[RecordRow] = []
    conflicts: list[Conflict | Closed] = []
    entries: list[LogRow] = []
    after: bytes | None = b""
    parts = 0
    while after is not None:
        part = store.snapshot("s", after, client, pending_from, bytes_max, items_max)
        assert (part.after is None) == (part.vector is not None)
        rows += part.rows
        conflicts += part.conflicts
        entries += part.entries
        after = part.after
        parts += 1
        if parts > 1000:
            raise SyncError("a snapshot without end")
    return rows, conflicts, entries, parts
