"""The client's engine and a server that stumbles: frames lost, doubled, late, forged, refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.client.wire import NOW, SECOND, Line, Wire, new_store, state_of

from syncline.client import Receipt, ReceiptState, Replica, Session
from syncline.client._engine import BUSY_DELAY_US_MIN, Reconnect
from syncline.server import Principal, Tokens
from syncline.sync import (
    BadPeer,
    Entries,
    Entry,
    ErrorFrame,
    Hello,
    Marked,
    Open,
    Opened,
    OpRefused,
    Push,
    ReplicaCloned,
    SessionItem,
    Sessions,
    Signal,
    Unauthenticated,
    UnknownVersion,
    Welcome,
    decode_op,
    decode_to_client,
    encode_frame,
    pack,
)


def _live(wire: Wire, name: str = "ann") -> tuple[Replica, Session, Line]:
    replica = wire.open(name)
    session = replica.session("s")
    line = wire.connect(replica)
    line.deliver()
    return replica, session, line


def _pushed(line: Line) -> list[list[int]]:
    return [[decode_op(op).n for op in f.ops] for f in line.sent if isinstance(f, Push)]


def _opens(line: Line) -> int:
    return sum(isinstance(frame, Open) for frame in line.sent)


def _settled(wire: Wire, replica: Replica, *receipts: Receipt) -> None:
    """All of these are in the log once, in this order, and the replica shows what the log says."""
    for line in list(wire._lines.values()):
        line.cut()
    wire.sync(replica)
    assert [e.receipt_id for e in wire.log("s")] == [receipt.id for receipt in receipts]
    assert not any(receipt.state.pending for receipt in receipts)
    assert state_of(replica, "s") == wire.state("s")


# The handshake.


def test_HS4_the_incarnation_rises_before_every_hello(wire: Wire) -> None:
    ann = wire.open("ann")
    for _ in range(3):
        wire.connect(ann).cut()
    ann.close()
    wire.now += 10 * SECOND  # Until the lease of the one that is gone has run out.
    ann = wire.open("ann")
    line = wire.connect(ann)
    (hello,) = line.sent
    assert isinstance(hello, Hello)
    assert (hello.client, hello.incarnation, len(hello.nonce)) == ("ann", 4, 16)


def test_HS5_a_welcome_with_another_nonce_is_dropped(wire: Wire) -> None:
    ann = wire.open("ann")
    ann.session("s")
    line = wire.connect(ann)
    line.send_one()
    (welcome,) = line.waiting()
    assert isinstance(welcome, Welcome)
    line.receive(welcome.model_copy(update={"nonce": b"x" * 16}))
    assert line.engine.welcome is None and not line.to_server
    line.receive_one()
    assert line.engine.welcome == welcome


def test_HS5_a_second_welcome_rewinds_nothing(wire: Wire) -> None:
    _, session, line = _live(wire)
    welcome = line.engine.welcome
    assert welcome is not None
    sent = len(line.sent)
    line.receive(welcome.model_copy(update={"clock": NOW + 10**9, "epoch": 9}))
    assert (line.up, len(line.sent), line.engine.welcome) == (True, sent, welcome)
    assert session._core.now == wire.now


def test_HS5_nothing_is_applied_before_the_welcome(wire: Wire) -> None:
    ann = wire.open("ann")
    receipt = ann.session("s").put("n", "r", {})
    line = wire.connect(ann)
    line.receive(
        Sessions(items=(SessionItem("x", "", 1, 1),), page=True, more=False),
        OpRefused(session="s", n=1, code=3001, reason="no", final=True),
        Marked(id=1, heads=()),
    )
    assert line.up and receipt.state.value == "queued"
    assert [s.id for s in ann.sessions()] == ["s"]
    line.deliver()
    assert receipt.state is ReceiptState.APPLIED


def test_HS2_a_server_of_another_version_is_surfaced_with_both(wire: Wire) -> None:
    line = wire.connect(wire.open("ann"))
    line.receive(ErrorFrame(code=3010, reason="2, not 1", detail={"server": 2, "client": 1}))
    assert isinstance(line.ended, UnknownVersion)
    assert line.ended.detail == {"server": 2, "client": 1}


def test_HS3_a_token_that_is_refused_costs_nothing(wire: Wire) -> None:
    wire.tokens = _tokens()
    wire.serve(wire.store)
    ann = wire.open("ann")
    receipt = ann.session("s").put("n", "r", {})
    line = wire.connect(ann, token="bad")
    line.deliver()
    assert isinstance(line.ended, Unauthenticated)
    assert receipt.state.value == "queued"
    wire.sync(ann, token="good")
    assert receipt.state is ReceiptState.APPLIED


def _tokens() -> Tokens:
    return Tokens({"good": Principal("ann", frozenset({"s"}))})


# What is sent twice, lost, late, or out of order.


def test_FR2_frames_of_unknown_type_are_skipped(wire: Wire) -> None:
    _, session, line = _live(wire)
    line.receive(pack({"type": "news", "of": ["tomorrow"]}))
    receipt = session.put("n", "r", {})
    line.deliver()
    assert receipt.state is ReceiptState.APPLIED


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1", b"garbage", pack([1]), pack({"type": 1}), pack({"type": "entries"})]
)
def test_FR3_garbage_is_a_bad_peer_and_the_replica_as_it_was(wire: Wire, garbage: bytes) -> None:
    ann, session, line = _live(wire)
    receipt = session.put("n", "r", {})
    line.receive(garbage)
    assert isinstance(line.ended, BadPeer)
    _settled(wire, ann, receipt)


def test_PU2_an_answer_that_is_lost_five_times_leaves_the_op_in_the_log_once(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    receipt = session.put("n", "r", {"x": 1})
    for _ in range(5):
        line = wire.connect(ann)
        while not any(isinstance(frame, Push) for frame in line.sent):
            line.send_one() if line.to_server else line.receive_one()
        line.send_one()
        line.cut()
        assert receipt.state is ReceiptState.SENT
        assert len(wire.log("s")) == 1
    _settled(wire, ann, receipt)


def test_PU2_a_push_that_arrives_five_times_is_in_the_log_once(wire: Wire) -> None:
    ann, session, line = _live(wire)
    receipts = [session.put("n", f"r{i}", {}) for i in range(3)]
    line.to_server.extend(list(line.to_server) * 4)
    line.deliver()
    _settled(wire, ann, *receipts)


def test_EN1_a_page_that_comes_twice_is_applied_once(wire: Wire) -> None:
    ann, session, line = _live(wire)
    receipt = session.append("e", {})
    line.send_one()
    line.to_client.extend(list(line.to_client) * 3)
    line.deliver()
    assert len(session.events()) == 1
    _settled(wire, ann, receipt)


def test_EN2_a_page_that_leaves_a_gap_is_not_applied_and_asked_for_again(wire: Wire) -> None:
    ann, session, line = _live(wire)
    first = session.append("e", {"i": 1})
    line.send_one()
    line.to_client.clear()  # The first entry's page is lost.
    second = session.append("e", {"i": 2})
    line.send_one()
    assert _opens(line) == 1
    line.receive_one()
    assert [e.seq for e in session.events()] == [None, None]
    assert _opens(line) == 2
    line.deliver()
    assert [e.seq for e in session.events()] == [1, 2]
    _settled(wire, ann, first, second)


def test_EN2_pages_out_of_order_end_in_the_same_log(wire: Wire) -> None:
    ann, session, line = _live(wire)
    receipts = []
    for i in range(4):
        receipts.append(session.append("e", {"i": i}))
        line.send_one()
    line.to_client.reverse()
    line.deliver()
    assert [e.payload["i"] for e in session.events()] == [0, 1, 2, 3]
    _settled(wire, ann, *receipts)


def test_EN2_a_page_that_overlaps_what_is_held_adds_only_what_is_new(wire: Wire) -> None:
    ann, session, line = _live(wire)
    receipts = [session.append("e", {"i": i}) for i in range(3)]
    line.deliver()
    bob = wire.open("bob")
    other = bob.session("s").append("e", {"i": 3})
    line.to_client.clear()
    wire.sync(bob)
    rows = wire.store.entries("s", 1, 1 << 20, 100)
    previous = wire.store.hash_at("s", 1)
    line.to_client.clear()
    line.receive(
        Entries(session="s", seq=2, previous=previous, entries=tuple(r.entry for r in rows))
    )
    assert [e.seq for e in session.events()] == [1, 2, 3, 4]
    assert _opens(line) == 1
    _settled(wire, ann, *receipts, other)


def _entries_frame(line: Line) -> Entries:
    """The page of entries that is on its way; it does not arrive."""
    (frame,) = (frame for frame in line.waiting() if isinstance(frame, Entries))
    line.to_client.clear()
    return frame


@pytest.mark.parametrize(
    "forge",
    [
        lambda entry: entry._replace(body=entry.body[:-1] + b"\x09"),
        lambda entry: entry._replace(epoch=2),
        lambda entry: entry._replace(client="eve"),
        lambda entry: entry._replace(accepted_at=entry.accepted_at + 1),
    ],
    ids=["body", "epoch", "client", "accepted_at"],
)
def test_EN2_an_entry_that_was_tampered_with_is_held_for_no_longer_than_the_next_page(
    wire: Wire, forge: Callable[[Entry], Entry]
) -> None:
    bob, session, line = _live(wire, "bob")
    ann = wire.open("ann")
    one = ann.session("s").put("n", "r", {"x": 1})
    wire.sync(ann)
    frame = _entries_frame(line)
    forged = forge(Entry.decode(frame.entries[0]))
    line.receive(frame.model_copy(update={"entries": (forged.encode(),)}))
    two = ann.session("s").put("n", "r", {"x": 2})
    wire.sync(ann)
    line.deliver()
    # The true chain does not continue what was forged: the replica goes back and takes the truth.
    line.cut()
    wire.sync(bob)
    assert [e.receipt_id for e in wire.log("s")] == [one.id, two.id]
    assert state_of(bob, "s") == wire.state("s")
    assert session.get("n", "r") == {"x": 2}


def test_EN2_a_log_that_does_not_begin_with_its_genesis_is_not_taken(wire: Wire) -> None:
    bob, session, line = _live(wire, "bob")
    ann = wire.open("ann")
    receipt = ann.session("s").put("n", "r", {"x": 1})
    wire.sync(ann)
    frame = _entries_frame(line)
    line.receive(frame.model_copy(update={"previous": b"\x01" * 32}))
    assert line.up and "does not begin with its genesis" in str(line.engine.broken)
    assert session.get("n", "r") is None
    _opened_again(wire, line)
    assert session.get("n", "r") == {"x": 1}
    line.cut()
    _settled(wire, bob, receipt)


def test_EN2_a_page_with_a_hole_in_it_is_not_taken(wire: Wire) -> None:
    bob, session, line = _live(wire, "bob")
    ann = wire.open("ann")
    receipts = [ann.session("s").put("n", f"r{i}", {}) for i in range(3)]
    wire.sync(ann)
    frame = _entries_frame(line)
    line.receive(frame.model_copy(update={"entries": frame.entries[::2]}))
    assert line.up and "a page has entry 3 in the place of 2" in str(line.engine.broken)
    assert session.count("n") == 0
    _opened_again(wire, line)
    assert session.count("n") == 3
    line.cut()
    _settled(wire, bob, *receipts)


def _opened_again(wire: Wire, line: Line) -> None:
    """A session that could not be gone on with is opened anew on the same connection."""
    line.to_client.clear()
    wire.advance(BUSY_DELAY_US_MIN)
    line.deliver()
    assert line.up and line.engine.broken is None


def test_a_session_that_cannot_be_gone_on_with_keeps_no_other_waiting(wire: Wire) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    for id_ in ("broken", "whole"):
        ann.session(id_).put("n", "r", {"x": 1})
    wire.sync(ann)
    log = wire.store._sessions["broken"].log
    whole, log[0] = log[0], log[0]._replace(entry=b"\xc1")
    receipts = [bob.session(id_).put("n", "own", {}) for id_ in ("broken", "whole")]
    line = wire.connect(bob)
    line.deliver()
    assert line.up and bob.session("whole").count("n") == 2
    assert [receipt.state.pending for receipt in receipts] == [True, False]
    assert "session broken: the server sent what cannot be applied" in str(line.engine.broken)
    paused = {s.id: s.paused for s in bob.status().sessions}
    assert paused["whole"] is None and "cannot be applied" in str(paused["broken"])
    # It is tried again, less and less often, and goes on when it can.
    held = []
    for _ in range(8):
        held.append(line.engine.tracks["broken"].not_before - wire.now)
        wire.advance(held[-1])
        line.deliver()
    assert held == [500_000 << n for n in range(6)] + [30_000_000] * 2
    log[0] = whole
    wire.advance(30_000_000)
    line.deliver()
    assert line.engine.broken is None and not receipts[0].state.pending
    assert bob.session("broken").count("n") == 2


def test_CL1_an_entry_under_this_id_that_this_replica_did_not_write_makes_a_new_client(
    wire: Wire,
) -> None:
    bob, _, line = _live(wire, "bob")
    ann = wire.open("ann")
    receipt = ann.session("s").put("n", "r", {"x": 1})
    wire.sync(ann)
    frame = _entries_frame(line)
    forged = Entry.decode(frame.entries[0])._replace(client="bob")
    line.receive(frame.model_copy(update={"entries": (forged.encode(),)}))
    assert isinstance(line.ended, Reconnect) and line.ended.at_once
    assert isinstance(line.ended.__cause__, ReplicaCloned)
    assert bob.client_id != "bob"
    _settled(wire, bob, receipt)


# Refusals.


@pytest.mark.parametrize("code", [3005, 3017, 3018, 3099])
def test_PU7_what_was_set_aside_behind_a_refusal_that_is_not_final_is_sent_again(
    wire: Wire, code: int
) -> None:
    ann, session, line = _live(wire)
    receipts = [session.put("n", f"r{i}", {}) for i in range(4)]
    line.to_server.clear()
    detail = {"expected": 1} if code == 3005 else {}
    line.receive(OpRefused(session="s", n=1, code=code, reason="not now", detail=detail))
    assert all(receipt.state is ReceiptState.SENT for receipt in receipts)
    if code != 3005:
        assert not line.to_server  # It waits a while; then it all goes again, in order.
        wire.advance(SECOND // 2)
    line.deliver()
    assert line.up
    assert [n for push in _pushed(line) for n in push] == [1, 2, 3, 4] * 2
    _settled(wire, ann, *receipts)


def test_RE2_a_busy_server_is_asked_again_after_the_time_it_names_and_ever_less_often(
    wire: Wire,
) -> None:
    ann, session, line = _live(wire)
    receipt = session.put("n", "r", {})
    waits = []
    for retry in (2000, None, None, None):
        line.to_server.clear()
        detail = {} if retry is None else {"retry_after_ms": retry}
        line.receive(OpRefused(session="s", n=1, code=3018, reason="busy", detail=detail))
        began = wire.now
        assert not line.to_server
        wire.advance(line.engine.tracks["s"].not_before - wire.now - 1)
        assert not line.to_server
        wire.advance(1)
        assert len(line.to_server) == 1
        waits.append(wire.now - began)
    assert waits == [2 * SECOND, SECOND, 2 * SECOND, 4 * SECOND]
    line.deliver()
    _settled(wire, ann, receipt)


@pytest.mark.parametrize("code", [9999, 3003, 3018, 3102])
def test_RE2_no_frame_makes_a_number_final_that_is_not(wire: Wire, code: int) -> None:
    ann, session, line = _live(wire)
    receipt = session.put("n", "r", {})
    line.receive(OpRefused(session="s", n=1, code=code, reason="so it says", final=True))
    assert receipt.state in (ReceiptState.QUEUED, ReceiptState.SENT)
    assert session.refused() == []
    wire.advance(60 * SECOND)
    line.deliver()
    _settled(wire, ann, receipt)


def test_PU2_a_repeat_without_its_entry_is_no_answer(wire: Wire) -> None:
    _, session, line = _live(wire)
    receipt = session.put("n", "r", {})
    line.receive(OpRefused(session="s", n=1, code=0, final=True))
    assert "without its entry" in str(line.engine.tracks["s"].broken)
    assert receipt.state in (ReceiptState.QUEUED, ReceiptState.SENT)
    assert session.refused() == []


def test_PU6_a_final_refusal_lists_the_op_takes_it_back_and_lets_those_behind_pass(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 300)
    ann, session, line = _live(wire)
    good = session.put("n", "r", {"x": 1})
    bad = session.put("n", "r", {"x": "x" * 400})
    more = session.put("n", "other", {})
    told: list[object] = []
    session.watch(lambda n: told.append((n.origin, n.collection, n.ids, n.receipt_id)))
    assert session.get("n", "r") == {"x": "x" * 400}
    line.deliver()
    assert session.get("n", "r") == {"x": 1}
    assert ("refusal", "n", ("r",), bad.id) in told
    (refused,) = session.refused()
    assert (refused.receipt.id, refused.code) == (bad.id, 3011)
    assert refused.changes[0].fields == {"x": "x" * 400}  # type: ignore[union-attr]
    assert "bytes" in refused.reason and refused.detail["bytes_max"] == 300
    assert bad.state is ReceiptState.REFUSED
    refusal = bad.refusal
    assert refusal is not None and refusal.code == 3011
    assert good.refusal is None
    assert ann.status().refused == 1
    assert session.discard_refused(bad.id) and not session.discard_refused(bad.id)
    assert session.refused() == []
    _settled_after_refusal(wire, ann, good, more)


def _settled_after_refusal(wire: Wire, ann: Replica, *receipts: Receipt) -> None:
    assert [e.n for e in wire.log("s")] == [1, 3]
    _settled(wire, ann, *receipts)


def test_PU6_ops_that_depended_on_a_refused_one_are_refused_too_and_nothing_stays_behind(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 300)
    ann = wire.open("ann")
    session = ann.session("s")
    bad = session.put("n", "r", {"x": "x" * 400})
    depends = session.patch("n", "r", {"y": 1})
    apart = session.put("n", "q", {})
    again = session.put("n", "r", {"z": 1})
    wire.sync(ann)
    assert [r.state.value for r in (bad, depends, apart, again)] == [
        "refused", "refused", "applied", "applied"
    ]  # fmt: skip
    assert [op.code for op in session.refused()] == [3011, 3002]
    assert session.get("n", "r") == {"z": 1}
    _settled(wire, ann, apart, again)


def test_PU3_a_refusal_whose_answer_was_lost_comes_again(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", 300)
    ann, session, line = _live(wire)
    bad = session.put("n", "r", {"x": "x" * 400})
    line.send_one()
    line.cut()
    assert bad.state.value == "sent"
    wire.sync(ann)
    assert bad.state is ReceiptState.REFUSED
    assert [op.receipt.id for op in session.refused()] == [bad.id]


def test_SE3_a_session_that_is_closed_to_this_identity_pauses_and_keeps_its_outbox(
    wire: Wire,
) -> None:
    wire.tokens = _tokens()
    wire.serve(wire.store)
    ann = wire.open("ann")
    mine, other = ann.session("s").put("n", "r", {}), ann.session("t").put("n", "r", {})
    line = wire.sync(ann, token="good")
    assert line.engine.settled_down
    assert (mine.state, other.state) == (ReceiptState.APPLIED, ReceiptState.QUEUED)
    paused = {s.id: s.paused for s in ann.status().sessions}
    assert paused["s"] is None and "no access" in (paused["t"] or "")
    wire.tokens = None  # The right comes back.
    wire.serve(wire.store)
    wire.sync(ann)
    assert other.state is ReceiptState.APPLIED
    assert all(s.paused is None for s in ann.status().sessions)


def test_SE3_a_right_that_is_taken_away_while_connected_pauses_at_once(wire: Wire) -> None:
    ann, session, line = _live(wire)
    receipt = session.put("n", "r", {})
    line.to_server.clear()
    line.receive(ErrorFrame(session="s", code=3008, reason="no access to session s"))
    assert line.up and ann.status().sessions[0].paused == "no access to session s"
    session.put("n", "r", {"more": 1})
    assert not line.to_server
    assert receipt.state is ReceiptState.SENT


# Waiting.


def test_a_server_that_says_nothing_is_left_after_fifteen_seconds_whatever_is_waited_for(
    wire: Wire,
) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    for frames in range(1, 4):
        line = wire.connect(ann)
        for _ in range(frames):
            if line.to_server:
                line.send_one()
            if line.to_client:
                line.receive_one()
        if frames == 3:
            line.deliver()
            session.put("n", "r", {})  # In flight, unanswered.
        line.to_server.clear()
        line.to_client.clear()
        wire.advance(15 * SECOND - 1)
        assert line.up, frames
        wire.advance(1)
        assert isinstance(line.ended, Reconnect), frames


def test_a_live_client_with_nothing_in_flight_waits_for_nothing(wire: Wire) -> None:
    _, _, line = _live(wire)
    for _ in range(10):
        wire.advance(60 * SECOND)
    assert line.up


def test_the_lease_is_renewed_while_connected_and_noticed_when_lost(wire: Wire) -> None:
    ann, _, line = _live(wire)
    for _ in range(10):
        wire.advance(3 * SECOND)
    with ann._core.database.transaction() as db:
        (expires,) = db.execute("SELECT expires_us FROM syncline_lease").fetchone()
        assert expires == wire.now + 10 * SECOND
        db.execute("UPDATE syncline_lease SET holder='another'")
    wire.advance(3 * SECOND)
    assert type(line.ended).__name__ == "LeaseLost"


# Sessions, marks and signals.


def test_SE2_sessions_that_appear_elsewhere_appear_here_with_their_labels(wire: Wire) -> None:
    bob, _, line = _live(wire, "bob")
    ann = wire.open("ann")
    made = ann.create_session("holiday")
    wire.sync(ann)
    line.deliver()
    assert {s.id: s.label for s in bob.sessions()} == {"s": "", made.id: "holiday"}


def test_SE1_only_the_sessions_that_were_asked_for_are_synced(wire: Wire) -> None:
    ann = wire.open("ann")
    receipts = {id_: ann.session(id_).put("n", "r", {}) for id_ in ("s", "t")}
    wire.sync(ann, only=["t"])
    assert receipts["s"].state is ReceiptState.QUEUED
    assert receipts["t"].state is ReceiptState.APPLIED
    bob = wire.open("bob")
    wire.sync(bob, only=["t", "unheard-of"])
    assert [s.id for s in bob.sessions()] == ["t", "unheard-of"]


def test_SE1_listings_of_many_pages_are_read_to_their_end(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._answers.PAGE_ITEMS_MAX", 2)
    ann = wire.open("ann")
    for i in range(5):
        ann.session(f"s{i}").put("n", "r", {})
    wire.sync(ann)
    bob = wire.open("bob")
    wire.sync(bob)
    assert [s.id for s in bob.sessions()] == [f"s{i}" for i in range(5)]


def test_EN5_a_mark_is_reached_once_all_that_stood_at_it_is_here(wire: Wire) -> None:
    _, _, line = _live(wire)
    bob = wire.open("bob")
    bob.session("s").put("n", "r", {})
    wire.sync(bob)
    late = _entries_frame(line)
    line.do(lambda: line.engine.mark())
    line.deliver()
    assert not line.engine.reached(1)
    line.receive(late)
    assert line.engine.reached(1)


def test_SI1_a_signal_reaches_the_others_live_and_leaves_nothing(wire: Wire) -> None:
    ann, _, line = _live(wire)
    _, _, other = _live(wire, "bob")
    line.do(lambda: line.engine.signal("s", "typing", b"..."))
    assert isinstance(line.sent[-1], Signal)
    wire.deliver()
    assert other.signals == [("s", "typing", b"...", "ann")]
    assert line.signals == [] and wire.log("s") == [] and ann.status().pending == 0


def test_a_local_write_is_pushed_at_once_in_order_and_within_the_window(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.client._engine.IN_FLIGHT_OPS_MAX", 5)
    monkeypatch.setattr("syncline.client._engine.PUSH_OPS_MAX", 2)
    ann, session, line = _live(wire)
    with ann.batch():
        receipts = [session.put("n", f"r{i}", {}) for i in range(12)]
    assert _pushed(line) == [[1, 2], [3, 4], [5]]
    line.deliver()
    assert [n for push in _pushed(line) for n in push] == list(range(1, 13))
    assert max(len(push) for push in _pushed(line)) == 2
    _settled(wire, ann, *receipts)


def test_SE5_a_server_that_is_not_the_one_that_was_known_gets_everything(wire: Wire) -> None:
    ann, session, line = _live(wire)
    receipts = [session.put("n", "r", {"i": i}) for i in range(3)]
    line.deliver()
    line.cut()
    wire.serve(new_store("elsewhere"))
    _settled(wire, ann, *receipts)


def test_an_opened_that_comes_twice_or_unasked_changes_nothing(wire: Wire) -> None:
    ann = wire.open("ann")
    ann.session("s")
    line = wire.connect(ann)
    line.send_one()
    line.receive_one()
    while not isinstance(line.waiting()[0] if line.to_client else None, Opened):
        line.send_one() if line.to_server else line.receive_one()
    opened = line.to_client[0]
    line.deliver()
    receipt = ann.session("s").put("n", "r", {})
    frame = decode_to_client(opened)
    assert isinstance(frame, Opened)
    line.receive(opened, encode_frame(frame.model_copy(update={"stand": "diverged"})))
    line.deliver()
    assert _pushed(line) == [[1]]
    _settled(wire, ann, receipt)


def test_a_listing_that_was_asked_for_meanwhile_is_waited_for_too(wire: Wire) -> None:
    """The answer to the first may be from before a session that the second is asked about."""
    ann = wire.open("ann")
    line = wire.connect(ann)
    line.deliver()
    line.do(line.engine.list_again)
    line.do(line.engine.list_again)
    line.send_one()
    line.receive_one()
    assert not line.engine.listed
    line.deliver()
    assert line.engine.listed


def test_a_time_that_no_clock_shows_is_not_believed_from_a_server(wire: Wire) -> None:
    ann = wire.open("ann")
    ann.session("s").put("n", "r", {"x": 1})
    line = wire.connect(ann)
    line.deliver()
    receipt = ann.session("s").put("n", "r", {"x": 2})
    for code, detail in ((3003, {"seen": 2**63 - 1}), (3012, {"server_clock": 2**63 - 1})):
        refused = OpRefused(session="s", n=2, code=code, reason="", detail=detail)
        line.receive(refused)
    assert ann.session("s").get("n", "r") == {"x": 2}
    wire.sync(ann)
    assert receipt.state is ReceiptState.APPLIED
