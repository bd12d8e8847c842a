"""The replica's rows as data, and the statements that read and write them.

Every function takes the connection of a transaction that its caller holds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from syncline.sync import (
    NO_HASH,
    NUMBER_MAX,
    Change,
    Dot,
    Entry,
    NotFound,
    Record,
    decode_body,
    decode_stamps,
    in_parts,
    pack,
    unpack,
)


@dataclass(slots=True)
class SessionState:
    """A session's row. ``key`` is its local number; see ``_schema`` for ``gen`` and ``boot``.

    ``settled_n`` is the highest own number that is no longer pending, ``settled_running`` the
    running hash there. ``vector`` holds the last number of each client seen in the log.
    """

    key: int
    id: str
    gen: int
    epoch: int
    seq: int
    hash: bytes | None
    floor: int
    floor_hash: bytes | None
    settled_n: int
    settled_running: bytes
    vector: dict[str, int]
    paused_code: int | None
    paused_reason: str | None
    created_at: int
    boot: Boot | None

    def save(self, db: sqlite3.Connection) -> None:
        db.execute(
            "UPDATE syncline_sessions SET gen=?, epoch=?, seq=?, hash=?, floor=?, floor_hash=?,"
            " settled_n=?, settled_running=?, vector=?, paused_code=?, paused_reason=?, boot=?"
            " WHERE session=?",
            (
                self.gen,
                self.epoch,
                self.seq,
                self.hash,
                self.floor,
                self.floor_hash,
                self.settled_n,
                self.settled_running,
                pack(self.vector),
                self.paused_code,
                self.paused_reason,
                None if self.boot is None else self.boot.encode(),
                self.key,
            ),
        )


@dataclass(slots=True)
class Boot:
    """A bootstrap under way: rows go to generation ``gen``, nothing of it shows.

    ``after`` is the cursor of the next page (None: all pages are here). ``begin`` is the head when
    the transfer began, ``cursor`` how far entries were folded in since, and ``target`` the head of
    the last page, at which it shows. Each is ``(epoch, seq, hash)``. One that heals a replica whose
    log is gone goes on from ``common``: all entries held above it came with the bootstrap.
    """

    gen: int
    after: bytes | None = b""
    begin: tuple[int, int, bytes] | None = None
    cursor: tuple[int, int, bytes] | None = None
    target: tuple[int, int, bytes] | None = None
    vector: dict[str, int] = field(default_factory=dict)
    healing: bool = False
    common: int = 0

    def encode(self) -> bytes:
        return pack(
            [
                self.gen,
                self.after,
                self.begin,
                self.cursor,
                self.target,
                self.vector,
                self.healing,
                self.common,
            ]
        )

    @staticmethod
    def decode(data: bytes) -> Boot:
        gen, after, begin, cursor, target, vector, healing, common = unpack(data)
        begin, cursor, target = map(_point, (begin, cursor, target))
        return Boot(gen, after, begin, cursor, target, vector, healing, common)


def _point(row: list[Any] | None) -> tuple[int, int, bytes] | None:
    return None if row is None else (row[0], row[1], row[2])


_SESSION = (
    "SELECT session, id, gen, epoch, seq, hash, floor, floor_hash, settled_n, settled_running,"
    " vector, paused_code, paused_reason, created_at, boot FROM syncline_sessions"
)


def _session(row: tuple[Any, ...]) -> SessionState:
    *plain, boot = row
    plain[10] = unpack(plain[10])
    plain.append(None if boot is None else Boot.decode(boot))
    return SessionState(*plain)


def session_row(db: sqlite3.Connection, id_: str) -> SessionState:
    """The session's row. Raises NotFound (3113)."""
    row = db.execute(f"{_SESSION} WHERE id=?", (id_,)).fetchone()
    if row is None:
        raise NotFound(f"there is no session {id_} in this replica")
    return _session(row)


def session_rows(db: sqlite3.Connection) -> list[SessionState]:
    return [_session(row) for row in db.execute(f"{_SESSION} ORDER BY id")]


def add_session(db: sqlite3.Connection, id_: str, now: int) -> SessionState:
    """The session's row, made if it is not there."""
    db.execute(
        "INSERT INTO syncline_sessions (id, gen, settled_running, vector, created_at)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        (id_, next_gen(db), NO_HASH, pack({}), now),
    )
    return session_row(db, id_)


def next_gen(db: sqlite3.Connection) -> int:
    """A generation that no row has: never used twice, since old rows are dropped lazily."""
    (gen,) = db.execute(
        "SELECT coalesce(max(value), 0) + 1 FROM syncline_meta WHERE key='gen'"
    ).fetchone()
    set_meta(db, "gen", gen)
    return int(gen)


def meta(db: sqlite3.Connection, key: str, default: Any = None) -> Any:
    row = db.execute("SELECT value FROM syncline_meta WHERE key=?", (key,)).fetchone()
    return default if row is None else row[0]


def set_meta(db: sqlite3.Connection, key: str, value: Any) -> None:
    db.execute("INSERT OR REPLACE INTO syncline_meta (key, value) VALUES (?, ?)", (key, value))


