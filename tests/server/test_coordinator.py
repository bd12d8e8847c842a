"""The coordinator: what each op is answered, what is stored of it, and what survives a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.server.hand_client import NOW, make_op, patch, put, salt_of
from tests.server.ops_world import World, code_of

from syncline.server import (
    Author,
    Lane,
    LedgerRow,
    MemoryStore,
    PushedOps,
    RefusalRow,
    SignIn,
    Transaction,
)
from syncline.server import _coordinator as coordinator_module
from syncline.server import _settling as settling_module
from syncline.sync import (
    HEADER_COLLECTION,
    HEADER_ID,
    NO_HASH,
    Closed,
    Conflict,
    Delete,
    Dot,
    Erase,
    Event,
    Op,
    OpRefused,
    Outcome,
    Patch,
    Put,
    ReplicaCloned,
    Resolve,
    VoidOp,
    conflict_id,
    genesis,
    op_digest,
    running_hash,
)

SECOND = 1_000_000


# Accepting.


def test_PU1_ops_are_accepted_in_the_order_of_their_numbers_each_whole() -> None:
    world = World()
    ops = [make_op(1, put("r1", a=1), put("r2", a=2)), make_op(2, put("r3", a=3))]
    assert world.push("ann", *ops) == []
    one, two = world.entries()
    assert (one.epoch, one.seq, one.client, one.n, one.outcome) == (1, 1, "ann", 1, 0)
    assert (one.accepted_at, one.salt, one.body) == (NOW, ops[0].salt, ops[0].body)
    assert (two.seq, two.n) == (2, 2)
    assert world.record("r2").visible == {"a": 2}
    assert world.record("r3").vector == {"ann": 2}
    running = NO_HASH
    for op in ops:
        running = running_hash(running, op.n, op_digest(op.salt, op.body))
    assert world.store.last_op("s1", "ann") == (2, running)


def test_SE4_the_genesis_has_the_store_and_its_epoch() -> None:
    world = World()
    world.push("ann", make_op(1, put(a=1)))
    head = world.store.head("s1")
    assert head is not None
    assert head.genesis == genesis(world.store.identity().store_id, 1, "s1")
    assert world.last is not None and world.last.committed[0].created
    world.push("ann", make_op(2, put("r2", a=1)))
    assert not world.last.committed[0].created


def test_what_was_committed_is_told_with_its_place_in_the_log() -> None:
    world = World()
    world.push("ann", make_op(1, put(a=1)))
    before = world.store.head("s1")
    world.group(
        world.pushed("ann", make_op(2, put("r2", a=1))),
        world.pushed("bob", make_op(1, put("r3", a=1))),
        world.pushed("bob", make_op(1, put(a=1)), session="s2"),
    )
    assert world.last is not None and before is not None and not world.last.uncertain
    first, second = world.last.committed
    assert (first.session, first.previous_seq, first.previous_hash) == ("s1", 1, before.hash)
    assert [(row.seq, row.client, row.n) for row in first.rows] == [(2, "ann", 2), (3, "bob", 1)]
    assert first.head == world.store.head("s1")
    assert (second.session, second.previous_seq, second.created) == ("s2", 0, True)


def test_the_label_of_a_session_follows_its_header() -> None:
    world = World()
    labels: list[str] = []
    for n, label in enumerate(["Trip", 7, "x" * 300], start=1):
        header = Patch(HEADER_COLLECTION, HEADER_ID, {"ann": n - 1} if n > 1 else {}, {})
        header.fields["label"] = label
        assert world.push("ann", make_op(n, header, at=NOW + n)) == []
        head = world.store.head("s1")
        assert head is not None
        labels.append(head.label)
    assert labels == ["Trip", "", "x" * 200]


def test_events_are_counted_and_conflicts_are_closed_by_a_resolve() -> None:
    world = World()
    world.push("ann", make_op(1, put(a=1)))
    assert world.push("bob", make_op(1, put(a=2), at=NOW + 5)) == []
    lost_id = conflict_id(
        world.record().life._replace(updated_at=NOW, client="ann"), "notes", "r1", "a"
    )
    rows = world.store.snapshot("s1", b"", "x", 1, 1 << 30, 1 << 10).conflicts
    assert [row.id for row in rows] == [lost_id]
    assert isinstance(rows[0], Conflict) and rows[0].value == 1
    assert world.push("ann", make_op(2, Resolve(lost_id), Event("e", {}), Event("e", {}))) == []
    closed = world.store.snapshot("s1", b"", "x", 1, 1 << 30, 1 << 10).conflicts
    assert closed == (Closed(lost_id, Dot("ann", 2)),)
    assert [row.events for row in world.store.entries("s1", 0, 1 << 30, 9)] == [0, 0, 2]


def test_ST13_an_ops_outcome_is_the_strongest_of_its_changes() -> None:
    world = World()
    world.push("ann", make_op(1, put("r1", a=1), put("r2", a=1), at=NOW + 10))
    world.push("bob", make_op(1, put("r3", a=1), put("r1", a=2), at=NOW))
    world.push("eve", make_op(1, patch("r2", b=1), put("r4"), at=NOW + 20))
    assert [entry.outcome for entry in world.entries()] == [
        Outcome.APPLIED,
        Outcome.LOST,
        Outcome.MERGED,
    ]
    assert world.record("r1").visible == {"a": 1}


def test_ST2_within_one_group_what_is_settled_counts_as_held() -> None:
    world = World()
    _, answers = world.group(
        world.pushed("ann", make_op(1, put("r1", a=1))),
        world.pushed("bob", make_op(1, patch("none", {"ann": 1}, a=1))),
    )
    assert code_of(answers) == [(1, 3002, True)]


def test_BO1_a_row_names_the_last_entry_that_touched_it_and_no_refused_op() -> None:
    world = World()
    world.push("ann", make_op(1, put("r1", a=1)), make_op(2, put("r2", a=1)))
    stale = make_op(1, patch("r1", {"ann": 1}, a=2), at=NOW - 1)
    assert code_of(world.push("bob", stale)) == [(1, 3003, False)]
    world.push("ann", make_op(3, patch("r2", {"ann": 2}, b=1), at=NOW + 1))
    rows = world.store.snapshot("s1", b"", "x", 1, 1 << 30, 1 << 10).rows
    assert {row.id: row.seq for row in rows} == {"r1": 1, "r2": 3}


def test_each_lost_value_has_its_row_in_the_ledger_without_the_value() -> None:
    rows: list[LedgerRow] = []

    class Watched(MemoryStore):
        @contextmanager
        def transaction(self) -> Iterator[Transaction]:
            with super().transaction() as tx:
                write = tx.write_ledger
                tx.write_ledger = lambda made: write([rows.append(r) or r for r in made])  # type: ignore
                yield tx

    world = World(Watched())
    world.push("ann", make_op(1, put(a=1, b=1)))
    world.push("bob", make_op(1, put(a=2, b=2), at=NOW + 5), make_op(2, patch("none", a=1)))
    stamps = {"winner": [NOW + 5, "bob", 1], "loser": [NOW, "ann", 1]}
    facts = {"epoch": 1, "seq": 2, "dot": ["bob", 1], "collection": "notes", "id": "r1", **stamps}
    identity = {"principal": "bob's name", "client": "bob"}
    assert rows == [
        LedgerRow("lost", NOW, "s1", {**facts, "field": "a"}, identity),
        LedgerRow("lost", NOW, "s1", {**facts, "field": "b"}, identity),
        LedgerRow("refusal", NOW, "s1", {"epoch": 1, "dot": ["bob", 2], "code": 3002}, identity),
    ]


# Repeats.


@pytest.mark.parametrize("in_one_group", [True, False])
def test_PU2_a_repeat_is_answered_with_its_entry_and_appends_nothing(in_one_group: bool) -> None:
    world = World()
    op = make_op(1, put(a=1))
    again = make_op(1, put(a=1), at=NOW + 99)
    if in_one_group:
        first, answers = world.group(world.pushed("ann", op), world.pushed("ann", op, again))
        assert first == []
    else:
        world.push("ann", op)
        answers = world.push("ann", op, again)
    row = world.store.entries("s1", 0, 1 << 30, 9)[0]
    repeat = OpRefused(session="s1", n=1, code=0, final=True, entry=row.entry, hash=row.hash)
    assert answers == [repeat, repeat]
    assert world.dots() == [("ann", 1)]


@pytest.mark.parametrize("in_one_group", [True, False])
def test_PU3_a_repeat_of_a_refused_op_gets_the_same_refusal(in_one_group: bool) -> None:
    world = World()
    op = make_op(1, patch("none", a=1))
    if in_one_group:
        (first,), (second,) = world.group(world.pushed("ann", op), world.pushed("ann", op))
    else:
        (first,), (second,) = world.push("ann", op), world.push("ann", op)
    assert (
        first
        == second
        == OpRefused(
            session="s1",
            n=1,
            code=3002,
            reason="there is no record notes/none to patch",
            detail={"collection": "notes", "id": "none"},
            final=True,
        )
    )


@pytest.mark.parametrize(
    "other",
    [
        make_op(1, put(a=2)),
        make_op(1, put(a=1), salt="another"),
        make_op(2, patch("none", a=2)),
        make_op(2, patch("none", a=1), salt="another"),
        make_op(3, put(a=1)),
    ],
)
def test_PU4_a_settled_number_with_other_content_is_refused_with_3006(other: Op) -> None:
    world = World()
    world.push("ann", make_op(1, put(a=1)), make_op(2, patch("none", a=1)), VoidOp(3, b"v" * 32))
    answers = world.push("ann", other, make_op(4, put("r4", a=1)))
    assert code_of(answers) == [(other.n, 3006, False)]
    assert world.dots() == [("ann", 1)]


def test_repeats_of_large_entries_are_answered_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_module, "REPEAT_BYTES_MAX", 5000)
    world = World()
    world.push("ann", make_op(1, put(text="x" * 2000), salt="op 1"))
    former = Dot("ann", 1)
    ops = [make_op(n, put(text="x" * 2000), salt="op 1", former=former) for n in range(1, 9)]
    answers = world.push("bob", *ops)
    assert code_of(answers) == [(1, 0, True), (2, 0, True), (3, 0, True), (4, 3018, False)]


# Gaps, refusals, and what is set aside.


def test_PU5_a_gap_names_the_number_that_is_expected() -> None:
    world = World()
    world.push("ann", make_op(1, put(a=1)))
    (answer,) = world.push("ann", make_op(3, put("r3", a=1)), make_op(4, put("r4", a=1)))
    assert (answer.n, answer.code, answer.final) == (3, 3005, False)
    assert answer.detail == {"expected": 2}
    assert world.push("ann", *(make_op(n, put(f"r{n}", a=1)) for n in (2, 3, 4))) == []
    assert world.dots() == [("ann", n) for n in (1, 2, 3, 4)]


def test_PU6_a_final_refusal_consumes_the_number_and_the_ops_behind_it_go_on() -> None:
    world = World()
    bad = Op(2, salt_of("bad"), (NOW,), b"\xc1")
    answers = world.push("ann", make_op(1, put(a=1)), bad, make_op(3, put("r3", a=1)))
    assert code_of(answers) == [(2, 3001, True)]
    assert [(entry.seq, entry.n) for entry in world.entries()] == [(1, 1), (2, 3)]
    refusal = world.refusal("ann", 2)
    assert refusal is not None
    assert (refusal.code, refusal.digest) == (3001, op_digest(bad.salt, bad.body))
    running = NO_HASH
    for op in (make_op(1, put(a=1)), bad, make_op(3, put("r3", a=1))):
        running = running_hash(running, op.n, op_digest(op.salt, op.body))
    assert world.store.last_op("s1", "ann") == (3, running)


def test_SE4_a_session_exists_once_a_number_in_it_is_consumed() -> None:
    world = World()
    assert code_of(world.push("ann", make_op(1, patch(a=1)))) == [(1, 3002, True)]
    head = world.store.head("s1")
    assert head is not None and (head.seq, head.hash) == (0, head.genesis)
    assert world.push("ann", make_op(2, put(a=1))) == []
    assert world.dots() == [("ann", 2)]


@pytest.mark.parametrize(
    ("op", "code"),
    [
        (Op(1, salt_of("x"), (NOW,), b"\x90"), 3001),
        (Op(1, salt_of("x"), (NOW,), b"\x91\x91\x09"), 3001),
        (make_op(1, put(a=1), stamps=(NOW, NOW)), 3001),
        (make_op(1, Put("$mine", "r1", {}, {"a": 1})), 3019),
        (make_op(1, Put("notes", "r1", {}, {"a": float("nan")})), 3019),
        (make_op(1, Put("notes", "r1", {"bad id": 1}, {"a": 1})), 3019),
        (make_op(1, patch("none", a=1)), 3002),
        (make_op(1, Put(HEADER_COLLECTION, HEADER_ID, {}, {"a": 1})), 3001),
    ],
)
def test_RE1_what_is_wrong_with_an_op_itself_is_final(op: Op, code: int) -> None:
    world = World()
    (answer,) = world.push("ann", op)
    assert (answer.n, answer.code, answer.final) == (1, code, True)
    assert world.push("ann", op) == [answer]


def test_PU10_the_number_of_stamps_must_be_that_of_the_changes() -> None:
    world = World()
    (answer,) = world.push("ann", make_op(1, put(a=1), put("r2"), stamps=(NOW,)))
    assert (answer.code, answer.final) == (3001, True)
    assert answer.reason == "1 stamps for 2 changes"


def test_PU1_an_op_of_which_one_change_is_refused_changes_nothing() -> None:
    world = World()
    world.push("ann", make_op(1, put("r1", a=1)))
    before = world.record("r1")
    op = make_op(2, patch("r1", {"ann": 1}, a=2), patch("none", a=1), at=NOW + 1)
    assert code_of(world.push("ann", op)) == [(2, 3002, True)]
    assert world.record("r1") == before
    # Nor within one group, where the records are those in memory.
    op_3 = make_op(3, patch("r1", {"ann": 1}, a=3), patch("none", a=1), at=NOW + 1)
    op_4 = make_op(4, patch("r1", {"ann": 1}, b=4), at=NOW + 2)
    assert code_of(world.push("ann", op_3, op_4)) == [(3, 3002, True)]
    assert world.record("r1").visible == {"a": 1, "b": 4}


def test_PU7_after_a_refusal_that_is_not_final_the_rest_is_set_aside_until_it_is_sent_again() -> (
    None
):
    world = World()
    ahead = NOW + 61 * SECOND
    ops = [make_op(n, put(f"r{n}", a=1), at=ahead if n == 2 else NOW) for n in range(1, 7)]
    answers, later = world.group(world.pushed("ann", *ops[:3]), world.pushed("ann", *ops[3:4]))
    assert code_of(answers) == [(2, 3012, False)] and later == []
    assert world.push("ann", *ops[4:]) == []
    assert world.dots() == [("ann", 1)]
    # Another connection of the same client has a lane of its own, and hears of the gap.
    other = PushedOps("s1", Author("ann", "x"), ops[4:], Lane())
    assert code_of(world.group(other)[0]) == [(5, 3005, False)]
    again = make_op(2, put("r2", a=1), at=NOW + 1)
    assert world.push("ann", again, *ops[2:]) == []
    assert world.dots() == [("ann", n) for n in range(1, 7)]


def test_PU7_other_clients_are_not_set_aside() -> None:
    world = World()
    first, second = world.group(
        world.pushed("ann", make_op(2, put(a=1))), world.pushed("bob", make_op(1, put("b", a=1)))
    )
    assert code_of(first) == [(2, 3005, False)] and second == []
    assert world.dots() == [("bob", 1)]


# Void ops and former dots.


def test_PU8_a_void_op_consumes_its_number_and_takes_its_running_hash_over() -> None:
    world = World()
    void = VoidOp(1, b"r" * 32)
    consumed = OpRefused(session="s1", n=1, code=0, final=True)
    assert world.push("ann", void, make_op(2, put(a=1))) == [consumed]
    op = make_op(2, put(a=1))
    running = running_hash(b"r" * 32, 2, op_digest(op.salt, op.body))
    assert world.store.last_op("s1", "ann") == (2, running)
    assert world.refusal("ann", 1) == RefusalRow("ann", 1, 0, "", {}, None)
    # For a settled number it says nothing new, but it is answered: the client waits for that.
    assert code_of(world.push("ann", void, VoidOp(2, b"x" * 32))) == [(1, 0, True), (2, 0, True)]
    assert world.store.last_op("s1", "ann") == (2, running)
    assert code_of(world.push("ann", VoidOp(9, b"x" * 32))) == [(9, 3005, False)]


@pytest.mark.parametrize("in_one_group", [True, False])
def test_PU9_an_op_that_is_in_the_log_under_its_former_dot_is_a_repeat(
    in_one_group: bool,
) -> None:
    world = World()
    before = make_op(1, put("base", a=1))
    old = make_op(2, put("r1", {"ann": 1}, a=1), salt="moved")
    new = make_op(1, put("r1", {"copy": 1}, a=1), salt="moved", former=Dot("ann", 2))
    next_ = make_op(2, put("r2", a=1))
    if in_one_group:
        _, answers = world.group(world.pushed("ann", before, old), world.pushed("copy", new, next_))
    else:
        world.push("ann", before, old)
        answers = world.push("copy", new, next_)
    row = world.store.entries("s1", 1, 1 << 30, 1)[0]
    repeat = OpRefused(session="s1", n=1, code=0, final=True, entry=row.entry, hash=row.hash)
    assert answers == [repeat]
    assert world.dots() == [("ann", 1), ("ann", 2), ("copy", 2)]
    digest = op_digest(new.salt, new.body)
    assert world.refusal("copy", 1) == RefusalRow("copy", 1, 0, "", {}, digest, Dot("ann", 2))
    assert world.push("copy", new) == [repeat]
    running = running_hash(NO_HASH, 1, digest)
    running = running_hash(running, 2, op_digest(next_.salt, next_.body))
    assert world.store.last_op("s1", "copy") == (2, running)


def test_PU9_a_repeat_is_found_through_two_renumberings() -> None:
    world = World()
    world.push("ann", make_op(1, put(a=1), salt="moved"))
    world.push("copy", make_op(1, put(a=1), salt="moved", former=Dot("ann", 1)))
    (answer,) = world.push("copy2", make_op(1, put(a=1), salt="moved", former=Dot("copy", 1)))
    assert answer.code == 0 and answer.entry is not None
    assert world.dots() == [("ann", 1)]


def test_PU9_an_op_that_comes_back_after_its_copy_was_accepted_is_a_repeat_of_that() -> None:
    world = World()
    moved = make_op(1, put(a=1), salt="moved", former=Dot("ann", 1))
    assert world.push("copy", moved) == []
    (answer,) = world.push("ann", make_op(1, put(a=1), salt="moved"))
    (row,) = world.store.entries("s1", 0, 1 << 30, 9)
    assert answer == OpRefused(
        session="s1", n=1, code=0, final=True, entry=row.entry, hash=row.hash
    )
    assert world.dots() == [("copy", 1)]


def test_PU9_a_salt_that_somebody_took_for_another_op_is_told_to_its_author() -> None:
    world = World()
    assert world.push("mallory", make_op(1, put("theirs", a=1), salt="taken")) == []
    (answer,) = world.push("ann", make_op(1, put("mine", a=1), salt="taken"))
    assert (answer.code, answer.final, answer.entry) == (3001, True, None)
    assert world.dots() == [("mallory", 1)]


def test_PU9_an_op_with_another_salt_is_not_a_repeat_of_its_former_dot() -> None:
    world = World()
    world.push("ann", make_op(1, put("r1", a=1)))
    assert world.push("copy", make_op(1, put("r2", a=1), salt="x", former=Dot("ann", 1))) == []
    assert world.push("copy", make_op(2, put("r3", a=1), former=Dot("ann", 77))) == []
    assert world.dots() == [("ann", 1), ("copy", 1), ("copy", 2)]


def test_PU9_a_refusal_of_the_former_dot_is_given_again() -> None:
    world = World()
    (old,) = world.push("ann", make_op(1, patch("none", a=1), salt="moved"))
    world.push("eve", make_op(1, put("none", a=1)))
    # By now the patch would go through; it was refused for good all the same.
    moved = make_op(1, patch("none", a=1), salt="moved", former=Dot("ann", 1))
    assert world.push("copy", moved) == [old]
    assert world.dots() == [("eve", 1)]


# Clocks and stamps.


def test_CK2_a_stamp_too_far_ahead_is_refused_with_the_servers_clock() -> None:
    world = World()
    bound = NOW + 60 * SECOND
    assert world.push("ann", make_op(1, put("r1", a=1), at=bound)) == []
    (answer,) = world.push("ann", make_op(2, put("r2", a=1), at=bound + 1))
    assert (answer.n, answer.code, answer.final) == (2, 3012, False)
    assert answer.detail == {"server_clock": NOW}
    (answer,) = world.push("ann", make_op(2, Event("e", {}), at=bound + 1))
    assert (answer.code, answer.final) == (3012, False)
    assert world.push("ann", make_op(2, Resolve("0" * 20), Event("e", {}), at=bound)) == []


def test_CK2_what_a_wrong_clock_has_stamped_can_be_edited() -> None:
    world = World()
    far = NOW + 3600 * SECOND
    world.push("ann", make_op(1, put(a=1), at=far), now=far)
    edit = patch("r1", {"ann": 1}, a=2)
    (answer,) = world.push("bob", make_op(1, edit, at=far + 2))
    assert (answer.code, answer.final) == (3012, False)
    assert world.push("bob", make_op(1, edit, at=far + 1)) == []
    assert world.record().visible == {"a": 2}


def test_CK4_old_stamps_are_welcome_and_never_changed() -> None:
    world = World()
    assert world.push("ann", make_op(1, put(a=1), at=0)) == []
    assert world.record().life == (0, "ann", 1)


def test_ST6_a_stamp_not_above_what_was_seen_is_refused_and_not_final() -> None:
    world = World()
    world.push("ann", make_op(1, put(a=1)))
    (answer,) = world.push("bob", make_op(1, patch("r1", {"ann": 1}, a=2), at=NOW - 1))
    assert (answer.n, answer.code, answer.final) == (1, 3003, False)
    assert world.push("bob", make_op(1, patch("r1", {"ann": 1}, a=2), at=NOW + 1)) == []


# Sizes.


def test_VA6_an_op_that_makes_too_large_an_entry_or_record_is_refused_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling_module, "STATE_BYTES_MAX", 5000)
    monkeypatch.setattr(settling_module, "ENTRY_BYTES_MAX", 9000)
    world = World()
    ops = [
        make_op(1, put(f0="x" * 2000)),
        make_op(2, patch("r1", {"ann": 1}, f1="x" * 2000), at=NOW + 1),
        make_op(3, patch("r1", {"ann": 2}, f2="x" * 2000), at=NOW + 2),
        make_op(4, patch("r1", {"ann": 2}, f1="y" * 2000), at=NOW + 3),
        make_op(5, put("r2", a="x" * 4000), put("r3", a="x" * 4000)),
        make_op(6, put("r2", a="x" * 4600), put("r3", a="x" * 4600)),
        make_op(7, Delete("notes", "r2", {})),
    ]
    answers = world.push("ann", *ops)
    assert code_of(answers) == [(3, 3011, True), (6, 3011, True)]
    assert answers[0].detail["bytes_max"] == 5000 and answers[1].detail["bytes_max"] == 9000
    assert world.record().visible == {"f0": "x" * 2000, "f1": "y" * 2000}


# Sign-ins.


def test_HS4_sign_ins_are_stored_in_the_groups_transaction() -> None:
    world = World()
    result = world.coordinator.commit_group(
        [world.pushed("ann", make_op(1, put(a=1)))],
        NOW,
        [SignIn("ann", 5), SignIn("bob", 1), SignIn("ann", 5), SignIn("ann", 6)],
    )
    refused = [None if error is None else error.code for error in result.sign_ins]
    assert refused == [None, None, 3016, None]
    with world.store.transaction() as tx:
        assert [tx.device(name).incarnation for name in ("ann", "bob", "eve")] == [6, 1, 0]


def test_ER8_only_the_server_erases() -> None:
    world = World()
    erasure = Erase(("bob",), ())
    answers = world.push("ann", make_op(1, erasure), make_op(2, put(a=1)))
    assert code_of(answers) == [(1, 3001, True)]
    store_id = world.store.identity().store_id
    result = world.coordinator.commit_group([], NOW, [SignIn(store_id, 1)])
    assert [type(refused) for refused in result.sign_ins] == [ReplicaCloned]


def test_HS4_a_client_id_belongs_to_whom_it_first_signed_in_as() -> None:
    world = World()
    named = [SignIn("ann", 1), SignIn("ann", 2, "Ann"), SignIn("ann", 3, "Eve"), SignIn("ann", 3)]
    result = world.coordinator.commit_group([], NOW, named)
    # Who signed in before there were tokens may have a name later, and then keeps it.
    assert [error and error.code for error in result.sign_ins] == [None, None, 3016, 3016]
    result = world.coordinator.commit_group([], NOW, [SignIn("ann", 3, "Ann")])
    assert result.sign_ins == [None]
