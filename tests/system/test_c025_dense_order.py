"""C025: nobody sees entry n + 1 before entry n exists, and no number is burnt."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from syncline.server import SqliteStore, SyncServer, Transaction
from syncline.sync import DiskFull, Entries, Entry

from .hand import Hand, make_op, put
from .support import ROOT, SESSION, World, command, eventually, now_us


class _Paused(SqliteStore):
    """Stops before one commit until told; then commits, or fails."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self.armed = False
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.fails = False

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with super().transaction() as tx:
            yield tx
            if self.armed:
                self.armed = False
                self.reached.set()
                assert self.go_on.wait(10)
                if self.fails:
                    raise DiskFull("the disk is full")


@pytest.mark.parametrize("fails", [False, True])
def test_C025_a_writer_that_is_slow_or_fails_before_its_commit_leaves_no_hole(
    world: World, fails: bool
) -> None:
    store = _Paused(world.data)
    store.fails = fails
    world.server = SyncServer(store, port=0)
    world.server.start()
    world.session("one").put("notes", "first", {})
    world.sync("one")
    one, two, reader = world.session("one"), world.session("two"), world.session("reader")
    seen: list[list[str]] = []
    reader.watch(lambda _: seen.append([id_ for id_, _ in reader.records("notes")]))
    with (
        world.replica("one").connect(world.url) as first,
        world.replica("two").connect(world.url) as second,
        world.replica("reader").connect(world.url) as reading,
    ):
        for connection in (first, second, reading):
            connection.wait_synced(10)
        store.armed = True
        slow = one.put("notes", "slow", {})
        assert store.reached.wait(10)
        quick = two.put("notes", "quick", {})
        assert [entry.seq for entry in world.log()] == [1], "nothing shows before its commit"
        assert slow.state.value == "sent" and quick.state.pending
        store.go_on.set()
        assert slow.wait(10).value == quick.wait(10).value == "applied"
        eventually(lambda: reader.count("notes") == 3)
    assert [entry.seq for entry in world.log()] == [1, 2, 3]
    world.settle()
    world.check()


def test_C025_a_second_server_on_the_same_file_is_refused(world: World) -> None:
    process = world.start_process()
    second = subprocess.run(
        command("serve", "--data", str(world.data), "--port", "0"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert "3112" in second.stderr and "Traceback" not in second.stderr
    world.session("a").put("notes", "r", {})
    world.sync("a")
    assert process.child.poll() is None
    world.check()


class _Reader(threading.Thread):
    """Writes down every seq in the order of its arrival, live or pulled over and over."""

    def __init__(self, url: str, name: str, *, live: bool, head: int) -> None:
        super().__init__()
        self._url, self._name, self._live, self._head = url, name, live, head
        self.seqs: list[int] = []

    def run(self) -> None:
        with Hand(self._url, self._name) as hand:
            hand.open()
            hash_: bytes | None = None
            while len(self.seqs) < self._head:
                frame = hand.until(Entries, 60)
                hash_ = frame.previous
                for data in frame.entries:
                    entry = Entry.decode(data)
                    hash_ = entry.hash(hash_)
                    self.seqs.append(entry.seq)
                if not self._live and len(self.seqs) < self._head:
                    hand.open(SESSION, self.seqs[-1], hash_)


def _many(world: World, writers: int, ops: int) -> None:
    world.start()
    head = writers * ops
    readers = [_Reader(world.url, f"reader{i}", live=i % 2 == 0, head=head) for i in range(5)]

    def write(number: int) -> None:
        with Hand(world.url, f"writer{number}") as hand:
            hand.open()
            for n in range(1, ops + 1):
                change = put(f"r{number % 3}", v=n)
                hand.push(make_op(n, change, at=now_us(), salt=f"op {n} of {number}"))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(writers)]
    for thread in (*readers, *threads):
        thread.start()
    for thread in (*threads, *readers):
        thread.join(600)
    for reader in readers:
        assert reader.seqs == list(range(1, head + 1))
    world.session("fresh")
    world.sync("fresh")
    world.check()


def test_C025_every_reader_gets_each_seq_once_and_in_order_while_many_write(world: World) -> None:
    _many(world, writers=8, ops=15)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_C025_every_reader_gets_each_seq_once_and_in_order_while_fifty_write(
    world: World,
) -> None:
    _many(world, writers=50, ops=200)
