"""A small proxy between devices and server that cuts connections after a random number of bytes.

It stands for a bad network: bytes up to the cut pass, in both directions, and then the connection
ends on both sides without a goodbye, perhaps in the middle of a frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Self

CUT_BYTES_MAX = 4096
"""A sync of a few ops takes about this many, the opening of the connection included."""
READ_BYTES = 1 << 16


class CuttingProxy:
    """Listens on a port of its own while the block runs, and passes on to ``port``.

    Each connection is to be cut with ``probability``; ``cuts`` counts those that lived to see it.
    """

    def __init__(self, port: int, probability: float, seed: int) -> None:
        self._server_port = port
        self._probability = probability
        self._random = random.Random(seed)
        self._thread = threading.Thread(target=self._run, name="syncline-proxy")
        self._listening: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self.cuts = 0
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = f"ws://127.0.0.1:{self._listening.result()}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not self._listening.done():
                self._listening.set_exception(error)
            raise

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self._listening.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = _Left(self._limit())
        writers = [writer]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
            writers.append(back)
            async with asyncio.TaskGroup() as group:
                group.create_task(left.copy(reader, back))
                group.create_task(left.copy(there, writer))
        except* (OSError, _Cut) as ended:
            # One end has gone, or is to go: so does the other.
            self.cuts += any(isinstance(error, _Cut) for error in ended.exceptions)
        finally:
            for one in writers:
                one.transport.abort()

    def _limit(self) -> int | None:
        cut = self._random.random() < self._probability
        return self._random.randrange(CUT_BYTES_MAX) if cut else None


class _Cut(Exception):
    """The bytes that this connection was given are used up."""


class _Left:
    """How many bytes a connection may still pass, both ways together; None is without end."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            if self._limit is not None:
                data, whole = data[: self._limit], len(data)
                self._limit -= len(data)
            writer.write(data)
            await writer.drain()
            if self._limit is not None and len(data) < whole:
                raise _Cut
        with contextlib.suppress(OSError):
            writer.write_eof()
