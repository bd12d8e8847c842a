"""The server engine, driven by frames in virtual time: streams, bootstraps, one commit a call."""

from __future__ import annotations

from tests.server.hand_client import (
    NOW,
    HandServer,
    entries_in,
    filled,
    make_op,
    mark,
    push_of,
    put,
)
from tests.server.ops_world import FailingStore

from syncline.server import (
    Close,
    Consumed,
    Disconnected,
    Identity,
    MemoryStore,
    Received,
    Send,
    Tick,
)
from syncline.sync import (
    Common,
    Compare,
    Entries,
    Entry,
    ErrorFrame,
    Event,
    History,
    HistoryPage,
    ListSessions,
    Marked,
    Open,
    Opened,
    OpRefused,
    Record,
    SessionItem,
    Sessions,
    Signal,
    Snapshot,
    SnapshotPage,
    Welcome,
    encode_frame,
)

SECOND = 1_000_000


# Entries, marks, signals.


def test_PU1_an_op_is_answered_by_its_entry_to_all_who_have_the_session_open() -> None:
    server = HandServer()
    ann, bob, eve = (server.sign_in(name) for name in ("ann", "bob", "eve"))
    ann.open("s1")
    bob.open("s1")
    eve.open("s2")
    op = make_op(1, put(a=1), Event("said", {"text": "hi"}))
    mine = ann.push("s1", op)
    assert mine == bob.take() and eve.take() == []
    (entry,) = entries_in(mine)
    assert (entry.dot, entry.salt, entry.body) == (("ann", 1), op.salt, op.body)
    assert (entry.epoch, entry.seq, entry.outcome, entry.accepted_at) == (1, 1, 0, NOW)


def test_EN1_catch_up_of_a_long_log_has_no_hole_and_ends_live() -> None:
    server = HandServer(bootstrap_entries_min=10_000)
    ann = filled(server, "s1", 2500, bytes_each=300)
    bob = server.sign_in("bob")
    bob.open("s1")
    ann.push("s1", make_op(2501, put("last", a=1)))
    frames = bob.take()
    assert [entry.seq for entry in entries_in(frames)] == list(range(1, 2502))
    assert all(len(encode_frame(frame)) < 300_000 for frame in frames)
    assert len(frames) > 3


def test_EN4_a_peer_that_does_not_read_falls_behind_and_is_caught_up_when_it_drains() -> None:
    server = HandServer(peer_buffer_bytes_max=100_000)
    ann, bob, slow = (server.sign_in(name) for name in ("ann", "bob", "slow"))
    for client in (ann, bob, slow):
        client.open("s1")
    slow.reads = False
    for n in range(1, 301):
        ann.push("s1", make_op(n, put(f"r{n}", text="x" * 5000)))
        assert [entry.seq for entry in entries_in(bob.take())] == [n]
    assert slow.unsent_bytes < 120_000
    held = len(entries_in(slow._frames))
    assert 0 < held < 40
    slow.reads = True
    slow.drain()
    assert [entry.seq for entry in entries_in(slow.take())] == list(range(1, 301))
    ann.push("s1", make_op(301, put("r301", a=1)))
    assert [entry.seq for entry in entries_in(slow.take())] == [301]


def test_EN4_a_peer_that_takes_nothing_for_a_minute_is_closed() -> None:
    server = HandServer()
    ann, slow = server.sign_in("ann"), server.sign_in("slow")
    ann.open("s1")
    slow.open("s1")
    slow.reads = False
    ann.push("s1", make_op(1, put(a=1)))
    ann.push("s1", make_op(2, put("r2", a=1)))
    server.now += 59 * SECOND
    slow.drain(1)
    server.now += 60 * SECOND - 1
    server.feed(Tick())
    assert slow.closed is None
    assert server.engine.next_deadline() == server.now + 1
    server.now += 1
    server.feed(Tick())
    assert slow.closed == Close(slow.conn, 1013, "it takes nothing of what it is sent")
    assert ann.closed is None and server.engine.next_deadline() is None


