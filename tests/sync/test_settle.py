"""Settling, rule by rule, on examples small enough to follow. The laws are in the properties."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sync.strategies import swapped

from syncline.sync import (
    LIFE,
    Delete,
    Effect,
    Lost,
    MalformedFrame,
    Outcome,
    Patch,
    Put,
    Record,
    RecordChange,
    Settled,
    StaleStamp,
    Stamp,
    UnknownRecord,
    VersionVector,
    fold,
    pack,
    seen_stamp,
    settle,
    unpack,
)

BASE = Stamp(10, "ann", 1)
HELD = {"ann": 1, "bob": 1, "cyd": 1}


def put(context: VersionVector, **fields: Any) -> Put:
    return Put("notes", "r", context, fields)


def patch(context: VersionVector, **fields: Any) -> Patch:
    return Patch("notes", "r", context, fields)


def delete(context: VersionVector) -> Delete:
    return Delete("notes", "r", context)


def base(**fields: Any) -> Record:
    """What ann put as her first op."""
    return settle(None, put({}, **fields), BASE, {}).record


def after(record: Record | None, *writes: tuple[RecordChange, Stamp]) -> Settled:
    """The last of these writes, settled one after the other with everything held."""
    for change, stamp in writes:
        settled = settle(record, change, stamp, HELD)
        record = settled.record
    return settled


def test_ST1_a_change_that_had_seen_everything_applies_and_loses_nothing() -> None:
    at = Stamp(11, "bob", 1)
    settled = settle(base(f=1, g=1), patch({"ann": 1}, f=2), at, HELD)
    assert settled.outcome is Outcome.APPLIED
    assert settled.effect is None and settled.lost == ()
    assert settled.record == Record(
        {"f": 2, "g": 1}, {"f": at, "g": BASE}, BASE, True, at, {"ann": 1, "bob": 1}
    )


@pytest.mark.parametrize("make", [put, patch])
def test_ST1_a_first_write_makes_the_record(make: Any) -> None:
    context = {} if make is put else {"ann": 2}  # a patch: of a put that is still on its way
    settled = settle(None, make(context, f=1), BASE, {})
    floor = BASE if make is put else None
    assert settled.record == Record({"f": 1}, {"f": BASE}, floor, True, BASE, {"ann": 1})
    assert settled.outcome is Outcome.APPLIED


@pytest.mark.parametrize(("context", "held"), [({}, {}), ({"ann": 1}, {"ann": 1}), ({}, HELD)])
def test_ST2_a_patch_of_a_record_that_is_not_there_is_refused(context: Any, held: Any) -> None:
    with pytest.raises(UnknownRecord) as caught:
        settle(None, patch(context, f=1), Stamp(1, "bob", 1), held)
    assert caught.value.detail == {"collection": "notes", "id": "r"}
    assert (caught.value.code, caught.value.final) == (3002, True)


def test_ST2_a_patch_whose_put_is_still_on_its_way_is_accepted_and_the_put_settles_under_it() -> (
    None
):
    at = Stamp(11, "bob", 1)
    early = settle(None, patch({"ann": 1}, f=2), at, {})
    assert early.record == Record({"f": 2}, {"f": at}, None, True, at, {"bob": 1})
    late = settle(early.record, put({}, f=1, g=1), BASE, {"bob": 1})
    in_order = settle(base(f=1, g=1), patch({"ann": 1}, f=2), at, {"ann": 1})
    assert late.record == in_order.record


def test_ST2_the_header_is_patched_into_being() -> None:
    change = Patch("$session", "header", {}, {"label": "x"})
    assert settle(None, change, BASE, {}).record.fields == {"label": "x"}


@pytest.mark.parametrize(
    ("ann", "bob", "winner"),
    [
        (Stamp(20, "ann", 2), Stamp(21, "bob", 1), "bob"),
        (Stamp(21, "ann", 2), Stamp(20, "bob", 1), "ann"),
        (Stamp(20, "ann", 2), Stamp(20, "bob", 1), "bob"),  # a tie in time: the client id
        (Stamp(20, "ann", 9), Stamp(20, "bob", 1), "bob"),  # not the number
    ],
)
def test_ST3_the_time_decides_then_the_client_id(ann: Stamp, bob: Stamp, winner: str) -> None:
    writes = [(patch({"ann": 1}, f="ann"), ann), (patch({"ann": 1}, f="bob"), bob)]
    there, back = after(base(f=0), *writes), after(base(f=0), *reversed(writes))
    assert there.record.fields == back.record.fields == {"f": winner}
    assert there.record == back.record
    assert there.lost == back.lost


def test_ST4_a_put_clears_fields_that_it_does_not_name_and_a_late_patch_stays_below() -> None:
    cleared, late = Stamp(20, "bob", 1), Stamp(15, "cyd", 1)
    whole = (put({"ann": 1}, f=2), cleared)
    below = (patch({"ann": 1}, f=9, g=9), late)
    first = after(base(f=1, g=1), whole, below)
    assert first.record == after(base(f=1, g=1), below, whole).record
    assert (first.record.fields, first.record.floor) == ({"f": 2}, cleared)
    assert first.outcome is Outcome.LOST
    assert first.lost == (Lost("f", 9, late, cleared), Lost("g", 9, late, cleared))


def test_ST4_a_field_above_the_floor_shows_though_the_put_did_not_know_it() -> None:
    settled = after(
        base(f=1),
        (patch({"ann": 1}, g=9), Stamp(30, "cyd", 1)),
        (put({"ann": 1}, f=2), Stamp(20, "bob", 1)),
    )
    assert settled.record.fields == {"f": 2, "g": 9}
    assert (settled.outcome, settled.lost) == (Outcome.MERGED, ())


def test_ST5_a_newer_concurrent_patch_brings_the_whole_record_back() -> None:
    died, newer = Stamp(20, "bob", 1), Stamp(30, "cyd", 1)
    settled = after(base(f=1, g=1), (delete({"ann": 1}), died), (patch({"ann": 1}, g=2), newer))
    assert settled.record.visible == {"f": 1, "g": 2}
    assert (settled.outcome, settled.lost) == (Outcome.WON, (Lost(LIFE, None, died, newer),))


@pytest.mark.parametrize("at", [Stamp(10, "aaa", 1), Stamp(9, "bob", 1), Stamp(0, "bob", 1)])
def test_ST6_a_stamp_that_is_not_above_what_its_author_had_seen_is_refused(at: Stamp) -> None:
    for change in (put({"ann": 1}, f=2), patch({"ann": 1}, g=2), delete({"ann": 1})):
        with pytest.raises(StaleStamp) as caught:
            settle(base(f=1), change, at, HELD)
        assert caught.value.detail == {"updated_at": at.updated_at, "seen": 10}
        assert (caught.value.code, caught.value.final) == (3003, False)


def test_ST6_concurrent_or_not_only_what_was_seen_counts() -> None:
    record = after(base(f=1), (patch({"ann": 1}, f=5), Stamp(50, "cyd", 1))).record
    with pytest.raises(StaleStamp):
        settle(record, patch({"ann": 1}, f=2), Stamp(10, "aaa", 1), HELD)
    assert settle(record, patch({"ann": 1}, f=2), Stamp(11, "bob", 1), HELD).outcome == 3
    assert seen_stamp(record, {}) is None
    assert seen_stamp(record, {"ann": 1}) == BASE
    assert seen_stamp(record, {"ann": 1, "cyd": 1}) == Stamp(50, "cyd", 1)


def test_ST8_equal_values_are_no_conflict_whichever_wins() -> None:
    early, late = Stamp(20, "bob", 1), Stamp(30, "cyd", 1)
    writes = [(patch({"ann": 1}, f=2), early), (patch({"ann": 1}, f=2), late)]
    for order in (writes, writes[::-1]):
        settled = after(base(f=1), *order)
        assert (settled.outcome, settled.lost) == (Outcome.MERGED, ())
        assert settled.record.stamps == {"f": late}


def test_ST8_a_value_that_a_put_clears_unseen_is_listed() -> None:
    early, late = Stamp(20, "bob", 1), Stamp(30, "cyd", 1)
    settled = after(base(f=1), (patch({"ann": 1}, g=7), early), (put({"ann": 1}, f=2), late))
    assert settled.record.fields == {"f": 2}
    assert (settled.outcome, settled.lost) == (Outcome.WON, (Lost("g", 7, early, late),))


def test_ST10_a_deletion_that_takes_an_unseen_edit_lists_all_that_showed() -> None:
    edit, died = Stamp(20, "bob", 1), Stamp(30, "cyd", 1)
    settled = after(base(f=1, g=1), (patch({"ann": 1}, g=2), edit), (delete({"ann": 1}), died))
    assert settled.record.visible is None
    assert settled.lost == (Lost(LIFE, {"f": 1, "g": 2}, edit, died),)


def test_ST10_an_edit_older_than_the_newest_one_seen_is_not_deleted_in_silence() -> None:
    """cyd deletes, having seen bob's newer edit and not ann's older one: ann is told."""
    older, newer, died = Stamp(11, "ann", 2), Stamp(20, "bob", 1), Stamp(30, "cyd", 1)
    writes: list[tuple[RecordChange, Stamp]] = [
        (patch({"ann": 1}, f=2), older),
        (patch({"ann": 1}, g=2), newer),
        (delete({"ann": 1, "bob": 1}), died),
    ]
    settled = after(base(f=1, g=1), *writes)
    assert settled.lost == (Lost(LIFE, {"f": 2, "g": 2}, older, died),)
    other_order = after(base(f=1, g=1), writes[1], writes[2], writes[0])
    assert other_order.record == settled.record
    assert other_order.lost == (Lost(LIFE, {"f": 2}, older, died),)


def test_ST10_of_several_unseen_edits_the_newest_is_the_loser() -> None:
    first, second, died = Stamp(11, "ann", 2), Stamp(12, "bob", 1), Stamp(30, "cyd", 1)
    settled = after(
        base(f=1, g=1),
        (patch({"ann": 1}, f=2), first),
        (patch({"ann": 1}, g=2), second),
        (delete({"ann": 1}), died),
    )
    assert settled.lost == (Lost(LIFE, {"f": 2, "g": 2}, second, died),)


def test_ST10_an_edit_under_a_newer_deletion_lists_what_it_named() -> None:
    died, edit = Stamp(30, "cyd", 1), Stamp(20, "bob", 1)
    settled = after(base(f=1, g=1), (delete({"ann": 1}), died), (patch({"ann": 1}, g=2), edit))
    assert settled.record.visible is None
    assert settled.record.fields == {"f": 1, "g": 2}
    assert settled.outcome is Outcome.LOST
    assert settled.lost == (Lost(LIFE, {"g": 2}, edit, died),)


def test_ST10_two_deletions_are_no_conflict() -> None:
    settled = after(
        base(f=1),
        (delete({"ann": 1}), Stamp(30, "cyd", 1)),
        (delete({"ann": 1}), Stamp(20, "bob", 1)),
    )
    assert (settled.outcome, settled.lost) == (Outcome.MERGED, ())


def test_ST12_a_vector_never_claims_an_op_that_the_log_does_not_hold_yet() -> None:
    """A restored server lost ann's ops 2 and 3; bob, who had seen them, comes back first."""
    restored = {"ann": 1, "bob": 0}
    at = Stamp(50, "bob", 1)
    settled = settle(base(f=1), patch({"ann": 3}, f=9), at, restored)
    assert settled.record.vector == {"ann": 1, "bob": 1}
    assert settled.effect is not None and settled.effect.vector == {"ann": 1, "bob": 1}
    held = {"ann": 1, "bob": 1}
    again = settle(settled.record, patch({"ann": 1}, f=2, g=2), Stamp(20, "ann", 2), held)
    assert again.record.fields == {"f": 9, "g": 2}
    assert again.record.vector == {"ann": 2, "bob": 1}


