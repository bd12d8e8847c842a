"""A local write: changes become one op, in the one transaction that also shows them.

The rule (docs/protocol.md, "Writing"): ``updatedAt = max(now, S + 1)``, where S is the newest stamp
of the record as the writer sees it; the change carries the vector of what the writer sees as its
context. So a write is always later than whatever it overwrote, whatever the clock says.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from syncline.sync import (
    DELETED,
    HEADER_COLLECTION,
    HEADER_ID,
    LIFE,
    NUMBER_MAX,
    RECORD_BYTES_MAX,
    Change,
    Conflict,
    Delete,
    Event,
    InvalidValue,
    NotFound,
    OutboxFull,
    Patch,
    Put,
    Record,
    RecordChange,
    Resolve,
    SessionDeleted,
    Stamp,
    TooLarge,
    UnknownRecord,
    Value,
    check_collection,
    check_fields,
    check_name,
    check_record_id,
    copy_fields,
    decode_conflict,
    encode_body,
    fold,
    is_deleted,
    op_digest,
    pack,
    running_hash,
    unpack,
)

from ._predict import Key
from ._rows import (
    PUT_PENDING,
    PUT_RECORD,
    Pending,
    RecordState,
    pending_values,
    record_state,
    record_values,
)
from ._watch import Notification

Choice = Literal["local", "remote"]

_DELETED = DELETED.encode()
ROWS_WAITING_MAX = 1000
"""Rows of a batch are written when this many wait, so that its memory stays bounded."""


@dataclass(slots=True)
class _Draft:
    """One record's change in the making; ``row`` is as it was before the op."""

    row: RecordState
    change: RecordChange
    at: int
    visible: Record


class WriteHead(NamedTuple):
    """What a write needs of its session: where its rows are and where its numbers stand."""

    key: int
    id: str
    gen: int
    n: int
    running: bytes
    settled_n: int
    deleted: bool = False