def test_requests_of_a_peer_that_does_not_read_wait_and_are_not_counted_as_consumed() -> None:
    server = HandServer(peer_buffer_bytes_max=50_000)
    filled(server, "s1", 50, bytes_each=5000)
    slow = server.sign_in("slow")
    slow.reads = False
    ask = encode_frame(Snapshot(session="s1"))
    outputs = server.feed(*(Received(slow.conn, ask) for _ in range(10)))
    assert len(slow.take()) == 1
    assert [output for output in outputs if isinstance(output, Consumed)] == [
        Consumed(slow.conn, len(ask))
    ]
    slow.reads = True
    slow.drain()
    pages = slow.take()
    assert len(pages) == 9 and all(isinstance(page, SnapshotPage) for page in pages)


def test_catch_up_takes_turns_among_peers_and_sessions() -> None:
    server = HandServer(bootstrap_entries_min=10_000)
    filled(server, "big", 100, bytes_each=20_000)
    other = server.sign_in("other")
    other.open("small")
    other.push("small", make_op(1, put(a=1)))
    bob = server.sign_in("bob")
    bob.send(
        Open(session="big", epoch=1, seq=0, hash=None),
        Open(session="small", epoch=1, seq=0, hash=None),
    )
    pages = [frame.session for frame in bob.take() if isinstance(frame, Entries)]
    assert pages[:2] == ["big", "small"] and pages.count("big") > 5


def test_EN5_marked_comes_after_the_commit_of_what_came_before() -> None:
    server = HandServer()
    ann = server.sign_in("ann")
    ann.open("s1")
    ann.open("s2")
    calls = server.calls
    ann.send(
        push_of("s1", make_op(1, put(a=1))),
        mark(7),
        push_of("s1", make_op(2, put("r2", a=1))),
        mark(8),
    )
    frames = ann.take()
    assert [type(frame) for frame in frames] == [Entries, Marked, Marked]
    assert frames[1:] == [Marked(id=id_, heads=(("s1", 1, 2), ("s2", 1, 0))) for id_ in (7, 8)]
    # One call with the frames; those that follow only report what was drained.
    assert server.calls - calls <= 2


def test_SI1_a_signal_reaches_the_others_that_are_live_and_leaves_no_trace() -> None:
    server = HandServer(peer_buffer_bytes_max=50_000)
    ann, bob, slow, eve = (server.sign_in(name) for name in ("ann", "bob", "slow", "eve"))
    for client in (ann, bob, slow):
        client.open("s1")
    slow.reads = False
    for n in range(1, 21):
        ann.push("s1", make_op(n, put(f"r{n}", text="x" * 5000)))
    for client in (ann, bob, slow):
        client.take()
    ann.send(Signal(session="s1", kind="typing", payload=b"\x00", client="forged"))
    assert bob.take() == [Signal(session="s1", kind="typing", payload=b"\x00", client="ann")]
    assert ann.take() == slow.take() == eve.take() == []
    eve.send(Signal(session="s1", kind="typing", payload=b"\x00"))
    assert bob.take() == []
    head = server.store.head("s1")
    assert head is not None and head.seq == 20


# Comparing, bootstrap, history.


def test_HE2_common_is_the_largest_point_that_the_log_shares() -> None:
    server = HandServer()
    ann = filled(server, "s1", 4)
    points = [(seq, server.store.hash_at("s1", seq)) for seq in range(5)]
    held = [(seq, hash_) for seq, hash_ in points if hash_ is not None]
    for asked, seq in (
        (held, 4),
        ([*held[:3], (3, b"x" * 32), (9, b"y" * 32)], 2),
        ([(1, b"x" * 32), held[0]], 0),
        ([], 0),
    ):
        answer = ann.ask(Compare(session="s1", points=tuple(asked)))
        assert answer == Common(session="s1", seq=seq)


