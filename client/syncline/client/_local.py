"""The local half of a replica: writes that are durable and shown, receipts, and reads.

Nothing in here knows of a network. All writes of one transaction share a ``WriteScope``: nobody
else can write between its first statement and its commit, so what it has read once stays true.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from syncline.sync import (
    HEADER_COLLECTION,
    NUMBER_MAX,
    RUNTIME_COLLECTIONS,
    DiskFull,
    Entry,
    Record,
    pack,
)

from ._database import CommitUnknown, Database
from ._receipt import ReceiptState
from ._rows import (
    SessionState,
    add_session,
    count_change,
    meta,
    session_row,
    session_rows,
    set_meta,
)
from ._views import KnownFields, show_fields
from ._watch import Notification, Watchers
from ._writing import OpWriter, WriteScope

CLOCK_SET_BACK_US = 1_000_000
"""Time this far before the last that a server told means that the local clock was set since."""


class LocalCore:
    """One process's replica, as its app uses it."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        new_client_id: Callable[[], str],
        outbox_ops_max: int,
    ) -> None:
        self.database = database
        self.clock = clock
        self.random_bytes = random_bytes
        self._new_client_id = new_client_id
        self._outbox_ops_max = outbox_ops_max
        self.watchers = Watchers()
        self.changed = threading.Condition()
        self.on_local_write: Callable[[str], None] | None = None
        self._scope: WriteScope | None = None

    # Making and opening.

    def make(self, client_id: str | None) -> None:
        """Give a fresh file its identity; an old one keeps its own."""
        with self.database.transaction() as db:
            there = meta(db, "client")
            if there is None:
                set_meta(db, "client", client_id or self._new_client_id())
                set_meta(db, "former", pack([]))
                set_meta(db, "incarnation", 0)
                set_meta(db, "offset_us", 0)
                set_meta(db, "connected", 0)
            self._known_fields = KnownFields(db)

    def client(self) -> str:
        with self.database.reading() as db:
            return str(meta(db, "client"))

    # Writing.

    @property
    def now(self) -> int:
        """The local clock plus the measured offset, in microseconds since the Unix epoch."""
        with self.database.reading() as db:
            return self._now(int(meta(db, "offset_us", 0)), int(meta(db, "server_clock", 0)))

    def _now(self, offset: int, server_clock: int) -> int:
        """``server_clock`` is the last time of day that a server told.

        It cannot be earlier than that now. When it seems so, somebody has set the local clock since
        (most often: to the right time), and the offset, which was that of the old one, is void.
        """
        clock = self.clock()
        now = clock + offset
        if now < server_clock - CLOCK_SET_BACK_US:
            now = max(clock, server_clock)
        return min(max(now, 0), NUMBER_MAX - 1)

    @contextlib.contextmanager
    def op(self, session: str) -> Iterator[OpWriter]:
        """One op: leaving the block stores it, an exception stores nothing.

        Inside another op of the same session it is part of that one.
        """
        with self._stored() as scope:
            outer = scope.writers.get(session)
            if outer is not None:
                yield outer
                return
            writer = scope.writers[session] = self._new_writer(scope, session)
            try:
                yield writer
            finally:
                del scope.writers[session]
            if not writer.empty:
                self._store(scope, writer)

    def _new_writer(self, scope: WriteScope, session: str) -> OpWriter:
        return OpWriter(
            scope,
            scope.head(session),
            salt=self.random_bytes(16),
            now=self._now(scope.offset_us, scope.server_clock),
            outbox_ops_max=self._outbox_ops_max,
        )

    def _store(self, scope: WriteScope, writer: OpWriter) -> None:
        try:
            writer.write()
            if not writer.counted and any(c in RUNTIME_COLLECTIONS for c, _ in writer.touched):
                count_change(scope.db, writer.head.key)
            self._show_fields(scope.db, writer.fields)
        except BaseException:
            self.database.doom()
            raise
        if self.watchers.any:
            scope.told += _told_of(writer)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Many ops, one commit: durable when the block ends."""
        with self._stored():
            yield

    @contextlib.contextmanager
    def _stored(self) -> Iterator[WriteScope]:
        """A transaction of writes. When its commit does not answer, the file is asked."""
        with self.database.lock:
            if self._scope is not None:
                yield self._scope
                return
            scope: WriteScope | None = None
            try:
                with self.database.transaction() as db:
                    scope = self._scope = WriteScope(db)
                    self.database.before_read = scope.flush
                    try:
                        yield scope
                        scope.flush()
                    finally:
                        self._scope = self.database.before_read = None
            except CommitUnknown as error:
                # Stored or not, together: one op tells for all.
                if scope is None or not scope.salts or not self.knows(scope.salts[0]):
                    path = self.database.path
                    raise DiskFull(f"{path} could not be written: {error}") from error
            finally:
                # Also when an interrupt came behind the commit: what is in the outbox goes out.
                if scope is not None and self.on_local_write is not None:
                    for session in scope.heads:
                        self.on_local_write(session)
        self._tell(scope.told)

    def knows(self, salt: bytes) -> bool:
        """Whether the file holds the op with this salt, in whatever state."""
        return self.receipt_state(salt, None) is not None

    def ensure_session(self, id_: str) -> None:
        """Make the session's row if it is not there."""
        with self.database.reading() as db:
            if db.execute("SELECT 1 FROM syncline_sessions WHERE id=?", (id_,)).fetchone():
                return
        with self._stored() as scope:
            add_session(scope.db, id_, self.clock())

    def discard_refused(self, salt: bytes) -> bool:
        with self._stored() as scope:
            gone = scope.db.execute("DELETE FROM syncline_refused WHERE salt=?", (salt,))
            return gone.rowcount > 0

    def _show_fields(
        self, db: sqlite3.Connection, fields: Iterable[tuple[str, Collection[str]]]
    ) -> None:
        """Make the views show these fields, each ``(collection, fields)``."""
        fresh = [
            (collection, field)
            for collection, names in fields
            if collection != HEADER_COLLECTION and not self._known_fields.has(collection, names)
            for field in names
        ]
        if fresh:
            show_fields(db, fresh)
            self.database.after_commit(lambda: self._known_fields.add(fresh))

    def _tell(self, notifications: list[Notification]) -> None:
        self.watchers.tell(notifications)
        with self.changed:
            self.changed.notify_all()

    def tell_changed(self) -> None:
        self._tell([])

    # Receipts.

    def receipt_state(self, salt: bytes, hint: tuple[str, int] | None) -> ReceiptState | None:
        """Where a write stands; None when this replica knows nothing of it.

        ``hint`` is the session and number that the write had at first, which finds it fast.
        """
        with self.database.reading() as db:
            sent = self._outbox_sent(db, salt, hint)
            if sent is not None:
                return ReceiptState.SENT if sent else ReceiptState.QUEUED
            row = db.execute("SELECT entry FROM syncline_entries WHERE salt=?", (salt,)).fetchone()
            if row is not None:
                return ReceiptState.of(Entry.decode(row[0]).outcome)
            row = db.execute("SELECT 1 FROM syncline_refused WHERE salt=?", (salt,)).fetchone()
            return None if row is None else ReceiptState.REFUSED

    def _outbox_sent(
        self, db: sqlite3.Connection, salt: bytes, hint: tuple[str, int] | None
    ) -> int | None:
        if hint is not None:
            row = db.execute(
                "SELECT o.salt, o.sent FROM syncline_outbox o JOIN syncline_sessions s"
                " ON s.session = o.session WHERE s.id=? AND o.n=?",
                hint,
            ).fetchone()
            if row is not None and row[0] == salt:
                return int(row[1])
        row = db.execute("SELECT sent FROM syncline_outbox WHERE salt=?", (salt,)).fetchone()
        return None if row is None else int(row[0])

    # Reading.

    def session_ids(self) -> list[str]:
        with self.database.reading() as db:
            return [id_ for (id_,) in db.execute("SELECT id FROM syncline_sessions ORDER BY id")]

    def _read(self, id_: str) -> SessionState:
        with self.database.reading() as db:
            return session_row(db, id_)

    def states(self) -> list[SessionState]:
        with self.database.reading() as db:
            return session_rows(db)

    def visible(self, id_: str, collection: str, record_id: str) -> Record | None:
        """The record as the app sees it; inside an op, as the op leaves it."""
        with self.database.lock:
            writer = None if self._scope is None else self._scope.writers.get(id_)
            if writer is not None:
                return writer.visible(collection, record_id)
            with self.database.reading() as db:
                row = db.execute(
                    "SELECT r.state FROM syncline_records r JOIN syncline_sessions s"
                    " ON s.gen = r.gen WHERE s.id=? AND r.collection=? AND r.id=?",
                    (id_, collection, record_id),
                ).fetchone()
        return Record.decode(row[0]) if row is not None and row[0] else None


def _told_of(writer: OpWriter) -> list[Notification]:
    session, receipt_id = writer.head.id, writer.salt.hex()
    told = [
        Notification(session, "local", collection, ids, receipt_id=receipt_id)
        for collection, ids in by_collection(writer.touched)
    ]
    if writer.events:
        count = len(writer.events)
        told.append(Notification(session, "local", None, events=count, receipt_id=receipt_id))
    return told


def by_collection(keys: Iterable[tuple[str, str]]) -> list[tuple[str, tuple[str, ...]]]:
    """Records by collection, for notifications."""
    grouped: dict[str, list[str]] = {}
    for collection, id_ in sorted(keys):
        grouped.setdefault(collection, []).append(id_)
    return [(collection, tuple(ids)) for collection, ids in grouped.items()]
