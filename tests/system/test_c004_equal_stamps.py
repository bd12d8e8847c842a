"""C004: writes with the very same timestamp have one winner, whatever the order of arrival."""

from __future__ import annotations

import threading

import pytest

from syncline.client import Session
from syncline.sync import OpRefused

from .hand import Hand, make_op, put
from .support import World, now_us

AT = 1_767_225_600_000_000
ORDERS = ("a first", "b first", "both at once")


def _both_push(world: World, order: str) -> None:
    if order == "both at once":
        gate = threading.Barrier(2)

        def push(name: str) -> None:
            gate.wait(10)
            world.sync(name)

        threads = [threading.Thread(target=push, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    else:
        world.sync(*("ab" if order == "a first" else "ba"))


def _everywhere(world: World, key: str) -> list[object]:
    """What A, B and a fresh C show, once all have synced."""
    world.session("c")
    world.settle()
    return [world.session(name).get("notes", key) for name in "abc"]


def _two(world: World) -> tuple[Session, Session]:
    world.start()
    return world.session("a"), world.session("b")


@pytest.mark.parametrize("order", ORDERS)
def test_C004_of_two_updates_at_one_stamp_the_larger_client_id_stands(
    world: World, order: str
) -> None:
    a, b = _two(world)
    a.put("notes", "r", {"v": "a"}, updated_at=AT)
    b.put("notes", "r", {"v": "b"}, updated_at=AT)
    _both_push(world, order)
    assert _everywhere(world, "r") == [{"v": "b"}] * 3
    (conflict,) = a.conflicts()
    assert (conflict.value, conflict.loser.client) == ("a", "a")
    world.check()


@pytest.mark.parametrize("deleter", ["a", "b"])
@pytest.mark.parametrize("order", ORDERS)
def test_C004_update_and_delete_at_one_stamp_follow_the_same_rule(
    world: World, order: str, deleter: str
) -> None:
    a, b = _two(world)
    a.put("notes", "r", {"v": "old"}, updated_at=AT - 1)
    world.settle()
    deleting, updating = (a, b) if deleter == "a" else (b, a)
    deleting.delete("notes", "r", updated_at=AT)
    updating.patch("notes", "r", {"v": "new"}, updated_at=AT)
    _both_push(world, order)
    expected = {"v": "new"} if deleter == "a" else None
    assert _everywhere(world, "r") == [expected] * 3
    (conflict,) = a.conflicts()
    assert (conflict.field, conflict.loser.client) == ("$alive", "a")
    world.check()


@pytest.mark.parametrize("order", ORDERS)
def test_C004_the_same_content_at_one_stamp_is_no_conflict(world: World, order: str) -> None:
    a, b = _two(world)
    for session in (a, b):
        session.put("notes", "r", {"v": "same"}, updated_at=AT)
    _both_push(world, order)
    assert _everywhere(world, "r") == [{"v": "same"}] * 3
    assert a.conflicts() == b.conflicts() == []
    world.check()


def test_C004_the_last_of_ten_writes_in_one_millisecond_stands(world: World) -> None:
    frozen = now_us()
    world.start()
    a = world.session("a", clock=lambda: frozen)
    for i in range(10):
        a.put("notes", "r", {"i": i})
    world.session("b")
    world.settle()
    assert world.session("b").get("notes", "r") == {"i": 9}
    stamps = [entry.read()[0].stamp.updated_at for entry in world.log()]
    assert stamps == list(range(frozen, frozen + 10))
    world.check()


def test_C004_an_identical_write_that_is_replayed_adds_nothing(world: World) -> None:
    world.start()
    op = make_op(1, put("r", v="x"), at=AT)
    with Hand(world.url) as hand:
        hand.open()
        hand.push(op)
        state = world.query("SELECT seq, state FROM records")
        for _ in range(3):
            (again,) = hand.push(op)
            assert isinstance(again, OpRefused)
            assert (again.code, again.final) == (0, True) and again.entry is not None
    assert world.query("SELECT seq, state FROM records") == state
    assert [entry.seq for entry in world.log()] == [1]
    world.check()
