"""A data file opened to be read only: one snapshot, rows checked by type, nothing trusted.

The file may be in use by a server or an app, and may be damaged: SQLite's own errors become
problems that name the table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ._report import Problems

CHECK_LINES_MAX = 20

INT, TEXT, BLOB = (int,), (str,), (bytes,)
INT_OR_NULL, BLOB_OR_NULL, TEXT_OR_NULL = (int, type(None)), (bytes, type(None)), (str, type(None))
Types = tuple[type, ...]

SERVER_TABLES = {
    "store",
    "sessions",
    "clients",
    "devices",
    "log",
    "records",
    "conflicts",
    "refusals",
    "ledger",
    "ledger_identities",
}
REPLICA_TABLES = {
    f"syncline_{name}"
    for name in (
        "meta",
        "sessions",
        "records",
        "outbox",
        "entries",
        "consumed",
        "refused",
        "conflicts",
    )
}


class DataFile:
    """One read transaction on a file. Everything read through it is of one moment."""

    def __init__(self, path: str | Path, problems: Problems) -> None:
        self.path = Path(path)
        self.problems = problems
        self._db: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._db = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None
            )
            self._db.text_factory = _text
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "busy_timeout=5000"):
                self._db.execute(f"PRAGMA {pragma}")
            self._db.execute("BEGIN")
        except sqlite3.Error as error:
            self.problems.add(f"the file cannot be opened: {_plain(error)}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._db is not None:
            self._db.close()

    def kind(self) -> str:
        """Whose file it is, by its tables: "server", "replica" or "unknown"."""
        tables = {
            name
            for (name,) in self._fetch(
                "sqlite_schema", "SELECT name FROM sqlite_schema WHERE type = 'table'", ()
            )
        }
        for kind, wanted in (("server", SERVER_TABLES), ("replica", REPLICA_TABLES)):
            missing = sorted(wanted - tables)
            if len(missing) < len(wanted) / 2:
                for name in missing:
                    self.problems.add(f"table {name} is missing")
                return kind
        self.problems.add("this is not a file of a Syncline server or replica")
        return "unknown"

    def check_pages(self) -> None:
        """SQLite's own check of pages, indexes and types."""
        rows = self._fetch("the file", f"PRAGMA integrity_check({CHECK_LINES_MAX})", ())
        for (line,) in rows:
            if line != "ok":
                self.problems.add(f"SQLite finds damage: {line!a}")

    def rows(
        self,
        table: str,
        columns: Mapping[str, Types],
        keys: int = 1,
        **where: int,
    ) -> Iterator[tuple[Any, ...]]:
        """Rows in the order of their first ``keys`` columns; a row of wrong types is skipped.

        ``where`` names columns and what they must equal.
        """
        sql = f"SELECT {', '.join(columns)} FROM {table}"
        if where:
            sql += f" WHERE {' AND '.join(f'{name} = ?' for name in where)}"
        sql += f" ORDER BY {', '.join(list(columns)[:keys])}"
        for row in self._fetch(table, sql, tuple(where.values())):
            wrong = [
                name
                for (name, types), value in zip(columns.items(), row, strict=True)
                if type(value) not in types
            ]
            if wrong:
                key = ", ".join(ascii(value) for value in row[:keys])
                self.problems.add(f"{table} row {key} has a {wrong[0]} of the wrong type")
            else:
                yield row

    def _fetch(self, table: str, sql: str, args: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
        if self._db is None:
            return
        try:
            yield from self._db.execute(sql, args)
        # A damaged length can ask for more memory than there is, and SQLite quotes damaged text in
        # messages that are then no text.
        except (sqlite3.Error, MemoryError, OverflowError, UnicodeDecodeError) as error:
            self.problems.add(f"{table} cannot be read: {_plain(error)}")


def _text(data: bytes) -> str:
    """Text that may be damaged: what is not UTF-8 stays visible as lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def _plain(error: BaseException) -> str:
    return ascii(str(error) or type(error).__name__)[1:-1]
