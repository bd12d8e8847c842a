"""The records that a page of entries touches: read once, written once.

Most of what a busy client gets back is its own: an op that simply applied, as it was written, moves
from the outbox into the base, and what shows stays as it is. Such a record is not even decoded: its
row loses its base (see ``settle_quietly``).
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgpack

from syncline.sync import RUNTIME_COLLECTIONS, Record, RecordChange, Value, same

from ._predict import Key
from ._rows import (
    DROP_RECORD,
    PUT_RECORD,
    RecordState,
    count_change,
    put_record_statement,
    record_state,
)


class Page:
    """Rows of one generation, while a page is folded into them."""

    def __init__(self, db: sqlite3.Connection, gen: int) -> None:
        self._db = db
        self._gen = gen
        self.rows: dict[Key, RecordState] = {}
        self._before: dict[Key, Record | None] = {}
        self.stale: set[Key] = set()
        self._quiet: dict[Key, int] = {}

    def row(self, key: Key) -> RecordState:
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = record_state(self._db, self._gen, *key)
            seq = self._quiet.pop(key, None)
            if seq is not None:
                row.base, row.has_base, row.seq = None, False, seq
            self._before[key] = row.visible
        return row

    def settle_quietly(self, change: RecordChange, client: str, n: int, seq: int) -> bool:
        """Move an own change that applied as written into the base, if nothing else is pending.

        What shows then is the base. It is recognised by its vector: the change's context and its
        dot, nothing of a later op and nothing of anybody else.
        """
        key = (change.collection, change.id)
        if key in self.rows or key in self._quiet:
            return False
        found = self._db.execute(
            "SELECT state FROM syncline_records WHERE gen=? AND collection=? AND id=? AND seq<?"
            " AND base IS NOT NULL",
            (self._gen, *key, seq),
        ).fetchone()
        if found is None or not found[0] or _vector(found[0]) != {**change.context, client: n}:
            return False
        self._quiet[key] = seq
        return True

    def shows_anew(self) -> set[Key]:
        """The records that a reader now sees otherwise than before."""
        return {
            key
            for key, row in self.rows.items()
            if not same(_fields(self._before[key]), _fields(row.visible))
        }

    def write(self) -> None:
        """Write everything back."""
        self._count_change()
        puts: list[tuple[Any, ...]] = []
        for key, row in self.rows.items():
            statement, values = put_record_statement(self._gen, *key, row)
            if statement == DROP_RECORD:
                self._db.execute(statement, values)
            else:
                puts.append(values)
        self._db.executemany(PUT_RECORD, puts)
        self._db.executemany(
            "UPDATE syncline_records SET base=NULL, seq=? WHERE gen=? AND collection=? AND id=?",
            [(seq, self._gen, *key) for key, seq in self._quiet.items()],
        )

    def _count_change(self) -> None:
        if not any(collection in RUNTIME_COLLECTIONS for collection, _ in self.rows):
            return
        if any(collection in RUNTIME_COLLECTIONS for collection, _ in self.shows_anew()):
            # Of a bootstrap nothing shows yet: no session has its generation.
            for (key,) in self._db.execute(
                "SELECT session FROM syncline_sessions WHERE gen=?", (self._gen,)
            ).fetchall():
                count_change(self._db, key)


def _vector(state: bytes) -> dict[str, int]:
    """The vector of an encoded record, which leads its bytes, without decoding the rest."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(state)
    unpacker.read_array_header()
    vector: dict[str, int] = unpacker.unpack()
    return vector


def _fields(record: Record | None) -> Value:
    return None if record is None else record.visible
