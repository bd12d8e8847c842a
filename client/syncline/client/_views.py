"""One readable view per collection, and the read-only door to them.

``replica.db`` is a sqlite-utils Database over a standard-library connection that cannot write. The
views decode the stored state with an SQL function that is registered on that connection: a value
that SQL has no type for (a list, a map) comes out as JSON text, bytes as a BLOB, bool as 0 or 1.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from typing import Any

from syncline.sync import Record, Value

COLUMNS_MAX = 500
"""Fields of a collection beyond these many are in ``"$fields"`` (JSON) only."""
RESERVED = ("syncline_", "sqlite_")


class KnownFields:
    """The ``(collection, field)`` pairs that the views of a file are known to show."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._by_collection: dict[str, set[str]] = {}
        self.add(db.execute("SELECT collection, field FROM syncline_fields"))

    def has(self, collection: str, fields: Collection[str]) -> bool:
        known = self._by_collection.get(collection)
        return known is not None and known.issuperset(fields)

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        for collection, field in pairs:
            self._by_collection.setdefault(collection, set()).add(field)


def show_fields(db: sqlite3.Connection, pairs: Collection[tuple[str, str]]) -> None:
    """Make the views show these ``(collection, field)``."""
    before = db.total_changes
    db.executemany("INSERT OR IGNORE INTO syncline_fields VALUES (?, ?)", sorted(pairs))
    if db.total_changes != before:
        for collection in sorted({collection for collection, _ in pairs}):
            _make_view(db, collection)


def _make_view(db: sqlite3.Connection, collection: str) -> None:
    name = _view_name(db, collection)
    rows = db.execute(
        "SELECT field FROM syncline_fields WHERE collection=? ORDER BY field LIMIT ?",
        (collection, COLUMNS_MAX),
    )
    fields = "".join(
        f"syncline_field(r.state, {_text(field)}) AS {_name(field)}, " for (field,) in rows
    )
    db.execute(f"DROP VIEW IF EXISTS {_name(name)}")
    db.execute(
        f'CREATE VIEW {_name(name)} AS SELECT s.id AS "$session", r.id AS "$id", {fields}'
        "syncline_field(r.state, '$updated_at') AS \"$updated_at\","
        " syncline_field(r.state, '$fields') AS \"$fields\""
        " FROM syncline_records r JOIN syncline_sessions s ON s.gen = r.gen"
        f" WHERE r.collection = {_text(collection)} AND r.alive = 1"
    )


def _view_name(db: sqlite3.Connection, collection: str) -> str:
    row = db.execute("SELECT name FROM syncline_views WHERE collection=?", (collection,)).fetchone()
    if row is not None:
        return str(row[0])
    # SQLite's names know no case and some are taken: those collections get a name of their own.
    name, place = collection, 1
    while (
        name.lower().startswith(RESERVED)
        or db.execute(
            "SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE", (name,)
        ).fetchone()
    ):
        name, place = f"{collection}:{place}", place + 1
        if collection.lower().startswith(RESERVED):
            name = f"collection:{name}"
    db.execute("INSERT INTO syncline_views VALUES (?, ?)", (collection, name))
    return name


def register(connection: sqlite3.Connection) -> None:
    """Give a connection the function that the views need."""
    decoded: list[tuple[bytes, Record]] = []

    def field(state: bytes, name: str) -> Any:
        if not decoded or decoded[0][0] != state:
            decoded[:] = [(state, Record.decode(state))]
        record = decoded[0][1]
        if name == "$updated_at":
            return record.life.updated_at
        return _sql(record.fields if name == "$fields" else record.fields.get(name))

    connection.create_function("syncline_field", 2, field, deterministic=True)


def _sql(value: Value) -> Any:
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False, default=_bytes)
    return value


def _bytes(value: object) -> dict[str, str]:
    assert isinstance(value, bytes), "values are checked when written"
    return {"$bytes": value.hex()}


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
