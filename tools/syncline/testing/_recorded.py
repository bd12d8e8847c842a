"""Reading what a recording is made from: the log and the outboxes of data files, with plain SQL."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.sync import (
    Change,
    Damaged,
    Entry,
    LocalError,
    MalformedFrame,
    NotAReplica,
    NotFound,
    RecordChange,
    Stamp,
    decode_body,
    unpack,
)

BUSY_TIMEOUT_S = 5.0
SERVER, REPLICA = 0x53594E53, 0x53594E52
TABLES = {
    SERVER: ("sessions", "log"),
    REPLICA: ("syncline_sessions", "syncline_entries"),
}


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """An op as a file has it, with the stamps as accepted; ``lost`` is what its entry cost.

    Each of ``lost`` is the record's key, the field, the loser's stamp and the winner's.
    """

    client: str
    n: int
    salt: bytes
    changes: tuple[Change, ...]
    stamps: tuple[int, ...]
    in_log: bool
    lost: tuple[tuple[tuple[str, str], str, Stamp, Stamp], ...] = ()

    @property
    def dated(self) -> Iterator[tuple[Change, int]]:
        return zip(self.changes, self.stamps, strict=True)


@dataclass(frozen=True, slots=True)
class _File:
    """What one file holds of the session: rows of its log by seq up to its head, what waits."""

    path: str
    head: int
    log: dict[int, tuple[bytes, bytes]]
    waiting: tuple[RecordedOp, ...]


def read_session(files: Sequence[str | os.PathLike[str]], session: str | None) -> list[RecordedOp]:
    """The ops of the session in the order of the log, then those that wait in an outbox."""
    found = {str(path): dict(_sessions(str(path))) for path in files}
    ids = sorted({id_ for held in found.values() for id_ in held})
    if session is None and len(ids) > 1:
        raise LocalError(f"there are {len(ids)} sessions in these files, name one: {ids}")
    if not ids or (session is not None and session not in ids):
        raise NotFound(f"there is no session {session or ''} in these files".replace("  ", " "))
    chosen = ids[0] if session is None else session
    read = [_read(path, held[chosen]) for path, held in found.items() if chosen in held]
    whole = max((one for one in read if _is_whole(one)), key=lambda one: len(one.log), default=None)
    if whole is None:
        raise LocalError(
            "none of these replicas holds the log from its beginning, since they joined late:"
            " record the server's file"
        )
    for one in read:
        for seq, (hash_, _) in one.log.items():
            if seq in whole.log and whole.log[seq][0] != hash_:
                raise LocalError(f"{one.path} and {whole.path} are not of one log, from {seq} on")
    ops = [read_entry(data) for _, data in whole.log.values()]
    known = {op.salt for op in ops}
    for one in read:
        ops += [op for op in one.waiting if op.salt not in known]
        known |= {op.salt for op in one.waiting}
    return ops


def _is_whole(one: _File) -> bool:
    return list(one.log) == list(range(1, one.head + 1))


def read_entry(data: bytes) -> RecordedOp:
    """The op of an entry's bytes."""
    entry = Entry.decode(data)
    accepted = entry.read()
    return RecordedOp(
        entry.client,
        entry.n,
        entry.salt,
        tuple(one.change for one in accepted),
        tuple(one.stamp.updated_at for one in accepted),
        True,
        tuple(
            ((one.change.collection, one.change.id), lost.field, lost.loser, lost.winner)
            for one in accepted
            if one.effect is not None and isinstance(one.change, RecordChange)
            for lost in one.effect.lost
        ),
    )


def _sessions(path: str) -> list[tuple[Any, ...]]:
    with closing(_open(path)) as db:
        table, _ = TABLES[_kind(db, path)]
        return _rows(db, path, f"SELECT id, session FROM {table}")


def _read(path: str, session: int) -> _File:
    with closing(_open(path)) as db:
        db.execute("BEGIN")
        kind = _kind(db, path)
        sessions, entries = TABLES[kind]
        sql = f"SELECT seq FROM {sessions} WHERE session=?"
        ((head,),) = _rows(db, path, sql, session)
        sql = f"SELECT seq, hash, entry FROM {entries} WHERE session=? AND seq<=? ORDER BY seq"
        log = {seq: (hash_, entry) for seq, hash_, entry in _rows(db, path, sql, session, head)}
        if kind == SERVER:
            return _File(path, head, log, ())
        sql = "SELECT value FROM syncline_meta WHERE key='client'"
        ((client,),) = _rows(db, path, sql)
        sql = (
            "SELECT n, salt, body, stamps FROM syncline_outbox"
            " WHERE session=? AND body IS NOT NULL ORDER BY n"
        )
        waiting = tuple(
            RecordedOp(client, n, salt, tuple(decode_body(body)), tuple(unpack(stamps)), False)
            for n, salt, body, stamps in _rows(db, path, sql, session)
        )
        return _File(path, head, log, waiting)


def _open(path: str) -> sqlite3.Connection:
    if not Path(path).is_file():
        raise NotFound(f"there is no file {path}", path=path)
    uri = f"{Path(path).resolve().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)


def _kind(db: sqlite3.Connection, path: str) -> int:
    ((kind,),) = _rows(db, path, "PRAGMA application_id")
    if kind not in TABLES:
        raise NotAReplica(f"{path} is not a Syncline file", path=path)
    return int(kind)


def _rows(db: sqlite3.Connection, path: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    try:
        return db.execute(sql, values).fetchall()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise NotAReplica(f"{path} is not a Syncline file", path=path) from error
        raise Damaged(f"{path} cannot be read: {error}", path=path) from error
    except MalformedFrame as error:
        raise Damaged(f"{path} holds a row that cannot be read: {error.reason}") from error
