"""Records: their canonical bytes, and joining two states (the laws are in the properties)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sync.strategies import records, swapped

from syncline.sync import (
    LIFE,
    Lost,
    MalformedFrame,
    Record,
    Resolution,
    Stamp,
    pack,
    resolve_conflicts,
)

ANN, BOB = Stamp(5, "ann", 1), Stamp(7, "bob", 1)


def record(
    fields: dict[str, Any],
    at: Stamp,
    vector: dict[str, int],
    *,
    alive: bool = True,
    floor: Stamp | None = None,
    life: Stamp | None = None,
) -> Record:
    return Record(fields, dict.fromkeys(fields, at), floor, alive, life or at, vector)


@given(records())
def test_VA9_a_record_comes_back_from_its_bytes(one: Record) -> None:
    data = one.encode()
    assert Record.decode(data) == one
    assert Record.decode(data).encode() == data


@given(records(), st.randoms(use_true_random=False))
def test_VA9_equal_records_have_equal_bytes(one: Record, random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if type(value) is dict:
            items = list(value.items())
            random.shuffle(items)
            return {key: shuffled(item) for key, item in items}
        return [shuffled(item) for item in value] if type(value) is list else value

    other = Record(
        shuffled(one.fields),
        shuffled(one.stamps),
        one.floor,
        one.alive,
        one.life,
        shuffled(one.vector),
    )
    assert other.encode() == one.encode()


GOOD: list[Any] = [{"ann": 1}, True, [5, "ann", 1], True, {"f": 1}, {}]


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        *swapped(GOOD, 0, 3, None),
        *swapped(GOOD, 1, 1, None),
        *swapped(GOOD, 2, [5, "ann"], ["5", "ann", 1], [5, "ann", True], [5, 3, 1], None),
        *swapped(GOOD, 3, False, [5, "ann"]),
        *swapped(GOOD, 4, [], "f", None),
        *swapped(GOOD, 5, [], {"f": [1, 2]}, {"f": None}, None),
    ],
)
def test_VA9_bytes_of_another_shape_are_no_record(row: Any) -> None:
    assert Record.decode(pack(GOOD)).fields == {"f": 1}
    with pytest.raises(MalformedFrame):
        Record.decode(pack(row))


@given(st.binary(max_size=40))
def test_FR3_arbitrary_bytes_are_a_record_or_malformed(data: bytes) -> None:
    for candidate in (data, b"\x96" + data):
        try:
            Record.decode(candidate)
        except MalformedFrame:
            pass


def test_ST11_a_state_that_has_seen_the_other_stands_as_it_is() -> None:
    old = record({"f": 1}, ANN, {"ann": 1})
    new = record({"f": 2}, BOB, {"ann": 1, "bob": 1})
    assert resolve_conflicts(old, new) == Resolution(new, False, ())
    assert resolve_conflicts(new, old) == Resolution(new, False, ())


def test_ST11_concurrent_states_join_field_by_field_and_say_what_lost() -> None:
    mine = record({"f": 1, "same": 0, "g": 1}, ANN, {"ann": 1})
    theirs = record({"f": 2, "same": 0, "h": 2}, BOB, {"bob": 1})
    joined = Record(
        {"f": 2, "same": 0, "g": 1, "h": 2},
        {"f": BOB, "same": BOB, "g": ANN, "h": BOB},
        None,
        True,
        BOB,
        {"ann": 1, "bob": 1},
    )
    expected = Resolution(joined, True, (Lost("f", 1, ANN, BOB),))
    assert resolve_conflicts(mine, theirs) == expected
    assert resolve_conflicts(theirs, mine) == expected


def test_ST8_joining_lists_what_a_put_cleared_unseen_and_not_what_it_had_seen() -> None:
    seen, unseen, put = Stamp(1, "cyd", 1), Stamp(5, "ann", 1), Stamp(7, "bob", 1)
    mine = Record(
        {"old": 0, "f": 1, "same": 2},
        {"old": seen, "f": unseen, "same": unseen},
        None,
        True,
        unseen,
        {"ann": 1, "cyd": 1},
    )
    theirs = record({"same": 2}, put, {"bob": 1, "cyd": 1}, floor=put)
    for resolution in (resolve_conflicts(mine, theirs), resolve_conflicts(theirs, mine)):
        assert resolution.record.fields == {"same": 2}
        assert resolution.lost == (Lost("f", 1, unseen, put),)


def test_ST10_joining_lists_an_edit_that_a_deletion_had_not_seen() -> None:
    edit, later, deletion = Stamp(1, "ann", 1), Stamp(2, "cyd", 1), Stamp(3, "bob", 1)
    edited = Record(
        {"f": 1, "g": 2}, {"f": edit, "g": later}, None, True, later, {"ann": 1, "cyd": 1}
    )
    deleted = record({"g": 2}, later, {"bob": 1, "cyd": 1}, alive=False, life=deletion)
    resolution = resolve_conflicts(edited, deleted)
    assert not resolution.record.alive
    assert resolution.lost == (Lost(LIFE, {"f": 1, "g": 2}, edit, deletion),)


def test_what_a_reader_sees_of_a_dead_record_is_nothing() -> None:
    assert record({"f": 1}, ANN, {"ann": 1}).visible == {"f": 1}
    assert record({"f": 1}, ANN, {"ann": 1}, alive=False).visible is None
