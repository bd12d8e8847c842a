"""The gateway on real sockets: limits, garbage, silence, slow readers, and a clean end."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.hand_client import NONCE, make_op, push_of, put
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.typing import Origin, Subprotocol

from syncline.server import MemoryStore, SqliteStore, SyncServer, Tokens
from syncline.sync import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    AddressTaken,
    Entries,
    Entry,
    ErrorFrame,
    Frame,
    Hello,
    LocalError,
    Mark,
    Marked,
    Open,
    Opened,
    ToClient,
    Welcome,
    decode_to_client,
    encode_frame,
)

WAIT_S = 10


@contextmanager
def serving(**options: Any) -> Iterator[SyncServer]:
    with SyncServer(MemoryStore(), port=0, **options) as server:
        yield server


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(bounded())


def dial(server: SyncServer, **options: Any) -> connect:
    options = {"subprotocols": [Subprotocol(PROTOCOL)], "compression": None, **options}
    return connect(server.url, max_size=None, ping_interval=None, **options)


async def send(ws: ClientConnection, *frames: Frame) -> None:
    for frame in frames:
        await ws.send(encode_frame(frame))


async def receive(ws: ClientConnection) -> ToClient:
    async with asyncio.timeout(WAIT_S):
        frame = decode_to_client(await ws.recv(decode=False))
    assert frame is not None
    return frame


async def sign_in(ws: ClientConnection, client: str = "ann", token: str | None = None) -> Welcome:
    # Every run has stores of its own, so that any rising number will do.
    incarnation = time.time_ns()
    hello = Hello(client=client, incarnation=incarnation, nonce=NONCE, token=token, clock=1)
    await send(ws, hello)
    welcome = await receive(ws)
    assert isinstance(welcome, Welcome)
    return welcome


async def open_session(ws: ClientConnection, session: str = "s1") -> Opened:
    await send(ws, Open(session=session, epoch=1, seq=0, hash=None))
    opened = await receive(ws)
    assert isinstance(opened, Opened)
    return opened


async def close_of(ws: ClientConnection) -> tuple[int | None, str | None]:
    """How the server ends this connection; what it says before is skipped."""
    async with asyncio.timeout(WAIT_S):
        await ws.wait_closed()
    return ws.close_code, ws.close_reason


async def seqs_until(ws: ClientConnection, last: int) -> list[int]:
    seqs: list[int] = []
    while not seqs or seqs[-1] < last:
        frame = await receive(ws)
        assert isinstance(frame, Entries), frame
        seqs += [Entry.decode(entry).seq for entry in frame.entries]
    return seqs


def test_what_one_client_pushes_reaches_another() -> None:
    async def main() -> None:
        async with dial(server) as ann, dial(server) as bob:
            await sign_in(ann, "ann")
            await sign_in(bob, "bob")
            await open_session(ann)
            await open_session(bob)
            await send(ann, push_of("s1", make_op(1, put(a=1))), Mark(id=3))
            entries = await receive(bob)
            assert isinstance(entries, Entries) and entries == await receive(ann)
            assert await receive(ann) == Marked(id=3, heads=(("s1", 1, 1),))

    with serving() as server:
        run(main())


def test_FR4_before_sign_in_frames_are_small_and_after_it_an_op_of_any_size_goes_through() -> None:
    async def main() -> None:
        async with dial(server) as ws:
            await ws.send(b"x" * (64 << 10))
            assert isinstance(await receive(ws), ErrorFrame)
            assert (await close_of(ws))[0] == 1007
        async with dial(server) as ws:
            await ws.send(b"x" * ((64 << 10) + 1))
            assert (await close_of(ws))[0] == 1009
        async with dial(server) as ws:
            await sign_in(ws)
            await open_session(ws)
            big = make_op(1, *(put(f"r{n}", text="x" * 1_000_000) for n in range(4)))
            await send(ws, push_of("s1", big))
            assert await seqs_until(ws, 1) == [1]
            await ws.send(b"x" * (FRAME_BYTES_MAX + 1))
            assert (await close_of(ws))[0] == 1009

    with serving() as server:
        run(main())


@pytest.mark.parametrize("garbage", [b"\xc1", b"\x91" * 60_000, "text", b"\xdd\xff\xff\xff\xff"])
def test_FR3_garbage_is_answered_and_closed_before_sign_in_and_after(garbage: bytes | str) -> None:
    async def main() -> None:
        for signed_in in (False, True):
            async with dial(server) as ws:
                if signed_in:
                    await sign_in(ws)
                await ws.send(garbage)
                error = await receive(ws)
                assert isinstance(error, ErrorFrame) and error.code == 3001
                code, reason = await close_of(ws)
                assert code == 1007 and reason

    with serving() as server:
        run(main())


def test_raw_bytes_that_are_no_websocket_disturb_nobody() -> None:
    async def main() -> None:
        async with dial(server) as ws:
            await sign_in(ws)
            for junk in (b"\x00" * 100_000, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"):
                with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
                    raw.sendall(junk)
            await send(ws, Mark(id=1))
            assert await receive(ws) == Marked(id=1, heads=())

    with serving() as server:
        run(main())


def test_without_the_subprotocol_or_from_a_web_page_the_handshake_is_refused() -> None:
    async def main() -> None:
        for options, status in (
            ({"subprotocols": None}, 400),
            ({"subprotocols": [Subprotocol("other")]}, 400),
            ({"origin": Origin("https://example.org")}, 403),
        ):
            with pytest.raises(InvalidStatus) as caught:
                async with dial(server, **options):
                    raise AssertionError("the handshake went through")
            assert caught.value.response.status_code == status
            assert "Server" not in caught.value.response.headers

    with serving() as server:
        run(main())


def test_HS3_a_wrong_token_is_answered_and_closed() -> None:
    async def main() -> None:
        async with dial(server) as ws:
            await send(ws, Hello(client="a", incarnation=1, nonce=NONCE, token="no", clock=1))
            error = await receive(ws)
            assert isinstance(error, ErrorFrame) and error.code == 3020
            assert await close_of(ws) == (1008, "the token is not known here")
        async with dial(server) as ws:
            await sign_in(ws, token="right")

    with serving(tokens=Tokens.single("right")) as server:
        run(main())


def test_HS1_a_peer_that_says_no_hello_is_closed_after_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Five seconds of virtual time are in the tests of the engine; here the timer itself counts.
    monkeypatch.setattr("syncline.server._engine.HELLO_US_MAX", 200_000)

    async def main() -> None:
        async with dial(server) as ws:
            assert isinstance(await receive(ws), ErrorFrame)
            assert await close_of(ws) == (1008, "no hello came in time")

    with serving() as server:
        run(main())


def test_300_silent_sockets_do_not_keep_a_client_out() -> None:
    async def main() -> None:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
        try:
            async with dial(server) as ws:
                await sign_in(ws)
                await open_session(ws)
                await send(ws, push_of("s1", make_op(1, put(a=1))))
                assert await seqs_until(ws, 1) == [1]
            # The oldest were dropped to keep within the bound: 300 - 256 + 1.
            dropped = 0
            for one in silent:
                one.setblocking(False)
                try:
                    dropped += one.recv(1) == b""
                except BlockingIOError:
                    continue
                except ConnectionError:
                    dropped += 1
            assert dropped >= 45
        finally:
            for one in silent:
                one.close()

    with serving() as server:
        run(main())


def test_beyond_the_cap_of_connections_new_ones_are_dropped() -> None:
    async def main() -> None:
        async with dial(server) as first, dial(server) as second:
            await sign_in(first, "a")
            await sign_in(second, "b")
            with pytest.raises((InvalidMessage, OSError)):
                await dial(server, open_timeout=WAIT_S)
            await send(first, Mark(id=1))
            assert await receive(first) == Marked(id=1, heads=())
        async with dial(server) as third:
            await sign_in(third, "c")

    with serving(connections_max=2) as server:
        run(main())


def test_C045_one_that_does_not_read_costs_a_bounded_amount_and_delays_nobody() -> None:
    count, size = 600, 10_000

    async def main() -> None:
        async with dial(server) as ann, dial(server) as bob:
            for ws, name in ((ann, "ann"), (bob, "bob")):
                await sign_in(ws, name)
                await open_session(ws)
            stuck = await stuck_reader(server)
            slowest = 0.0
            for n in range(1, count + 1):
                began = time.monotonic()
                await send(ann, push_of("s1", make_op(n, put(f"r{n}", text="x" * size))))
                assert await seqs_until(bob, n) == [n]
                slowest = max(slowest, time.monotonic() - began)
                assert await seqs_until(ann, n) == [n]
            assert slowest < 1.0
            # What the engine holds for the one that does not read stays within its bound.
            unsent = max(peer.unsent_bytes for peer in server._engine._peers.values())
            assert unsent <= 100_000 + 2 * size
            # It comes back to normal and gets the rest without a hole.
            stuck.reader_may_go.set()
            assert await stuck.seqs_until(count) == list(range(1, count + 1))
            await stuck.close()

    with serving(peer_buffer_bytes_max=100_000) as server:
        run(main())


class StuckReader:
    """A client whose socket is not read from until it may."""

    def __init__(self, ws: ClientConnection) -> None:
        self._ws = ws
        self.reader_may_go = asyncio.Event()

    async def seqs_until(self, last: int) -> list[int]:
        await self.reader_may_go.wait()
        self._ws.transport.resume_reading()
        return await seqs_until(self._ws, last)

    async def close(self) -> None:
        await self._ws.close()


async def stuck_reader(server: SyncServer) -> StuckReader:
    # A small buffer in the kernel, so that the server soon notices.
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", server.port))
    ws = await connect(
        server.url,
        sock=raw,
        subprotocols=[Subprotocol(PROTOCOL)],
        compression=None,
        max_size=None,
        ping_interval=None,
    )
    await sign_in(ws, "stuck")
    await open_session(ws)
    ws.transport.pause_reading()
    return StuckReader(ws)


def test_EN4_one_that_takes_nothing_is_closed_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncline.server._engine.STALL_US_MAX", 300_000)

    async def main() -> None:
        stuck = await stuck_reader(server)
        async with dial(server) as ann:
            await sign_in(ann)
            await open_session(ann)
            big = [make_op(n, put(f"r{n}", text="x" * 900_000)) for n in range(1, 13)]
            for op in big:
                await send(ann, push_of("s1", op))
            await seqs_until(ann, 12)
            async with asyncio.timeout(WAIT_S):
                while len(server._engine._peers) > 1:
                    await send(ann, Mark(id=1))
                    await receive(ann)
        # What was sent before may still arrive; then it is over.
        stuck.reader_may_go.set()
        with pytest.raises(ConnectionClosed):
            await stuck.seqs_until(13)

    with serving(peer_buffer_bytes_max=20 << 20) as server:
        run(main())


def test_a_peer_that_pushes_faster_than_is_committed_is_held_back() -> None:
    gate = threading.Event()

    class Slow(MemoryStore):
        def transaction(self):  # type: ignore[no-untyped-def]
            assert gate.wait(WAIT_S)
            return super().transaction()

    async def main() -> None:
        async with dial(server) as ann:
            gate.set()
            await sign_in(ann)
            await open_session(ann)
            gate.clear()

            async def flood() -> None:
                for n in range(1, 61):
                    await send(ann, push_of("s1", make_op(n, put(f"r{n}", text="x" * 900_000))))

            flooding = asyncio.create_task(flood())
            done, _ = await asyncio.wait([flooding], timeout=0.5)
            # 54 MB do not fit into what the server and the kernel take without a commit.
            assert not done
            gate.set()
            assert await seqs_until(ann, 60) == list(range(1, 61))
            await flooding

    with SyncServer(Slow(), port=0) as server:
        run(main())


# The server's life.


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with serving() as first:
        store = MemoryStore()
        second = SyncServer(store, port=first.port)
        with pytest.raises(AddressTaken, match=f"127.0.0.1:{first.port} is in use"):
            second.start()
        with pytest.raises(AddressTaken):
            second.serve_forever()
        second.stop()


def test_an_address_that_is_not_this_machines_is_an_error_that_names_it() -> None:
    server = SyncServer(MemoryStore(), host="203.0.113.7", port=0, tokens=Tokens.single("t"))
    with pytest.raises(LocalError, match="cannot listen on 203.0.113.7:0"):
        server.start()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "192.168.1.2"])
def test_without_tokens_only_loopback_is_allowed(host: str) -> None:
    with pytest.raises(LocalError, match=f"loopback only, not on {host}"):
        SyncServer(MemoryStore(), host=host)
    SyncServer(MemoryStore(), host=host, tokens=Tokens.single("t"))
    for loopback in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        SyncServer(MemoryStore(), host=loopback)


def test_a_url_has_its_port_once_it_listens() -> None:
    with serving() as server:
        assert server.port > 0 and server.url == f"ws://127.0.0.1:{server.port}"
    assert SyncServer(MemoryStore(), host="::1", port=9).url == "ws://[::1]:9"


def test_stop_closes_connections_with_1001_and_the_store(tmp_path: Path) -> None:
    async def main(stop: Callable[[], None]) -> None:
        async with dial(server) as ws:
            await sign_in(ws)
            await open_session(ws)
            await send(ws, push_of("s1", make_op(1, put(a=1))))
            assert await seqs_until(ws, 1) == [1]
            with socket.create_connection(("127.0.0.1", server.port)):
                stopping = asyncio.get_running_loop().run_in_executor(None, stop)
                assert (await close_of(ws))[0] == 1001
                await stopping

    server = SyncServer(SqliteStore(tmp_path / "s.db"), port=0)
    server.start()
    run(main(server.stop))
    server.stop()
    # It is closed: another may open it, and finds all that was acknowledged.
    again = SqliteStore(tmp_path / "s.db")
    head = again.head("s1")
    again.close()
    assert head is not None and head.seq == 1


def test_an_engine_that_fails_ends_the_server_with_its_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with dial(server) as ws:
            monkeypatch.setattr(server._engine, "process", broken)
            await ws.send(b"x")
            assert (await close_of(ws))[0] == 1001

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug in the engine")

    server = SyncServer(MemoryStore(), port=0)
    server.start()
    run(main())
    with pytest.raises(ZeroDivisionError, match="a bug in the engine"):
        server.stop()
    assert "the server's engine failed" in caplog.text


PROGRAM = """
import sys
from syncline.server import SqliteStore, SyncServer
server = SyncServer(SqliteStore(sys.argv[1]), port=0)
server.serve_forever(lambda up: print(up.url, flush=True))
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_ends_serve_forever_cleanly(
    tmp_path: Path, number: signal.Signals, signals: int
) -> None:
    async def main() -> None:
        uri = process.stdout.readline().strip()  # type: ignore[union-attr]
        async with connect(uri, subprotocols=[Subprotocol(PROTOCOL)], compression=None) as ws:
            await sign_in(ws)
            await open_session(ws)
            await send(ws, push_of("s1", make_op(1, put(a=1))))
            assert await seqs_until(ws, 1) == [1]
            for _ in range(signals):
                process.send_signal(number)
            code, _ = await close_of(ws)
            assert code == 1001 or signals == 2

    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            run(main())
            assert process.wait(WAIT_S) == 0
            assert process.stdout is not None and process.stdout.read() == "ended\n"
        finally:
            process.kill()
    store = SqliteStore(tmp_path / "s.db")
    head = store.head("s1")
    store.close()
    assert head is not None and head.seq == 1