def test_ST12_after_a_join_the_same_conflict_does_not_come_again() -> None:
    settled = after(
        base(f=1),
        (patch({"ann": 1}, f=2), Stamp(20, "bob", 1)),
        (patch({"ann": 1}, f=3), Stamp(30, "cyd", 1)),
        (patch({"ann": 1, "bob": 1, "cyd": 1}, f=4), Stamp(40, "ann", 2)),
    )
    assert (settled.outcome, settled.lost) == (Outcome.APPLIED, ())
    assert settled.record.vector == {"ann": 2, "bob": 1, "cyd": 1}


def test_ST13_lost_is_stronger_than_won_than_merged_than_applied() -> None:
    assert list(Outcome) == [Outcome.APPLIED, Outcome.MERGED, Outcome.WON, Outcome.LOST]
    record = after(
        base(f=1, g=1),
        (patch({"ann": 1}, f=2), Stamp(30, "bob", 1)),
        (patch({"ann": 1, "bob": 1}, g=2), Stamp(40, "bob", 2)),
    ).record
    both = settle(record, patch({"ann": 1}, f=3, g=3), Stamp(35, "cyd", 1), HELD)
    assert both.outcome is Outcome.LOST
    assert both.lost == (
        Lost("f", 2, Stamp(30, "bob", 1), Stamp(35, "cyd", 1)),
        Lost("g", 3, Stamp(35, "cyd", 1), Stamp(40, "bob", 2)),
    )
    other = settle(record, patch({"ann": 1}, h=3), Stamp(35, "cyd", 1), HELD)
    assert other.outcome is Outcome.MERGED


