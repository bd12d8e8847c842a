"""Many connections in one process: each says hello, opens a session, and takes what comes.

They speak the real protocol and keep nothing on disk. What arrives must go on from the cursor
without a gap, and be the same bytes for everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, TypeVar

import msgpack
import websockets
from websockets.asyncio.client import ClientConnection, connect

from syncline.sync import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    ErrorFrame,
    Hello,
    Mark,
    Marked,
    Open,
    Opened,
    ToClient,
    Welcome,
    decode_to_client,
    encode_frame,
)

T = TypeVar("T")
CALL_S_MAX = 300.0
AT_ONCE = 50
"""How many connect at the same time when they are in no hurry."""
PAUSE_S = (0.5, 30.0)
"""Pauses between attempts, as a real client makes them: the first, and the longest."""
STORM_S_MAX = 60.0

Cursor = tuple[int, int, bytes]
"""Epoch, seq, and the hash there."""


class NotServed(Exception):
    """The server did not answer as it must."""


@dataclass
class _One:
    """One client of the crowd. ``socket`` is its connection while it has one."""

    client: str
    incarnation: int = 0
    socket: ClientConnection | None = None


@dataclass
class Caught:
    """How a crowd caught up: the moment of the last, how often one was dropped and tried again."""

    last_at: int = 0
    dropped: int = 0
    failed: list[str] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)


class Crowd:
    """Plays many clients; ``gather`` connects them, ``catch_up`` does so all at once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="crowd", daemon=True)
        self._thread.start()
        self._session = ""
        self._token: str | None = None
        self._all: list[_One] = []

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S_MAX)

    def open(self, name: str, session: str, token: str | None, count: int) -> None:
        """Who they are: so many, named after ``name``."""
        self._session, self._token = session, token
        self._all = [_One(f"{name}-{index + 1}") for index in range(count)]

    def close(self) -> None:
        self.part()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def head(self, url: str) -> Cursor:
        """Where the session's log ends."""

        async def ask() -> Cursor:
            one = self._all[0]
            await self._sign_in(one, url)
            assert one.socket is not None
            opened = await self._open(one.socket, (0, 0, b""))
            await one.socket.close()
            one.socket = None
            return opened.epoch, opened.head, opened.hash

        return self._do(ask())

    def gather(self, url: str, cursor: Cursor) -> None:
        """Connect everybody, open the session at the cursor, and stay, idle."""

        async def gather() -> None:
            turns = asyncio.Semaphore(AT_ONCE)

            async def arrive(one: _One) -> None:
                async with turns:
                    await self._sign_in(one, url)
                    assert one.socket is not None
                    await self._open(one.socket, cursor)
                    await _ask(one.socket, Mark(id=1), Marked)

            await asyncio.gather(*map(arrive, self._all))

        self._do(gather())

    def part(self) -> None:
        """End all connections."""

        async def leave() -> None:
            sockets = [one.socket for one in self._all if one.socket is not None]
            for one in self._all:
                one.socket = None
            await asyncio.gather(*(socket.close() for socket in sockets))

        self._do(leave())

    def catch_up(self, url: str, cursor: Cursor, seq: int) -> Caught:
        """Connect all at once, and take what comes after the cursor until ``seq``.

        Who is turned away or cut off pauses and tries again, as a real client does.
        """
        caught = Caught()

        async def go() -> None:
            await asyncio.gather(
                *(self._catch_up(one, url, cursor, seq, caught) for one in self._all)
            )

        self._do(go())
        return caught

    async def _catch_up(
        self, one: _One, url: str, cursor: Cursor, seq: int, caught: Caught
    ) -> None:
        pause, longest = PAUSE_S
        end = time.monotonic() + STORM_S_MAX
        while True:
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    await self._sign_in(one, url)
                    assert one.socket is not None
                    digest = await self._take(one.socket, cursor, seq)
                caught.digests.add(digest)
                caught.last_at = max(caught.last_at, time.monotonic_ns())
                return
            except (OSError, EOFError, TimeoutError, websockets.WebSocketException) as error:
                caught.dropped += 1
                if time.monotonic() >= end:
                    caught.failed.append(f"{one.client}: {error or type(error).__name__}")
                    return
            except NotServed as error:
                caught.failed.append(f"{one.client}: {error}")
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)

    async def _sign_in(self, one: _One, url: str) -> None:
        one.socket = await connect(
            url,
            subprotocols=[websockets.Subprotocol(PROTOCOL)],
            compression=None,
            max_size=FRAME_BYTES_MAX,
            ping_interval=None,
        )
        one.incarnation += 1
        hello = Hello(
            client=one.client,
            incarnation=one.incarnation,
            nonce=os.urandom(16),
            token=self._token,
            clock=time.time_ns() // 1000,
        )
        await _ask(one.socket, hello, Welcome)

    async def _open(self, socket: ClientConnection, cursor: Cursor) -> Opened:
        epoch, seq, hash_ = cursor
        frame = Open(session=self._session, epoch=epoch, seq=seq, hash=hash_ or None)
        opened = await _ask(socket, frame, Opened)
        if seq and opened.stand != "catch_up":
            raise NotServed(f"the cursor {seq} was answered with {opened.stand}")
        return opened

    async def _take(self, socket: ClientConnection, cursor: Cursor, seq: int) -> str:
        await self._open(socket, cursor)
        _, at, hash_ = cursor
        whole = hashlib.sha256()
        while at < seq:
            # Not through the models: the server is what is measured, on cores that all share.
            frame = msgpack.unpackb(await socket.recv())
            if frame["type"] == "error":
                raise NotServed(frame["reason"])
            if frame["type"] != "entries":
                continue
            if frame["seq"] != at + 1 or (at == cursor[1] and frame["previous"] != hash_):
                raise NotServed(f"entries from {frame['seq']} on came to a cursor at {at}")
            for entry in frame["entries"]:
                whole.update(entry)
            at += len(frame["entries"])
        return whole.hexdigest()


F = TypeVar("F", bound=ToClient)


async def _ask(socket: ClientConnection, frame: Any, answer: type[F]) -> F:
    """Send a frame and wait for its answer; what else comes meanwhile is for nobody."""
    await socket.send(encode_frame(frame))
    while True:
        came = decode_to_client(await socket.recv())
        if isinstance(came, answer):
            return came
        if isinstance(came, ErrorFrame):
            raise NotServed(f"{came.code}: {came.reason}")


def shares(count: int, processes: int) -> Iterable[int]:
    """So many, dealt out to so many processes."""
    return [count // processes + (index < count % processes) for index in range(processes)]
