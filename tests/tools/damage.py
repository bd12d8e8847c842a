"""Changing single bytes of a file, behind the back of whatever guards it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from syncline.sync import Entry


class Cell(NamedTuple):
    """One BLOB in a file: its table, column, primary key and bytes."""

    table: str
    column: str
    key: tuple[tuple[str, object], ...]
    data: bytes


def cells(path: Path, columns: dict[str, tuple[str, ...]]) -> list[Cell]:
    """The BLOBs of these columns, by table, that have any bytes."""
    found = []
    with closing(sqlite3.connect(path)) as db:
        for table, names in columns.items():
            info = db.execute(f"PRAGMA table_info({table})").fetchall()
            keys = [row[1] for row in info if row[5]]
            for row in db.execute(f"SELECT {', '.join((*keys, *names))} FROM {table}"):
                key = tuple(zip(keys, row[: len(keys)], strict=True))
                found += [
                    Cell(table, name, key, data)
                    for name, data in zip(names, row[len(keys) :], strict=True)
                    if isinstance(data, bytes) and data
                ]
    return found


def _unguard(db: sqlite3.Connection) -> None:
    """Drop what refuses edits, and do not wait for the disk: these files live for one test."""
    db.execute("PRAGMA synchronous = OFF")
    triggers = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        db.execute(f"DROP TRIGGER {name}")


def write_cell(path: Path, cell: Cell, data: bytes) -> None:
    """Overwrite one BLOB; triggers that refuse it go first."""
    with closing(sqlite3.connect(path)) as db, db:
        _unguard(db)
        where = " AND ".join(f"{name} = ?" for name, _ in cell.key)
        changed = db.execute(
            f"UPDATE {cell.table} SET {cell.column} = ? WHERE {where}",
            (data, *(value for _, value in cell.key)),
        )
        assert changed.rowcount == 1


def flipped(data: bytes, position: int, mask: int) -> bytes:
    """``data`` with one byte changed; ``mask`` is 1 to 255."""
    made = bytearray(data)
    made[position % len(made)] ^= mask
    return bytes(made)


def run_sql(path: Path, *statements: str) -> None:
    """Edit a file by hand, its triggers gone."""
    with closing(sqlite3.connect(path)) as db, db:
        _unguard(db)
        for statement in statements:
            db.execute(statement)


def forge_log(path: Path, seq: int, change: Callable[[Entry], Entry]) -> None:
    """Change one entry of the first session, and every hash so that the chain is right again."""
    with closing(sqlite3.connect(path)) as db, db:
        _unguard(db)
        (previous,) = db.execute("SELECT genesis FROM sessions WHERE session = 1").fetchone()
        rows = db.execute("SELECT seq, entry FROM log WHERE session = 1 ORDER BY seq").fetchall()
        for at, data in rows:
            entry = Entry.decode(data)
            entry = change(entry) if at == seq else entry
            previous = entry.hash(previous)
            db.execute(
                "UPDATE log SET hash = ?, entry = ? WHERE session = 1 AND seq = ?",
                (previous, entry.encode(), at),
            )
        db.execute("UPDATE sessions SET hash = ? WHERE session = 1", (previous,))
