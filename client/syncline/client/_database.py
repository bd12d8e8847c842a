"""The replica's file: opening it, one writing connection a process, and what a failure means.

SQLite's own library only (the interpreter's ``sqlite3``), in WAL mode. One connection per process
writes and checkpoints, guarded by a lock between threads. Where the library has the WAL-reset fault
(SQLite 3.7.0 to 3.51.2, see ``wal_reset_fault``), commits, checkpoints and closes of *all*
processes hold one file lock as well, which keeps two of them from meeting: all the fault needs.

Automatic checkpoints are off: one that fails makes COMMIT report an error for a transaction that is
durable. ``checkpoint`` runs after a commit has been answered. When COMMIT itself fails, nobody
knows whether the transaction is durable, so the connection is reopened and ``CommitUnknown`` tells
the caller to look.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, Protocol
from urllib.parse import quote

import portalocker

from syncline.sync import (
    Damaged,
    DiskFull,
    LocalError,
    NewerFormat,
    NotAReplica,
    NotFound,
    ReadOnly,
    TimedOut,
    WriteUnknown,
    wal_reset_fault,
)

from ._schema import APPLICATION_ID, FORMAT, FORMAT_1, SHAPE, STEPS

logger = logging.getLogger("syncline.client")

Durability = Literal["full", "normal"]

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process's write before it fails."""
WAL_BYTES_MAX = 4 << 20
"""A WAL past this size is checkpointed after the commit that made it so."""
COMMITS_BETWEEN_WAL_CHECKS = 32


class ConnectionFactory(Protocol):
    """Opens the file. The testing kit passes one that has a file system of its own."""

    def __call__(self, path: Path, /) -> sqlite3.Connection: ...


class CommitUnknown(Exception):
    """COMMIT did not answer; the file was reopened, and the caller must look what is there."""


def connect(path: Path) -> sqlite3.Connection:
    """The interpreter's SQLite on this path, in autocommit mode, usable from any thread."""
    return sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


