"""C045: a client that does not read costs a bounded amount, and holds up nobody.

The product's bounds: for each connection the server keeps ``PEER_BUFFER_BYTES_MAX`` (1 MiB) and one
page more, besides what the kernel keeps; a peer that takes nothing for 60 s is closed with 1013.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from syncline.client._core import Core
from syncline.server import ServerEngine
from syncline.server._engine import PEER_BUFFER_BYTES_MAX
from syncline.server._peer import Peer
from syncline.sync import (
    FRAME_BYTES_MAX,
    PAGE_BYTES,
    PROTOCOL,
    Entries,
    Entry,
    Hello,
    Open,
    encode_frame,
)

from .hand import NONCE, Hand
from .proxy import Proxy, Way
from .support import SESSION, World, eventually, now_us

TEN_KB = 10_000


@contextmanager
def _deaf(port: int, client: str) -> Iterator[Any]:
    """A client with small buffers that subscribes, and then reads nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", port))
    with connect(
        f"ws://127.0.0.1:{port}",
        sock=raw,
        subprotocols=[Subprotocol(PROTOCOL)],
        compression=None,
        max_size=FRAME_BYTES_MAX,
        max_queue=1,
        close_timeout=0.1,
    ) as ws:
        for frame in (
            Hello(client=client, incarnation=1, nonce=NONCE, clock=now_us()),
            Open(session=SESSION, epoch=1, seq=0, hash=None),
        ):
            ws.send(encode_frame(frame))
        yield ws


def _write(world: World, entries: int, delays: list[float]) -> None:
    """A writes so many entries of 10 KB; B, who reads, measures how late it sees them."""
    a, b = world.session("a"), world.session("b")
    seen = threading.Event()

    def look(_: object) -> None:
        record = b.get("notes", "r")
        if record is not None and isinstance(record["at"], float):
            delays.append(time.monotonic() - record["at"])
            if record["last"]:
                seen.set()

    b.watch(look)
    with (
        world.replica("a").connect(world.url) as writing,
        world.replica("b").connect(world.url) as reading,
    ):
        writing.wait_synced(20)
        reading.wait_synced(20)
        for i in range(entries // 10):
            with world.replica("a").batch():
                for j in range(10):
                    last = i + 1 == entries // 10 and j == 9
                    receipt = a.put(
                        "notes",
                        "r",
                        {"data": bytes(TEN_KB), "at": time.monotonic(), "last": last},
                    )
            # As fast as the server takes them, and no faster: what is measured is the fan-out.
            receipt.wait(30)
        assert seen.wait(120)


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def _deaf_ones(world: World, count: int, entries: int) -> None:
    process = world.start_process()
    delays: list[float] = []
    with ExitStack() as stack:
        for i in range(count):
            stack.enter_context(_deaf(process.port, f"deaf{i}"))
        _write(world, 100, [])
        before = _resident_bytes(process.child.pid)
        _write(world, entries, delays)
        grown = _resident_bytes(process.child.pid) - before
    delays.sort()
    assert delays[len(delays) // 2] < 1.0
    # Without bounds it would be ``entries * TEN_KB * count``; some slack for the allocator.
    assert grown < count * 2 * (PEER_BUFFER_BYTES_MAX + PAGE_BYTES) + (32 << 20)
    world.settle()
    world.check()


def test_C045_ten_deaf_clients_neither_fill_the_memory_nor_delay_a_reader(world: World) -> None:
    _deaf_ones(world, 10, 1000)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_C045_fifty_deaf_clients_neither_fill_the_memory_nor_delay_a_reader(
    world: World,
) -> None:
    _deaf_ones(world, 50, 20_000)


def test_C045_a_deaf_client_is_cut_off_and_goes_on_by_its_cursor_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._engine.STALL_US_MAX", 500_000)
    unsent: list[int] = []
    send = ServerEngine._send

    def counted(self: ServerEngine, peer: Peer, data: bytes) -> None:
        send(self, peer, data)
        if peer.client == "deaf":
            unsent.append(peer.unsent_bytes)

    monkeypatch.setattr(ServerEngine, "_send", counted)
    server = world.start()
    a = world.session("a")
    a.put("notes", "r", {})
    world.sync("a")
    entries: list[Entry] = []
    with _deaf(server.port, "deaf") as ws:
        eventually(lambda: len(server._engine._peers) == 1)
        with world.replica("a").connect(world.url) as writing:
            with world.replica("a").batch():
                for _ in range(800):
                    a.put("notes", "r", {"data": bytes(TEN_KB)})
            writing.wait_synced(20)
            assert PAGE_BYTES < max(unsent) <= PEER_BUFFER_BYTES_MAX + PAGE_BYTES + 2 * TEN_KB
            eventually(lambda: "deaf" not in server._engine._peers_by_client)
        with pytest.raises(ConnectionClosed):
            while True:
                ws.recv(10)
    # Well again: it opens at the cursor it had reached, here none.
    with Hand(world.url, "deaf", incarnation=2) as hand:
        opened = hand.open()
        while len(entries) < opened.head:
            entries += [Entry.decode(data) for data in hand.until(Entries).entries]
    assert [entry.seq for entry in entries] == list(range(1, 802))
    world.check()


def test_C045_the_close_of_a_deaf_client_says_1013(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("syncline.server._engine.STALL_US_MAX", 200_000)
    server = world.start()
    a = world.session("a")
    with world.replica("a").batch():
        for i in range(100):
            a.put("notes", f"r{i}", {"data": bytes(10 * TEN_KB)})
    world.sync("a")
    with caplog.at_level("INFO", logger="syncline.server"), _deaf(server.port, "deaf"):
        eventually(lambda: "1013 it takes nothing" in caplog.text)
    world.check()


def test_C045_a_client_that_applies_slowly_stops_reading_instead_of_storing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = world.start()
    a, b = world.session("a"), world.session("b")
    gate = threading.Event()
    applied = Core.apply_entries
    blocked: list[int] = []

    def slow(self: Core, *args: Any) -> Any:
        if self is world.replica("b")._core:
            blocked.append(1)
            assert gate.wait(60)
        return applied(self, *args)

    with Proxy(server.port) as proxy, world.replica("b").connect(proxy.url) as reading:
        reading.wait_synced(10)
        monkeypatch.setattr(Core, "apply_entries", slow)
        with world.replica("a").batch():
            for i in range(24):
                a.put("notes", f"r{i}", {"data": bytes(1_000_000)})
        world.sync("a")
        assert len(blocked) == 1
        passed = sum(len(m.payload) for m in proxy.seen if m.way is Way.TO_CLIENT)
        # A queue of some frames in the library, and what the kernels and the proxy hold.
        assert passed < 16_000_000
        gate.set()
        reading.wait_synced(30)
        assert b.count("notes") == 24
        assert proxy.connections == 1
    world.check()
