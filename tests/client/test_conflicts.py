"""Conflicts: listed alike for everybody, resolved from whosever side, closed everywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.client.wire import Wire, state_of

from syncline.client import Receipt, ReceiptState, Replica, Session
from syncline.sync import Conflict, InvalidValue, NotFound, Value

Fields = dict[str, Value]


class Quarrel:
    """Ann's write lost to bob's; cyd looks on."""

    def __init__(self, wire: Wire, ann: Callable[[Session], Receipt], bob: object) -> None:
        self.wire = wire
        self.ends = {name: wire.open(name) for name in ("ann", "bob", "cyd")}
        self.of("ann").put("n", "r", {"x": 0, "y": 0})
        self.sync()
        wire.now += 1
        ann(self.of("ann"))
        wire.now += 1
        bob(self.of("bob"))  # type: ignore[operator]
        self.sync()

    def of(self, name: str) -> Session:
        return self.ends[name].session("s")

    def sync(self) -> None:
        for _ in range(2):
            for replica in self.ends.values():
                self.wire.sync(replica)
        for replica in self.ends.values():
            assert state_of(replica, "s") == self.wire.state("s")

    def the_conflict(self) -> Conflict:
        listed = [self.of(name).conflicts() for name in self.ends]
        assert listed[0] == listed[1] == listed[2]
        (conflict,) = listed[0]
        return conflict

    def resolve(self, name: str, choice: object) -> Fields | None:
        """What everybody shows after this one resolved it."""
        receipt = self.of(name).resolve_conflict(self.the_conflict().id, choice)  # type: ignore[arg-type]
        assert self.of(name).conflicts() == []
        self.sync()
        assert receipt.state is ReceiptState.APPLIED
        for end in self.ends:
            assert self.of(end).conflicts() == []
        return self.of("cyd").get("n", "r")


def _field(wire: Wire) -> Quarrel:
    return Quarrel(
        wire,
        lambda s: s.patch("n", "r", {"x": "ann"}),
        lambda s: s.patch("n", "r", {"x": "bob"}),
    )


def _life_lost(wire: Wire) -> Quarrel:
    return Quarrel(wire, lambda s: s.patch("n", "r", {"x": "ann"}), lambda s: s.delete("n", "r"))


def _deletion_lost(wire: Wire) -> Quarrel:
    return Quarrel(wire, lambda s: s.delete("n", "r"), lambda s: s.patch("n", "r", {"x": "bob"}))


def test_ST9_a_field_that_lost_is_listed_alike_everywhere(wire: Wire) -> None:
    conflict = _field(wire).the_conflict()
    assert (conflict.collection, conflict.record_id, conflict.field) == ("n", "r", "x")
    assert (conflict.value, conflict.loser.client, conflict.winner.client) == ("ann", "ann", "bob")


@pytest.mark.parametrize(
    ("who", "choice", "shows"),
    [
        ("ann", "local", "ann"),
        ("ann", "remote", "bob"),
        ("bob", "local", "bob"),
        ("bob", "remote", "ann"),
        ("cyd", "local", "bob"),  # Neither is cyd's: the local one is the one that stands.
        ("cyd", "remote", "ann"),
    ],
)
def test_a_field_is_resolved_from_each_side_and_both_ways(
    wire: Wire, who: str, choice: str, shows: str
) -> None:
    assert _field(wire).resolve(who, choice) == {"x": shows, "y": 0}


@pytest.mark.parametrize("who", ["ann", "bob", "cyd"])
def test_a_conflict_is_resolved_with_fields_of_ones_own(wire: Wire, who: str) -> None:
    quarrel = _field(wire)
    assert quarrel.resolve(who, {"x": "both", "z": 1}) == {"x": "both", "y": 0, "z": 1}


@pytest.mark.parametrize(
    ("who", "choice", "shows"),
    [
        ("ann", "local", {"x": "ann"}),
        ("ann", "remote", None),
        ("bob", "local", None),
        ("bob", "remote", {"x": "ann"}),
        ("cyd", "local", None),
        ("cyd", "remote", {"x": "ann"}),
        ("bob", {"x": 9}, {"x": 9}),
    ],
)
def test_an_edit_that_lost_its_life_to_a_deletion_is_brought_back_or_not(
    wire: Wire, who: str, choice: object, shows: Fields | None
) -> None:
    quarrel = _life_lost(wire)
    assert quarrel.the_conflict().field == "$alive"
    after = quarrel.resolve(who, choice)
    assert after == (None if shows is None else {"x": 0, "y": 0, **shows})


@pytest.mark.parametrize(
    ("who", "choice", "alive"),
    [
        ("ann", "local", False),
        ("ann", "remote", True),
        ("bob", "local", True),
        ("bob", "remote", False),
        ("cyd", "local", True),
        ("cyd", "remote", False),
        ("ann", {"y": 9}, True),
    ],
)
def test_a_deletion_that_lost_is_carried_out_or_not(
    wire: Wire, who: str, choice: object, alive: bool
) -> None:
    quarrel = _deletion_lost(wire)
    assert quarrel.the_conflict().value is None
    after = quarrel.resolve(who, choice)
    expected = {"x": "bob", "y": 9 if isinstance(choice, dict) else 0}
    assert after == (expected if alive else None)


def test_a_whole_record_that_died_is_brought_back_whole(wire: Wire) -> None:
    quarrel = _life_lost(wire)
    quarrel.of("cyd").put("n", "r", {"new": 1}, updated_at=wire.now)
    quarrel.sync()
    (conflict,) = (c for c in quarrel.of("cyd").conflicts() if c.field == "$alive")
    quarrel.of("ann").resolve_conflict(conflict.id, "local")
    quarrel.sync()
    assert quarrel.of("bob").get("n", "r") == {"new": 1, "x": "ann", "y": 0}


@pytest.mark.parametrize("second", ["local", "remote", "fields"])
def test_ST15_a_conflict_that_two_resolve_at_once_is_closed_and_the_later_choice_stands(
    wire: Wire, second: str
) -> None:
    quarrel = _field(wire)
    conflict = quarrel.the_conflict()
    choice: object = {"x": "cyd"} if second == "fields" else second
    quarrel.of("ann").resolve_conflict(conflict.id, "local")
    wire.now += 10
    receipt = quarrel.of("cyd").resolve_conflict(conflict.id, choice)  # type: ignore[arg-type]
    quarrel.sync()
    assert not receipt.state.pending
    ids = {c.id for c in quarrel.of("bob").conflicts()}
    assert conflict.id not in ids
    shown = quarrel.of("bob").get("n", "r")
    expected = {"local": "ann", "remote": "ann", "fields": "cyd"}[second]
    assert shown == {"x": expected, "y": 0}
    # Ann's choice is not lost either: it lost, unseen, to cyd's fields.
    assert [c.value for c in quarrel.of("bob").conflicts()] == (
        ["ann"] if second == "fields" else []
    )


def test_a_conflict_is_resolved_once(wire: Wire) -> None:
    quarrel = _field(wire)
    conflict = quarrel.the_conflict()
    session = quarrel.of("ann")
    with pytest.raises(NotFound):
        session.resolve_conflict("0" * 20, "local")
    with pytest.raises(InvalidValue, match="sideways"):
        session.resolve_conflict(conflict.id, "sideways")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        session.resolve_conflict(conflict.id, {"x": float("nan")})
    assert session.conflicts() == [conflict] and session.pending() == []
    session.resolve_conflict(conflict.id, "remote")
    with pytest.raises(NotFound, match="already"):
        session.resolve_conflict(conflict.id, "local")
    quarrel.sync()
    for name in quarrel.ends:
        with pytest.raises(NotFound, match="already"):
            quarrel.of(name).resolve_conflict(conflict.id, "local")


def test_a_conflict_whose_resolving_is_refused_is_open_again(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarrel = _field(wire)
    conflict = quarrel.the_conflict()
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 300)
    receipt = quarrel.of("ann").resolve_conflict(conflict.id, {"x": "x" * 400})
    assert quarrel.of("ann").conflicts() == []
    wire.sync(quarrel.ends["ann"])
    assert receipt.state is ReceiptState.REFUSED
    assert quarrel.of("ann").conflicts() == [conflict]
    assert quarrel.of("ann").get("n", "r") == {"x": "bob", "y": 0}


def test_a_conflict_can_be_resolved_together_with_other_writes(wire: Wire) -> None:
    quarrel = _field(wire)
    conflict = quarrel.the_conflict()
    session = quarrel.of("ann")
    with session.transaction():
        session.patch("n", "r", {"y": 5})
        session.resolve_conflict(conflict.id, "local")
        session.append("resolved", {})
    assert len(session.pending()) == 1
    quarrel.sync()
    assert quarrel.of("bob").get("n", "r") == {"x": "ann", "y": 5}
    assert quarrel.of("bob").conflicts() == []


def _count(replica: Replica) -> int:
    return replica.status().conflicts


def test_the_status_counts_the_conflicts_that_are_open(wire: Wire) -> None:
    quarrel = _field(wire)
    assert [_count(replica) for replica in quarrel.ends.values()] == [1, 1, 1]
    quarrel.resolve("ann", "local")
    assert [_count(replica) for replica in quarrel.ends.values()] == [0, 0, 0]
