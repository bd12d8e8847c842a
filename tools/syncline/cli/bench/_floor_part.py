"""The floor's client in a process of its own: it plays what a device plays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import msgpack
from websockets.exceptions import ConnectionClosed

from . import _floor
from ._device import WAIT_S_MAX, digest_of, number_of, record_id
from ._scale import fields_of

T = TypeVar("T")


class FloorPart:
    """Plays a ``Part``; the client lives in the event loop of a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="floor", daemon=True)
        self._thread.start()
        self._client: _floor.Client | None = None
        self._seen: dict[int, int] = {}
        self._changed = asyncio.Event()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S_MAX)

    @property
    def client(self) -> _floor.Client:
        assert self._client is not None
        return self._client

    def open(self, path: str, name: str, session: str, token: str | None) -> None:
        async def make() -> None:
            self._client = _floor.Client(Path(path), self._note)

        self._do(make())

    def close(self) -> None:
        if self._client is not None:
            self.disconnect()
            self._client.db.close()
            self._client = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Offline.

    def write(self, first: int, count: int) -> float:
        return self._do(self._write(first, count))

    async def _write(self, first: int, count: int) -> float:
        began = time.perf_counter()
        for number in range(first, first + count):
            self.client.write([_row(number)])
            await self._turn()
        return time.perf_counter() - began

    async def _turn(self, at: float | None = None) -> None:
        """Let the connection's tasks have their turn, until a time of the loop's clock."""
        turn = self._loop.create_future()
        if at is None:
            self._loop.call_soon(turn.set_result, None)
        else:
            self._loop.call_at(at, turn.set_result, None)
        await turn

    def write_batch(self, first: int, count: int) -> float:
        return self._do(self._write_batch(first, count))

    async def _write_batch(self, first: int, count: int) -> float:
        began = time.perf_counter()
        self.client.write([_row(number) for number in range(first, first + count)])
        return time.perf_counter() - began

    def edit(self, order: list[int], edition: int, stamps: list[int]) -> None:
        async def write() -> None:
            numbered = zip(order, stamps, strict=True)
            self.client.write([_row(number, edition, stamp) for number, stamp in numbered])

        self._do(write())

    # Online.

    def sync(self, url: str) -> float:
        async def sync() -> float:
            began = time.perf_counter()
            await self.client.connect(url)
            await self.client.close()
            return time.perf_counter() - began

        return self._do(sync())

    def sync_through(self, url: str) -> float:
        async def sync() -> float:
            began = time.perf_counter()
            while True:
                (after,) = self.client.db.execute("SELECT max(id) FROM records").fetchone()
                try:
                    await self.client.connect(url, after or "")
                    return time.perf_counter() - began
                except (ConnectionClosed, EOFError):
                    continue
                finally:
                    await self.client.close()

        return self._do(sync())

    def connect(self, url: str) -> None:
        self._do(self.client.connect(url))

    def disconnect(self) -> None:
        self._do(self.client.close())

    def wait(self) -> int:
        self._do(self.client.wait())
        return time.monotonic_ns()

    def watch(self) -> None:
        self._seen = {}

    def _note(self, rows: list[_floor.Row]) -> None:
        now = time.monotonic_ns()
        for id_, _, _ in rows:
            self._seen.setdefault(number_of(id_), now)
        self._changed.set()

    def await_seen(self, count: int) -> int:
        async def until() -> int:
            while len(self._seen) < count:
                self._changed.clear()
                await self._changed.wait()
            return max(self._seen.values(), default=0)

        return self._do(until())

    def seen(self) -> dict[int, int]:
        return dict(self._seen)

    def write_paced(self, first: int, count: int, per_second: float) -> dict[int, int]:
        async def write() -> dict[int, int]:
            began_at: dict[int, int] = {}
            start = self._loop.time()
            for index in range(count):
                await self._turn(start + index / per_second)
                began_at[first + index] = time.monotonic_ns()
                self.client.write([_row(first + index)])
            return began_at

        return self._do(write())

    def write_burst(self, first: int, count: int, batch: bool) -> int:
        began = time.monotonic_ns()
        self.write_batch(first, count) if batch else self.write(first, count)
        return began

    # What is there.

    def _rows(self) -> list[tuple[str, Any]]:
        rows = self.client.db.execute("SELECT id, body FROM records ORDER BY id").fetchall()
        return [(id_, msgpack.unpackb(body)) for id_, body in rows]

    def count(self) -> int:
        (count,) = self.client.db.execute("SELECT count(*) FROM records").fetchone()
        return int(count)

    def digest(self) -> str:
        return digest_of(self._rows())

    def titles(self, numbers: Iterable[int]) -> list[str]:
        found = dict(self._rows())
        return [found.get(record_id(number), {}).get("title", "") for number in numbers]


def _row(number: int, edition: int = 0, stamp: int | None = None) -> _floor.Row:
    at = time.time_ns() // 1000 if stamp is None else stamp
    return record_id(number), at, msgpack.packb(fields_of(number, edition))
