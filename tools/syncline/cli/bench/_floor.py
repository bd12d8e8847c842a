"""The floor: the smallest honest program for the same job with the same libraries.

No vectors, no chain, no checks, no settling beyond "the larger time wins". A server on websockets
commits what it gets (``synchronous=FULL``), then acknowledges it and sends it to everybody else; a
client has its outbox and records in SQLite, and commits what it is sent before it counts as seen.
What Syncline costs is measured against it, in the same run on the same machine.

    python -m benchmarks.floor --data FILE [--port PORT]        the server, until it is ended
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import msgpack
from pydantic import BaseModel
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed

BATCH = 500
FRAME_BYTES_MAX = 16 << 20

Row = tuple[str, int, bytes]
"""Id, updatedAt, body."""


class Frame(BaseModel):
    """``push``, ``pull``, ``mark`` to the server; ``ack``, ``rows``, ``end``, ``marked`` back.

    A ``pull`` names the id after which it wants rows, in a row of its own.
    """

    kind: str
    rows: list[Row] = []


def packed(kind: str, rows: Sequence[Row] = ()) -> bytes:
    data: bytes = msgpack.packb({"kind": kind, "rows": rows})
    return data


def unpacked(data: str | bytes) -> Frame:
    return Frame.model_validate(msgpack.unpackb(data))


def open_file(path: Path) -> sqlite3.Connection:
    """Records and an outbox, durable at every commit."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE IF NOT EXISTS records (id TEXT PRIMARY KEY, at INT, body BLOB)")
    db.execute("CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, id TEXT, body BLOB)")
    db.execute("CREATE TABLE IF NOT EXISTS outbox (n INTEGER PRIMARY KEY, id TEXT, at INT, body)")
    return db


UPSERT = (
    "INSERT INTO records VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET at = excluded.at,"
    " body = excluded.body WHERE excluded.at > at"
)


async def run_server(path: Path, port: int) -> None:
    db = open_file(path)
    sockets: set[ServerConnection] = set()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def serve_one(socket: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for data in socket:
                await take(socket, unpacked(data))
        sockets.discard(socket)

    async def take(socket: ServerConnection, frame: Frame) -> None:
        if frame.kind == "push":
            db.execute("BEGIN IMMEDIATE")
            db.executemany(UPSERT, frame.rows)
            bodies = [(id_, body) for id_, _, body in frame.rows]
            db.executemany("INSERT INTO log (id, body) VALUES (?, ?)", bodies)
            db.execute("COMMIT")
            await socket.send(packed("ack"))
            broadcast(sockets - {socket}, packed("rows", frame.rows))
        elif frame.kind == "pull":
            sockets.add(socket)
            after = frame.rows[0][0]
            found = db.execute("SELECT * FROM records WHERE id > ? ORDER BY id", (after,))
            while rows := found.fetchmany(BATCH):
                await socket.send(packed("rows", rows))
            await socket.send(packed("end"))
        else:
            await socket.send(packed("marked"))

    listening = serve(serve_one, "127.0.0.1", port, compression=None, max_size=FRAME_BYTES_MAX)
    async with listening as server:
        port = next(iter(server.sockets)).getsockname()[1]
        print(f"listening on ws://127.0.0.1:{port}", flush=True)
        await stop.wait()
    db.close()


class Client:
    """The floor's client: a file, and at times a connection. ``seen`` is told what is committed."""

    def __init__(self, path: Path, seen: Callable[[list[Row]], None] = lambda rows: None) -> None:
        self.db = open_file(path)
        self._seen = seen
        self._socket: ClientConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._came = {kind: asyncio.Event() for kind in ("ack", "end", "marked")}
        self._written = asyncio.Event()
        self._drained = asyncio.Event()

    def write(self, rows: Sequence[Row]) -> None:
        """Records and their outbox rows, in one commit."""
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(UPSERT, rows)
        self.db.executemany("INSERT INTO outbox (id, at, body) VALUES (?, ?, ?)", rows)
        self.db.execute("COMMIT")
        self._drained.clear()
        self._written.set()

    async def connect(self, url: str, after: str = "") -> None:
        """Take what comes after this id, send what waits, and stay.

        Raises ConnectionClosed when the connection breaks on the way.
        """
        self._socket = await connect(url, compression=None, max_size=FRAME_BYTES_MAX)
        works = (self._read(self._socket), self._push(self._socket))
        self._tasks = [asyncio.create_task(work) for work in works]
        await self._ask("pull", "end", [(after, 0, b"")])
        await self._until(self._drained)

    async def wait(self) -> None:
        """Until all that was written here is there, and all that was there is here."""
        await self._until(self._drained)
        await self._ask("mark", "marked")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()

    async def _ask(self, kind: str, answer: str, rows: Sequence[Row] = ()) -> None:
        assert self._socket is not None
        self._came[answer].clear()
        await self._socket.send(packed(kind, rows))
        await self._until(self._came[answer])

    async def _until(self, event: asyncio.Event) -> None:
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            ended = next(task for task in self._tasks if task.done())
            raise ended.exception() or EOFError("the floor's server closed the connection")

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            frame = unpacked(await socket.recv())
            if frame.kind != "rows":
                self._came[frame.kind].set()
                continue
            self.db.execute("BEGIN IMMEDIATE")
            self.db.executemany(UPSERT, frame.rows)
            self.db.execute("COMMIT")
            self._seen(frame.rows)

    async def _push(self, socket: ClientConnection) -> None:
        while True:
            self._written.clear()
            rows = self.db.execute("SELECT * FROM outbox ORDER BY n LIMIT ?", (BATCH,)).fetchall()
            if not rows:
                self._drained.set()
                await self._written.wait()
                continue
            self._came["ack"].clear()
            await socket.send(packed("push", [row[1:] for row in rows]))
            await self._came["ack"].wait()
            self.db.execute("DELETE FROM outbox WHERE n <= ?", (rows[-1][0],))


def main() -> int:
    parser = argparse.ArgumentParser(description="The floor's server.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    asyncio.run(run_server(args.data, args.port))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
