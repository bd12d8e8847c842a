"""A replica's disk in memory: what a power cut takes, and disks that fail.

The replica runs its real SQL on a SQLite database in memory; after each commit the disk keeps an
image of it. A commit with ``synchronous=FULL`` is durable at once, one with ``NORMAL`` only with
the next durable one: a power cut goes back to the last durable image, a crash of the process to
the last committed one. Faults are armed and strike at a coming commit.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

CommitFault = Literal[
    "crash before", "crash after", "error before", "error after", "power before", "power after"
]
COMMIT_FAULTS: tuple[CommitFault, ...] = (
    "crash before",
    "crash after",
    "error before",
    "error after",
    "power before",
    "power after",
)


class Crash(BaseException):
    """The process is gone. Not an Exception: nothing in the product may survive it."""


@dataclass(slots=True)
class Armed:
    """A fault that strikes at a coming commit, after ``skip`` others."""

    kind: CommitFault
    skip: int


class SimConnection(sqlite3.Connection):
    """A connection whose commits go through the disk."""

    disk: Disk[Any]
    changes_before = -1
    """How many changes this connection had made when its transaction began."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT":
            made: sqlite3.Cursor = self.disk.commit(
                self, lambda: super(SimConnection, self).execute(sql)
            )
            return made
        if sql.startswith("BEGIN"):
            self.changes_before = self.total_changes
        if sql.startswith("INSERT") and self.disk.full and self.in_transaction:
            self.disk.struck("disk full")
            raise _sqlite_error("database or disk is full", "SQLITE_FULL", 13)
        return super().execute(sql, parameters)


_ImageT = TypeVar("_ImageT")


class Disk(Generic[_ImageT]):
    """One device's disk; what it remembers after each commit is an image of all that lies on it."""

    def __init__(self, rng: random.Random, on_fault: Callable[[str], None]) -> None:
        self._rng = rng
        self._on_fault = on_fault
        self._committed: _ImageT | None = None
        self._durable: _ImageT | None = None
        self._armed: Armed | None = None
        self.full = False
        self.commits = 0
        self.older: list[_ImageT] = []

    def connect(self, path: Path, /) -> sqlite3.Connection:
        """Open what survived."""
        raise NotImplementedError

    def _image(self, connection: SimConnection, *, forced: bool) -> _ImageT:
        raise NotImplementedError

    def commit(self, connection: SimConnection, really: Callable[[], Any]) -> Any:
        """Commit, keep the image, and let an armed fault strike."""
        if connection.total_changes == connection.changes_before:
            return really()  # It only read.
        self.commits += 1
        fault = self._due()
        if fault is not None and fault.endswith("before"):
            self._strike(fault)
        cursor = really()
        (synchronous,) = sqlite3.Connection.execute(connection, "PRAGMA synchronous").fetchone()
        self._committed = self._image(connection, forced=synchronous >= 2)
        if synchronous >= 2 or self._durable is None:
            self._durable = self._committed
        if fault is not None:
            self._strike(fault)
        return cursor

    def arm(self, kind: CommitFault, skip: int) -> None:
        self._armed = Armed(kind, skip)

    def disarm(self) -> None:
        self._armed, self.full = None, False

    def struck(self, kind: str) -> None:
        self._on_fault(kind)

    def _due(self) -> CommitFault | None:
        if self._armed is None:
            return None
        if self._armed.skip:
            self._armed.skip -= 1
            return None
        kind, self._armed = self._armed.kind, None
        return kind

    def _strike(self, fault: CommitFault) -> None:
        self._on_fault(fault)
        if fault.startswith("power"):
            self.lose_power()
        if fault.startswith("error"):
            raise _sqlite_error("disk I/O error", "SQLITE_IOERR_WRITE", 778)
        raise Crash(fault)

    def lose_power(self) -> bool:
        """What was committed but not durable is gone; whether anything was."""
        lost = self._committed != self._durable
        self._committed = self._durable
        return lost

    def keep_copy(self) -> None:
        """Remember how the file is now, for a later restore of it."""
        if self._committed is not None:
            self.older.append(self._committed)

    def restore(self) -> bool:
        """The file is replaced by an older copy of itself; whether that changed anything."""
        if not self.older:
            return False
        image = self._rng.choice(self.older)
        changed = image != self._committed
        self._committed = self._durable = image
        return changed

    def copy_to(self, other: Disk[_ImageT]) -> None:
        other._committed = other._durable = self._committed


class MemoryDisk(Disk[bytes]):
    """A disk in memory: SQLite's own image of a database that never was a file."""

    def connect(self, path: Path, /) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=SimConnection
        )
        connection.disk = self
        if self._committed is not None:
            connection.deserialize(self._committed)
        else:
            connection.execute("PRAGMA page_size=512")
        return connection

    def _image(self, connection: SimConnection, *, forced: bool) -> bytes:
        return connection.serialize()


def _sqlite_error(message: str, name: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorname = name
    error.sqlite_errorcode = code
    return error