def runtime_version(db: sqlite3.Connection, session: int) -> int:
    """How often what the session runtime keeps has changed in this file; see ``count_change``."""
    return int(meta(db, f"version:{session}", 0))


def count_change(db: sqlite3.Connection, session: int) -> int:
    """Count a change of what the session runtime keeps, by whomever; the version then.

    It never goes back: a rollback is a change like any other.
    """
    version = runtime_version(db, session) + 1
    set_meta(db, f"version:{session}", version)
    return version


class Pending(NamedTuple):
    """An op in the outbox. ``body`` is None for a void number (see ``VoidOp``).

    ``lost_seq`` is where the op stood in a log that its server has forgotten.
    """

    n: int
    salt: bytes | None
    stamps: tuple[int, ...]
    body: bytes | None
    running: bytes
    former: Dot | None
    sent: bool
    written_at: int
    lost_seq: int | None = None

    @property
    def changes(self) -> list[Change]:
        return [] if self.body is None else decode_body(self.body)


def pending_again(entry: Entry, n: int, running: bytes, former: Dot | None, now: int) -> Pending:
    """The op of an entry that the log no longer holds (or not there), to be pushed once more."""
    if entry.erased:
        # Its content is gone for good: all that can be given back is that the number was used.
        return Pending(n, None, (), None, running, None, True, now)
    stamps = tuple(accepted.stamp.updated_at for accepted in entry.read())
    return Pending(n, entry.salt, stamps, entry.body, running, former, True, now, entry.seq)


_PENDING = (
    "SELECT n, salt, stamps, body, running, former_client, former_n, sent, written_at, lost_seq"
    " FROM syncline_outbox WHERE session=?"
)


def _pending(row: tuple[Any, ...]) -> Pending:
    n, salt, stamps, body, running, client, former_n, sent, written_at, lost_seq = row
    former = None if client is None else Dot(client, former_n)
    read = () if stamps is None else decode_stamps(stamps)
    return Pending(n, salt, read, body, running, former, bool(sent), written_at, lost_seq)


def pending_ops(
    db: sqlite3.Connection,
    session: int,
    after: int = 0,
    limit: int = -1,
    *,
    through: int = NUMBER_MAX,
) -> Iterator[Pending]:
    """The outbox of a session in the order of its numbers, read as it is consumed."""
    rows = db.execute(
        f"{_PENDING} AND n>? AND n<=? ORDER BY n LIMIT ?", (session, after, through, limit)
    )
    return map(_pending, rows)


def pending_op(db: sqlite3.Connection, session: int, n: int) -> Pending | None:
    row = db.execute(f"{_PENDING} AND n=?", (session, n)).fetchone()
    return None if row is None else _pending(row)


def put_pending(db: sqlite3.Connection, session: int, op: Pending) -> None:
    """Insert or replace one op of the outbox."""
    db.execute(PUT_PENDING, pending_values(session, op))


