"""Connections over real sockets: synced means synced, and each end is bounded and said."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import websockets
from websockets.asyncio.server import ServerConnection, serve

from syncline.client import AsyncReplica, Notification, ReceiptState, Replica, State, settled
from syncline.client._link import Link
from syncline.server import MemoryStore, Principal, SyncServer, Tokens
from syncline.sync import (
    BadPeer,
    Forbidden,
    LocalError,
    TimedOut,
    Unauthenticated,
    Unreachable,
)

S_MAX = 20.0


@pytest.fixture
def server() -> Iterator[SyncServer]:
    with SyncServer(MemoryStore(), port=0) as running:
        yield running


@pytest.fixture
def ends(folder: Path) -> Iterator[tuple[Replica, Replica]]:
    with (
        Replica(folder / "ann", client_id="ann", durability="normal") as ann,
        Replica(folder / "bob", client_id="bob", durability="normal") as bob,
    ):
        yield ann, bob


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_synced_means_that_what_was_anywhere_before_the_call_is_everywhere_after_it(
    server: SyncServer, ends: tuple[Replica, Replica]
) -> None:
    ann, bob = ends
    with ann.connect(server.url) as one, bob.connect(server.url) as other:
        for i in range(20):
            session = ann.session(f"s{i % 3}")
            session.put("n", "r", {"i": i})
            one.wait_synced(S_MAX)
            assert ann.status().pending == 0
            other.wait_synced(S_MAX)
            assert bob.session(f"s{i % 3}", create=False).get("n", "r") == {"i": i}
        assert (one.state, one.reason) == (State.ONLINE, "")
        status = ann.status()
        assert (status.connection, status.url) == ("online", server.url)
        assert status.synced_at is not None and status.since is not None
    assert (one.state, ann.status().connection) == (State.CLOSED, "closed")


def test_one_sync_sends_all_takes_all_and_reports(
    server: SyncServer, ends: tuple[Replica, Replica]
) -> None:
    ann, bob = ends
    for i in range(5):
        ann.session("s").put("n", f"r{i}", {})
    report = ann.sync_once(server.url)
    assert (report.sent, report.received, report.pending) == (5, 0, 0)
    assert (report.url, report.client_id, report.sessions) == (server.url, "ann", 1)
    report = bob.sync_once(server.url)
    assert (report.sent, report.received, report.refused, report.conflicts) == (0, 5, 0, 0)
    assert bob.session("s").count("n") == 5
    assert bob.sync_once(server.url).received == 0


def test_a_remote_write_is_told_while_connected(
    server: SyncServer, ends: tuple[Replica, Replica]
) -> None:
    ann, bob = ends
    seen = threading.Event()
    told: list[Notification] = []

    def note(n: Notification) -> None:
        told.append(n)
        seen.set()

    bob.session("s").watch(note)
    with ann.connect(server.url), bob.connect(server.url) as other:
        other.wait_synced(S_MAX)
        receipt = ann.session("s").put("n", "r", {})
        assert receipt.wait(S_MAX) is ReceiptState.APPLIED
        assert seen.wait(S_MAX)
    assert told == [Notification("s", "remote", "n", ("r",))]


def test_a_connection_comes_back_by_itself_when_the_server_does(
    ends: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, _ = ends
    store, port = MemoryStore(), _free_port()
    with SyncServer(store, port=port) as server:
        connection = ann.connect(server.url)
        connection.wait_synced(S_MAX)
    receipt = ann.session("s").put("n", "r", {})
    with SyncServer(store, port=port) as server:
        connection.poke()
        assert receipt.wait(S_MAX) is ReceiptState.APPLIED
        connection.wait_synced(S_MAX)
    connection.close()


def test_the_pause_between_attempts_grows_also_after_it_was_online_once(
    ends: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, _ = ends
    pauses: list[float] = []
    enough = threading.Event()

    async def pause(self: Link, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            enough.set()
            self._stop()

    monkeypatch.setattr(Link, "_pause", pause)
    monkeypatch.setattr("syncline.client._link.random.uniform", lambda low, high: high)
    with SyncServer(MemoryStore(), port=0) as server:
        connection = ann.connect(server.url)
        connection.wait_synced(S_MAX)
    assert enough.wait(S_MAX)
    connection.close()
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_server_that_is_not_there_is_unreachable_by_its_address(
    ends: tuple[Replica, Replica],
) -> None:
    ann, _ = ends
    receipt = ann.session("s").put("n", "r", {})
    url = f"ws://127.0.0.1:{_free_port()}"
    began = time.monotonic()
    with pytest.raises(Unreachable, match=url):
        ann.sync_once(url)
    assert time.monotonic() - began < 5.0
    assert receipt.state is ReceiptState.QUEUED
    with ann.connect(url) as connection:
        with pytest.raises(TimedOut, match="offline"):
            connection.wait_synced(0.3)
        assert connection.state is State.OFFLINE and url in connection.reason
        assert ann.status().connection == "offline" and url in ann.status().reason


@pytest.mark.parametrize("url", ["http://localhost:1", "localhost:8787", "ws://", "", "ftp://x"])
def test_an_address_that_is_none_is_refused_at_once(
    ends: tuple[Replica, Replica], url: str
) -> None:
    with pytest.raises(BadPeer, match="address"):
        ends[0].connect(url)
    ends[0].session("s").put("n", "r", {})
    with pytest.raises(BadPeer):
        ends[0].sync_once(url)


@contextmanager
def _web_server() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    web = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{web.server_port}"
    finally:
        web.shutdown()
        thread.join()
        web.server_close()


def test_a_web_server_is_a_bad_peer(ends: tuple[Replica, Replica]) -> None:
    with _web_server() as url, pytest.raises(BadPeer, match="did not accept"):
        ends[0].sync_once(url)


@contextmanager
def _chat_server(answer: bytes | str | None, subprotocol: str | None) -> Iterator[str]:
    """A websocket server of something else, in a thread of its own."""
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    port: list[int] = []

    async def talk(ws: ServerConnection) -> None:
        if answer is not None:
            await ws.send(answer)
        await ws.wait_closed()

    async def run() -> None:
        protocols = None if subprotocol is None else [websockets.Subprotocol(subprotocol)]
        async with serve(talk, "127.0.0.1", 0, subprotocols=protocols) as server:
            port.append(next(iter(server.sockets)).getsockname()[1])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert ready.wait(S_MAX)
        yield f"ws://127.0.0.1:{port[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_a_websocket_of_something_else_is_a_bad_peer(ends: tuple[Replica, Replica]) -> None:
    with _chat_server(None, None) as url, pytest.raises(BadPeer, match=r"syncline\.v1"):
        ends[0].sync_once(url)


@pytest.mark.parametrize("answer", [b"\xc1 garbage", "text", b""])
def test_a_server_that_talks_garbage_is_a_bad_peer(
    ends: tuple[Replica, Replica], answer: bytes | str
) -> None:
    with _chat_server(answer, "syncline.v1") as url, pytest.raises(BadPeer):
        ends[0].sync_once(url)


def test_a_token_that_is_unknown_is_said_and_a_function_is_asked_for_it_each_time(
    ends: tuple[Replica, Replica],
) -> None:
    ann, _ = ends
    receipt = ann.session("s").put("n", "r", {})
    tokens = Tokens({"good": Principal("ann", frozenset({"s"}))})
    with SyncServer(MemoryStore(), port=0, tokens=tokens) as server:
        for token in (None, "bad"):
            with pytest.raises(Unauthenticated):
                ann.sync_once(server.url, token=token)
        assert receipt.state.value == "queued"
        asked: list[str] = []
        refused = threading.Event()

        def fresh() -> str:
            asked.append("good" if asked else "expired")
            return asked[-1]

        with ann.connect(server.url, token=fresh) as connection:
            while connection.state is not State.REFUSED:
                refused.wait(0.01)
            with pytest.raises(Unauthenticated):  # Not only after the next attempt.
                connection.wait_synced(S_MAX)
            assert connection.state is State.REFUSED
            connection.poke()
            connection.wait_synced(S_MAX)
            assert asked == ["expired", "good"]
        assert receipt.state is ReceiptState.APPLIED
        ann.session("t").put("n", "r", {})
        with ann.connect(server.url, token="good") as connection, pytest.raises(Forbidden):
            connection.wait_synced(S_MAX)
        assert ann.sync_once(server.url, token="good").paused == ("t",)


def test_closing_is_bounded_and_whoever_waits_is_told(
    server: SyncServer, ends: tuple[Replica, Replica]
) -> None:
    ann, _ = ends
    connection = ann.connect(f"ws://127.0.0.1:{_free_port()}")
    failed: list[LocalError] = []

    def wait() -> None:
        try:
            connection.wait_synced()
        except LocalError as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not connection._link._waiters:
        threading.Event().wait(0.01)
    began = time.monotonic()
    connection.close()
    connection.close()
    waiting.join(S_MAX)
    assert time.monotonic() - began < 3.0
    assert [error.reason for error in failed] == ["the connection is closed"]
    with pytest.raises(LocalError, match="closed"):
        connection.wait_synced(1)
    ann.sync_once(server.url)


class Cutter:
    """A proxy that lets so many bytes through to the client, then cuts; each time some more."""

    def __init__(self, port: int, first: int, step: int) -> None:
        self._port = port
        self._next, self._step = first, step
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cuts = 0
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            limit, self._next = self._next, self._next + self._step
            with client, socket.create_connection(("127.0.0.1", self._port)) as server:
                up = threading.Thread(target=self._pump, args=(client, server, 1 << 30))
                up.start()
                self.cuts += self._pump(server, client, limit)
                for end in (client, server):
                    try:
                        end.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        continue  # It is gone already.
                up.join()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, limit: int) -> bool:
        """Whether it ended because of the limit."""
        while True:
            try:
                data = source.recv(1 << 14)
                target.sendall(data[:limit])
            except OSError:
                return False
            limit -= len(data)
            if not data or limit <= 0:
                return limit <= 0

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def test_a_sync_whose_connection_is_cut_again_and_again_ends_and_everything_is_there_once(
    server: SyncServer, ends: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.client._link.BACKOFF_S_MIN", 0.01)
    ann, bob = ends
    for i in range(300):
        bob.session("s").put("n", f"b{i}", {"text": "x" * 100})
    bob.sync_once(server.url)
    receipts = [ann.session("s").put("n", f"a{i}", {"text": "x" * 100}) for i in range(300)]
    cutter = Cutter(int(server.url.rsplit(":", 1)[1]), first=300, step=9000)
    try:
        ann.sync_once(cutter.url, timeout=S_MAX)
    finally:
        cutter.close()
    assert cutter.cuts >= 3
    assert all(receipt.state is ReceiptState.APPLIED for receipt in receipts)
    bob.sync_once(server.url)
    assert ann.session("s").count("n") == bob.session("s").count("n") == 600
    assert bob.status().sessions[0].seq == 600


def test_signals_reach_those_who_are_connected(
    server: SyncServer, ends: tuple[Replica, Replica]
) -> None:
    ann, bob = ends
    ann.session("s"), bob.session("s")
    got: list[tuple[str, str, bytes, str]] = []
    heard = threading.Event()

    def hear(*signal: str | bytes) -> None:
        got.append(signal)  # type: ignore[arg-type]
        heard.set()

    with ann.connect(server.url) as one, bob.connect(server.url, on_signal=hear) as other:
        one.wait_synced(S_MAX)
        other.wait_synced(S_MAX)
        one.signal("s", "typing", b"...")
        assert heard.wait(S_MAX)
    assert got == [("s", "typing", b"...", "ann")]
    one.signal("s", "typing")  # Offline: nothing happens.


def test_the_asyncio_door_opens_to_the_same_replica(folder: Path, server: SyncServer) -> None:
    async def run() -> None:
        async with await AsyncReplica.open(folder / "ann", client_id="ann") as ann:
            session = await ann.create_session("notes", session_id="s")
            async with await ann.connect(server.url) as connection:
                receipt = await session.put("n", "r", {"x": 1})
                assert await settled(receipt, S_MAX) is ReceiptState.APPLIED
                await session.transact(lambda s: (s.put("n", "q", {}), s.delete("n", "r")))
                await connection.wait_synced(S_MAX)
            assert await session.records("n") == [("q", {})]
            assert (await ann.status()).pending == 0

    asyncio.run(run())


def test_a_write_whose_task_is_cancelled_is_done_or_not_and_never_half(folder: Path) -> None:
    async def run() -> None:
        async with await AsyncReplica.open(folder / "ann", client_id="ann") as ann:
            session = await ann.session("s")
            tasks = [asyncio.ensure_future(session.put("n", f"r{i}", {})) for i in range(20)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in done)
        with Replica(folder / "ann") as replica:
            rows = replica.session("s")
            assert len(rows.pending()) == rows.count("n")

    asyncio.run(run())
