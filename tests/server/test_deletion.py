"""The end of a session: what deletes it wins over everything, and nothing follows."""

from __future__ import annotations

from tests.server.hand_client import NOW, make_op, put
from tests.server.ops_world import World, code_of

from syncline.sync import HEADER_COLLECTION, HEADER_ID, Event, Outcome, Patch, Value, VoidOp

SECOND = 1_000_000


def header(**fields: Value) -> Patch:
    return Patch(HEADER_COLLECTION, HEADER_ID, {}, fields)


DELETION = header(status="deleted")


def test_SD1_an_op_that_sets_the_status_to_deleted_deletes_its_session() -> None:
    world = World()
    both = make_op(1, put("last", a=1), DELETION)
    assert world.push("ann", both) == []
    assert world.record(HEADER_ID, HEADER_COLLECTION).visible == {"status": "deleted"}
    assert world.record("last").visible == {"a": 1}
    assert code_of(world.push("ann", make_op(2, put(a=2)))) == [(2, 3014, True)]


def test_SD1_no_other_record_deletes_a_session() -> None:
    world = World()
    of_the_app = Patch("notes", HEADER_ID, {}, {"status": "deleted"})
    world.push("ann", make_op(1, put(HEADER_ID, a=1)), make_op(2, of_the_app))
    world.push("ann", make_op(3, header(status="deleting", label="deleted")))
    assert world.push("ann", make_op(4, put(a=2))) == []


def test_SD2_a_deletion_below_a_stamp_of_the_header_is_stamped_again() -> None:
    world = World()
    world.push("bob", make_op(1, header(status="suspended"), at=NOW))
    world.push("bob", make_op(2, Patch(HEADER_COLLECTION, HEADER_ID, {"bob": 1}, {"label": "x"})))
    newest = world.record(HEADER_ID, HEADER_COLLECTION).life
    (answer,) = world.push("ann", make_op(1, DELETION, at=newest.updated_at - 1))
    assert (answer.n, answer.code, answer.final) == (1, 3003, False)
    assert answer.detail["seen"] == newest.updated_at
    assert world.push("ann", make_op(1, DELETION, at=newest.updated_at + 1)) == []
    assert world.entries()[-1].outcome == Outcome.WON
    shown = world.record(HEADER_ID, HEADER_COLLECTION).visible
    assert shown == {"status": "deleted", "label": "x"}


def test_SD3_nothing_of_a_client_follows_a_deletion_whatever_its_stamp() -> None:
    world = World()
    world.push("bob", make_op(1, put(a=1)))
    world.push("ann", make_op(1, DELETION))
    late = NOW + 30 * SECOND
    answers = world.push(
        "bob",
        make_op(2, header(status="active"), at=late),
        make_op(3, Event("said", {})),
        make_op(4, DELETION, at=late),
    )
    assert code_of(answers) == [(2, 3014, True), (3, 3014, True), (4, 3014, True)]
    assert world.dots() == [("bob", 1), ("ann", 1)]
    refusal = world.refusal("bob", 2)
    assert refusal is not None and refusal.code == 3014


def test_SD3_in_one_group_too_and_repeats_and_void_ops_are_answered_as_ever() -> None:
    world = World()
    first = make_op(1, put(a=1))
    deletion = make_op(2, DELETION)
    answers = world.group(
        world.pushed("ann", first, deletion, make_op(3, put(a=3))), world.pushed("bob", first)
    )
    assert [code_of(one) for one in answers] == [[(3, 3014, True)], [(1, 0, True)]]
    (repeat,) = world.push("ann", deletion)
    assert (repeat.code, repeat.final, repeat.entry is not None) == (0, True, True)
    (void,) = world.push("bob", VoidOp(2, bytes(32)))
    assert (void.code, void.final) == (0, True)
    # Another session is not concerned.
    assert world.group(world.pushed("ann", first, session="s2")) == [[]]
