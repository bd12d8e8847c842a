"""One group's reads and writes on a server's file, inside ``BEGIN IMMEDIATE``.

An error of SQLite may have rolled the transaction back already, and what is executed after that
would commit statement by statement. So the first error is kept, and everything after it fails.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from syncline.sync import (
    Closed,
    Conflict,
    Damaged,
    Dot,
    MalformedFrame,
    in_parts,
    pack,
    unpack,
)

from ._ledger import seal
from ._sqlite_schema import SCHEMA
from ._store import (
    NO_DEVICE,
    Device,
    Head,
    LastOp,
    LedgerRow,
    LogRow,
    RecordKey,
    RecordRow,
    RefusalRow,
    SealedRow,
    check_appended,
)

LOG_COLUMNS = "seq, hash, client, n, events, entry, salt"
HEAD_BY_ID = "SELECT epoch, seq, hash, genesis, floor, label FROM sessions WHERE id = ?"


def insert_ledger(db: sqlite3.Connection, rows: Iterable[LedgerRow]) -> None:
    """Append to the ledger, within a transaction of the caller's."""
    last = db.execute("SELECT n, hash, row FROM ledger ORDER BY n DESC LIMIT 1").fetchone()
    sealings = list(seal(rows, None if last is None else SealedRow(*last)))
    db.executemany(
        "INSERT INTO ledger (n, hash, row) VALUES (?, ?, ?)",
        [sealing.sealed for sealing in sealings],
    )
    db.executemany(
        "INSERT INTO ledger_identities (n, salt, identity) VALUES (?, ?, ?)",
        [(sealing.sealed.n, sealing.salt, sealing.identity) for sealing in sealings],
    )


