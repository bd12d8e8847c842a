"""A session as the app sees it: records, events, what waits, what was refused, what lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from syncline.sync import (
    HEADER_COLLECTION,
    HEADER_ID,
    SALT_BYTES,
    Change,
    Conflict,
    Entry,
    Event,
    Record,
    Value,
    check_collection,
    check_record_id,
    copy_fields,
    decode_body,
    unpack,
)

from . import _bootstrap
from ._core import Core
from ._receipt import Receipt
from ._rows import pending_ops, session_row
from ._watch import Callback
from ._writing import Choice, OpWriter, says_deleted


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event. ``seq`` is None while it waits in the outbox; ``index`` counts within its op.

    ``at`` is its ``updatedAt``, ``client`` who appended it.
    """

    seq: int | None
    index: int
    type: str
    payload: dict[str, Value]
    at: int
    client: str


@dataclass(frozen=True, slots=True)
class PendingOp:
    """An op in the outbox, with the time it was written (microseconds since the epoch)."""

    receipt: Receipt
    n: int
    changes: tuple[Change, ...]
    sent: bool
    written_at: int


@dataclass(frozen=True, slots=True)
class RefusedOp:
    """An op that the server refused for good: why, and all that was in it."""

    receipt: Receipt
    code: int
    reason: str
    detail: Mapping[str, Any]
    changes: tuple[Change, ...]
    refused_at: int


