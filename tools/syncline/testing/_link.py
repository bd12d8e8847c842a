"""A link that can be cut: a TCP proxy between clients and a server that knows websocket frames.

It runs in a thread of its own and does what it is told at once; nothing in it waits by the clock
but ``delay``. Each direction of each connection is read frame by frame (the HTTP head of the
handshake passes as it is), and handed to a filter that says what is passed on: nothing (drop), the
same twice (replay), or something kept from earlier (swap).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self, TypeVar

from syncline.sync import ToClient, ToServer, decode_to_client, decode_to_server

T = TypeVar("T")
BINARY = 2
CLOSE = 8


class Way(Enum):
    """Where bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


@dataclass(frozen=True)
class Message:
    """One websocket frame: ``raw`` as it travelled, ``payload`` without its mask."""

    connection: int
    way: Way
    opcode: int
    payload: bytes
    raw: bytes

    def frame(self) -> ToServer | ToClient | None:
        """The syncline frame in it, if it is one."""
        if self.opcode != BINARY:
            return None
        if self.way is Way.TO_SERVER:
            return decode_to_server(self.payload)
        return decode_to_client(self.payload)


Filter = Callable[[Message], Iterable[bytes]]


class Cut(Exception):
    """Raised by a filter: the connection breaks here, and the message is lost with it."""


class Frames:
    """Cuts a stream of bytes into websocket frames."""

    def __init__(self, connection: int, way: Way) -> None:
        self._connection = connection
        self._way = way
        self._buffer = bytearray()
        self._in_head = True

    def feed(self, data: bytes) -> Iterable[bytes | Message]:
        """Whole frames as messages; the head of the handshake as bytes."""
        self._buffer += data
        if self._in_head:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            yield bytes(self._buffer[: end + 4])
            del self._buffer[: end + 4]
            self._in_head = False
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> Message | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        masked, size = buffer[1] >> 7, buffer[1] & 0x7F
        at = 2
        if size >= 126:
            at = 4 if size == 126 else 10
            if len(buffer) < at:
                return None
            size = int.from_bytes(buffer[2:at], "big")
        start = at + 4 * masked
        if len(buffer) < start + size:
            return None
        payload = bytes(buffer[start : start + size])
        if masked:
            payload = _unmask(payload, bytes(buffer[at : at + 4]))
        raw, opcode = bytes(buffer[: start + size]), buffer[0] & 0x0F
        del buffer[: start + size]
        return Message(self._connection, self._way, opcode, payload, raw)


