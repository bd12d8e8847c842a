"""The server engine, driven by frames in virtual time: handshake and sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.server.hand_client import (
    NONCE,
    NOW,
    HandServer,
    entries_in,
    filled,
    make_op,
    mark,
    push_of,
    put,
)

from syncline.server import (
    Admitted,
    Close,
    MemoryStore,
    Principal,
    Received,
    Send,
    Tick,
    Tokens,
)
from syncline.sync import (
    NO_HASH,
    PAGE_ITEMS_MAX,
    Common,
    Compare,
    Entries,
    ErrorFrame,
    Hello,
    History,
    ListSessions,
    Marked,
    Open,
    Opened,
    SessionItem,
    Sessions,
    Signal,
    Snapshot,
    Welcome,
    encode_frame,
    genesis,
    pack,
)

SECOND = 1_000_000


# Handshake.


def test_HS1_anything_but_a_hello_first_is_answered_and_closed() -> None:
    server = HandServer()
    for frame in (mark(), ListSessions(), Signal(session="s", kind="k", payload=b"")):
        client = server.connect()
        client.send(frame)
        (error,) = client.take()
        assert isinstance(error, ErrorFrame) and (error.code, error.session) == (3001, None)
        assert client.closed == Close(client.conn, 1002, "the first frame must be a hello")


def test_HS1_an_unknown_frame_before_the_hello_is_no_hello() -> None:
    client = HandServer().connect()
    client.send_raw(pack({"type": "from the future"}))
    assert client.closed is not None and client.closed.code == 1002


def test_HS1_a_silent_peer_is_closed_after_five_seconds() -> None:
    server = HandServer()
    client = server.connect()
    assert server.engine.next_deadline() == NOW + 5 * SECOND
    server.now += 5 * SECOND - 1
    server.feed(Tick())
    assert client.closed is None
    server.now += 1
    server.feed(Tick())
    assert client.closed == Close(client.conn, 1008, "no hello came in time")
    assert server.engine.next_deadline() is None


def test_HS1_a_second_hello_is_an_error() -> None:
    server = HandServer()
    ann = server.sign_in("ann")
    ann.send(server.hello("ann"))
    assert ann.closed == Close(ann.conn, 1002, "a second hello on one connection")


def test_HS2_another_version_is_answered_with_both_versions() -> None:
    server = HandServer()
    client = server.connect()
    client.send(Hello(version=2, client="ann", incarnation=1, nonce=NONCE, clock=1))
    (error,) = client.take()
    assert isinstance(error, ErrorFrame)
    assert (error.code, error.detail) == (3010, {"server": 1, "client": 2})
    assert client.closed is not None and client.closed.code == 1002


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_HS3_a_wrong_token_is_answered_with_3020_and_closed(token: str | None) -> None:
    server = HandServer(tokens=Tokens.single("right"))
    client = server.connect()
    client.send(server.hello("ann", token))
    (error,) = client.take()
    assert isinstance(error, ErrorFrame) and error.code == 3020
    assert client.closed is not None and client.closed.code == 1008
    assert server.sign_in("ann", "right").closed is None


def test_HS4_an_incarnation_that_was_here_already_is_a_copied_replica() -> None:
    store = MemoryStore()
    server = HandServer(store)
    server.sign_in("ann").hang_up()
    # Another server process on the same store: it is the store that remembers.
    server = HandServer(store)
    for incarnation, welcome in ((1, False), (2, True), (2, False), (9, True)):
        client = server.connect()
        client.send(server.hello("ann", incarnation=incarnation))
        (answer,) = client.take()
        assert isinstance(answer, Welcome) is welcome
        if isinstance(answer, ErrorFrame):
            assert (answer.code, answer.session) == (3016, None)
            assert client.closed is not None and client.closed.code == 1008


def test_HS5_welcome_echoes_the_nonce_and_tells_store_clock_and_limits() -> None:
    server = HandServer(ahead_us_max=5 * SECOND)
    client = server.connect()
    outputs = server.feed(Received(client.conn, encode_frame(server.hello("ann"))))
    identity = server.store.identity()
    (welcome,) = client.take()
    assert welcome == Welcome(
        nonce=NONCE,
        store=identity.store_id,
        epoch=1,
        clock=NOW,
        ahead_us_max=5 * SECOND,
    )
    # The shell must know before the client can send its first large frame.
    assert isinstance(outputs[0], Admitted) and isinstance(outputs[1], Send)


def test_HS6_the_older_of_two_connections_of_a_client_is_closed() -> None:
    server = HandServer()
    older = server.sign_in("ann")
    younger = server.sign_in("ann")
    assert older.closed == Close(older.conn, 1008, "this client connected again")
    assert younger.closed is None
    younger.open("s1")
    younger.push("s1", make_op(1, put(a=1)))
    assert older.take() == []


@pytest.mark.parametrize("message", ["text", b"", b"\xc1", b"\x81", pack([1]), pack({"type": 1})])
def test_FR3_garbage_is_answered_with_3001_and_closed(message: bytes | str) -> None:
    server = HandServer()
    for client in (server.connect(), server.sign_in("ann")):
        client.send_raw(message)
        (error,) = client.take()
        assert isinstance(error, ErrorFrame) and error.code == 3001
        assert client.closed is not None and client.closed.code == 1007
    assert server.engine.next_deadline() is None


def test_FR2_frames_of_unknown_type_are_skipped() -> None:
    ann = HandServer().sign_in("ann")
    ann.send_raw(pack({"type": "from the future", "x": 1}))
    assert (ann.take(), ann.closed) == ([], None)
    assert ann.ask(mark(4)) == Marked(id=4, heads=())


def test_FR6_an_op_without_a_readable_envelope_ends_the_connection_and_commits_nothing() -> None:
    server = HandServer()
    ann = server.sign_in("ann")
    ann.open("s1")
    good = push_of("s1", make_op(1, put(a=1)))
    ann.send(good.model_copy(update={"ops": (*good.ops, b"\x01")}))
    (error,) = ann.take()
    assert isinstance(error, ErrorFrame) and (error.code, error.session) == (3001, None)
    assert ann.closed is not None
    assert server.store.head("s1") is None


# Sessions.


def test_SE1_sessions_come_by_id_in_pages() -> None:
    server = HandServer()
    ann = server.sign_in("ann")
    ids = [f"s{number:04}" for number in range(PAGE_ITEMS_MAX + 2)]
    for session in ids:
        ann.open(session)
        ann.push(session, make_op(1, put(a=1)))
    first = ann.ask(ListSessions())
    assert isinstance(first, Sessions)
    assert (first.page, first.more) == (True, True)
    assert [item.session for item in first.items] == ids[:PAGE_ITEMS_MAX]
    assert ann.ask(ListSessions(after=ids[PAGE_ITEMS_MAX - 1])) == Sessions(
        items=tuple(SessionItem(session, "", 1, 1) for session in ids[PAGE_ITEMS_MAX:]),
        page=True,
    )


def test_SE1_only_sessions_that_the_identity_may_open_are_listed() -> None:
    tokens = Tokens({"all": Principal("ann"), "two": Principal("bob", frozenset({"s2", "s9"}))})
    server = HandServer(tokens=tokens)
    ann, bob = server.sign_in("ann", "all"), server.sign_in("bob", "two")
    for session in ("s1", "s2"):
        ann.open(session)
        ann.push(session, make_op(1, put(a=1)))
    assert bob.ask(ListSessions()) == Sessions(items=(SessionItem("s2", "", 1, 1),), page=True)
    assert bob.ask(ListSessions(after="s2")) == Sessions(items=(), page=True)


def test_SE2_sessions_appear_live_to_those_who_may_open_them() -> None:
    tokens = Tokens({"all": Principal("ann"), "two": Principal("bob", frozenset({"s2"}))})
    server = HandServer(tokens=tokens)
    ann, bob = server.sign_in("ann", "all"), server.sign_in("bob", "two")
    deaf = server.sign_in("deaf", "all")
    bob.ask(ListSessions())
    for session in ("s1", "s2"):
        ann.open(session)
        ann.push(session, make_op(1, put(a=1)), make_op(2, put("r2", a=1)))
        ann.push(session, make_op(3, put("r3", a=1)))
    assert bob.take() == [Sessions(items=(SessionItem("s2", "", 1, 2),))]
    assert deaf.take() == []


def test_SE3_a_forbidden_session_is_refused_the_same_whether_it_exists_or_not() -> None:
    tokens = Tokens({"all": Principal("ann"), "one": Principal("bob", frozenset({"s1"}))})
    server = HandServer(tokens=tokens)
    ann, bob = server.sign_in("ann", "all"), server.sign_in("bob", "one")
    ann.open("there")
    ann.push("there", make_op(1, put(a=1)))
    for ask in (
        lambda id_: Open(session=id_, epoch=1, seq=0, hash=None),
        lambda id_: push_of(id_, make_op(1, put(a=1))),
        lambda id_: Compare(session=id_, points=()),
        lambda id_: Snapshot(session=id_),
        lambda id_: History(session=id_, seq=1, through=1),
        lambda id_: Signal(session=id_, kind="k", payload=b""),
    ):
        answers = []
        for session in ("there", "nowhere"):
            error = bob.ask(ask(session))
            assert isinstance(error, ErrorFrame) and error.session == session
            assert error.code == 3008
            answers.append(error.reason.replace(session, "it"))
        assert answers[0] == answers[1]
    assert bob.closed is None
    assert bob.ask(mark()) == Marked(id=1, heads=())


def test_SE4_a_session_comes_into_being_with_its_first_op() -> None:
    server = HandServer()
    ann = server.sign_in("ann")
    store = server.store.identity().store_id
    first = genesis(store, 1, "s1")
    assert ann.open("s1") == Opened(
        session="s1",
        stand="catch_up",
        genesis=first,
        epoch=1,
        head=0,
        hash=first,
        floor=0,
        last=0,
        running=NO_HASH,
    )
    assert server.store.head("s1") is None
    (page,) = ann.push("s1", make_op(1, put(a=1)))
    assert isinstance(page, Entries) and (page.seq, page.previous) == (1, first)
    head = server.store.head("s1")
    assert head is not None and (head.seq, head.genesis) == (1, first)


def test_SE5_the_stand_follows_from_cursor_and_hash() -> None:
    server = HandServer(bootstrap_entries_min=5)
    ann = filled(server, "s1", 5)
    hashes = [server.store.hash_at("s1", seq) for seq in range(6)]
    bob = server.sign_in("bob")
    assert bob.open("s1").stand == "catch_up"
    assert len(entries_in(bob.take())) == 5
    ann.push("s1", make_op(6, put("r6", a=1)))
    stands = {
        (0, None, False): "bootstrap",
        (0, hashes[0], False): "catch_up",
        (3, hashes[3], False): "catch_up",
        (3, hashes[3], True): "bootstrap",
        (3, hashes[4], False): "diverged",
        (3, None, False): "diverged",
        (0, b"x" * 32, False): "diverged",
        (7, hashes[5], False): "diverged",
    }
    for (seq, hash_, snapshot), stand in stands.items():
        bob.take()
        bob.send(Open(session="s1", epoch=1, seq=seq, hash=hash_, snapshot=snapshot))
        opened, *entries = bob.take()
        assert isinstance(opened, Opened) and opened.stand == stand, (seq, stand)
        assert len(entries_in(entries)) == (6 - seq if stand == "catch_up" else 0)


def test_SE5_a_cursor_below_the_floor_is_to_bootstrap() -> None:
    server = HandServer()
    ann = filled(server, "s1", 5)
    with server.store.transaction() as tx:
        head = tx.head("s1")
        assert head is not None
        tx.set_head("s1", replace(head, floor=3))
    for seq, hash_ in ((0, None), (2, b"x" * 32)):
        assert ann.open("s1", seq, hash_).stand == "bootstrap"
    opened = ann.open("s1", 3, server.store.hash_at("s1", 3))
    assert (opened.stand, opened.floor) == ("catch_up", 3)
    below = ann.ask(History(session="s1", seq=3, through=4))
    assert isinstance(below, ErrorFrame) and (below.code, below.session) == (3009, "s1")


def test_SE5_a_cursor_at_the_floor_whose_hash_is_not_held_is_to_bootstrap() -> None:
    class Compacted(MemoryStore):
        def hash_at(self, session: str, seq: int) -> bytes | None:
            return super().hash_at(session, seq) if seq > 3 else None

    server = HandServer(Compacted())
    ann = filled(server, "s1", 5)
    with server.store.transaction() as tx:
        head = tx.head("s1")
        assert head is not None
        tx.set_head("s1", replace(head, floor=3))
    assert ann.open("s1", 3, b"h" * 32).stand == "bootstrap"
    assert ann.open("s1", 4, b"h" * 32).stand == "diverged"


def test_SE5_there_is_nothing_to_bootstrap_of_an_empty_log() -> None:
    ann = HandServer().sign_in("ann")
    opened = ann.ask(Open(session="s1", epoch=1, seq=0, hash=None, snapshot=True))
    assert isinstance(opened, Opened) and opened.stand == "catch_up"


def test_SE3_a_right_that_is_taken_away_ends_the_subscription_at_the_next_message() -> None:
    server = HandServer()
    ann, bob = server.sign_in("ann"), server.sign_in("bob")
    for client in (ann, bob):
        client.open("s1")
    server.engine._peers[bob.conn].principal = Principal("bob", frozenset())
    (error,) = bob.push("s1", make_op(1, put("b1", a=1)))
    assert isinstance(error, ErrorFrame) and (error.code, error.session) == (3008, "s1")
    ann.push("s1", make_op(1, put(a=1)))
    assert bob.take() == []


def test_SE5_an_unknown_session_has_diverged_from_a_client_that_has_a_history_of_it() -> None:
    ann = HandServer().sign_in("ann")
    assert ann.open("s1", 3, b"h" * 32).stand == "diverged"
    assert ann.open("s1", 0, b"h" * 32).stand == "diverged"
    answer = ann.ask(Compare(session="s1", points=((3, b"h" * 32),)))
    assert answer == Common(session="s1", seq=0)


def test_SE6_entries_follow_from_the_cursor_and_then_live_without_a_gap() -> None:
    server = HandServer()
    ann = filled(server, "s1", 3)
    bob = server.sign_in("bob")
    hash_1 = server.store.hash_at("s1", 1)
    bob.open("s1", 1, hash_1)
    ann.push("s1", make_op(4, put("r4", a=1)))
    ann.push("s1", make_op(5, put("r5", a=1)))
    frames = bob.take()
    assert [entry.seq for entry in entries_in(frames)] == [2, 3, 4, 5]
    assert isinstance(frames[0], Entries) and frames[0].previous == hash_1


def test_SE6_a_second_open_replaces_the_first() -> None:
    server = HandServer()
    ann = filled(server, "s1", 3)
    bob = server.sign_in("bob")
    bob.open("s1")
    bob.open("s1", 2, server.store.hash_at("s1", 2))
    assert [entry.seq for entry in entries_in(bob.take())] == [3]
    ann.push("s1", make_op(4, put("r4", a=1)))
    assert [entry.seq for entry in entries_in(bob.take())] == [4]


def test_SE6_without_a_common_history_nothing_follows_and_pushes_are_dropped() -> None:
    server = HandServer()
    ann = filled(server, "s1", 3)
    bob = server.sign_in("bob")
    assert bob.open("s1", 3, b"x" * 32).stand == "diverged"
    assert bob.push("s1", make_op(1, put("b1", a=1))) == []
    ann.push("s1", make_op(4, put("r4", a=1)))
    assert bob.take() == []
    assert bob.ask(mark()) == Marked(id=1, heads=())


def test_a_push_to_a_session_that_is_not_open_is_an_error_of_the_session() -> None:
    ann = HandServer().sign_in("ann")
    (error,) = ann.push("s1", make_op(1, put(a=1)))
    assert isinstance(error, ErrorFrame) and (error.code, error.session) == (3001, "s1")
    assert ann.closed is None


def test_SE7_opened_tells_the_clients_last_number_and_running_hash() -> None:
    server = HandServer()
    ann = filled(server, "s1", 3)
    last = server.store.last_op("s1", "ann")
    assert last is not None and last.n == 3
    opened = ann.open("s1", 3, server.store.hash_at("s1", 3))
    assert (opened.last, opened.running) == (3, last.running)
    opened = server.sign_in("bob").open("s1")
    assert (opened.last, opened.running) == (0, NO_HASH)


def test_too_many_open_sessions_are_refused_and_disturb_nothing() -> None:
    server = HandServer()
    ann = server.sign_in("ann")
    for number in range(2000):
        ann.open(f"s{number}")
    error = ann.ask(Open(session="more", epoch=1, seq=0, hash=None))
    assert isinstance(error, ErrorFrame) and (error.code, error.session) == (3017, "more")
    assert ann.open("s7").stand == "catch_up"
