"""C026: no entry is lost between reading the backlog and going live, and none comes twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from syncline.server._hub import Hub
from syncline.sync import Entries, Entry, Opened

from .hand import Hand
from .proxy import Message, Proxy, Way
from .support import SESSION, World, eventually


class _Gate:
    """Stops the server at a call until it is let go on."""

    def __init__(self) -> None:
        self.armed = False
        self.reached, self.go_on = threading.Event(), threading.Event()

    def stop(self) -> None:
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.go_on.wait(10)


def _wrap(monkeypatch: pytest.MonkeyPatch, name: str, gate: _Gate, *, before: bool) -> None:
    original: Callable[..., Any] = getattr(Hub, name)

    def wrapped(self: Hub, *args: Any) -> Any:
        if before:
            gate.stop()
        result = original(self, *args)
        if not before:
            gate.stop()
        return result

    monkeypatch.setattr(Hub, name, wrapped)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("name", "at_head"), [("subscribe", False), ("subscribe", True), ("_page", False)]
)
def test_C026_what_is_committed_between_backlog_and_live_comes_once_and_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, before: bool, at_head: bool
) -> None:
    world.start()
    a = world.session("a")
    for i in range(10):
        a.put("notes", "r", {"i": i})
    world.sync("a")
    ((hash_at_head,),) = world.query("SELECT hash FROM log WHERE seq = 10")
    gate = _Gate()
    _wrap(monkeypatch, name, gate, before=before)
    with Hand(world.url) as hand, world.replica("a").connect(world.url) as connection:
        connection.wait_synced(10)
        cursor, hash_ = (10, hash_at_head) if at_head else (0, None)
        gate.armed = True
        opening = threading.Thread(target=hand.open, args=(SESSION, cursor, hash_))
        opening.start()
        assert gate.reached.wait(10)
        receipts = [a.put("notes", "r", {"during": i}) for i in range(2)]
        eventually(lambda: receipts[-1].state.value == "sent")
        gate.go_on.set()
        opening.join(10)
        a.put("notes", "r", {"after": 1})
        assert [entry.seq for entry in hand.entries(13)] == list(range(cursor + 1, 14))
    world.check()


def test_C026_a_second_session_on_a_live_connection_is_as_whole_as_the_first(
    world: World,
) -> None:
    world.start()
    a, b = world.replica("a"), world.replica("b")
    with a.connect(world.url), b.connect(world.url) as reading:
        for name in ("one", "two", "three"):
            session = a.session(name)
            for i in range(20):
                session.put("notes", f"r{i}", {"i": i})
            session.put("notes", "last", {}).wait(10)
        reading.wait_synced(10)
        for name in ("one", "two", "three"):
            assert b.session(name).count("notes") == 21
    world.check()


def _cycles(world: World, seconds: float) -> None:
    """Open the same session over and over, from wherever the cursor is, while A writes."""
    world.start()
    a = world.session("a")
    a.put("notes", "r", {"i": 0})
    world.sync("a")
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.01):
            a.put("notes", "r", {"t": time.monotonic()})

    writer = threading.Thread(target=write)
    cycles, seqs, hash_ = 0, [0], None
    end = time.monotonic() + seconds
    with Hand(world.url) as hand, world.replica("a").connect(world.url) as connection:
        writer.start()
        hand.open()
        cycles += 1
        while time.monotonic() < end or cycles < 100:
            frame = hand.receive()
            if isinstance(frame, Opened):
                continue
            assert isinstance(frame, Entries)
            hash_ = frame.previous
            for data in frame.entries:
                entry = Entry.decode(data)
                hash_ = entry.hash(hash_)
                seqs.append(entry.seq)
            # What was sent before the new "opened" is still of the old subscription.
            opened = hand.open(SESSION, seqs[-1], hash_)
            assert opened.stand == "catch_up"
            cycles += 1
            if opened.head == seqs[-1]:
                continue
        stop.set()
        writer.join(10)
        connection.wait_synced(30)
    assert all(later <= earlier + 1 for earlier, later in zip(seqs, seqs[1:], strict=False))
    assert sorted(set(seqs)) == list(range(seqs[-1] + 1))
    world.check()


def test_C026_a_hundred_subscriptions_while_another_writes_miss_nothing(world: World) -> None:
    _cycles(world, 1.0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_C026_a_minute_of_subscriptions_while_another_writes_misses_nothing(
    world: World,
) -> None:
    _cycles(world, 60.0)


class _Trouble:
    """Does something to the fourth live frame."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._kept: list[bytes] = []
        self.live = 0
        self.armed = False

    def __call__(self, message: Message) -> Iterable[bytes]:
        if not self.armed or not isinstance(message.frame(), Entries):
            return [message.raw]
        self.live += 1
        if self.live == 4 and self._kind != "twice":
            if self._kind == "swapped":
                self._kept.append(message.raw)
            return []
        if self.live == 4:
            return [message.raw, message.raw]
        kept, self._kept = self._kept, []
        return [message.raw, *kept]


@pytest.mark.parametrize("kind", ["dropped", "twice", "swapped"])
def test_C026_a_live_frame_that_is_dropped_doubled_or_late_is_made_good(
    world: World, kind: str
) -> None:
    server = world.start()
    a, b = world.session("a"), world.session("b")
    trouble = _Trouble(kind)
    shown: list[int] = []
    with Proxy(server.port) as proxy:
        proxy.filter(Way.TO_CLIENT, trouble)
        with (
            world.replica("a").connect(world.url) as writing,
            world.replica("b").connect(proxy.url) as reading,
        ):
            for connection in (writing, reading):
                connection.wait_synced(10)
            trouble.armed = True

            def look(_: object) -> None:
                record = b.get("notes", "r")
                if record is not None and isinstance(record["i"], int):
                    shown.append(record["i"])

            b.watch(look)
            for i in range(10):
                a.put("notes", "r", {"i": i}).wait(10)
            eventually(lambda: shown and shown[-1] == 9)
        assert proxy.connections == 1, "it was asked for again on the same connection"
    assert trouble.live >= 10
    assert shown == sorted(shown), "nothing went back"
    world.check()
