"""Wrong clocks: what is stamped, what is stamped again, and that nothing waits for ever."""

from __future__ import annotations

import pytest
from tests.client.wire import NOW, SECOND, Wire, state_of

from syncline.client import ReceiptState, Replica, Session
from syncline.sync import ErrorFrame, OpRefused, Push, decode_op, unpack

YEARS = 75 * 365 * 86_400 * SECOND


def _stamps(wire: Wire) -> list[list[int]]:
    return [[item.stamp.updated_at for item in entry.read()] for entry in wire.log("s")]


def test_WR1_a_write_is_stamped_now_or_one_above_what_it_overwrites(wire: Wire) -> None:
    session = wire.open("ann").session("s")
    session.put("n", "r", {"x": 1})
    session.put("n", "r", {"x": 2})
    wire.now += 5
    session.patch("n", "r", {"x": 3})
    session.delete("n", "other")
    wire.now -= 1000
    session.delete("n", "r")
    session.put("n", "other", {})
    stamps = [_stamp_of(session, op.n) for op in session.pending()]
    assert stamps == [NOW, NOW + 1, NOW + 5, NOW + 5, NOW + 6, NOW + 6]


def _stamp_of(session: Session, n: int) -> int:
    with session._core.database.reading() as db:
        (data,) = db.execute("SELECT stamps FROM syncline_outbox WHERE n=?", (n,)).fetchone()
    (at,) = unpack(data)
    return int(at)


def test_CK1_the_offset_is_measured_by_half_the_round_trip_and_kept(wire: Wire) -> None:
    ann = wire.open("ann", skew=-90 * SECOND)
    session = ann.session("s")
    line = wire.connect(ann)
    wire.now += 2000
    line.send_one()
    wire.now += 4000
    line.receive_one()
    # Sent at 0, the server's clock read at 2000, received at 6000: half of it is 3000.
    assert ann.status().clock_offset_us == 90 * SECOND - 1000
    line.cut()
    session.put("n", "r", {})
    assert _stamp_of(session, 1) == wire.now - 1000
    ann.close()
    again = wire.open("ann", skew=-90 * SECOND)
    assert again.status().clock_offset_us == 90 * SECOND - 1000


def test_CK1_a_time_that_the_app_gives_is_taken_without_the_offset(wire: Wire) -> None:
    ann = wire.open("ann", skew=-90 * SECOND)
    ann.session("s")
    wire.sync(ann)
    ann.session("s").put("n", "r", {}, updated_at=12345)
    ann.session("s").append("e", {}, updated_at=0)
    wire.sync(ann)
    assert _stamps(wire) == [[12345], [0]]


def test_CK1_the_networks_noise_moves_no_clock(wire: Wire) -> None:
    ann = wire.open("ann", skew=4000)
    ann.session("s")
    wire.sync(ann)
    assert ann.status().clock_offset_us == 0


def _in_2099(wire: Wire) -> tuple[Replica, int]:
    """A device that believes that it is 75 years later, and has written all weekend."""
    ann = wire.open("ann", skew=YEARS)
    session = ann.session("s")
    session.put("n", "r", {"x": 1})
    session.patch("n", "r", {"x": 2})
    session.append("said", {"i": 1})
    session.put("n", "q", {"y": 1}, updated_at=NOW - 7)
    with session.transaction():
        session.patch("n", "q", {"y": 2})
        session.put("n", "p", {})
        session.append("said", {"i": 2})
    return ann, 5


def test_CK3_a_device_in_2099_is_stamped_again_in_order_and_everything_is_delivered(
    wire: Wire,
) -> None:
    ann, count = _in_2099(wire)
    salts = [op.receipt.id for op in ann.session("s").pending()]
    wire.now += 100
    line = wire.sync(ann)
    assert [entry.receipt_id for entry in wire.log("s")] == salts
    now = wire.now
    assert _stamps(wire) == [[now], [now + 1], [now], [NOW - 7], [now, now, now]]
    assert ann.status().clock_offset_us == -YEARS
    assert ann.status().pending == 0
    assert len([n for n in ann.status().notices if n.kind == "stamped again"]) == 1
    assert line.engine.counts.refused == 0
    assert state_of(ann, "s") == wire.state("s")
    pushes = [frame for frame in line.sent if isinstance(frame, Push)]
    first, last = (decode_op(pushes[index].ops[0]) for index in (0, -1))
    assert first.body == last.body and first.salt == last.salt  # type: ignore[union-attr]
    assert len(pushes) <= count


