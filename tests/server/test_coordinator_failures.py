"""The coordinator when a commit fails or an op meets a bug: nothing lost, nobody blocked."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.hand_client import NOW, make_op, put
from tests.server.ops_world import FailingStore, World, code_of

from syncline.server import (
    RecordKey,
    SignIn,
    SyncCoordinator,
)
from syncline.server import _settling as settling_module
from syncline.sync import (
    resolve_conflicts,
)
from syncline.sync import (
    settle as core_settle,
)

SECOND = 1_000_000


# Failures.


def test_PU11_a_group_that_does_not_commit_is_tried_again_op_by_op() -> None:
    store = FailingStore()
    world = World(store)
    store.fails = lambda rows: any((row.client, row.n) == ("bob", 2) for row in rows)
    ops = [make_op(n, put(f"r{n}", a=1)) for n in range(1, 5)]
    answers = world.group(
        world.pushed("ann", *ops[:2]),
        world.pushed("bob", *(make_op(n, put(f"b{n}", a=1)) for n in range(1, 5))),
        world.pushed("ann", *ops[2:]),
    )
    assert [code_of(one) for one in answers] == [[], [(2, 3018, False)], []]
    assert answers[1][0].detail == {"retry_after_ms": 1000}
    assert answers[1][0].reason.startswith("DiskFull: no space left")
    assert world.last is not None and world.last.uncertain
    # Each client's own order holds, and all but the op at fault and those behind it are in.
    assert sorted(world.dots()) == [("ann", 1), ("ann", 2), ("ann", 3), ("ann", 4), ("bob", 1)]
    assert [row.seq for one in world.last.committed for row in one.rows] == [1, 2, 3, 4, 5]
    store.fails = lambda rows: False
    assert world.push("bob", *(make_op(n, put(f"b{n}", a=1)) for n in range(2, 5))) == []


def test_PU11_a_disk_that_stays_full_answers_each_client_once_and_costs_few_tries() -> None:
    store = FailingStore()
    world = World(store)
    store.fails = lambda rows: bool(rows)
    answers = world.group(
        *(
            world.pushed(client, *(make_op(n, put(f"r{n}", a=1)) for n in range(1, 501)))
            for client in ("ann", "bob")
        )
    )
    assert [code_of(one) for one in answers] == [[(1, 3018, False)]] * 2
    assert store.head("s1") is None and store.transactions < 40


def test_PU11_after_an_unknown_commit_what_is_durable_is_a_repeat() -> None:
    store = FailingStore()
    world = World(store)
    store.fails = lambda rows: len(rows) > 1
    store.after_commit = True
    answers = world.push("ann", *(make_op(n, put(f"r{n}", a=1)) for n in range(1, 4)))
    assert code_of(answers) == [(1, 0, True), (2, 0, True), (3, 0, True)]
    assert all(answer.entry is not None for answer in answers)
    assert world.dots() == [("ann", 1), ("ann", 2), ("ann", 3)]
    assert world.last is not None and world.last.uncertain


def test_sign_ins_of_a_group_that_fails_are_committed_by_themselves() -> None:
    store = FailingStore()
    world = World(store)
    store.fails = lambda rows: bool(rows)
    push = world.pushed("ann", make_op(1, put(a=1)))
    result = world.coordinator.commit_group([push], NOW, [SignIn("bob", 3)])
    assert result.sign_ins == [None]
    store.fails = lambda rows: True
    result = world.coordinator.commit_group([], NOW, [SignIn("bob", 4)])
    assert [error.code for error in result.sign_ins if error is not None] == [3018]
    store.fails = lambda rows: False
    with store.transaction() as tx:
        assert tx.device("bob").incarnation == 3


def test_a_sign_in_that_an_unknown_commit_made_durable_is_no_copy() -> None:
    """Its own incarnation is there when it is tried again."""
    store = FailingStore()
    world = World(store)
    store.after_commit = True
    store.fails = lambda rows: bool(rows)
    push = world.pushed("ann", make_op(1, put(a=1)))
    result = world.coordinator.commit_group([push], NOW, [SignIn("bob", 3)])
    assert result.sign_ins == [None]
    store.fails = lambda rows: False
    again = world.coordinator.commit_group([], NOW, [SignIn("bob", 3)])
    assert [error.code for error in again.sign_ins if error is not None] == [3016]


def test_PU11_an_op_that_meets_a_bug_is_tried_three_times_and_then_refused_for_good(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def settle(record: Any, change: Any, *rest: Any) -> Any:
        if change.id == "cursed":
            raise ZeroDivisionError("a bug")
        return original(record, change, *rest)

    original = core_settle
    monkeypatch.setattr(settling_module, "settle", settle)
    world = World()
    op = make_op(2, put("fine", a=1), put("cursed", a=1))
    behind = make_op(3, put("r3", a=1))
    for _ in range(3):
        first, second = world.group(
            world.pushed("ann", make_op(1, put(a=1)), op, behind),
            world.pushed("bob", make_op(1, put("b", a=1))),
        )
        assert code_of(first)[-1:] == [(2, 3018, False)]
        assert [answer.code for answer in second] in ([], [0])
        assert first[-1].reason == "ZeroDivisionError: a bug"
    assert sorted(world.dots()) == [("ann", 1), ("bob", 1)]
    answers = world.push("ann", op, behind)
    assert code_of(answers) == [(2, 3001, True)]
    assert world.dots()[-1] == ("ann", 3)
    assert world.push("ann", op) == answers
    assert "a bug, met by op 2 for session s1" in caplog.text
    with world.store.transaction() as tx:
        assert tx.records("s1", [RecordKey("notes", "fine")]) == {}


def test_R1_2_resolve_conflicts_is_the_cores() -> None:
    assert SyncCoordinator.resolve_conflicts is resolve_conflicts