def _unmask(data: bytes, mask: bytes) -> bytes:
    pad = (mask * (len(data) // 4 + 1))[: len(data)]
    whole = int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")
    return whole.to_bytes(len(data), "big")


def _begun(task: asyncio.Task[Any]) -> bool:
    work = task.get_coro()
    return not (
        inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED
    )


class Proxy:
    """``with Proxy(server.port) as proxy: replica.connect(proxy.url)``.

    ``connections`` counts those accepted, ``seen`` are all frames that came by, ``close_codes``
    those of the close frames among them.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.connections = 0
        self.close_codes: list[int] = []
        self.seen: list[Message] = []
        self._filters: dict[Way, Filter] = {}
        self._delay_s: dict[Way, float] = {way: 0.0 for way in Way}
        self._holes: set[Way] = set()
        self._cuts: dict[Way, tuple[int, threading.Event]] = {}
        self._dead: set[tuple[int, Way]] = set()
        self._open: dict[int, list[asyncio.StreamWriter]] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="syncline-proxy")
        self._accepted = threading.Condition()
        self._closing = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # Trouble. From any thread and from filters; in force when the call returns.

    def filter(self, way: Way, function: Filter | None) -> None:
        """Let ``function`` say what is passed on for each message; it runs in the proxy."""
        self._do(lambda: self._set_filter(way, function))

    def black_hole(self, *ways: Way) -> None:
        """Swallow what goes these ways, on every connection, without a word to either end."""
        self._do(lambda: self._swallow(ways or tuple(Way)))

    def heal(self) -> None:
        """Let new connections through. Those that fell into a hole stay dead, as they would."""
        self._do(self._holes.clear)

    def delay(self, way: Way, seconds: float) -> None:
        """Hand on later what goes this way."""
        self._do(lambda: self._delay_s.update({way: seconds}))

    def cut_after(self, way: Way, bytes_passed: int) -> threading.Event:
        """Break the connection when so many more bytes went this way; the event says it did."""
        done = threading.Event()
        self._do(lambda: self._cuts.update({way: (bytes_passed, done)}))
        return done

    def drop(self) -> None:
        """Break all connections."""
        self._do(self._abort_all)

    def wait_connections(self, count: int, timeout: float = 10.0) -> None:
        """Wait until so many were accepted in all. Raises TimeoutError."""
        with self._accepted:
            if not self._accepted.wait_for(lambda: self.connections >= count, timeout):
                raise TimeoutError(f"{self.connections} of {count} connections in {timeout} s")

    # In the proxy's thread.

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _do(self, function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        if threading.current_thread() is self._thread:
            function()
        else:
            self._run(call())

    def _set_filter(self, way: Way, function: Filter | None) -> None:
        self._filters.pop(way, None)
        if function is not None:
            self._filters[way] = function

    def _swallow(self, ways: Iterable[Way]) -> None:
        self._holes.update(ways)
        self._dead.update((connection, way) for connection in self._open for way in self._holes)

    def _abort_all(self) -> None:
        for connection in list(self._open):
            self._abort(connection)

    def _abort(self, connection: int) -> None:
        for writer in self._open.pop(connection, []):
            writer.transport.abort()

    async def _close(self) -> None:
        assert self._server is not None
        # A connection that was just accepted belongs to a task of asyncio that has not begun: when
        # that is cancelled, or begins after the server is closed, nobody closes its socket.
        while not all(map(_begun, asyncio.all_tasks())):  # No event tells it.
            await self._round()
        self._server.close()
        self._closing.set()
        # Everything in this loop, not a list of our own: a connection may be half accepted, and
        # whoever of them is cancelled may leave another to end.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        for writer in list(self._writers):
            writer.transport.abort()
            await self._closed(writer)

    async def _round(self) -> None:
        """Let all that is ready in this loop go on once."""
        turned = self._loop.create_future()
        self._loop.call_soon(turned.set_result, None)
        await turned

    async def _closed(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._writers.discard(writer)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks by a weak reference only
        task.add_done_callback(self._tasks.discard)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: the writer is known at once, also when the rest is never begun.
        self._writers.add(writer)
        with self._accepted:
            self.connections += 1
            self._accepted.notify_all()
        self._start(self._join(self.connections, reader, writer))

    async def _join(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            await self._closed(writer)
            return
        self._writers.add(back)
        self._open[connection] = [writer, back]
        self._dead.update((connection, way) for way in self._holes)
        self._start(self._pump(connection, Way.TO_SERVER, reader, back))
        self._start(self._pump(connection, Way.TO_CLIENT, there, writer))

    async def _pump(
        self,
        connection: int,
        way: Way,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        frames = Frames(connection, way)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(64 << 10):
                for item in frames.feed(data):
                    await self._hand_on(connection, way, item, writer)
        if (connection, way) not in self._dead:
            self._abort(connection)
            await self._closed(writer)

    async def _hand_on(
        self, connection: int, way: Way, item: bytes | Message, writer: asyncio.StreamWriter
    ) -> None:
        if self._delay_s[way]:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._delay_s[way])
        passed: Iterable[bytes] = [item] if isinstance(item, bytes) else [item.raw]
        if isinstance(item, Message):
            self.seen.append(item)
            if item.opcode == CLOSE and len(item.payload) >= 2:
                self.close_codes.append(int.from_bytes(item.payload[:2], "big"))
            if way in self._filters:
                try:
                    passed = list(self._filters[way](item))
                except Cut:
                    self._abort(connection)
                    return
        for data in passed:
            if (connection, way) in self._dead:
                continue
            if way in self._cuts:
                left, done = self._cuts[way]
                self._cuts[way] = (left - len(data), done)
                if left <= len(data):
                    del self._cuts[way]
                    writer.write(data[:left])
                    self._abort(connection)
                    done.set()
                    return
            writer.write(data)
            await writer.drain()
