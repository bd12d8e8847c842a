"""A server's file: finding out whether it is one, locking it, opening it, naming what is wrong.

Everything that opens a server's file for writing holds ``FileLock`` first. Errors of SQLite become
those of the tree here, in one place.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import uuid
from pathlib import Path
from types import TracebackType

import portalocker

from syncline.sync import (
    Damaged,
    DiskFull,
    FileInUse,
    LocalError,
    NewerFormat,
    NotAReplica,
    ReadOnly,
)

from ._sqlite_schema import APPLICATION_ID, FORMAT, REPLICA_APPLICATION_ID, SCHEMA, STEPS

BUSY_SECONDS_MAX = 5.0
"""How long to wait for another program that writes to the file; a server's never does."""
PAGE_CACHE_KIB_MAX = 32 << 10
WAL_BYTES_MAX = 4 << 20
"""The write-ahead log is checkpointed when it is past this size: a copy of about 10 ms."""
WAL_BYTES_KEPT = 1 << 20
"""What is left of it after a reset; less than the bound, so that its size tells of the reset."""
_MAGIC = b"SQLite format 3\x00"


class FileLock:
    """The right to write to a server's file: a lock on ``<path>-lock``, held until ``release``.

    The lock file stays: deleting it would let two processes lock two files of one name. The
    operating system lets go of the lock when its process dies, however it dies.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        name = path.with_name(path.name + "-lock")
        try:
            self._file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ReadOnly(f"{name} cannot be written: {error.strerror}", path=str(path)) from error
        flags = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
        try:
            portalocker.lock(self._file, flags)
        except portalocker.AlreadyLocked as error:
            os.close(self._file)
            raise FileInUse(f"{path} is in use", path=str(path)) from error
        except portalocker.LockException as error:
            os.close(self._file)
            raise ReadOnly(f"{name} cannot be locked: {error}", path=str(path)) from error

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def check_path(path: Path, *, create: bool) -> None:
    """Raises NotAReplica unless there is a file, or a folder in which it may be made."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        if create and path.parent.is_dir():
            return
        missing = f"folder {path.parent}" if create else f"file {path}"
        raise NotAReplica(f"there is no {missing}", path=str(path)) from error
    except OSError as error:
        raise ReadOnly(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    if kind != stat.S_IFREG:
        raise NotAReplica(f"{path} is not a file", path=str(path))


def create_file(path: Path) -> None:
    """Make an empty file that only its owner may read, unless there is one; SQLite gives the files
    beside it the same mode."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise ReadOnly(f"{path} cannot be made: {error.strerror}", path=str(path)) from error
    os.close(file)
    sync_folder(path)


def sync_folder(path: Path) -> None:
    """Make the name of a new or renamed file durable."""
    if os.name == "nt":
        return  # Windows has no handle of a folder to flush, and writes names through its journal.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def open_file(path: Path, *, initialise: bool) -> sqlite3.Connection:
    """The writing connection of a server's file, every setting made; hold its lock.

    ``initialise`` makes the tables in an empty file.
    """
    db = connect(path, "rw")
    try:
        db.execute("PRAGMA synchronous = FULL")
        # Where the operating system's fsync does not reach the disk (macOS), these do.
        db.execute("PRAGMA fullfsync = ON")
        db.execute("PRAGMA checkpoint_fullfsync = ON")
        # A checkpoint within COMMIT that fails makes COMMIT report an error for a transaction
        # that is durable; so there is none.
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        db.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB_MAX}")
        if initialise and _is_empty(db):
            _initialise(db)
        check_format(db, path)
        _migrate(db)
        if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise ReadOnly(
                f"{path}: this file system has no shared memory, which write-ahead logs need",
                path=str(path),
            )
        # A file that this user may only read opens all the same (even BEGIN IMMEDIATE works), and
        # would fail at the first group; this changes no row.
        db.execute("UPDATE store SET value = '' WHERE key = ''")
    except BaseException as error:
        db.close()
        if isinstance(error, sqlite3.Error):
            raise opening_error(error, path) from error
        raise
    return db


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection with the settings that reading needs, too; raises LocalErrors.

    ``mode`` is ``rw`` or ``ro``; a connection with ``ro`` neither writes nor checkpoints.
    """
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS_MAX,
            isolation_level=None,
            # The store is used by one thread at a time, which need not be the one that opened it.
            check_same_thread=False,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise opening_error(error, path) from error
    try:
        db.execute("PRAGMA mmap_size = 0")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA trusted_schema = OFF")
    except sqlite3.Error as error:
        db.close()
        raise opening_error(error, path) from error
    return db


def check_format(db: sqlite3.Connection, path: Path) -> None:
    """Raises NotAReplica, NewerFormat or Damaged unless this is a server's file that we know."""
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application_id == REPLICA_APPLICATION_ID:
        raise NotAReplica(f"{path} is a client's replica, not a server's file", path=str(path))
    if application_id != APPLICATION_ID:
        raise NotAReplica(f"{path} is not a Syncline server's file", path=str(path))
    if version > FORMAT:
        raise NewerFormat(
            f"{path} has format {version}, and this version knows up to {FORMAT}",
            path=str(path),
            format=version,
            format_max=FORMAT,
        )
    known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    lacking = sorted(SCHEMA.keys() - known)
    if version < 1 or lacking:
        raise Damaged(f"{path} lacks some of its tables or triggers: {lacking}", path=str(path))


def _is_empty(db: sqlite3.Connection) -> bool:
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(application_id == 0 and tables == 0)


def _initialise(db: sqlite3.Connection) -> None:
    """All in one transaction: a file has all of its tables and its mark, or is empty."""
    db.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA.values():
        db.execute(statement)
    rows = [("store_id", uuid.uuid4().hex), ("epoch", 1), ("last_commit", "")]
    db.executemany("INSERT INTO store (key, value) VALUES (?, ?)", rows)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {FORMAT}")
    db.execute("COMMIT")


def _migrate(db: sqlite3.Connection) -> None:
    """Bring an older file to this format, all in one transaction."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == FORMAT:
        return
    db.execute("BEGIN IMMEDIATE")
    for step in range(version, FORMAT):
        for statement in STEPS[step]:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {FORMAT}")
    db.execute("COMMIT")


def opening_error(error: sqlite3.Error, path: Path) -> Exception:
    """What an error of SQLite means while a file is being opened."""
    if not path.exists():
        return NotAReplica(f"there is no file {path}", path=str(path))
    if _primary_code(error) == sqlite3.SQLITE_NOTADB and not _has_magic(path):
        return NotAReplica(f"{path} is not a Syncline server's file", path=str(path))
    return local_error(error, path)


def local_error(error: sqlite3.Error, path: Path) -> Exception:
    """An error of SQLite as one of the tree; a misuse of ours as an AssertionError."""
    what = f"{path}: {error}"
    kind: type[LocalError]
    match _primary_code(error):
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            kind = DiskFull
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_FORMAT:
            kind = Damaged
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            kind = ReadOnly
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            kind = FileInUse
        case sqlite3.SQLITE_CONSTRAINT:
            return AssertionError(f"the store was asked to break a rule of its own: {what}")
        case _:
            return error
    return kind(what, path=str(path))


def _primary_code(error: sqlite3.Error) -> int:
    # Errors of the module itself (a closed connection, say) carry no code of the library.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _has_magic(path: Path) -> bool:
    """Whether the file begins like one of SQLite's; only asked when no connection has it open,
    since closing any handle of a file drops all locks that the process has on it."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