def test_CK3_what_others_wrote_meanwhile_is_neither_overwritten_nor_in_the_way(wire: Wire) -> None:
    ann, _ = _in_2099(wire)
    bob = wire.open("bob")
    bob.session("s").put("n", "r", {"x": "bob"})
    wire.sync(bob)
    wire.now += 10
    wire.sync(ann)
    wire.sync(bob)
    assert state_of(ann, "s") == state_of(bob, "s") == wire.state("s")
    assert ann.session("s").get("n", "r") == {"x": 2}
    assert [c.value for c in ann.session("s").conflicts()] == ["bob"]


def test_CK2_an_edit_of_a_record_that_a_wrong_clock_stamped_is_welcome_one_above_it(
    wire: Wire,
) -> None:
    eve = wire.open("eve")
    eve.session("s").put("n", "r", {"x": 1}, updated_at=NOW + 59 * SECOND)
    wire.sync(eve)
    wire.now -= 30 * SECOND  # The server's own clock was set back.
    bob = wire.open("bob")
    wire.sync(bob)
    receipt = bob.session("s").patch("n", "r", {"x": 2})
    wire.sync(bob)
    assert receipt.state is ReceiptState.APPLIED
    assert _stamps(wire)[1] == [NOW + 59 * SECOND + 1]


def test_CK2_3012_of_a_clock_that_jumped_while_connected_is_dealt_with_on_the_connection(
    wire: Wire,
) -> None:
    skew = [0]
    ann = wire.open("ann")
    ann._core.clock = lambda: wire.now + skew[0]
    session = ann.session("s")
    line = wire.connect(ann)
    line.deliver()
    skew[0] = YEARS
    receipts = [session.put("n", "r", {"i": i}) for i in range(3)]
    line.deliver()
    assert line.up
    assert [r.state for r in receipts] == [ReceiptState.APPLIED] * 3
    assert ann.status().clock_offset_us == -YEARS
    assert _stamps(wire) == [[wire.now], [wire.now + 1], [wire.now + 2]]


def test_CK3_3003_stamps_above_what_the_server_had_seen_and_goes_on(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    session.put("n", "r", {"x": 1})
    wire.sync(ann)
    line = wire.connect(ann)
    line.deliver()
    receipts = [session.patch("n", "r", {"x": 2}), session.patch("n", "r", {"x": 3})]
    line.to_server.clear()
    seen = NOW + 500
    line.receive(OpRefused(session="s", n=2, code=3003, reason="stale", detail={"seen": seen}))
    line.deliver()
    assert _stamps(wire)[1:] == [[seen + 1], [seen + 2]]
    assert [r.state for r in receipts] == [ReceiptState.APPLIED] * 2
    assert session.get("n", "r") == {"x": 3}
    assert state_of(ann, "s") == wire.state("s")


@pytest.mark.parametrize("detail", [{}, {"server_clock": "soon"}])
def test_CK3_a_3012_without_a_usable_clock_costs_no_op_and_ends_in_no_loop(
    wire: Wire, detail: dict[str, object]
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    line = wire.connect(ann)
    line.deliver()
    receipt = session.put("n", "r", {})
    line.to_server.clear()
    line.receive(OpRefused(session="s", n=1, code=3012, reason="ahead", detail=detail))
    assert not line.to_server  # It would be the same op again, at once, for ever.
    wire.advance(SECOND // 2)
    line.deliver()
    assert receipt.state is ReceiptState.APPLIED


def test_an_error_about_the_connection_ends_it_and_not_the_replica(wire: Wire) -> None:
    ann = wire.open("ann")
    receipt = ann.session("s").put("n", "r", {})
    line = wire.connect(ann)
    line.receive(ErrorFrame(code=3018, reason="busy"))
    assert not line.up
    wire.sync(ann)
    assert receipt.state is ReceiptState.APPLIED
