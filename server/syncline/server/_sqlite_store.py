"""The store on one SQLite file: the default of a server.

One connection writes, checkpoints and reads, in the process that holds the lock on
``<path>-lock``. That makes SQLite's WAL-reset fault (3.7.0 to 3.51.2, see
``syncline.sync.wal_reset_fault``) unreachable with any library: it takes two connections, of which
one commits while the other checkpoints. Tools read the file with ``mode=ro``, which does neither.
Nothing is mapped into memory, since that made the damage of the fault worse.

A commit that answers with an error is neither done nor failed until the file has said so. Each
commit leaves a token of its own in the table ``store``; after an error the connection is closed,
with all that it cached, and a new one reads the token: then the commit was durable after all, or
nothing of it was stored. Checkpoints run apart from commits, so that a full disk found out while
copying pages never makes a durable commit report an error.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from syncline.sync import (
    Damaged,
    LocalError,
    MalformedFrame,
    UnknownRecord,
    WriteUnknown,
    decode_conflict,
    wal_reset_fault,
)

from ._snapshot import Rows, cut_part
from ._sqlite_file import (
    WAL_BYTES_MAX,
    FileLock,
    check_path,
    create_file,
    local_error,
    open_file,
)
from ._sqlite_transaction import HEAD_BY_ID, LOG_COLUMNS, SessionNumbers, SqliteTransaction
from ._store import (
    Head,
    Identity,
    LastOp,
    LogRow,
    RecordRow,
    SealedRow,
    SessionRow,
    SnapshotPart,
    Transaction,
)

_log = logging.getLogger("syncline.server")


class SqliteStore:
    """A store in the file ``path``, which is made unless ``create`` is False.

    Raises FileInUse (3112) when another server has it, NotAReplica (3101), Damaged (3102),
    ReadOnly (3103) or NewerFormat (3104) when the file cannot serve, and leaves it as it is.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        # Another name of the same file must lead to the same lock.
        self.path = Path(path).resolve()
        check_path(self.path, create=create)
        self._lock = FileLock(self.path)
        self._db: sqlite3.Connection | None = None
        self._closed = False
        self._tokens = (f"{uuid.uuid4().hex}-{number}" for number in count())
        self._wal = Path(f"{self.path}-wal")
        self._wal_bytes = 0
        self._wal_bytes_goal = WAL_BYTES_MAX
        try:
            if create:
                create_file(self.path)
            self._open(initialise=create)
        except BaseException:
            self._lock.release()
            raise
        fault = wal_reset_fault(sqlite3.sqlite_version_info)
        _log.info(
            "%s is open; SQLite %s%s",
            self.path,
            sqlite3.sqlite_version,
            " has the WAL-reset fault, which one connection never meets" if fault else "",
        )

    def identity(self) -> Identity:
        return self._identity

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        db = self._connection()
        if db.in_transaction:
            raise AssertionError("a transaction inside a transaction")
        before = db.total_changes
        made = SqliteTransaction(db, self._numbers, self._identity.epoch, self._translated)
        try:
            with self._errors():
                db.execute("BEGIN IMMEDIATE")
            yield made
            made.check()
            token = next(self._tokens) if db.total_changes != before else None
            if token is not None:
                with self._errors():
                    db.execute("UPDATE store SET value = ? WHERE key = 'last_commit'", (token,))
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                self._find_out(token, error)
        except BaseException:
            self._roll_back(db, made)
            raise

    def head(self, session: str) -> Head | None:
        row = self._one(HEAD_BY_ID, (session,))
        return None if row is None else Head(*row)

    def last_op(self, session: str, client: str) -> LastOp | None:
        row = self._one(
            "SELECT n, running FROM clients WHERE session = ? AND client = ?",
            (self._number(session), client),
        )
        return None if row is None else LastOp(*row)

    def sessions(self, after: str, limit: int) -> list[SessionRow]:
        rows = self._rows(
            "SELECT id, label, epoch, seq FROM sessions WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        return [SessionRow(*row) for row in rows]

    def entries(self, session: str, after: int, bytes_max: int, items_max: int) -> list[LogRow]:
        rows = self._rows(
            f"SELECT {LOG_COLUMNS} FROM log WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
            (self._number(session), after, max(1, items_max)),
        )
        size = 0
        found: list[LogRow] = []
        with closing(rows):
            for row in rows:
                made = LogRow(*row)
                size += len(made.entry)
                if found and size > bytes_max:
                    break
                found.append(made)
        return found

    def hash_at(self, session: str, seq: int) -> bytes | None:
        number = self._number(session)
        if seq == 0:
            row = self._one("SELECT genesis FROM sessions WHERE session = ?", (number,))
        else:
            row = self._one("SELECT hash FROM log WHERE session = ? AND seq = ?", (number, seq))
        return None if row is None else row[0]

    def snapshot(
        self,
        session: str,
        after: bytes,
        client: str,
        pending_from: int,
        bytes_max: int,
        items_max: int,
    ) -> SnapshotPart:
        with self._errors(), self._one_moment():
            head = self.head(session)
            if head is None:
                raise UnknownRecord(f"there is no session {session}", session=session)
            number = self._number(session)
            sections = (
                partial(self._record_rows, number),
                partial(self._conflict_rows, number),
                partial(self._entry_rows, number, client, pending_from),
            )
            cut = cut_part(after, sections, bytes_max, items_max)
            vector = None
            if cut.after is None:
                sql = "SELECT client, n FROM clients WHERE session = ?"
                vector = dict(self._rows(sql, (number,)))
        return SnapshotPart(head, *cut, vector=vector)

    def ledger(self, after: int, items_max: int) -> list[SealedRow]:
        sql = "SELECT n, hash, row FROM ledger WHERE n > ? ORDER BY n LIMIT ?"
        return [SealedRow(*row) for row in self._rows(sql, (after, items_max))]

    def checkpoint(self) -> None:
        """Copy committed pages into the file when the write-ahead log has grown past its bound.

        One that fails is logged and tried again later: what is committed is safe where it is.
        """
        size = self._wal.stat().st_size if self._wal.exists() else 0
        if size < self._wal_bytes:
            self._wal_bytes_goal = WAL_BYTES_MAX  # It was reset since, and begins anew.
        self._wal_bytes = size
        if size < self._wal_bytes_goal:
            return
        # A reader may keep the log from being reset; then wait until it has grown as much again.
        self._wal_bytes_goal = size + WAL_BYTES_MAX
        try:
            self._connection().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            _log.warning("%s: the write-ahead log stays as it is: %s", self.path, error)

    def close(self) -> None:
        """Roll back what is open and let go of the file; a second call does nothing."""
        self._closed = True
        if self._db is not None:
            self._db.close()
            self._db = None
        self._lock.release()

    def _open(self, *, initialise: bool) -> None:
        db = open_file(self.path, initialise=initialise)
        try:
            values = dict(db.execute("SELECT key, value FROM store"))
            self._identity = Identity(str(values["store_id"]), int(values["epoch"]))
            self._last_commit = str(values["last_commit"])
        except (sqlite3.Error, KeyError, ValueError) as error:
            db.close()
            raise Damaged(f"{self.path} does not say what it is", path=str(self.path)) from error
        self._db = db
        self._numbers = SessionNumbers(db)

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise AssertionError("the store is closed")
        if self._db is None:
            self._open(initialise=False)
        assert self._db is not None
        return self._db

    def _roll_back(self, db: sqlite3.Connection, made: SqliteTransaction) -> None:
        for session in made.created:
            self._numbers.forget(session)
        # After some errors SQLite has rolled back by itself, or the connection is a new one.
        if self._db is db and db.in_transaction:
            try:
                db.execute("ROLLBACK")
            except sqlite3.Error as error:
                _log.warning("%s: a rollback failed, reopening: %s", self.path, error)
                db.close()
                self._db = None

    def _find_out(self, token: str | None, error: sqlite3.Error) -> None:
        """After a commit that failed to answer: returns if it is durable, raises if it is not."""
        _log.warning("%s: a commit failed to answer, reopening: %s", self.path, error)
        if self._db is not None:
            self._db.close()
            self._db = None
        try:
            self._open(initialise=False)
        except (LocalError, sqlite3.Error) as again:
            raise WriteUnknown(f"{error}; then {again.args[0]}", path=str(self.path)) from error
        if token is None or token != self._last_commit:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> Exception:
        return local_error(error, self.path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translated(error) from error

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """Reads in here see one state of the file."""
        db = self._connection()
        db.execute("BEGIN")
        try:
            yield
        finally:
            db.execute("COMMIT")

    def _number(self, session: str) -> int | None:
        with self._errors():
            self._connection()
            return self._numbers.of(session)

    def _one(self, sql: str, values: tuple[Any, ...]) -> Any:
        with self._errors():
            return self._connection().execute(sql, values).fetchone()

    def _rows(self, sql: str, values: tuple[Any, ...]) -> Generator[Any, None, None]:
        """Rows as they are wanted. A cursor left open would hold the moment that it reads, so
        whoever may stop early closes this."""
        with self._errors(), closing(self._connection().cursor()) as cursor:
            yield from cursor.execute(sql, values)

    def _record_rows(self, number: int | None, after: tuple[str, str], limit: int) -> Rows:
        sql = (
            "SELECT collection, id, seq, state FROM records"
            " WHERE session = ? AND (collection, id) > (?, ?) ORDER BY collection, id LIMIT ?"
        )
        with closing(self._rows(sql, (number, *after, limit))) as rows:
            for row in rows:
                made = RecordRow(*row)
                size = len(made.collection) + len(made.id) + len(made.state)
                yield (made.collection, made.id), size, made

    def _conflict_rows(self, number: int | None, after: tuple[str], limit: int) -> Rows:
        sql = "SELECT id, conflict FROM conflicts WHERE session = ? AND id > ? ORDER BY id LIMIT ?"
        with closing(self._rows(sql, (number, *after, limit))) as rows:
            for id_, data in rows:
                try:
                    made = decode_conflict(data)
                except MalformedFrame as error:
                    raise Damaged(f"{self.path}: conflict {id_}: {error.reason}") from error
                yield (id_,), len(data), made

    def _entry_rows(
        self, number: int | None, client: str, pending_from: int, after: tuple[int], limit: int
    ) -> Rows:
        # Both halves come out of an index; the entries themselves are read one by one.
        sql = (
            "SELECT seq FROM log WHERE session = ? AND events > 0 AND seq > ?"
            " UNION SELECT seq FROM log"
            " WHERE session = ? AND client = ? AND n >= ? AND seq > ?"
            " ORDER BY seq LIMIT ?"
        )
        values = (number, *after, number, client, pending_from, *after, limit)
        for (seq,) in list(self._rows(sql, values)):
            row = self._one(
                f"SELECT {LOG_COLUMNS} FROM log WHERE session = ? AND seq = ?", (number, seq)
            )
            made = LogRow(*row)
            yield (seq,), len(made.entry), made