class Database:
    """One process's hold on a replica file."""

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "full",
        create: bool = True,
        factory: ConnectionFactory = connect,
        on_disk: bool = True,
    ) -> None:
        """``on_disk`` is False when the factory keeps the file elsewhere (in a simulated disk)."""
        # One file, whatever link it is opened by: its WAL and its lock lie beside it.
        self.path = path.resolve() if on_disk else path
        self.durability = durability
        self._factory = factory
        self.lock = threading.RLock()
        self._depth = 0
        self._reading = False
        self._doomed = False
        self._after_commit: list[Callable[[], None]] = []
        self.before_read: Callable[[], None] | None = None
        self._commits = 0
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._file_lock: IO[Any] | None = None
        self._on_disk = on_disk
        self.guarded = on_disk and wal_reset_fault(sqlite3.sqlite_version_info)
        fresh = on_disk and _check_path(self.path, create)
        if self.guarded:
            self._file_lock = _open_lock_file(self.path)
        try:
            self._open()
        except BaseException:
            self._release_files()
            raise
        if fresh:
            os.chmod(self.path, 0o600)

    # Opening and closing.

    def _open(self) -> None:
        with self._exclusive(), _explained(self.path):
            connection = self._factory(self.path)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        _check_identity(connection, self.path)
        connection.execute("PRAGMA journal_mode=WAL")
        self.set_durability(connection, self.durability)
        for pragma in ("wal_autocheckpoint=0", "mmap_size=0", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {pragma}")
        _migrate(connection, self.path)

    def set_durability(self, connection: sqlite3.Connection, durability: Durability) -> None:
        connection.execute(f"PRAGMA synchronous={'FULL' if durability == 'full' else 'NORMAL'}")

    def close(self) -> None:
        """Checkpoint and close. Safe to call twice."""
        with self.lock:
            self._closed = True
            if self._connection is not None:
                with self._exclusive():
                    self._connection.close()
                self._connection = None
            self._release_files()

    def _release_files(self) -> None:
        if self._file_lock is not None:
            self._file_lock.close()
            self._file_lock = None

    @property
    def connection(self) -> sqlite3.Connection:
        if self._closed:
            raise LocalError(f"the replica {self.path} is closed")
        if self._connection is None:
            self._open()  # A commit did not answer, and the file could not be read back then.
        assert self._connection is not None
        return self._connection

    def _at_rest(self) -> sqlite3.Connection:
        """The connection, in no transaction: what a second interrupt left open is rolled back."""
        connection = self.connection
        if connection.in_transaction and not self._reading:
            connection.execute("ROLLBACK")
        return connection

    def reader(self) -> sqlite3.Connection:
        """A connection of its own that cannot write, for the app's own queries."""
        return sqlite3.connect(
            f"file:{quote(str(self.path.absolute()))}?mode=ro",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            check_same_thread=False,
        )

    # Reading and writing.

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Reads that see one state of the file."""
        with self.lock, _explained(self.path):
            if self._depth or self._reading:
                if self._depth and self.before_read is not None:
                    self.before_read()
                yield self.connection
                return
            connection = self._at_rest()
            try:
                self._reading = True
                connection.execute("BEGIN")
                yield connection
            finally:
                self._reading = False
                if connection.in_transaction:
                    connection.execute("COMMIT")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is durable on leaving, or none after an exception.

        Inside another it joins that one. Raises CommitUnknown when COMMIT did not answer.
        """
        with self.lock:
            if self._depth:
                self._depth += 1
                try:
                    yield self.connection
                finally:
                    self._depth -= 1
                return
            connection = self._at_rest()
            with self._exclusive(), _explained(self.path):
                # An interrupt may come right after any call: BEGIN and what undoes it belong
                # together.
                try:
                    self._depth, self._doomed = 1, False
                    connection.execute("BEGIN IMMEDIATE")
                    yield connection
                    if self._doomed:
                        raise LocalError("a write inside this block failed; nothing was stored")
                    self._commit(connection)
                except BaseException:
                    self._after_commit.clear()
                    if self._connection is connection:  # Else a commit failed, and it is gone.
                        self._roll_back(connection)
                    raise
                finally:
                    self._depth = 0
            done, self._after_commit = self._after_commit, []
        for call in done:
            call()

    @contextlib.contextmanager
    def unforced(self) -> Iterator[sqlite3.Connection]:
        """A transaction that a power cut may take: for marks that are remade when it does."""
        with self.lock:
            if self._depth or self.durability == "normal":
                with self.transaction() as connection:
                    yield connection
                return
            try:
                self.set_durability(self.connection, "normal")
                with self.transaction() as connection:
                    yield connection
            finally:
                if self._connection is not None:
                    self.set_durability(self._connection, "full")

    @property
    def in_transaction(self) -> bool:
        with self.lock:
            return self._depth > 0

    def doom(self) -> None:
        """A write failed half-way: the transaction under way must not commit, whatever happens."""
        self._doomed = True

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call this once the transaction under way is durable and its locks are released."""
        self._after_commit.append(call)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            logger.warning("a commit of %s did not answer: %s", self.path, error)
            self._reopen(connection)
            raise CommitUnknown(str(error)) from error
        self._commits += 1
        if self._commits % COMMITS_BETWEEN_WAL_CHECKS == 0:
            self._after_commit.append(self.checkpoint)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            logger.warning("a rollback of %s failed: %s", self.path, error)
            self._reopen(connection)

    def _reopen(self, connection: sqlite3.Connection) -> None:
        """A connection that failed at a commit is not to be trusted: its caches may lie."""
        self._connection = None
        try:
            connection.close()
            fresh = self._factory(self.path)
            self._prepare(fresh)
        except sqlite3.Error as error:
            raise WriteUnknown(f"{self.path} cannot be read back: {error}") from error
        self._connection = fresh

    def checkpoint(self) -> None:
        """Move the WAL into the file when it is large. A failure costs nothing but its size."""
        wal = self.path.with_name(self.path.name + "-wal")
        with self.lock:
            if self._connection is None or self._depth or not self._on_disk:
                return
            try:
                if wal.stat().st_size <= WAL_BYTES_MAX:
                    return
                with self._exclusive():
                    self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            except (OSError, sqlite3.Error) as error:
                logger.warning("a checkpoint of %s failed: %s", self.path, error)

    def scrub(self) -> bool:
        """Write the file anew and empty its WAL, so that erased content is in no free page of it.

        Whether it was done: somebody else who reads at this moment prevents it.
        """
        with self.lock:
            if self._connection is None or self._depth or not self._on_disk:
                return False
            try:
                with self._exclusive():
                    self._connection.execute("VACUUM")
                    (busy, _, _) = self._connection.execute(
                        "PRAGMA wal_checkpoint(TRUNCATE)"
                    ).fetchone()
            except (OSError, sqlite3.Error) as error:
                logger.warning("%s could not be freed of erased content: %s", self.path, error)
                return False
            return not busy

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """The lock of all processes, where the library needs it."""
        if self._file_lock is None:
            yield
            return
        try:
            portalocker.lock(self._file_lock, portalocker.LockFlags.EXCLUSIVE)
            yield
        finally:
            portalocker.unlock(self._file_lock)


def _open_lock_file(path: Path) -> IO[Any]:
    lock = path.with_name(path.name + "-lock")
    try:
        return open(lock, "a+b")
    except OSError as error:
        raise ReadOnly(f"the lock file {lock} cannot be opened: {error.strerror}") from error


def _check_path(path: Path, create: bool) -> bool:
    """Refuse what cannot be a replica; whether the file is still to be made."""
    if path.is_dir():
        raise NotAReplica(f"{path} is a folder")
    if not path.exists() and not create:
        raise NotFound(f"there is no replica at {path}")
    if not path.parent.is_dir():
        raise NotFound(f"the folder {path.parent} does not exist")
    if path.exists() and path.stat().st_size and not _begins_like_sqlite(path):
        raise NotAReplica(f"{path} is not a replica: it is no SQLite file")
    return not path.exists()


def _begins_like_sqlite(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(16) == b"SQLite format 3\x00"
    except PermissionError as error:
        raise ReadOnly(f"{path} cannot be read: {error.strerror}") from error


def _check_identity(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse, before anything is written, a file that is not ours or not for this version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return
    if application != APPLICATION_ID:
        raise NotAReplica(f"{path} is a SQLite file, but not a Syncline replica")
    if version > FORMAT:
        raise NewerFormat(
            f"{path} has format {version}; this version of Syncline reads up to {FORMAT}"
        )
    if version < 1:
        raise Damaged(f"{path} says it has format {version}, and there never was one")
    if version == FORMAT:
        _check_shape(connection, path, version)


def _check_shape(connection: sqlite3.Connection, path: Path, version: int) -> None:
    for table, columns in SHAPE.items():
        there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if not columns <= there:
            missing = ", ".join(sorted(columns - there))
            raise Damaged(f"{path} says it has format {version}, but {table} lacks {missing}")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == FORMAT:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it while this one waited.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        _take_steps(connection, path, version)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        _check_shape(connection, path, version)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _take_steps(connection: sqlite3.Connection, path: Path, version: int) -> None:
    try:
        for statement in _statements(version):
            connection.execute(statement)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        # A table or column that is there already, or is not there.
        raise Damaged(f"{path} says it has format {version}, but: {error}") from error


def _statements(version: int) -> Iterator[str]:
    scripts = [FORMAT_1] if version == 0 else [STEPS[step] for step in range(version, FORMAT)]
    for script in scripts:
        yield from (part for part in script.split(";\n") if part.strip())


_FULL = {"SQLITE_FULL"}
_READ_ONLY = {"SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM"}
_DAMAGED = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file into ours, which say what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise explain(error, path) from error


def explain(error: sqlite3.Error, path: Path) -> Exception:
    """The error of the tree that this one of SQLite's stands for; itself when it is our bug."""
    name: str = getattr(error, "sqlite_errorname", "") or ""
    kind = "_".join(name.split("_")[:2])
    if kind in _FULL or kind == "SQLITE_IOERR":
        return DiskFull(f"{path} cannot be written: {error}")
    if kind in _READ_ONLY:
        return ReadOnly(f"{path} cannot be opened for writing: {error}")
    if kind in _DAMAGED:
        return Damaged(f"{path} is damaged: {error}")
    if kind in {"SQLITE_BUSY", "SQLITE_LOCKED"}:
        return TimedOut(f"another process has been writing to {path} for {BUSY_TIMEOUT_S:.0f} s")
    return error