PUT_PENDING = (
    "INSERT OR REPLACE INTO syncline_outbox (session, n, salt, stamps, body, running,"
    " former_client, former_n, sent, written_at, lost_seq)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def pending_values(session: int, op: Pending) -> tuple[Any, ...]:
    """What ``PUT_PENDING`` takes."""
    client, former_n = op.former if op.former is not None else (None, None)
    stamps = None if op.body is None else pack(op.stamps)
    return (
        session,
        op.n,
        op.salt,
        stamps,
        op.body,
        op.running,
        client,
        former_n,
        op.sent,
        op.written_at,
        op.lost_seq,
    )


def drop_pending(db: sqlite3.Connection, session: int, numbers: Sequence[int]) -> None:
    """Take these ops out of the outbox."""
    runs: list[tuple[int, int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], n
        else:
            runs.append((n, n))
    db.executemany(
        "DELETE FROM syncline_outbox WHERE session=? AND n BETWEEN ? AND ?",
        [(session, *run) for run in runs],
    )


def lowest_pending(db: sqlite3.Connection, session: SessionState) -> int:
    """The lowest number still in the outbox, or the number that the next write will get."""
    (lowest,) = db.execute(
        "SELECT min(n) FROM syncline_outbox WHERE session=?", (session.key,)
    ).fetchone()
    return session.settled_n + 1 if lowest is None else int(lowest)


def last_own(db: sqlite3.Connection, session: SessionState) -> tuple[int, bytes]:
    """The number of the last own op, pending or settled, and the running hash there."""
    row = db.execute(
        "SELECT n, running FROM syncline_outbox WHERE session=? ORDER BY n DESC LIMIT 1",
        (session.key,),
    ).fetchone()
    if row is None or row[0] < session.settled_n:
        return session.settled_n, session.settled_running
    return row[0], row[1]


def running_at(db: sqlite3.Connection, session: SessionState, n: int) -> bytes | None:
    """The running hash at an own number; None when this replica no longer holds it."""
    if n == 0:
        return NO_HASH
    if n == session.settled_n:
        return session.settled_running
    for table in ("syncline_outbox", "syncline_entries", "syncline_consumed"):
        row = db.execute(
            f"SELECT running FROM {table} WHERE session=? AND n=?", (session.key, n)
        ).fetchone()
        if row is not None:
            return bytes(row[0])
    return None


def settle_number(session: SessionState, n: int, running: bytes) -> None:
    """Note that an own number is no longer pending (the caller saves the row)."""
    if n > session.settled_n:
        session.settled_n, session.settled_running = n, running


@dataclass(slots=True)
class RecordState:
    """A record's row: what the app sees and, while something is pending, what the log says.

    ``has_base`` says that ``base`` counts (it may be None: the log holds no such record); without
    it the two are the same.
    """

    visible: Record | None
    base: Record | None
    has_base: bool
    seq: int

    @property
    def canonical(self) -> Record | None:
        return self.base if self.has_base else self.visible

    @staticmethod
    def of(stored: StoredRecord | None) -> RecordState:
        """The row as it is stored; None for one that is not there."""
        if stored is None:
            return RecordState(None, None, False, 0)
        base = None if stored.base is None else _record(stored.base)
        return RecordState(_record(stored.state), base, stored.base is not None, stored.seq)


class StoredRecord(NamedTuple):
    """A record's row, not decoded; see ``_schema``."""

    id: str
    state: bytes
    base: bytes | None
    seq: int


def record_state(db: sqlite3.Connection, gen: int, collection: str, id_: str) -> RecordState:
    row = db.execute(
        "SELECT id, state, base, seq FROM syncline_records WHERE gen=? AND collection=? AND id=?",
        (gen, collection, id_),
    ).fetchone()
    return RecordState.of(None if row is None else StoredRecord(*row))


def stored_records(
    db: sqlite3.Connection, gen: int, keys: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], StoredRecord]:
    """Those of these records that have a row, read a few dozen at a time."""
    ids: dict[str, list[str]] = {}
    for collection, id_ in keys:
        ids.setdefault(collection, []).append(id_)
    found = {}
    for collection, wanted in ids.items():
        for marks, part in in_parts(wanted):
            rows = db.execute(
                "SELECT id, state, base, seq FROM syncline_records"
                f" WHERE gen=? AND collection=? AND id IN ({marks})",
                (gen, collection, *part),
            )
            for row in map(StoredRecord._make, rows):
                found[collection, row.id] = row
    return found


def _record(data: bytes) -> Record | None:
    return Record.decode(data) if data else None


def put_record(
    db: sqlite3.Connection, gen: int, collection: str, id_: str, row: RecordState
) -> None:
    """Write the record's row; a row that nobody needs goes."""
    db.execute(*put_record_statement(gen, collection, id_, row))


PUT_RECORD = (
    "INSERT OR REPLACE INTO syncline_records (gen, collection, id, alive, seq, state, base)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
DROP_RECORD = "DELETE FROM syncline_records WHERE gen=? AND collection=? AND id=?"


def canonical_records(
    db: sqlite3.Connection, gen: int
) -> Iterator[tuple[tuple[str, str], int, Record]]:
    """Each record that the log has: its key, the seq of its last entry, and what the log says."""
    rows = db.execute(
        "SELECT collection, id, seq, coalesce(base, state) FROM syncline_records WHERE gen=?",
        (gen,),
    )
    for collection, id_, seq, data in rows:
        if data:
            yield (collection, id_), seq, Record.decode(data)


def put_canonical(db: sqlite3.Connection, gen: int, key: tuple[str, str], record: Record) -> None:
    """Replace what the log says of a record; what shows of pending ops is predicted anew later."""
    db.execute(
        "UPDATE syncline_records SET base=CASE WHEN base IS NULL THEN NULL ELSE :data END,"
        " state=CASE WHEN base IS NULL THEN :data ELSE state END"
        " WHERE gen=:gen AND collection=:collection AND id=:id",
        {"data": record.encode(), "gen": gen, "collection": key[0], "id": key[1]},
    )


def put_record_statement(
    gen: int, collection: str, id_: str, row: RecordState
) -> tuple[str, tuple[Any, ...]]:
    if row.visible is None and (not row.has_base or row.base is None):
        return DROP_RECORD, (gen, collection, id_)
    return PUT_RECORD, record_values(gen, collection, id_, row)


def record_values(gen: int, collection: str, id_: str, row: RecordState) -> tuple[Any, ...]:
    """What ``PUT_RECORD`` takes."""
    alive = row.visible is not None and row.visible.alive
    state = b"" if row.visible is None else row.visible.encode()
    base = None if not row.has_base else b"" if row.base is None else row.base.encode()
    return gen, collection, id_, alive, row.seq, state, base


def notice(db: sqlite3.Connection, at: int, kind: str, session: str | None, **detail: Any) -> None:
    """Keep a durable word of what went beyond the ordinary: a healing, a clone, a wrong clock."""
    db.execute(
        "INSERT INTO syncline_notices (at, kind, session, detail) VALUES (?, ?, ?, ?)",
        (at, kind, session, pack(detail)),
    )