class SessionNumbers:
    """The numbers of sessions that exist, kept for the life of a connection; they never change."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._number_by_id: dict[str, int] = {}

    def of(self, session: str) -> int | None:
        number = self._number_by_id.get(session)
        if number is None:
            row = self._db.execute(
                "SELECT session FROM sessions WHERE id = ?", (session,)
            ).fetchone()
            if row is None:
                return None
            number = self._number_by_id[session] = row[0]
        return number

    def forget(self, session: str) -> None:
        self._number_by_id.pop(session, None)


class SqliteTransaction:
    def __init__(
        self,
        db: sqlite3.Connection,
        numbers: SessionNumbers,
        epoch: int,
        translated: Callable[[sqlite3.Error], Exception],
    ) -> None:
        self._db = db
        self._numbers = numbers
        self._epoch = epoch
        self._translated = translated
        self._last_seqs: dict[int, int] = {}
        self._failure: Exception | None = None
        self.created: list[str] = []

    def check(self) -> None:
        """Raises what went wrong before, whether or not the caller swallowed it."""
        if self._failure is not None:
            raise self._failure

    def head(self, session: str) -> Head | None:
        row = self._one(HEAD_BY_ID, (session,))
        return None if row is None else Head(*row)

    def create(self, session: str, genesis: bytes, at: int) -> Head:
        self.created.append(session)
        self._write(
            "INSERT INTO sessions (id, label, genesis, epoch, seq, hash, floor, created_at)"
            " VALUES (?, '', ?, ?, 0, ?, 0, ?)",
            [(session, genesis, self._epoch, genesis, at)],
        )
        return Head(self._epoch, 0, genesis, genesis, 0)

    def last_ops(self, session: str, clients: Collection[str]) -> dict[str, LastOp]:
        sql = "SELECT client, n, running FROM clients WHERE session = ? AND client IN"
        rows = self._among(sql, (self._number(session),), sorted(clients))
        return {client: LastOp(n, running) for client, n, running in rows}

    def records(self, session: str, keys: Collection[RecordKey]) -> dict[RecordKey, bytes]:
        number = self._number(session)
        ids: dict[str, list[str]] = {}
        for collection, id_ in sorted(keys):
            ids.setdefault(collection, []).append(id_)
        sql = "SELECT id, state FROM records WHERE session = ? AND collection = ? AND id IN"
        return {
            RecordKey(collection, id_): state
            for collection, among in ids.items()
            for id_, state in self._among(sql, (number, collection), among)
        }

    def entry_at(self, session: str, dot: Dot) -> LogRow | None:
        row = self._one(
            f"SELECT {LOG_COLUMNS} FROM log WHERE session = ? AND client = ? AND n = ?",
            (self._number(session), *dot),
        )
        return None if row is None else LogRow(*row)

    def entries_of(self, session: str, salts: Collection[bytes]) -> dict[bytes, LogRow]:
        # Left to itself, SQLite may read the whole session instead.
        sql = f"SELECT {LOG_COLUMNS} FROM log INDEXED BY log_salt WHERE session = ? AND salt IN"
        found = map(LogRow._make, self._among(sql, (self._number(session),), sorted(salts)))
        return {row.salt: row for row in found}

    def refusal_at(self, session: str, dot: Dot) -> RefusalRow | None:
        row = self._one(
            "SELECT client, n, code, reason, detail, digest, of_client, of_n FROM refusals"
            " WHERE session = ? AND client = ? AND n = ?",
            (self._number(session), *dot),
        )
        if row is None:
            return None
        client, n, code, reason, detail, digest, of_client, of_n = row
        try:
            known = unpack(detail)
        except MalformedFrame as error:
            raise Damaged(f"refusal {n} of {client}: {error.reason}") from error
        of = None if of_client is None else Dot(of_client, of_n)
        return RefusalRow(client, n, code, reason, known, digest, of)

    def append(self, session: str, rows: Sequence[LogRow]) -> None:
        if not rows:
            return
        number = self._known(session)
        check_appended(session, rows, self._last_seq(number))
        self._write(
            f"INSERT INTO log (session, {LOG_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (number, row.seq, row.hash, row.client, row.n, row.events, row.entry, row.salt)
                for row in rows
            ],
        )
        self._last_seqs[number] = rows[-1].seq

    def put_records(self, session: str, rows: Iterable[RecordRow]) -> None:
        number = self._known(session)
        self._write(
            "INSERT INTO records (session, collection, id, seq, state) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (session, collection, id)"
            " DO UPDATE SET seq = excluded.seq, state = excluded.state",
            [(number, row.collection, row.id, row.seq, row.state) for row in rows],
        )

    def put_conflicts(self, session: str, rows: Iterable[Conflict | Closed]) -> None:
        number = self._known(session)
        self._write(
            "INSERT INTO conflicts (session, id, closed, conflict) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (session, id) DO UPDATE SET closed = 1, conflict = excluded.conflict"
            " WHERE excluded.closed AND NOT conflicts.closed",
            [(number, row.id, type(row) is Closed, row.encode()) for row in rows],
        )

    def put_refusals(self, session: str, rows: Iterable[RefusalRow]) -> None:
        number = self._known(session)
        self._write(
            "INSERT INTO refusals"
            " (session, client, n, code, reason, detail, digest, of_client, of_n)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    number,
                    row.client,
                    row.n,
                    row.code,
                    row.reason,
                    pack(dict(row.detail)),
                    row.digest,
                    *(row.of or (None, None)),
                )
                for row in rows
            ],
        )

    def set_last_ops(self, session: str, ops: Mapping[str, LastOp]) -> None:
        number = self._known(session)
        self._write(
            "INSERT INTO clients (session, client, n, running) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (session, client)"
            " DO UPDATE SET n = excluded.n, running = excluded.running",
            [(number, client, last.n, last.running) for client, last in ops.items()],
        )

    def set_head(self, session: str, head: Head) -> None:
        number = self._known(session)
        row = self._one("SELECT genesis FROM sessions WHERE session = ?", (number,))
        if row is None or row[0] != head.genesis:
            raise AssertionError(f"the genesis of session {session} never changes")
        self._write(
            "UPDATE sessions SET label = ?, epoch = ?, seq = ?, hash = ?, floor = ?"
            " WHERE session = ?",
            [(head.label, head.epoch, head.seq, head.hash, head.floor, number)],
        )

    def device(self, client: str) -> Device:
        row = self._one("SELECT incarnation, principal FROM devices WHERE client = ?", (client,))
        return NO_DEVICE if row is None else Device(*row)

    def set_device(self, client: str, device: Device) -> None:
        self._write(
            "INSERT OR REPLACE INTO devices (client, incarnation, principal) VALUES (?, ?, ?)",
            [(client, *device)],
        )

    def write_ledger(self, rows: Iterable[LedgerRow]) -> None:
        self.check()
        try:
            insert_ledger(self._db, rows)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def rewrite(
        self,
        session: str,
        entries: Iterable[LogRow],
        conflicts: Iterable[Conflict],
        clients: Collection[str],
    ) -> None:
        number = self._known(session)
        # The trigger that keeps the log as it is stands aside within this transaction alone.
        self._write("DROP TRIGGER log_stands", [()])
        self._write(
            "UPDATE log SET entry = ?, salt = ? WHERE session = ? AND seq = ? AND hash = ?",
            [(row.entry, row.salt, number, row.seq, row.hash) for row in entries],
        )
        self._write(SCHEMA["log_stands"], [()])
        self._write(
            "UPDATE conflicts SET conflict = ? WHERE session = ? AND id = ? AND NOT closed",
            [(row.encode(), number, row.id) for row in conflicts],
        )
        self._write(
            "UPDATE refusals SET reason = '', detail = ? WHERE session = ? AND client = ?",
            [(pack({}), number, client) for client in clients],
        )

    def identities(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for n, identity in self._all("SELECT n, identity FROM ledger_identities ORDER BY n", ()):
            yield n, unpack(identity)

    def clear_identities(self, rows: Iterable[int]) -> None:
        self._write("DELETE FROM ledger_identities WHERE n = ?", [(n,) for n in rows])

    def _number(self, session: str) -> int | None:
        self.check()
        try:
            return self._numbers.of(session)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _known(self, session: str) -> int:
        number = self._number(session)
        if number is None:
            raise AssertionError(f"session {session} was never created")
        return number

    def _last_seq(self, number: int) -> int:
        if number not in self._last_seqs:
            row = self._one("SELECT seq FROM sessions WHERE session = ?", (number,))
            self._last_seqs[number] = row[0]
        return self._last_seqs[number]

    def _one(self, sql: str, values: tuple[Any, ...]) -> Any:
        self.check()
        try:
            return self._db.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _among(
        self, sql: str, values: tuple[Any, ...], among: Sequence[str | bytes]
    ) -> Iterator[Any]:
        """The rows of a query that ends in ``IN``, a few statements for any number of values."""
        for marks, part in in_parts(among):
            yield from self._all(f"{sql} ({marks})", (*values, *part))

    def _all(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        self.check()
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self.check()
        try:
            self._db.executemany(sql, rows)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> Exception:
        self._failure = self._translated(error)
        return self._failure