def test_ST14_an_effect_survives_its_bytes_and_folds_to_the_same_record() -> None:
    record = after(base(f=1, g=1), (patch({"ann": 1}, g=2), Stamp(30, "bob", 1))).record
    change, at = put({"ann": 1}, f=5), Stamp(40, "cyd", 1)
    settled = settle(record, change, at, HELD)
    assert settled.effect == Effect(
        Outcome.WON,
        {"f": 5},
        ("g",),
        True,
        True,
        {"ann": 1, "bob": 1, "cyd": 1},
        (Lost("g", 2, Stamp(30, "bob", 1), at),),
    )
    effect = Effect.decode(unpack(pack(settled.effect.encode())))
    assert effect == settled.effect
    assert fold(record, change, at, effect) == settled.record


def test_ST14_an_applied_change_has_an_effect_only_when_its_context_is_not_all_held() -> None:
    change, at = patch({"ann": 1, "bob": 5}, f=2), Stamp(11, "cyd", 1)
    assert settle(base(f=1), change, at, {"ann": 1, "bob": 5}).effect is None
    partly = settle(base(f=1), change, at, {"ann": 1, "bob": 3})
    assert partly.outcome is Outcome.APPLIED
    assert partly.effect is not None and partly.lost == ()
    assert partly.record.vector == {"ann": 1, "bob": 3, "cyd": 1}
    assert partly.record.fields == {"f": 2}


