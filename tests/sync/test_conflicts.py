"""Conflicts: one id on every replica, their bytes, and what of the log opens and closes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sync.strategies import NAMES, STAMPS, VALUES, swapped

from syncline.sync import (
    AcceptedChange,
    Closed,
    Conflict,
    Dot,
    Effect,
    Event,
    Lost,
    MalformedFrame,
    Outcome,
    Patch,
    Put,
    Resolve,
    Stamp,
    conflict_id,
    conflicts_of,
    decode_conflict,
    pack,
)

LOSER, WINNER = Stamp(1, "ann", 3), Stamp(2, "bob", 1)
ROW: list[Any] = ["id", "notes", "r", "f", 1, [1, "ann", 3], [2, "bob", 1]]


def test_ST15_the_id_names_the_losing_dot_record_and_field_and_nothing_else() -> None:
    id_ = conflict_id(LOSER, "notes", "r", "f")
    assert id_ == "eb01839c492d47de411e"
    assert conflict_id(Stamp(99, "ann", 3), "notes", "r", "f") == id_
    others = {
        conflict_id(Stamp(1, "ann", 4), "notes", "r", "f"),
        conflict_id(Stamp(1, "bob", 3), "notes", "r", "f"),
        conflict_id(LOSER, "other", "r", "f"),
        conflict_id(LOSER, "notes", "s", "f"),
        conflict_id(LOSER, "notes", "r", "g"),
    }
    assert len(others | {id_}) == 6


def test_ST15_a_lost_value_opens_a_conflict_and_a_resolve_closes_one() -> None:
    effect = Effect(
        Outcome.WON, {"f": 2}, (), False, True, {"bob": 1}, (Lost("f", 1, LOSER, WINNER),)
    )
    opened = AcceptedChange(Patch("notes", "r", {}, {"f": 2}), WINNER, effect)
    id_ = conflict_id(LOSER, "notes", "r", "f")
    assert list(conflicts_of(opened)) == [Conflict(id_, "notes", "r", "f", 1, LOSER, WINNER)]
    closed = AcceptedChange(Resolve(id_), Stamp(9, "cyd", 4), None)
    assert list(conflicts_of(closed)) == [Closed(id_, Dot("cyd", 4))]


def test_ST15_what_simply_applied_opens_nothing() -> None:
    for change in (Put("notes", "r", {}, {"f": 1}), Event("said", {})):
        assert list(conflicts_of(AcceptedChange(change, WINNER, None))) == []


@given(NAMES, NAMES, NAMES, VALUES, STAMPS, STAMPS)
def test_FR9_a_conflict_comes_back_from_its_bytes(
    collection: str, record_id: str, field: str, value: Any, loser: Stamp, winner: Stamp
) -> None:
    conflict = Conflict.of(Lost(field, value, loser, winner), collection, record_id)
    assert decode_conflict(conflict.encode()) == conflict
    closed = Closed(conflict.id, Dot(loser.client, loser.n))
    assert decode_conflict(closed.encode()) == closed


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        ["id"],
        ["id", ["ann"]],
        ["id", ["ann", 0]],
        ["id", ["ann", True]],
        [1, ["ann", 1]],
        [*ROW, 1],
        *swapped(ROW, 0, None, 1),
        *swapped(ROW, 1, None),
        *swapped(ROW, 2, None),
        *swapped(ROW, 3, None),
        *swapped(ROW, 5, None, [1, "ann"]),
        *swapped(ROW, 6, None, [1, "ann", "3"], [True, "ann", 3]),
    ],
)
def test_FR9_a_conflict_of_another_shape_is_malformed(row: Any) -> None:
    assert isinstance(decode_conflict(pack(ROW)), Conflict)
    with pytest.raises(MalformedFrame):
        decode_conflict(pack(row))


@given(st.binary(max_size=40))
def test_FR3_arbitrary_bytes_are_a_conflict_or_malformed(data: bytes) -> None:
    for candidate in (data, b"\x97" + data, b"\x92" + data):
        try:
            decode_conflict(candidate)
        except MalformedFrame:
            pass
