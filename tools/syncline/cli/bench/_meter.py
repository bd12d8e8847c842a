"""A relay between a client and a server that counts what passes, and can cut the connection.

It knows nothing of frames: a cut falls wherever it falls, and is without a goodbye.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
READ_BYTES = 64 << 10
CALL_S_MAX = 30.0


class _Cut(Exception):
    """The bytes up to the next cut are used up."""


class Meter:
    """Plays a relay: ``listen``, then ``passed`` tells what went by since it was last asked."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="meter", daemon=True)
        self._thread.start()
        self._target = ("", 0)
        self._server: asyncio.Server | None = None
        self._up = self._down = self._cuts = 0
        self._left: int | None = None
        self._every = 0
        self._cuts_left = 0

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S_MAX)

    def listen(self, url: str) -> str:
        """Relay to this websocket address from now on; the address to use instead."""
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 80)

        async def start() -> int:
            self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
            port: int = self._server.sockets[0].getsockname()[1]
            return port

        return f"ws://127.0.0.1:{self._do(start())}{parts.path}"

    def cut_every(self, count: int | None, cuts: int) -> None:
        """Cut each time that so many more bytes have come down, so many times in all."""

        async def arm() -> None:
            self._left, self._every, self._cuts_left = count, count or 0, cuts

        self._do(arm())

    def passed(self) -> tuple[int, int, int]:
        """Bytes to the server, bytes from it, and cuts, since this was last asked."""

        async def take() -> tuple[int, int, int]:
            taken = self._up, self._down, self._cuts
            self._up = self._down = self._cuts = 0
            return taken

        return self._do(take())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back: asyncio.StreamWriter | None = None
        cut = False
        try:
            there, back = await asyncio.open_connection(*self._target)
            ways = (self._relay(reader, back, up=True), self._relay(there, writer, up=False))
            tasks = [asyncio.create_task(way) for way in ways]
            # Whichever end goes first takes the other along, after what it had to say.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            cut = tasks[1].done() and tasks[1].exception() is not None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            return
        finally:
            for one in (writer, back):
                if one is not None:
                    one.transport.abort() if cut else one.close()

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if up:
                    self._up += len(data)
                else:
                    self._count_down(len(data))
                writer.write(data)
                await writer.drain()

    def _count_down(self, size: int) -> None:
        """Count what comes down. Raises _Cut when the connection is to break before it."""
        if self._left is not None and self._cuts_left:
            self._left -= size
            if self._left <= 0:
                self._left += self._every
                self._cuts_left -= 1
                self._cuts += 1
                raise _Cut
        self._down += size