GOOD: list[Any] = [
    1,
    {"f": 1},
    ["g"],
    False,
    None,
    {"ann": 1},
    [["f", 1, [1, "a", 1], [2, "b", 1]]],
]


@pytest.mark.parametrize(
    "row",
    [
        5,
        [],
        "text",
        GOOD[:6],
        *swapped(GOOD, 0, 4, -1, "1", True, 1.0, None),
        *swapped(GOOD, 1, [], None, [["f", 1]]),
        *swapped(GOOD, 2, {}, "g", None),
        *swapped(GOOD, 3, 0, None),
        *swapped(GOOD, 4, 1),
        *swapped(GOOD, 5, [], None),
        *swapped(GOOD, 6, {}, None, [1], [["f", 1, [1, "a"], [2, "b", 1]]], [["f"]]),
        *swapped(GOOD, 6, [["f", 1, [1, "a", 1], [2, "b", None]]]),
    ],
)
def test_FR8_an_effect_of_another_shape_is_malformed(row: Any) -> None:
    decoded = Effect.decode(GOOD)
    assert decoded is not None and decoded.encode() == [
        *GOOD[:6],
        [["f", 1, Stamp(1, "a", 1), Stamp(2, "b", 1)]],
    ]
    with pytest.raises(MalformedFrame, match="an entry's effect has the wrong shape"):
        Effect.decode(row)


def test_FR8_an_effect_that_is_nil_stays_nil() -> None:
    assert Effect.decode(None) is None
