"""The store that keeps everything in memory: for tests, simulations and trying things out.

Writes go straight to the tables; each leaves behind how to undo it, and an exception plays that
backwards. What a reader gets is immutable, so nothing is copied.
"""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from syncline.sync import Closed, Conflict, Dot, UnknownRecord, unpack

from ._ledger import seal
from ._snapshot import Rows, cut_part
from ._store import (
    NO_DEVICE,
    Device,
    Head,
    Identity,
    LastOp,
    LedgerRow,
    LogRow,
    RecordKey,
    RecordRow,
    RefusalRow,
    SealedRow,
    SessionRow,
    SnapshotPart,
    Transaction,
    check_appended,
    check_rewritten,
)

_K = TypeVar("_K")
_V = TypeVar("_V")

_warned = False


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        logging.getLogger("syncline.server").warning(
            "the store is in memory: nothing lasts longer than this process"
        )


@dataclass(slots=True)
class _Session:
    head: Head
    log: list[LogRow] = field(default_factory=list)
    index_by_dot: dict[Dot, int] = field(default_factory=dict)
    index_by_salt: dict[bytes, int] = field(default_factory=dict)
    records: dict[RecordKey, RecordRow] = field(default_factory=dict)
    record_keys: list[RecordKey] | None = None
    """In order; None when a record came or went since it was last needed."""
    conflicts: dict[str, Conflict | Closed] = field(default_factory=dict)
    refusals: dict[Dot, RefusalRow] = field(default_factory=dict)
    last_ops: dict[str, LastOp] = field(default_factory=dict)

    def log_after(self, seq: int) -> int:
        """The index of the first entry above ``seq``."""
        return max(0, seq - (self.log[0].seq - 1)) if self.log else 0


class MemoryStore:
    """A store that lasts as long as its process. Logs a warning the first time one is made."""

    def __init__(self) -> None:
        _warn_once()
        self._identity = Identity(uuid.uuid4().hex, 1)
        self._sessions: dict[str, _Session] = {}
        self._ids: list[str] = []
        self._devices: dict[str, Device] = {}
        self._ledger: list[SealedRow] = []
        self._identities: dict[int, tuple[bytes, bytes]] = {}
        self._inside = False

    def identity(self) -> Identity:
        return self._identity

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        if self._inside:
            raise AssertionError("a transaction inside a transaction")
        self._inside = True
        made = _MemoryTransaction(self)
        try:
            yield made
        except BaseException:
            made.undo()
            raise
        finally:
            self._inside = False

    def head(self, session: str) -> Head | None:
        found = self._sessions.get(session)
        return None if found is None else found.head

    def last_op(self, session: str, client: str) -> LastOp | None:
        found = self._sessions.get(session)
        return None if found is None else found.last_ops.get(client)

    def sessions(self, after: str, limit: int) -> list[SessionRow]:
        start = bisect_right(self._ids, after)
        rows = []
        for id_ in self._ids[start : start + limit]:
            head = self._sessions[id_].head
            rows.append(SessionRow(id_, head.label, head.epoch, head.seq))
        return rows

    def entries(self, session: str, after: int, bytes_max: int, items_max: int) -> list[LogRow]:
        found = self._sessions.get(session)
        rows: list[LogRow] = []
        if found is None:
            return rows
        size = 0
        for row in islice(found.log, found.log_after(after), None):
            size += len(row.entry)
            if rows and (len(rows) >= items_max or size > bytes_max):
                break
            rows.append(row)
        return rows

    def hash_at(self, session: str, seq: int) -> bytes | None:
        found = self._sessions.get(session)
        if found is None:
            return None
        if seq == 0:
            return found.head.genesis
        index = found.log_after(seq - 1)
        if seq < 0 or index >= len(found.log) or found.log[index].seq != seq:
            return None
        return found.log[index].hash

    def snapshot(
        self,
        session: str,
        after: bytes,
        client: str,
        pending_from: int,
        bytes_max: int,
        items_max: int,
    ) -> SnapshotPart:
        found = self._sessions.get(session)
        if found is None:
            raise UnknownRecord(f"there is no session {session}", session=session)
        sections = (
            partial(_record_rows, found),
            partial(_conflict_rows, found),
            partial(_entry_rows, found, client, pending_from),
        )
        cut = cut_part(after, sections, bytes_max, items_max)
        vector = {client: last.n for client, last in found.last_ops.items()}
        return SnapshotPart(found.head, *cut, vector=vector if cut.after is None else None)

    def ledger(self, after: int, items_max: int) -> list[SealedRow]:
        return self._ledger[after : after + items_max]

    def checkpoint(self) -> None:
        return None

    def close(self) -> None:
        return None


