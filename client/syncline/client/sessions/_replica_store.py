"""The replica as a store of sessions: what an action changes is one op, which syncs.

A session lies in records (see ``syncline.sync.sessions``), so what two devices change apart merges
field by field, and what they change at once is a conflict that is listed and can be put back.

``version`` counts the changes of the session that this file has seen: by a save, by any other write
to those records, by what came from other devices, by a bootstrap, a refusal or a rollback. So it
never goes back, and a save fails when, and only when, the session has changed since it was loaded:
in this process, in another one, or from afar. That an own write was settled, stamped again or
renumbered is no change, nor is one to other records. Each replica counts for itself; the version
never syncs, and has nothing to do with version vectors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from syncline.sync import (
    CHECKPOINT_COLLECTION,
    HEADER_COLLECTION,
    HEADER_ID,
    RUNTIME_COLLECTIONS,
    InvalidValue,
    NotFound,
    Record,
    SessionDeleted,
    Value,
    check_id,
)
from syncline.sync.sessions import (
    AgentSession,
    RecordWrite,
    SessionHeader,
    SessionRecords,
    check_creatable,
    check_savable,
    deletion,
    read_header,
    read_session,
    session_changes,
)

from .._core import Core
from .._replica import Replica
from .._rows import count_change, runtime_version, session_row
from .._writing import OpWriter
from ._ids import new_message_id

_MARKS = ", ".join("?" * len(RUNTIME_COLLECTIONS))
_COLLECTIONS = tuple(sorted(RUNTIME_COLLECTIONS))


class ReplicaSessionStore:
    """Sessions in a replica. Any number of threads and processes may use one file.

    ``new_id`` names messages that have no id yet. A deleted session keeps its id: it is deleted on
    every device, and cannot be created again.
    """

    def __init__(self, replica: Replica, *, new_id: Callable[[], str] = new_message_id) -> None:
        self.replica = replica
        self._core: Core = replica._core
        self._new_id = new_id

    def create(self, session: AgentSession) -> AgentSession:
        """See ``SessionStore``. Durable when it returns, also offline."""
        with self._core.batch():
            self._core.ensure_session(session.id)
            if self.replica.session(session.id).deleted:
                check_creatable(session, taken=True)
            with self._op(session.id) as (op, records):
                check_creatable(session, taken=records.header is not None)
                created_at = session.header.created_at or op.now
                header = replace(session.header, created_at=created_at)
                return self._write(op, records, replace(session, header=header))

    def save(self, session: AgentSession) -> AgentSession:
        """See ``SessionStore``. Durable when it returns; in the outbox as one op."""
        try:
            with self._op(session.id) as (op, records):
                version = runtime_version(self._core.database.connection, op.head.key)
                check_savable(session, version if records.there else None)
                return self._write(op, records, session)
        except (NotFound, SessionDeleted):
            check_savable(session, None)
            raise

    def load(self, session_id: str) -> AgentSession | None:
        check_id(session_id, "session id")
        with self._core.database.reading() as db:
            records, header = self._read(db, session_id)
            if header is None or not records.there:
                return None
            return read_session(
                session_id,
                records,
                version=_version(db, session_id),
                updated_at=header.life.updated_at,
            )

    def exists(self, session_id: str) -> bool:
        return self.load(session_id) is not None

    def delete(self, session_id: str) -> None:
        """Delete a session and its checkpoints, on every device."""
        check_id(session_id, "session id")
        with self._core.batch():
            if session_id not in self._core.session_ids():
                return
            if self.replica.session(session_id).deleted:
                return
            with self._op(session_id) as (op, records):
                if records.there:
                    for id_, _ in self.replica.session(session_id).records(CHECKPOINT_COLLECTION):
                        op.delete(CHECKPOINT_COLLECTION, id_, None)
                    _apply(op, deletion(records))

    def list_headers(self) -> list[SessionHeader]:
        with self._core.database.reading() as db:
            rows = db.execute(
                "SELECT s.id, r.state, coalesce(m.value, 0) FROM syncline_sessions s"
                " JOIN syncline_records r ON r.gen = s.gen AND r.collection = ? AND r.id = ?"
                " LEFT JOIN syncline_meta m ON m.key = 'version:' || s.session"
                " WHERE r.alive = 1 ORDER BY s.id",
                (HEADER_COLLECTION, HEADER_ID),
            ).fetchall()
        found = ((id_, Record.decode(state), version) for id_, state, version in rows)
        return [
            read_header(id_, record.fields, version=version, updated_at=record.life.updated_at)
            for id_, record, version in found
            if SessionRecords(record.fields).there
        ]

    def resolve_conflict(
        self, session_id: str, conflict_id: str, choice: str | Mapping[str, Value]
    ) -> None:
        """Settle an open conflict by hand; an ordinary write. Raises NotFound (3113)."""
        if isinstance(choice, str) and choice not in ("local", "remote"):
            raise InvalidValue(
                f"a conflict is resolved with 'local', 'remote' or fields, not {choice!r}",
                path="choice",
            )
        session = self.replica.session(session_id, create=False)
        session.resolve_conflict(conflict_id, choice)  # type: ignore[arg-type]

    # The rows.

    def _read(
        self, db: sqlite3.Connection, session_id: str
    ) -> tuple[SessionRecords, Record | None]:
        rows = db.execute(
            "SELECT r.collection, r.id, r.state FROM syncline_records r JOIN syncline_sessions s"
            f" ON s.gen = r.gen WHERE s.id=? AND r.alive=1 AND r.collection IN ({_MARKS})",
            (session_id, *_COLLECTIONS),
        )
        records = SessionRecords()
        header: Record | None = None
        for collection, id_, state in rows:
            record = Record.decode(state)
            records.take(collection, id_, record.visible)
            if collection == HEADER_COLLECTION:
                header = record
        return records, header

    @contextmanager
    def _op(self, session_id: str) -> Iterator[tuple[OpWriter, SessionRecords]]:
        """An op, and the session as the op leaves it so far (it may be a part of a larger one)."""
        with self._core.op(session_id) as op:
            with self._core.database.reading() as db:
                records, _ = self._read(db, session_id)
            for collection, id_ in op.touched:
                record = op.visible(collection, id_)
                records.take(collection, id_, None if record is None else record.visible)
            yield op, records

    def _write(self, op: OpWriter, records: SessionRecords, session: AgentSession) -> AgentSession:
        writes, named = session_changes(records, session, now=op.now, new_id=self._new_id)
        _apply(op, writes)
        op.counted = True
        version = count_change(self._core.database.connection, op.head.key)
        header = op.visible(HEADER_COLLECTION, HEADER_ID)
        assert header is not None
        return named.stored(version=version, updated_at=header.life.updated_at)


def _version(db: sqlite3.Connection, session_id: str) -> int:
    return runtime_version(db, session_row(db, session_id).key)


def _apply(op: OpWriter, writes: list[RecordWrite]) -> None:
    for write in writes:
        match write.kind:
            case "put":
                op.put(write.collection, write.id, write.fields, None)
            case "patch":
                op.patch(write.collection, write.id, write.fields, None)
            case "delete":
                op.delete(write.collection, write.id, None)
