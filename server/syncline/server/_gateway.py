"""The gateway: websockets on an asyncio loop, moving bytes to and from the worker. Nothing else.

Each connection has one task that reads and one that writes. Reading stops while more than
``READ_BYTES_MAX`` of it wait for the engine; what is written is counted back to the engine when it
has left for the network. Nobody's task ever waits for another connection.

A stranger costs little: no compression, small frames, five seconds for the handshake and five for
the hello, and of ``waiting_peers_max`` that have not signed in the oldest goes first, so that
silent ones cannot keep others out. Whoever asks and never listens is dropped as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State
from websockets.typing import Subprotocol

from syncline.sync import FRAME_BYTES_BEFORE_SIGN_IN_MAX, FRAME_BYTES_MAX, PROTOCOL

from ._engine import ServerEngine
from ._peer import Admitted, Close, Connected, Consumed, Disconnected, Drained, Output, Received
from ._peer import Send as SendOutput
from ._store import Store
from ._worker import T, Worker

WAITING_PEERS_MAX = 256
CONNECTIONS_MAX = 10_000
READ_BYTES_MAX = FRAME_BYTES_MAX
WRITE_BYTES_HIGH = 64 << 10
OPEN_S_MAX = 5
CLOSE_S_MAX = 2
PING_S = 20
LOG_S_MIN = 10.0
REASON_BYTES_MAX = 120

_log = logging.getLogger("syncline.server")

# The library writes several lines and a stack for every stranger that garbles a handshake. What
# matters is said by this module, once.
_library_log = logging.getLogger("syncline.server.websockets")
_library_log.setLevel(logging.CRITICAL)


class _Connection(ServerConnection):
    """A connection that the gateway knows from its first byte, not only after the handshake."""

    gateway: Gateway
    peer: _Socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.gateway.arrived(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.gateway.answered(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gateway.left(self)
        super().connection_lost(exc)


class _Socket:
    """One connection after its handshake: what waits to be written, how much to be read."""

    def __init__(self, conn: int, ws: ServerConnection) -> None:
        self.conn = conn
        self.ws = ws
        self.outgoing: deque[SendOutput | Close] = deque()
        self.wake = asyncio.Event()
        self.unread_bytes = 0
        self.unread_bytes_max = FRAME_BYTES_BEFORE_SIGN_IN_MAX
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.ended = False

    def end(self) -> None:
        """The connection is gone: its reader is to find out, though the engine owes it room."""
        self.ended = True
        self.may_read.set()

    def count_read(self, size: int) -> None:
        self.unread_bytes += size
        if self.ended or self.unread_bytes < self.unread_bytes_max:
            self.may_read.set()
        else:
            self.may_read.clear()


class Gateway:
    """Listens, and runs the worker. ``failed`` is done when the engine has ended by an error."""

    def __init__(
        self, engine: ServerEngine, store: Store, waiting_peers_max: int, connections_max: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(engine, store, self._deliver_soon, self._failed_soon)
        self._waiting_peers_max = waiting_peers_max
        self._connections_max = connections_max
        self._connections: set[ServerConnection] = set()
        self._waiting: dict[ServerConnection, None] = {}
        self._sockets: dict[int, _Socket] = {}
        self._last_conn = 0
        self._logged: dict[str, float] = {}
        self._server: Server | None = None
        self.failed: asyncio.Future[None] = self._loop.create_future()

    async def listen(self, host: str, port: int) -> int:
        """Listen; the port it became. Raises OSError."""
        self._server = await serve(
            self._handle,
            host,
            port,
            # A browser says where a page comes from; pages have no business here.
            origins=[None],
            subprotocols=[Subprotocol(PROTOCOL)],
            compression=None,
            server_header=None,
            open_timeout=OPEN_S_MAX,
            close_timeout=CLOSE_S_MAX,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            max_size=FRAME_BYTES_BEFORE_SIGN_IN_MAX,
            max_queue=4,
            write_limit=WRITE_BYTES_HIGH,
            logger=_library_log,
            create_connection=self._connection,  # type: ignore[arg-type]
        )
        self._worker.start()
        taken: int = next(iter(self._server.sockets)).getsockname()[1]
        return taken

    def call(self, work: Callable[[], T]) -> T:
        """Run this in the thread that owns the store; see ``Worker.call``."""
        return self._worker.call(work)

    async def close(self) -> None:
        """End every connection with 1001, finish the group under way, close the store."""
        if self._server is None:
            return
        for connection in list(self._waiting):
            if connection.state is State.CONNECTING:
                connection.transport.abort()
        self._server.close()
        await self._server.wait_closed()
        self._worker.stop()
        await self._loop.run_in_executor(None, self._worker.join)

    def hurry(self) -> None:
        """Wait for nobody's goodbye."""
        for connection in list(self._connections):
            connection.transport.abort()

    # Strangers.

    def _connection(self, *args: Any, **kwargs: Any) -> _Connection:
        connection = _Connection(*args, **kwargs)
        connection.gateway = self
        return connection

    def arrived(self, connection: ServerConnection) -> None:
        """A socket was accepted; its handshake is still to come."""
        if len(self._connections) >= self._connections_max:
            self._say_seldom("%d connections are open, no more are taken", self._connections_max)
            connection.transport.abort()
            return
        self._connections.add(connection)
        self._waiting[connection] = None
        if len(self._waiting) > self._waiting_peers_max:
            self._say_seldom(
                "%d peers have not signed in: the oldest is dropped", self._waiting_peers_max
            )
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()

    def left(self, connection: _Connection) -> None:
        """A socket ended."""
        if connection.peer is not None:
            connection.peer.end()
        self._connections.discard(connection)
        self._waiting.pop(connection, None)

    def answered(self, connection: ServerConnection) -> None:
        """What came may have been pings, whose answers wait for nobody to take what was sent.

        One frame at a time is handed out, so that more than two of the largest are never due.
        """
        unsent = connection.transport.get_write_buffer_size()
        if unsent > 2 * (connection.protocol.max_message_size or 0):
            self._say_seldom("a peer sends pings and takes no answers: it is dropped")
            connection.transport.abort()

    def _say_seldom(self, text: str, *values: object) -> None:
        """Log a warning, but not the same one again for a while."""
        now = self._loop.time()
        if now - self._logged.get(text, -LOG_S_MIN) >= LOG_S_MIN:
            self._logged[text] = now
            _log.warning(text, *values)

    # Peers.

    async def _handle(self, ws: ServerConnection) -> None:
        self._last_conn += 1
        conn = self._last_conn
        peer = self._sockets[conn] = _Socket(conn, ws)
        assert isinstance(ws, _Connection)
        ws.peer = peer
        if ws not in self._connections:
            peer.end()
        remote = ws.remote_address
        self._worker.put(Connected(conn, f"{remote[0]}:{remote[1]}" if remote else "unknown"))
        writer = asyncio.create_task(self._write(peer))
        try:
            # Every connection ends: it is the way out of the loop.
            with contextlib.suppress(ConnectionClosed):
                while True:
                    data = await ws.recv()
                    peer.count_read(len(data))
                    self._worker.put(Received(conn, data))
                    await peer.may_read.wait()
        finally:
            del self._sockets[conn]
            writer.cancel()
            await asyncio.wait([writer])
            self._worker.put(Disconnected(conn))

    async def _write(self, peer: _Socket) -> None:
        try:
            while True:
                while not peer.outgoing:
                    peer.wake.clear()
                    await peer.wake.wait()
                item = peer.outgoing.popleft()
                if isinstance(item, Close):
                    await peer.ws.close(item.code, _cut(item.reason))
                    return
                await peer.ws.send(item.data)
                self._worker.put(Drained(peer.conn, len(item.data)))
        except ConnectionClosed:
            return  # The reader ends too, and says so.

    def _deliver_soon(self, outputs: list[Output]) -> None:
        if outputs:
            self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            peer = self._sockets.get(output.conn)
            if peer is None:
                continue
            match output:
                case SendOutput():
                    peer.outgoing.append(output)
                    peer.wake.set()
                case Consumed(_, bytes_taken):
                    peer.count_read(-bytes_taken)
                case Admitted():
                    self._waiting.pop(peer.ws, None)
                    peer.ws.protocol.max_message_size = FRAME_BYTES_MAX
                    peer.unread_bytes_max = READ_BYTES_MAX
                    peer.count_read(0)
                case Close(_, code, reason):
                    _log.info("closing %s: %d %s", peer.ws.remote_address, code, reason)
                    peer.outgoing.append(output)
                    peer.wake.set()
                    # The peer may never take what is before the close frame.
                    self._loop.call_later(2 * CLOSE_S_MAX, peer.ws.transport.abort)

    def _failed_soon(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)


def _cut(reason: str) -> str:
    """A close frame has room for 123 bytes of reason."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