def _record_rows(session: _Session, after: tuple[str, str], limit: int) -> Rows:
    keys = session.record_keys
    if keys is None:
        keys = session.record_keys = sorted(session.records)
    start = bisect_right(keys, RecordKey(*after))
    for key in keys[start : start + limit]:
        row = session.records[key]
        yield tuple(key), len(key.collection) + len(key.id) + len(row.state), row


def _conflict_rows(session: _Session, after: tuple[str], limit: int) -> Rows:
    for id_ in sorted(id_ for id_ in session.conflicts if id_ > after[0])[:limit]:
        conflict = session.conflicts[id_]
        yield (id_,), len(conflict.encode()), conflict


def _entry_rows(
    session: _Session, client: str, pending_from: int, after: tuple[int], limit: int
) -> Rows:
    wanted = (
        row
        for row in islice(session.log, session.log_after(after[0]), None)
        if row.events > 0 or (row.client == client and row.n >= pending_from)
    )
    for row in islice(wanted, limit):
        yield (row.seq,), len(row.entry), row


class _MemoryTransaction:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._undo: list[Callable[[], object]] = []

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def head(self, session: str) -> Head | None:
        return self._store.head(session)

    def create(self, session: str, genesis: bytes, at: int) -> Head:
        store = self._store
        if session in store._sessions:
            raise AssertionError(f"session {session} exists")
        head = Head(store._identity.epoch, 0, genesis, genesis, 0)
        self._set(store._sessions, session, _Session(head))
        insort(store._ids, session)
        self._undo.append(partial(store._ids.remove, session))
        return head

    def last_ops(self, session: str, clients: Collection[str]) -> dict[str, LastOp]:
        found = self._store._sessions.get(session)
        if found is None:
            return {}
        return {client: found.last_ops[client] for client in clients if client in found.last_ops}

    def records(self, session: str, keys: Collection[RecordKey]) -> dict[RecordKey, bytes]:
        found = self._store._sessions.get(session)
        if found is None:
            return {}
        records = found.records
        return {key: records[key].state for key in keys if key in records}

    def entry_at(self, session: str, dot: Dot) -> LogRow | None:
        found = self._store._sessions.get(session)
        index = None if found is None else found.index_by_dot.get(dot)
        return None if found is None or index is None else found.log[index]

    def entries_of(self, session: str, salts: Collection[bytes]) -> dict[bytes, LogRow]:
        found = self._store._sessions.get(session)
        if found is None:
            return {}
        index = found.index_by_salt
        return {salt: found.log[index[salt]] for salt in salts if salt in index}

    def refusal_at(self, session: str, dot: Dot) -> RefusalRow | None:
        found = self._store._sessions.get(session)
        return None if found is None else found.refusals.get(dot)

    def append(self, session: str, rows: Sequence[LogRow]) -> None:
        found = self._known(session)
        check_appended(session, rows, found.log[-1].seq if found.log else found.head.seq)
        for row in rows:
            dot = Dot(row.client, row.n)
            if dot in found.index_by_dot:
                raise AssertionError(f"op {row.n} of {row.client} is in the log already")
            if row.salt in found.index_by_salt:
                raise AssertionError(f"op {row.n} of {row.client} is in the log under another dot")
            self._set(found.index_by_dot, dot, len(found.log))
            self._set(found.index_by_salt, row.salt, len(found.log))
            found.log.append(row)
            self._undo.append(found.log.pop)

    def put_records(self, session: str, rows: Iterable[RecordRow]) -> None:
        found = self._known(session)
        for row in rows:
            key = RecordKey(row.collection, row.id)
            if key not in found.records:
                found.record_keys = None
                self._undo.append(partial(setattr, found, "record_keys", None))
            self._set(found.records, key, row)

    def put_conflicts(self, session: str, rows: Iterable[Conflict | Closed]) -> None:
        found = self._known(session)
        for row in rows:
            known = found.conflicts.get(row.id)
            if known is None or (type(row) is Closed and type(known) is Conflict):
                self._set(found.conflicts, row.id, row)

    def put_refusals(self, session: str, rows: Iterable[RefusalRow]) -> None:
        found = self._known(session)
        for row in rows:
            dot = Dot(row.client, row.n)
            if dot in found.refusals:
                raise AssertionError(f"op {row.n} of {row.client} was refused already")
            self._set(found.refusals, dot, row)

    def set_last_ops(self, session: str, ops: Mapping[str, LastOp]) -> None:
        found = self._known(session)
        for client, last in ops.items():
            self._set(found.last_ops, client, last)

    def set_head(self, session: str, head: Head) -> None:
        found = self._known(session)
        if head.genesis != found.head.genesis:
            raise AssertionError(f"the genesis of session {session} never changes")
        self._undo.append(partial(setattr, found, "head", found.head))
        found.head = head

    def device(self, client: str) -> Device:
        return self._store._devices.get(client, NO_DEVICE)

    def set_device(self, client: str, device: Device) -> None:
        self._set(self._store._devices, client, device)

    def write_ledger(self, rows: Iterable[LedgerRow]) -> None:
        ledger, identities = self._store._ledger, self._store._identities
        for sealing in seal(rows, ledger[-1] if ledger else None):
            ledger.append(sealing.sealed)
            self._undo.append(ledger.pop)
            self._set(identities, sealing.sealed.n, (sealing.salt, sealing.identity))

    def rewrite(
        self,
        session: str,
        entries: Iterable[LogRow],
        conflicts: Iterable[Conflict],
        clients: Collection[str],
    ) -> None:
        found = self._known(session)
        for row in entries:
            index = found.index_by_dot[Dot(row.client, row.n)]
            old = found.log[index]
            check_rewritten(old, row)
            found.log[index] = row
            self._undo.append(partial(found.log.__setitem__, index, old))
            self._undo.append(partial(found.index_by_salt.__setitem__, old.salt, index))
            del found.index_by_salt[old.salt]
            self._set(found.index_by_salt, row.salt, index)
        for conflict in conflicts:
            self._set(found.conflicts, conflict.id, conflict)
        for dot, refusal in list(found.refusals.items()):
            if dot.client in clients:
                self._set(found.refusals, dot, replace(refusal, reason="", detail={}))

    def identities(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for n, (_, identity) in self._store._identities.items():
            yield n, unpack(identity)

    def clear_identities(self, rows: Iterable[int]) -> None:
        identities = self._store._identities
        for n in rows:
            if n in identities:
                self._undo.append(partial(identities.__setitem__, n, identities.pop(n)))

    def _known(self, session: str) -> _Session:
        found = self._store._sessions.get(session)
        if found is None:
            raise AssertionError(f"session {session} was never created")
        return found

    def _set(self, table: dict[_K, _V], key: _K, value: _V) -> None:
        if key in table:
            self._undo.append(partial(table.__setitem__, key, table[key]))
        else:
            self._undo.append(partial(table.pop, key))
        table[key] = value
