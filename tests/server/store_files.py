"""Server files for tests: groups that must stay whole, child processes, failing connections."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.server.store_contract import ALL, GENESIS, add_entries, log_row

from syncline.server._sqlite_store import SqliteStore
from syncline.server._store import LastOp, RecordKey, RecordRow, Store

GROUP = 20


def write_group(store: Store) -> int:
    """Commit one group of entries, with a record and a last op that must go along."""
    head = store.head("s")
    assert head is not None
    rows = [log_row(head.seq + 1 + i) for i in range(GROUP)]
    with store.transaction() as tx:
        add_entries(tx, rows)
        tx.put_records("s", [RecordRow("c", "r", rows[-1].seq, b"%d" % rows[-1].seq)])
        tx.set_last_ops("s", {"ann": LastOp(rows[-1].seq, b"h" * 32)})
    return rows[-1].seq


def check_groups(store: Store) -> int:
    """That only whole groups are there, and everything agrees; returns the head's seq."""
    head = store.head("s")
    assert head is not None and head.seq % GROUP == 0
    rows = store.entries("s", 0, ALL, ALL)
    assert [row.seq for row in rows] == list(range(1, head.seq + 1))
    assert head.hash == (rows[-1].hash if rows else GENESIS)
    last = store.last_op("s", "ann")
    assert (0 if last is None else last.n) == head.seq
    with store.transaction() as tx:
        state = tx.records("s", [RecordKey("c", "r")])
    assert list(state.values()) == ([b"%d" % head.seq] if head.seq else [])
    return head.seq


_CHILD = (
    "import os, sys",
    "from syncline.server._sqlite_store import SqliteStore",
    "from syncline.sync import DiskFull",
    "from tests.server.store_contract import add_entries, log_row, make_session",
    "from tests.server.store_files import check_groups, write_group",
)


def start_child(*lines: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "\n".join((*_CHILD, *lines))],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_child(*lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "\n".join((*_CHILD, *lines))],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def change(path: Path, sql: str) -> None:
    """Do to a closed file what no store would."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(sql)
    db.close()


def page_count(store: SqliteStore) -> int:
    assert store._db is not None
    return int(store._db.execute("PRAGMA page_count").fetchone()[0])


class Spy:
    """Stands before the store's connection, and makes a statement fail before or after it ran."""

    def __init__(
        self,
        store: SqliteStore,
        fail: str = "",
        *,
        after: bool = False,
        error: BaseException | None = None,
    ) -> None:
        self._db, self._fail, self._after = store._db, fail, after
        self._error = error or sqlite3.OperationalError("disk I/O error")
        if isinstance(self._error, sqlite3.Error):
            self._error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        self._seen: list[str] = []
        store._db = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *values: Any) -> Any:
        assert self._db is not None
        self._seen.append(sql)
        if sql != self._fail:
            return self._db.execute(sql, *values)
        if self._after:
            self._db.execute(sql, *values)
        raise self._error

    def executed(self, sql: str) -> int:
        return self._seen.count(sql)