def test_BO1_a_bootstrap_carries_records_events_and_the_vector() -> None:
    server = HandServer()
    ann = filled(server, "s1", 2000)
    ann.push("s1", make_op(2001, Event("said", {"text": "hi"})))
    bob = server.sign_in("bob")
    assert bob.open("s1").stand == "bootstrap"
    pages: list[SnapshotPage] = []
    after: bytes | None = b""
    while after is not None:
        page = bob.ask(Snapshot(session="s1", after=after))
        assert isinstance(page, SnapshotPage)
        pages.append(page)
        after = page.after
    rows = [row for page in pages for row in page.rows]
    assert sorted(row[1] for row in rows) == sorted(f"r{n}" for n in range(1, 2001))
    assert {Record.decode(row[3]).life.n for row in rows} == set(range(1, 2001))
    (event,) = [Entry.decode(data) for page in pages for _, data in page.entries]
    assert event.seq == 2001
    assert [page.vector for page in pages] == [None] * (len(pages) - 1) + [{"ann": 2001}]
    assert {(page.seq, page.hash) for page in pages} == {(2001, server.store.hash_at("s1", 2001))}


def test_BO1_a_snapshot_of_what_is_not_there_or_from_a_forged_cursor_is_an_error() -> None:
    server = HandServer()
    ann = filled(server, "s1", 1)
    error = ann.ask(Snapshot(session="nowhere"))
    assert isinstance(error, ErrorFrame) and (error.code, error.session) == (3002, "nowhere")
    ann.send(Snapshot(session="s1", after=b"forged"))
    assert ann.closed is not None and ann.closed.code == 1002


def test_BO4_history_comes_page_by_page_from_seq_through_the_seq_named() -> None:
    server = HandServer()
    ann = filled(server, "s1", 20, bytes_each=20_000)
    seqs: list[int] = []
    while len(seqs) < 18:
        page = ann.ask(History(session="s1", seq=len(seqs) + 1, through=18))
        assert isinstance(page, HistoryPage) and page.seq == len(seqs) + 1
        assert page.previous == server.store.hash_at("s1", len(seqs))
        seqs += [Entry.decode(data).seq for data in page.entries]
    assert seqs == list(range(1, 19))
    empty = ann.ask(History(session="s1", seq=9, through=3))
    assert isinstance(empty, HistoryPage) and empty.entries == ()
    beyond = ann.ask(History(session="s1", seq=22, through=30))
    assert isinstance(beyond, ErrorFrame) and (beyond.code, beyond.session) == (3002, "s1")


# One call, one commit.


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.transactions = 0

    def transaction(self):  # type: ignore[no-untyped-def]
        self.transactions += 1
        return super().transaction()


def test_all_pushes_and_sign_ins_of_one_call_are_one_transaction() -> None:
    store = CountingStore()
    server = HandServer(store)
    clients = [server.sign_in(f"c{number}") for number in range(10)]
    for client in clients:
        client.open("s1")
        client.open("s2")
    late = server.connect()
    store.transactions = 0
    server.feed(
        *(
            Received(
                client.conn, encode_frame(push_of(session, make_op(1, put(f"r{client.conn}", a=1))))
            )
            for client in clients
            for session in ("s1", "s2")
        ),
        Received(late.conn, encode_frame(server.hello("late"))),
    )
    assert store.transactions == 1
    assert isinstance(late.take()[0], Welcome)
    for client in clients:
        frames = client.take()
        for session in ("s1", "s2"):
            pages = [f for f in frames if isinstance(f, Entries) and f.session == session]
            assert [entry.seq for entry in entries_in(pages)] == list(range(1, 11))


def test_a_frame_behind_a_push_sees_its_commit() -> None:
    server = HandServer()
    ann = server.sign_in("ann")
    ann.open("s1")
    ann.send(
        push_of("s1", make_op(1, put(a=1))),
        ListSessions(),
        push_of("s1", make_op(2, put("r2", a=1))),
        Open(session="s1", epoch=1, seq=2, hash=b"x" * 32),
    )
    entries, listed, more, opened = ann.take()
    assert isinstance(entries, Entries) and isinstance(more, Entries)
    assert listed == Sessions(items=(SessionItem("s1", "", 1, 1),), page=True)
    assert isinstance(opened, Opened) and (opened.last, opened.head) == (2, 2)


