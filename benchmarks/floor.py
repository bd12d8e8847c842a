"""The floor: the smallest honest program for the same job with the same libraries.

No vectors, no chain, no checks, no settling beyond "the larger time wins": a server on websockets
that takes batches of 500 rows, commits them (``synchronous=FULL``) and then acknowledges, and a
client whose outbox and records lie in SQLite. What Syncline costs is measured against it, in the
same run on the same machine.

    python -m benchmarks.floor --port PORT --data FILE        the server, until it is ended
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgpack
from pydantic import BaseModel
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

BATCH = 500
FRAME_BYTES_MAX = 16 << 20


class Batch(BaseModel):
    """A frame of rows ``[id, updated_at, body]``."""

    kind: str
    rows: list[tuple[str, int, bytes]]


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


def encoded(fields: dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(fields)
    return body


def write(db: sqlite3.Connection, id_: str, at: int, fields: dict[str, Any]) -> None:
    """One offline write: the record and its outbox row in one commit."""
    body = encoded(fields)
    db.execute("BEGIN IMMEDIATE")
    db.execute(UPSERT, (id_, at, body))
    db.execute("INSERT INTO outbox (id, at, body) VALUES (?, ?, ?)", (id_, at, body))
    db.execute("COMMIT")


async def run_server(port: int, path: Path) -> None:
    db = open_file(path)

    async def serve_one(socket: ServerConnection) -> None:
        async for data in socket:
            batch = Batch.model_validate(msgpack.unpackb(data))
            if batch.kind == "pull":
                rows = db.execute("SELECT id, at, body FROM records ORDER BY id").fetchall()
                for start in range(0, len(rows), BATCH):
                    page = rows[start : start + BATCH]
                    await socket.send(msgpack.packb({"kind": "page", "rows": page}))
                await socket.send(msgpack.packb({"kind": "end", "rows": []}))
                continue
            db.execute("BEGIN IMMEDIATE")
            db.executemany(UPSERT, batch.rows)
            db.executemany(
                "INSERT INTO log (id, body) VALUES (?, ?)", [(i, b) for i, _, b in batch.rows]
            )
            db.execute("COMMIT")
            await socket.send(msgpack.packb({"kind": "ack", "rows": []}))

    async with serve(serve_one, "127.0.0.1", port, compression=None, max_size=FRAME_BYTES_MAX):
        print("listening", flush=True)
        await asyncio.Future()


async def drain(url: str, db: sqlite3.Connection) -> int:
    """Send the outbox; rows go when they are acknowledged. How many went."""
    count = 0
    async with connect(url, compression=None, max_size=FRAME_BYTES_MAX) as socket:
        while rows := db.execute("SELECT * FROM outbox ORDER BY n LIMIT ?", (BATCH,)).fetchall():
            await socket.send(msgpack.packb({"kind": "push", "rows": [r[1:] for r in rows]}))
            Batch.model_validate(msgpack.unpackb(await socket.recv()))
            db.execute("DELETE FROM outbox WHERE n <= ?", (rows[-1][0],))
            count += len(rows)
    return count


async def fetch(url: str, db: sqlite3.Connection) -> int:
    """Take all records; how many came."""
    count = 0
    async with connect(url, compression=None, max_size=FRAME_BYTES_MAX) as socket:
        await socket.send(msgpack.packb({"kind": "pull", "rows": []}))
        while True:
            page = Batch.model_validate(msgpack.unpackb(await socket.recv()))
            if page.kind == "end":
                return count
            db.execute("BEGIN IMMEDIATE")
            db.executemany(UPSERT, page.rows)
            db.execute("COMMIT")
            count += len(page.rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    asyncio.run(run_server(args.port, args.data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
