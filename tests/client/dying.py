"""Connections that die: a process that is killed at a statement, a COMMIT that does not answer.

Run as a program, it copies a replica, writes to the copy in a process of its own, and is killed
there at the first statement; then again at the second, and so on, until a write gets through.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from syncline.client import Replica, Session
from syncline.client._database import BUSY_TIMEOUT_S


class Watched(sqlite3.Connection):
    """Calls ``before`` ahead of every statement, with its text."""

    before: Callable[[sqlite3.Connection, str], None] | None = None

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if self.before is not None:
            self.before(self, sql)
        return super().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if self.before is not None:
            self.before(self, sql)
        return super().executemany(sql, *args)


def watched(path: Path) -> sqlite3.Connection:
    """A connection factory for ``Replica``."""
    return sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        factory=Watched,
    )


def commits_fail(replica: Replica, *, committed: bool, times: int = 1) -> None:
    """The next COMMITs raise: after committing all the same, or before."""
    connection = replica._core.database.connection
    assert isinstance(connection, Watched)
    left, writing = [times], [False]

    def before(db: sqlite3.Connection, sql: str) -> None:
        if sql.startswith("BEGIN"):
            writing[0] = sql == "BEGIN IMMEDIATE"
        if sql != "COMMIT" or not left[0] or not writing[0]:
            return
        left[0] -= 1
        if committed:
            sqlite3.Connection.execute(db, "COMMIT")
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        raise error

    connection.before = before


def stop_failing(replica: Replica) -> None:
    connection = replica._core.database.connection
    assert isinstance(connection, Watched)
    connection.before = None


def write(session: Session, what: str) -> None:
    """The writes to be killed in: an op of many changes, or a batch of ops."""
    if what == "op":
        with session.transaction():
            session.put("n", "old", {"x": 2})
            session.patch("n", "other", {"new field": 1})
            session.delete("n", "gone")
            session.put("a new collection", "first", {"y": 1})
            session.append("said", {"text": "hi"})
        return
    with session._core.batch():
        session.put("n", "old", {"x": 2})
        session.patch("n", "old", {"x": 3})
        session.append("said", {})


def main(source: Path, folder: Path, what: str) -> None:
    for at in range(1, 1000):
        path = folder / f"killed-{at}"
        shutil.copy(source, path)
        child = os.fork()
        if child == 0:
            replica = Replica(path, connection_factory=watched)
            session = replica.session("s")
            connection = replica._core.database.connection
            left = [at]

            def before(db: sqlite3.Connection, sql: str, left: list[int] = left) -> None:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

            connection.before = before  # type: ignore[attr-defined]
            write(session, what)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            print(at)
            return
    raise AssertionError("the write never got through")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