def test_what_came_before_a_disconnect_still_counts_and_nothing_is_sent_after_it() -> None:
    server = HandServer()
    ann, bob = server.sign_in("ann"), server.sign_in("bob")
    ann.open("s1")
    bob.open("s1")
    server.feed(
        Received(ann.conn, encode_frame(push_of("s1", make_op(1, put(a=1))))),
        Disconnected(ann.conn),
        Received(ann.conn, encode_frame(mark())),
    )
    assert [entry.dot for entry in entries_in(bob.take())] == [("ann", 1)]
    assert ann.take() == []


def test_a_connection_leaves_nothing_behind() -> None:
    server = HandServer()
    for _ in range(3):
        ann = server.sign_in("ann")
        ann.open("s1")
        ann.ask(ListSessions())
        ann.push("s1", make_op(1, put(a=1)))
        ann.hang_up()
    engine = server.engine
    assert not engine._peers and not engine._peers_by_client and not engine._requests._listeners
    assert not engine._hub._subscribers and not engine._hub._behind
    assert engine.next_deadline() is None


def test_EN1_after_an_unknown_commit_what_is_durable_reaches_every_subscriber() -> None:
    store = FailingStore()
    server = HandServer(store)
    ann, bob = server.sign_in("ann"), server.sign_in("bob")
    for client in (ann, bob):
        client.open("s1")
    store.fails, store.after_commit = bool, True
    answers = ann.push("s1", *(make_op(n, put(f"r{n}", a=1)) for n in (1, 2)))
    repeats = [frame for frame in answers if isinstance(frame, OpRefused)]
    assert [(answer.n, answer.code) for answer in repeats] == [(1, 0), (2, 0)]
    pages = [frame for frame in answers if isinstance(frame, Entries)]
    assert pages == bob.take()
    assert [entry.seq for entry in entries_in(pages)] == [1, 2]


def test_a_store_that_cannot_be_read_answers_busy_and_the_connection_goes_on() -> None:
    class Failing(MemoryStore):
        failing = False

        def sessions(self, after: str, limit: int):  # type: ignore[no-untyped-def]
            if self.failing:
                raise OSError("I/O error")
            return super().sessions(after, limit)

    store = Failing()
    ann = HandServer(store).sign_in("ann")
    store.failing = True
    error = ann.ask(ListSessions())
    assert isinstance(error, ErrorFrame)
    assert (error.code, error.session, error.retry_after_ms) == (3018, None, 1000)
    store.failing = False
    assert ann.ask(ListSessions()) == Sessions(items=(), page=True)


class NamedStore(MemoryStore):
    """A store that is the same every time."""

    def identity(self) -> Identity:
        return Identity("store", 1)


def test_the_same_inputs_give_the_same_outputs() -> None:
    def run() -> list[object]:
        server = HandServer(NamedStore())
        made: list[object] = []
        for name in ("ann", "bob", "eve"):
            client = server.connect()
            made += server.feed(
                Received(client.conn, encode_frame(server.hello(name))),
                Received(
                    client.conn,
                    encode_frame(Open(session="s1", epoch=1, seq=0, hash=None)),
                ),
                Received(client.conn, encode_frame(push_of("s1", make_op(1, put(by=name))))),
            )
        return made

    first = run()
    assert first == run() and sum(isinstance(output, Send) for output in first) >= 9


def test_a_repeat_in_flight_is_answered_with_the_entry() -> None:
    server = HandServer()
    ann = server.sign_in("ann")
    ann.open("s1")
    op = make_op(1, put(a=1))
    (page,) = ann.push("s1", op)
    assert isinstance(page, Entries)
    assert ann.push("s1", op) == [
        OpRefused(
            session="s1",
            n=1,
            code=0,
            final=True,
            entry=page.entries[0],
            hash=server.store.hash_at("s1", 1),
        )
    ]
