"""Bare ``sqlite3``: one table like a replica's records, with a replica's settings, and no more."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import msgpack

from ._device import digest_of, record_id
from ._scale import COLLECTION, fields_of


class Bare:
    """What an app would do by hand for the local half of the job: fields in a row, read and count.

    The fields are one MessagePack blob, as in a replica; nothing waits in an outbox.
    """

    def __init__(self) -> None:
        self._db: sqlite3.Connection | None = None

    @property
    def db(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def open(self, path: str, name: str, session: str, token: str | None) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE records (gen INTEGER NOT NULL, collection TEXT NOT NULL,"
            " id TEXT NOT NULL, alive INTEGER NOT NULL, seq INTEGER NOT NULL, state BLOB NOT NULL,"
            " base BLOB, PRIMARY KEY (gen, collection, id)) WITHOUT ROWID"
        )

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _put(self, number: int) -> None:
        state = msgpack.packb(fields_of(number))
        self.db.execute(
            "INSERT OR REPLACE INTO records VALUES (1, ?, ?, 1, 0, ?, NULL)",
            (COLLECTION, record_id(number), state),
        )

    def write(self, first: int, count: int) -> float:
        began = time.perf_counter()
        for number in range(first, first + count):
            self._put(number)
        return time.perf_counter() - began

    def write_batch(self, first: int, count: int) -> float:
        began = time.perf_counter()
        self.db.execute("BEGIN IMMEDIATE")
        self.write(first, count)
        self.db.execute("COMMIT")
        return time.perf_counter() - began

    write_transaction = write_batch

    def get(self, numbers: list[int]) -> float:
        ids = [record_id(number) for number in numbers]
        began = time.perf_counter()
        for id_ in ids:
            (state,) = self.db.execute(
                "SELECT state FROM records WHERE gen=1 AND collection=? AND id=?", (COLLECTION, id_)
            ).fetchone()
            msgpack.unpackb(state)
        return time.perf_counter() - began

    def _all(self) -> list[tuple[str, Any]]:
        rows = self.db.execute(
            "SELECT id, state FROM records WHERE gen=1 AND collection=? AND alive=1 ORDER BY id",
            (COLLECTION,),
        )
        return [(id_, msgpack.unpackb(state)) for id_, state in rows]

    def list_all(self, times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            self._all()
        return time.perf_counter() - began

    def count_all(self, times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            self.count()
        return time.perf_counter() - began

    def count(self) -> int:
        (count,) = self.db.execute(
            "SELECT count(*) FROM records WHERE gen=1 AND collection=? AND alive=1", (COLLECTION,)
        ).fetchone()
        return int(count)

    def digest(self) -> str:
        return digest_of(self._all())