class Session:
    """One conversation, document or workspace in a replica. Made by ``Replica``."""

    def __init__(self, core: Core, id_: str) -> None:
        self._core = core
        self.id = id_

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    @property
    def label(self) -> str:
        header = self.get(HEADER_COLLECTION, HEADER_ID) or {}
        label = header.get("label", "")
        return label if isinstance(label, str) else ""

    @property
    def deleted(self) -> bool:
        """Whether this session was deleted, here or elsewhere; it can be read, not written."""
        with self._core.database.reading() as db:
            row = db.execute(
                "SELECT r.state, r.base FROM syncline_records r JOIN syncline_sessions s"
                " ON s.gen = r.gen WHERE s.id=? AND r.collection=? AND r.id=?",
                (self.id, HEADER_COLLECTION, HEADER_ID),
            ).fetchone()
        return row is not None and says_deleted(*row)

    # Writing. Everything returns a receipt once it is durable.

    def put(
        self,
        collection: str,
        id: str,
        fields: Mapping[str, Value],
        *,
        updated_at: int | None = None,
    ) -> Receipt:
        """Write the whole record: these fields and no others.

        ``updated_at`` (microseconds since the Unix epoch) stands in for the clock, for imports.
        Raises InvalidValue (3019) or TooLarge (3011), before anything is stored.
        """
        return self._write(lambda op: op.put(collection, id, fields, updated_at))

    def patch(
        self,
        collection: str,
        id: str,
        fields: Mapping[str, Value],
        *,
        updated_at: int | None = None,
    ) -> Receipt:
        """Write some fields of a record that is there. Raises UnknownRecord (3002) otherwise."""
        return self._write(lambda op: op.patch(collection, id, fields, updated_at))

    def delete(self, collection: str, id: str, *, updated_at: int | None = None) -> Receipt:
        """Delete a record, whether it is to be seen here or not."""
        return self._write(lambda op: op.delete(collection, id, updated_at))

    def append(
        self, type: str, payload: Mapping[str, Value], *, updated_at: int | None = None
    ) -> Receipt:
        """Append an event: something that happened, never edited."""
        return self._write(lambda op: op.append(type, payload, updated_at))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Receipt]:
        """Everything written to this session inside the block is one atomic op.

        Reads inside see it. An exception stores nothing. The block holds the replica's write lock:
        keep it short. Yields the receipt of the op.
        """
        with self._core.op(self.id) as op:
            yield self._receipt(op)

    def resolve_conflict(self, conflict_id: str, choice: Choice | Mapping[str, Value]) -> Receipt:
        """Settle an open conflict by hand: an ordinary new write, which closes it everywhere.

        ``"local"`` is the value that this replica wrote, or when neither side is its own, the one
        that stands; ``"remote"`` is the other one. Fields are written to the record as they are.
        Raises NotFound (3113) for a conflict that is not open.
        """

        def resolve(op: OpWriter) -> None:
            op.resolve(conflict_id, choice)

        return self._write(resolve)

    def _write(self, make: Callable[[OpWriter], None]) -> Receipt:
        with self._core.op(self.id) as op:
            make(op)
            receipt = self._receipt(op)
        return receipt

    def _receipt(self, op: OpWriter) -> Receipt:
        return Receipt(self._core, op.salt.hex(), (self.id, op.head.n))

    # Reading. Never waits for the network.

    def get(self, collection: str, id: str) -> dict[str, Value] | None:
        """The fields of a record; None when there is none (any more)."""
        check_collection(collection)
        check_record_id(id)
        record = self._core.visible(self.id, collection, id)
        if record is None or record.visible is None:
            return None
        return copy_fields(record.visible)

    def records(self, collection: str) -> Iterator[tuple[str, dict[str, Value]]]:
        """The records of a collection, by id: ``(id, fields)``, as of the call."""
        check_collection(collection)
        with self._core.database.reading() as db:
            rows = db.execute(
                "SELECT r.id, r.state FROM syncline_records r JOIN syncline_sessions s"
                " ON s.gen = r.gen WHERE s.id=? AND r.collection=? AND r.alive=1 ORDER BY r.id",
                (self.id, collection),
            ).fetchall()
        return ((id_, Record.decode(state).fields) for id_, state in rows)

    def count(self, collection: str) -> int:
        """How many records a collection has."""
        check_collection(collection)
        with self._core.database.reading() as db:
            (count,) = db.execute(
                "SELECT count(*) FROM syncline_records r JOIN syncline_sessions s"
                " ON s.gen = r.gen WHERE s.id=? AND r.collection=? AND r.alive=1",
                (self.id, collection),
            ).fetchone()
        return int(count)

    def collections(self) -> list[str]:
        """The collections that have records, without Syncline's own."""
        with self._core.database.reading() as db:
            rows = db.execute(
                "SELECT DISTINCT r.collection FROM syncline_records r JOIN syncline_sessions s"
                " ON s.gen = r.gen WHERE s.id=? AND r.alive=1 ORDER BY r.collection",
                (self.id,),
            ).fetchall()
        return [name for (name,) in rows if not name.startswith("$")]

    def events(self, after: int = 0, limit: int | None = None) -> list[EventRow]:
        """Events with ``seq > after`` in order, then those that still wait in the outbox.

        ``limit`` is about how many: a page never splits an op, so that the last ``seq`` is a safe
        ``after`` for the next one. Waiting ones come only when nothing was left off.
        """
        found: list[EventRow] = []
        with self._core.database.reading() as db:
            session = session_row(db, self.id)
            rows = db.execute(
                "SELECT entry FROM syncline_entries WHERE session=? AND seq>? AND seq<=?"
                " AND events>0 ORDER BY seq",
                (session.key, after, session.seq),
            )
            for (data,) in rows:
                if limit is not None and len(found) >= limit:
                    return found
                found.extend(_events_of(Entry.decode(data)))
            client = self._core.client()
            for op in pending_ops(db, session.key):
                if limit is not None and len(found) >= limit:
                    return found
                found.extend(
                    EventRow(None, index, change.type, change.payload, at, client)
                    for index, (change, at) in enumerate(zip(op.changes, op.stamps, strict=True))
                    if isinstance(change, Event)
                )
        return found

    def pending(self) -> list[PendingOp]:
        """What waits in the outbox, in order."""
        with self._core.database.reading() as db:
            session = session_row(db, self.id)
            return [
                PendingOp(
                    Receipt(self._core, op.salt.hex(), (self.id, op.n)),
                    op.n,
                    tuple(op.changes),
                    op.sent,
                    op.written_at,
                )
                for op in pending_ops(db, session.key)
                if op.salt is not None
            ]

    def refused(self) -> list[RefusedOp]:
        """What the server refused for good, oldest first: nothing of it is lost."""
        with self._core.database.reading() as db:
            session = session_row(db, self.id)
            rows = db.execute(
                "SELECT salt, code, reason, detail, body, refused_at FROM syncline_refused"
                " WHERE session=? ORDER BY refused_at, n",
                (session.key,),
            ).fetchall()
        return [
            RefusedOp(
                Receipt(self._core, salt.hex()),
                code,
                reason,
                unpack(detail),
                tuple(decode_body(body)),
                refused_at,
            )
            for salt, code, reason, detail, body, refused_at in rows
        ]

    def discard_refused(self, receipt_id: str) -> bool:
        """Forget a refused op for good; whether it was there."""
        return self._core.discard_refused(_salt(receipt_id))

    def conflicts(self) -> list[Conflict]:
        """The open conflicts: every value that lost unseen, to be kept or put back."""
        with self._core.database.reading() as db:
            return _bootstrap.open_conflicts(db, session_row(db, self.id).gen)

    def watch(self, callback: Callback, collection: str | None = None) -> Callable[[], None]:
        """Call back after each commit that changed something here; returns what ends it.

        The callback runs in the thread that committed: yours for local writes, the connection's
        for remote ones. Keep it short, and hand longer work to a thread of your own.
        """
        return self._core.watchers.add(self.id, collection, callback)


def _events_of(entry: Entry) -> Iterator[EventRow]:
    for index, accepted in enumerate(entry.read()):
        if isinstance(accepted.change, Event):
            event, stamp = accepted.change, accepted.stamp
            yield EventRow(
                entry.seq, index, event.type, event.payload, stamp.updated_at, stamp.client
            )


def _salt(receipt_id: str) -> bytes:
    try:
        salt = bytes.fromhex(receipt_id)
    except ValueError:
        return b""
    return salt if len(salt) == SALT_BYTES else b""
