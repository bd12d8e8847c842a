"""C021: one mutation that the server will never accept blocks nothing behind it."""

from __future__ import annotations

import pytest

from syncline.client import ReceiptState
from syncline.sync import InvalidValue, Op, OpRefused, Put

from .hand import Hand, codes, make_op, put
from .refusing import reject
from .support import World, eventually, now_us


@pytest.mark.parametrize("refusals", [1, 3])
def test_C021_what_is_refused_for_good_is_kept_apart_and_the_rest_arrives(
    world: World, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    tried = reject(monkeypatch, InvalidValue("this field is not taken here", path="bad"))
    server = world.start()
    a = world.session("a")
    bad = [a.put("notes", f"x{i}", {"bad": i}) for i in range(refusals)]
    dependent = a.patch("notes", "x0", {"more": 1})
    good = [a.put("notes", f"m{i:02}", {"i": i}) for i in range(47)]
    world.sync("a")
    port = server.port
    world.stop()
    world.close("a")
    world.start(port=port)
    a = world.session("a")
    world.sync("a")

    receipt = world.replica("a").receipt
    assert {receipt(r.id).state for r in bad} == {ReceiptState.REFUSED}
    assert {receipt(r.id).state for r in good} == {ReceiptState.APPLIED}
    # An edit of a record whose creation was refused is refused with it: 3002.
    assert receipt(dependent.id).state is ReceiptState.REFUSED
    refused = a.refused()
    assert [op.code for op in refused] == [3019] * refusals + [3002]
    assert [op.changes[0].fields for op in refused[:-1] if isinstance(op.changes[0], Put)] == [
        {"bad": i} for i in range(refusals)
    ]
    assert "not taken here" in refused[0].reason
    assert len(tried) == refusals, "it is not tried again"
    assert [id_ for id_, _ in a.records("notes")] == [f"m{i:02}" for i in range(47)]
    assert [entry.n for entry in world.log()] == list(range(refusals + 2, refusals + 49))

    # A person lists, fixes and retries, or discards.
    fixed = a.put("notes", "x0", {"good": 0})
    for op in refused:
        assert a.discard_refused(op.receipt.id)
    assert a.refused() == []
    world.sync("a")
    assert fixed.state is ReceiptState.APPLIED
    world.session("b")
    world.settle()
    world.check()


def test_C021_a_bug_in_the_server_is_tried_again_with_pauses_and_not_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = reject(monkeypatch, RuntimeError("a bug"))
    world.start()
    a, b = world.session("a"), world.session("b")
    poison = a.put("notes", "x", {"bad": 1})
    behind = [a.put("notes", f"m{i}", {"i": i}) for i in range(5)]
    with world.replica("a").connect(world.url), world.replica("b").connect(world.url):
        eventually(lambda: tried)
        of_b = b.put("notes", "b", {})
        assert of_b.wait(5) is ReceiptState.APPLIED, "others are not held up"
        assert poison.state is ReceiptState.SENT, "one try does not make it permanent"
        assert poison.wait(20) is ReceiptState.REFUSED
        assert {receipt.wait(5) for receipt in behind} == {ReceiptState.APPLIED}
    (refused,) = a.refused()
    assert refused.code == 3001 and "a bug" in refused.reason
    assert len(tried) == 4
    pauses = [later - earlier for earlier, later in zip(tried, tried[1:], strict=False)]
    assert min(pauses) >= 0.9 and pauses[-1] > 1.5 * pauses[0]
    world.settle()
    world.check()


def test_C021_a_bug_that_is_gone_in_time_costs_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        tried = reject(patched, RuntimeError("a bug"))
        world.start()
        a = world.session("a")
        receipt = a.put("notes", "x", {"bad": 1})
        connection = world.replica("a").connect(world.url)
        eventually(lambda: tried)
    assert receipt.wait(10) is ReceiptState.APPLIED
    connection.close()
    assert a.refused() == []
    world.check()


def test_C021_an_operation_of_an_unknown_kind_is_refused_and_the_next_one_taken(
    world: World,
) -> None:
    world.start()
    at = now_us()
    unknown = Op(1, b"s" * 16, (at,), b"\x91\x94\x09\xa1a\xa1b\x80")  # [[9, "a", "b", {}]]
    with Hand(world.url) as hand:
        hand.open()
        said = hand.push(unknown, *(make_op(n, put(f"m{n}"), at=at) for n in range(2, 6)))
        assert codes(said) == [3001]
        assert [item.final for item in said if isinstance(item, OpRefused)] == [True]
        assert [item.n for item in said if not isinstance(item, OpRefused)] == [2, 3, 4, 5]
    world.session("b")
    world.settle()
    world.check()