def write_head(db: sqlite3.Connection, id_: str) -> WriteHead:
    """Where the next op of the session goes. Raises NotFound (3113)."""
    row = db.execute(
        "SELECT s.session, s.gen, s.settled_n, s.settled_running, o.n, o.running, h.state, h.base"
        " FROM syncline_sessions s LEFT JOIN syncline_outbox o ON o.session = s.session AND o.n ="
        " (SELECT max(n) FROM syncline_outbox WHERE session = s.session)"
        " LEFT JOIN syncline_records h ON h.gen = s.gen AND h.collection=? AND h.id=?"
        " WHERE s.id=?",
        (HEADER_COLLECTION, HEADER_ID, id_),
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no session {id_} in this replica")
    key, gen, settled_n, settled_running, n, running, *header = row
    if n is None or n < settled_n:
        n, running = settled_n, settled_running
    deleted = says_deleted(*header)
    return WriteHead(key, id_, gen, n + 1, running, settled_n, deleted)


def says_deleted(*states: bytes | None) -> bool:
    """Whether one of these states of a header, what shows or what the log says, is deleted."""
    # A plain search first: writing asks this of every op.
    return any(
        state is not None and _DELETED in state and is_deleted(Record.decode(state))
        for state in states
    )


class WriteScope:
    """One transaction of local writes: what they share, and the rows that wait to be written.

    Rows are written in bulk, before the commit and before anything is read from their tables.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        known = dict(
            db.execute(
                "SELECT key, value FROM syncline_meta"
                " WHERE key IN ('client', 'former', 'offset_us', 'server_clock')"
            ).fetchall()
        )
        self.client: str = known["client"]
        self.former: tuple[str, ...] = tuple(unpack(known["former"]))
        self.offset_us: int = known["offset_us"]
        self.server_clock: int = known.get("server_clock", 0)
        self.heads: dict[str, WriteHead] = {}
        self.writers: dict[str, OpWriter] = {}
        self.salts: list[bytes] = []
        self.told: list[Notification] = []
        self._ops: list[tuple[Any, ...]] = []
        self._records: dict[tuple[int, str, str], RecordState] = {}

    def head(self, session: str) -> WriteHead:
        """Where the next op of the session goes. Raises NotFound (3113)."""
        head = self.heads.get(session)
        return write_head(self.db, session) if head is None else head

    def record(self, gen: int, collection: str, id_: str) -> RecordState:
        """The record's row, as the writes so far leave it."""
        row = self._records.get((gen, collection, id_))
        return record_state(self.db, gen, collection, id_) if row is None else row

    def add(self, head: WriteHead, op: Pending, shown: Mapping[Key, RecordState]) -> None:
        """An op and what shows with it."""
        header = shown.get((HEADER_COLLECTION, HEADER_ID))
        deleted = header is not None and is_deleted(header.visible)
        self.heads[head.id] = WriteHead(
            head.key, head.id, head.gen, op.n + 1, op.running, head.settled_n, deleted
        )
        if not self.salts and op.salt is not None:
            self.salts.append(op.salt)
        self._ops.append(pending_values(head.key, op))
        for (collection, id_), row in shown.items():
            self._records[head.gen, collection, id_] = row
        if len(self._ops) >= ROWS_WAITING_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._ops:
            self.db.executemany(PUT_PENDING, self._ops)
            self._ops.clear()
        if self._records:
            rows = [record_values(*key, row) for key, row in self._records.items()]
            self.db.executemany(PUT_RECORD, rows)
            self._records.clear()


class OpWriter:
    """Collects the changes of one op. ``write`` stores it; until then nothing is stored."""

    def __init__(
        self,
        scope: WriteScope,
        head: WriteHead,
        *,
        salt: bytes,
        now: int,
        outbox_ops_max: int,
    ) -> None:
        if head.deleted:
            raise SessionDeleted(f"session {head.id} is deleted", session=head.id)
        if head.n - head.settled_n > outbox_ops_max:
            raise OutboxFull(
                f"{outbox_ops_max} ops wait in the outbox of session {head.id}",
                ops_max=outbox_ops_max,
            )
        self._scope = scope
        self.head = head
        self.counted = False
        """Whether the change was counted already; see ``count_change``."""
        self.client = scope.client
        self.salt = salt
        self._now = now
        self._drafts: dict[tuple[str, str], _Draft] = {}
        self._others: list[tuple[Event | Resolve, int]] = []

    @property
    def now(self) -> int:
        """What the clock said when the op began, in microseconds since the Unix epoch."""
        return self._now

    @property
    def empty(self) -> bool:
        return not self._drafts and not self._others

    @property
    def touched(self) -> list[tuple[str, str]]:
        return list(self._drafts)

    @property
    def drafted(self) -> dict[Key, Record]:
        """The records that this op has changed so far, as it leaves them."""
        return {key: draft.visible for key, draft in self._drafts.items()}

    @property
    def fields(self) -> list[tuple[str, Collection[str]]]:
        """By record: its collection and the fields written."""
        return [
            (draft.change.collection, draft.change.fields)
            for draft in self._drafts.values()
            if not isinstance(draft.change, Delete)
        ]

    @property
    def events(self) -> list[str]:
        return [other.type for other, _ in self._others if isinstance(other, Event)]

    # The changes.

    def put(self, collection: str, id_: str, fields: object, updated_at: int | None) -> None:
        collection, id_ = check_collection(collection), check_record_id(id_)
        if collection == HEADER_COLLECTION:
            raise InvalidValue("the session's header takes patches only", path=collection)
        taken = copy_fields(check_fields(fields))
        draft, context = self._open(collection, id_)
        self._keep(draft, Put(collection, id_, context, taken), updated_at)

    def patch(
        self,
        collection: str,
        id_: str,
        fields: object,
        updated_at: int | None,
        *,
        revive: bool = False,
    ) -> None:
        """``revive`` allows a record that is deleted (a conflict is being resolved)."""
        collection, id_ = check_collection(collection), check_record_id(id_)
        taken = copy_fields(check_fields(fields))
        draft, context = self._open(collection, id_)
        is_header = (collection, id_) == (HEADER_COLLECTION, HEADER_ID)
        if collection == HEADER_COLLECTION and not is_header:
            raise InvalidValue(f"{HEADER_COLLECTION} has one record, {HEADER_ID}", path=id_)
        seen = draft.visible
        if not is_header and (seen is None or not (seen.alive or revive)):
            raise UnknownRecord(
                f"there is no record {collection}/{id_} to patch", collection=collection, id=id_
            )
        if isinstance(draft, _Draft) and not isinstance(draft.change, Delete):
            merged = {**draft.change.fields, **taken}
            kind = type(draft.change)
            self._keep(draft, kind(collection, id_, context, merged), updated_at)
        else:
            self._keep(draft, Patch(collection, id_, context, taken), updated_at)

    def delete(self, collection: str, id_: str, updated_at: int | None) -> None:
        collection, id_ = check_collection(collection), check_record_id(id_)
        if collection == HEADER_COLLECTION:
            raise InvalidValue("the session's header takes patches only", path=collection)
        draft, context = self._open(collection, id_)
        # What this replica does not see may exist elsewhere: the intent is recorded all the same.
        self._keep(draft, Delete(collection, id_, context), updated_at)

    def append(self, type_: str, payload: object, updated_at: int | None) -> None:
        event = Event(check_name(type_, "event type"), copy_fields(check_fields(payload)))
        self._others.append((event, self._time(updated_at)))

    def resolve(self, conflict_id: str, choice: Choice | Mapping[str, Value]) -> Conflict:
        """Close a conflict: keep what stands, put back what lost, or write other fields."""
        conflict = self._open_conflict(conflict_id)
        self._others.append((Resolve(conflict.id), self._now))
        if isinstance(choice, Mapping):
            self._put_back(conflict, dict(choice))
        elif choice not in ("local", "remote"):
            raise InvalidValue(
                f"a conflict is resolved with 'local', 'remote' or fields, not {choice!r}",
                path="choice",
            )
        elif (choice == "local") == self._is_own(conflict.loser):
            if conflict.field != LIFE:
                self._put_back(conflict, {conflict.field: conflict.value})
            elif conflict.value is not None:
                self._put_back(conflict, conflict.value)
            elif self._sees(conflict):
                self.delete(conflict.collection, conflict.record_id, None)
        return conflict

    def _is_own(self, stamp: Stamp) -> bool:
        return stamp.client == self.client or stamp.client in self._scope.former

    def _sees(self, conflict: Conflict) -> bool:
        record = self.visible(conflict.collection, conflict.record_id)
        return record is not None and record.alive

    def _put_back(self, conflict: Conflict, fields: dict[str, Value]) -> None:
        if self.visible(conflict.collection, conflict.record_id) is None:
            self.put(conflict.collection, conflict.record_id, fields, None)
        else:
            self.patch(conflict.collection, conflict.record_id, fields, None, revive=True)

    def _open_conflict(self, conflict_id: str) -> Conflict:
        row = self._scope.db.execute(
            "SELECT conflict, closing_n FROM syncline_conflicts WHERE gen=? AND id=?",
            (self.head.gen, conflict_id),
        ).fetchone()
        if row is None:
            raise NotFound(f"there is no conflict {conflict_id} in session {self.head.id}")
        conflict = decode_conflict(row[0])
        if not isinstance(conflict, Conflict) or row[1] is not None:
            raise NotFound(f"the conflict {conflict_id} is resolved already")
        return conflict

    # Reading what is being written.

    def visible(self, collection: str, id_: str) -> Record | None:
        """The record as this op leaves it."""
        draft = self._drafts.get((collection, id_))
        if draft is not None:
            return draft.visible
        return self._scope.record(self.head.gen, collection, id_).visible

    def _open(self, collection: str, id_: str) -> tuple[_Draft | RecordState, Mapping[str, int]]:
        draft = self._drafts.get((collection, id_))
        if draft is not None:
            return draft, draft.change.context
        row = self._scope.record(self.head.gen, collection, id_)
        return row, {} if row.visible is None else row.visible.vector

    def _keep(
        self, draft: _Draft | RecordState, change: RecordChange, updated_at: int | None
    ) -> None:
        row = draft.row if isinstance(draft, _Draft) else draft
        at = self._time(updated_at)
        if row.visible is not None:
            at = max(at, row.visible.life.updated_at + 1)
        if isinstance(draft, _Draft):
            at = max(at, draft.at)
        if at > NUMBER_MAX:
            raise InvalidValue(
                f"{change.collection}/{change.id} is stamped at the end of time: nothing is later",
                path="updated_at",
            )
        stamp = Stamp(at, self.client, self.head.n)
        visible = fold(row.visible, change, stamp, None)
        self._drafts[change.collection, change.id] = _Draft(row, change, at, visible)

    def _time(self, updated_at: int | None) -> int:
        if updated_at is None:
            return self._now
        if type(updated_at) is not int or not 0 <= updated_at < NUMBER_MAX:
            raise InvalidValue(
                f"updated_at must be microseconds since the Unix epoch, 0 to 2**63-2, not"
                f" {updated_at!r}",
                path="updated_at",
            )
        return updated_at

    # Storing.

    def write(self) -> Pending:
        """Store the op and show it. Raises TooLarge (3011) before anything is stored."""
        assert not self.empty, "an op has at least one change"
        drafts = list(self._drafts.values())
        changes: list[Change] = [draft.change for draft in drafts]
        changes += [other for other, _ in self._others]
        stamps = (*(draft.at for draft in drafts), *(at for _, at in self._others))
        body = encode_body(changes)
        for draft in drafts:
            _check_record_size(draft)
        running = running_hash(self.head.running, self.head.n, op_digest(self.salt, body))
        op = Pending(self.head.n, self.salt, stamps, body, running, None, False, self._now)
        shown = {
            key: RecordState(draft.visible, draft.row.canonical, True, draft.row.seq)
            for key, draft in self._drafts.items()
        }
        self._scope.add(self.head, op, shown)
        for other, _ in self._others:
            if isinstance(other, Resolve):
                self._scope.db.execute(
                    "UPDATE syncline_conflicts SET closing_n=? WHERE gen=? AND id=?",
                    (op.n, self.head.gen, other.conflict_id),
                )
        return op


def _check_record_size(draft: _Draft) -> None:
    fields: dict[str, Any] = draft.visible.fields
    # A cheap bound first: packing costs as much as the rest of a small write.
    if isinstance(draft.change, Patch) and len(fields) > len(draft.change.fields):
        size = len(pack(fields))
        if size > RECORD_BYTES_MAX:
            raise TooLarge(
                f"the record {draft.change.collection}/{draft.change.id} would have {size} bytes,"
                f" the most is {RECORD_BYTES_MAX}",
                bytes=size,
                bytes_max=RECORD_BYTES_MAX,
            )
