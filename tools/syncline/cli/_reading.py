"""Reading a replica's or a server's data file, while an app or a server may have it open.

One read transaction with ``mode=ro``: nothing is written, nothing is locked for long, and all that
one command shows is of one moment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.sync import (
    HEADER_COLLECTION,
    HEADER_ID,
    Conflict,
    Damaged,
    Entry,
    MalformedFrame,
    NewerFormat,
    NotAReplica,
    NotFound,
    Record,
    decode_conflict,
    unpack,
    wal_reset_fault,
)

KINDS = {0x53594E53: ("server", 2), 0x53594E52: ("replica", 1)}
"""By application id: whose file it is, and the newest format of such files that is read here."""
BUSY_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as the file has it. ``rows`` is the number under which its state rows stand.

    On a server nothing is pending; ``paused`` is why a replica's session does not sync.
    """

    number: int
    rows: int
    id: str
    label: str
    epoch: int
    seq: int
    hash: bytes | None
    paused: str | None


class DataReader:
    """An open file. ``kind`` is "server" or "replica"."""

    def __init__(self, db: sqlite3.Connection, kind: str) -> None:
        self.kind = kind
        self._db = db
        self._server = kind == "server"
        self._prefix = "" if self._server else "syncline_"

    def identity(self) -> dict[str, Any]:
        """Whose file it is; of a replica also how its connection stands, since when and why."""
        table = "store" if self._server else "syncline_meta"
        values = dict(self._db.execute(f"SELECT key, value FROM {table}"))
        if self._server:
            return {key: values.get(key) for key in ("store_id", "epoch")}
        link = unpack(values["link"]) if "link" in values else {}
        return {
            "client": values.get("client"),
            "connection": link.get("state", "never connected"),
            "reason": link.get("reason"),
            "url": link.get("url"),
            "since": link.get("since"),
            "synced_at": values.get("synced_at"),
        }

    def library(self) -> dict[str, Any]:
        """The SQLite that reads here, and how the file is kept.

        ``wal_guard``: whether this library has the WAL-reset fault, so that replicas on it take one
        more lock around every commit (see docs/architecture.md).
        """
        (journal,) = self._db.execute("PRAGMA journal_mode").fetchone()
        return {
            "sqlite": sqlite3.sqlite_version,
            "journal_mode": journal,
            "wal_guard": wal_reset_fault(sqlite3.sqlite_version_info),
        }

    def sessions(self, only: str | None = None) -> list[SessionInfo]:
        """By id; ``only`` one of them. Raises NotFound (3113)."""
        if self._server:
            sql = "SELECT session, session, id, label, epoch, seq, hash, NULL FROM sessions"
        else:
            sql = (
                "SELECT session, gen, id, '', epoch, seq, hash, paused_reason"
                " FROM syncline_sessions"
            )
        rows = [SessionInfo(*row) for row in self._db.execute(f"{sql} ORDER BY id")]
        if only is not None:
            rows = [row for row in rows if row.id == only]
            if not rows:
                raise NotFound(f"there is no session {only} in this file")
        return rows if self._server else [self._with_label(row) for row in rows]

    def _with_label(self, row: SessionInfo) -> SessionInfo:
        label = ""
        for _, fields in self.records(row, HEADER_COLLECTION, HEADER_ID):
            value = fields.get("label")
            label = value if isinstance(value, str) else ""
        return SessionInfo(
            row.number, row.rows, row.id, label, row.epoch, row.seq, row.hash, row.paused
        )

    def records(
        self, session: SessionInfo, collection: str | None = None, id_: str | None = None
    ) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
        """The records that show, by collection and id; Syncline's own only when asked for."""
        key = "session" if self._server else "gen"
        sql = f"SELECT collection, id, state FROM {self._prefix}records WHERE {key} = ?"
        args: list[Any] = [session.rows]
        for name, value in (("collection", collection), ("id", id_)):
            if value is not None:
                sql += f" AND {name} = ?"
                args.append(value)
        for its_collection, its_id, state in self._db.execute(f"{sql} ORDER BY 1, 2", args):
            if collection is None and its_collection == HEADER_COLLECTION:
                continue
            visible = Record.decode(state).visible if state else None
            if visible is not None:
                yield (its_collection, its_id), visible

    def log(self, session: SessionInfo, after: int, limit: int) -> Iterator[Entry]:
        """Entries with a seq above ``after``."""
        table = "log" if self._server else "syncline_entries"
        rows = self._db.execute(
            f"SELECT entry FROM {table} WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
            (session.number, after, limit),
        )
        for (data,) in rows:
            yield Entry.decode(data)

    def conflicts(self, session: SessionInfo) -> Iterator[Conflict]:
        """The open ones."""
        key = "session" if self._server else "gen"
        rows = self._db.execute(
            f"SELECT conflict FROM {self._prefix}conflicts WHERE {key} = ? AND closed = 0"
            + ("" if self._server else " AND closing_n IS NULL")
            + " ORDER BY id",
            (session.rows,),
        )
        for (data,) in rows:
            conflict = decode_conflict(data)
            if isinstance(conflict, Conflict):
                yield conflict

    def counts(self, session: SessionInfo) -> dict[str, Any]:
        """How much there is of a session, and what waits or was refused."""
        counts: dict[str, Any] = {"conflicts": sum(1 for _ in self.conflicts(session))}
        if self._server:
            for name, table in (("clients", "clients"), ("refused", "refusals")):
                counts[name] = self._count(table, session)
            return counts
        counts["refused"] = self._count("syncline_refused", session)
        counts["pending"], counts["pending_since"] = self._db.execute(
            "SELECT count(*), min(written_at) FROM syncline_outbox WHERE session = ?",
            (session.number,),
        ).fetchone()
        return counts

    def _count(self, table: str, session: SessionInfo) -> int:
        sql = f"SELECT count(*) FROM {table} WHERE session = ?"
        (count,) = self._db.execute(sql, (session.number,)).fetchone()
        return int(count)


@contextmanager
def open_data(path: str) -> Iterator[DataReader]:
    """Open a data file to read.

    Raises NotFound (3113), NotAReplica (3101), NewerFormat (3104), or Damaged (3102) for whatever
    turns out wrong while reading.
    """
    if not Path(path).is_file():
        raise NotFound(f"there is no file {path}", path=path)
    db = None
    try:
        db = sqlite3.connect(
            f"{Path(path).resolve().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            timeout=BUSY_TIMEOUT_S,
        )
        db.execute("BEGIN")
        yield DataReader(db, _kind(db, path))
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise NotAReplica(f"{path} is not a Syncline file", path=path) from error
        raise Damaged(f"{path} cannot be read: {error}", path=path) from error
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} holds text that is not UTF-8", path=path) from error
    except MalformedFrame as error:
        raise Damaged(f"{path} holds a row that cannot be read: {error.reason}") from error
    finally:
        if db is not None:
            db.close()


def _kind(db: sqlite3.Connection, path: str) -> str:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application not in KINDS:
        raise NotAReplica(f"{path} is not a Syncline file", path=path)
    kind, newest = KINDS[application]
    if version > newest:
        raise NewerFormat(f"{path} has format {version}, this version reads up to {newest}")
    return kind
