"""The records that a page of entries touches: read once, folded, written once.

Most of what a busy client gets back is its own: an op that simply applied, as it was written, moves
from the outbox into the base, and what shows stays as it is. Such an entry is not decoded, nor is
its record: the row loses its base (see ``_stays``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from syncline.sync import (
    HEADER_COLLECTION,
    RUNTIME_COLLECTIONS,
    AcceptedChange,
    Entry,
    Record,
    RecordChange,
    Value,
    VersionVector,
    fold,
    pack,
    same,
    serialise,
    touched,
)

from ._predict import Key
from ._rows import (
    DROP_RECORD,
    PUT_RECORD,
    RecordState,
    StoredRecord,
    count_change,
    put_record_statement,
    stored_records,
)

_STATE_LEAD = b"\x96"
"""A record's bytes begin with this, and then its vector."""


class _Due(NamedTuple):
    """A change that is due. ``context`` is None unless the entry is a quiet one (``add_quiet``);
    ``accepted`` is None while it was not read."""

    entry: Entry
    context: VersionVector | None
    accepted: AcceptedChange | None


class Page:
    """Rows of one generation, while a page is folded into them."""

    def __init__(self, db: sqlite3.Connection, gen: int) -> None:
        self._db = db
        self._gen = gen
        self.rows: dict[Key, RecordState] = {}
        self.stale: set[Key] = set()
        self._due: dict[Key, list[_Due]] = {}
        self._before: dict[Key, Record | None] = {}
        self._quiet: dict[Key, int] = {}

    def read(self, keys: Collection[Key]) -> None:
        """Have these rows."""
        for key, stored in self._stored(keys):
            self._have(key, stored)

    def add(self, entry: Entry, accepted: AcceptedChange) -> None:
        """``fold`` will fold this change in, after those before it."""
        change = accepted.change
        assert isinstance(change, RecordChange)
        due = _Due(entry, None, accepted)
        self._due.setdefault((change.collection, change.id), []).append(due)

    def add_quiet(self, entry: Entry) -> bool:
        """The same for the changes of an own op that simply applied, and did so as it was written.

        False when it holds more than puts and patches.
        """
        places = touched(entry.body)
        for collection, id_, context in places or ():
            due = _Due(entry, context, None)
            self._due.setdefault((collection, id_), []).append(due)
        return places is not None

    def fold(self) -> Iterator[tuple[str, Collection[str]]]:
        """Fold in what is due. Yields the collection and fields of each record that changed."""
        for key, stored in self._stored(self._due):
            due = self._due[key]
            if stored is not None and _stays(stored, due):
                self._quiet[key] = due[-1].entry.seq
                continue
            row = self._have(key, stored)
            for one in due:
                if one.entry.seq > row.seq:  # Else a bootstrap's page had it already.
                    self._fold_one(key, row, one)
            if row.canonical is not None and key[0] != HEADER_COLLECTION:
                yield key[0], row.canonical.fields

    def _fold_one(self, key: Key, row: RecordState, due: _Due) -> None:
        change, stamp, effect = due.accepted or _accepted(due.entry, key)
        assert isinstance(change, RecordChange)
        base = fold(row.canonical, change, stamp, effect)
        row.seq = due.entry.seq
        if not row.has_base:
            row.visible = base
            return
        row.base = base
        # A quiet op moves from the outbox into the base, and what shows stays as it is. Anything
        # else is predicted again.
        if due.context is None:
            self.stale.add(key)

    def _stored(self, keys: Collection[Key]) -> Iterator[tuple[Key, StoredRecord | None]]:
        found = stored_records(self._db, self._gen, keys)
        for key in keys:
            yield key, found.get(key)

    def _have(self, key: Key, stored: StoredRecord | None) -> RecordState:
        row = self.rows[key] = RecordState.of(stored)
        self._before[key] = row.visible
        return row

    def shows_anew(self) -> set[Key]:
        """The records that a reader now sees otherwise than before."""
        return {
            key
            for key, row in self.rows.items()
            if not same(_fields(self._before[key]), _fields(row.visible))
        }

    def write(self) -> None:
        """Write everything back."""
        puts: list[tuple[Any, ...]] = []
        for key, row in self.rows.items():
            statement, values = put_record_statement(self._gen, *key, row)
            if statement == DROP_RECORD:
                self._db.execute(statement, values)
            else:
                puts.append(values)
        self._db.executemany(PUT_RECORD, puts)
        self._db.executemany(
            "UPDATE syncline_records SET base=NULL, seq=? WHERE gen=? AND collection=? AND id=?",
            [(seq, self._gen, *key) for key, seq in self._quiet.items()],
        )
        self._count_change()

    def _count_change(self) -> None:
        if not any(collection in RUNTIME_COLLECTIONS for collection, _ in self.rows):
            return
        if any(collection in RUNTIME_COLLECTIONS for collection, _ in self.shows_anew()):
            # Of a bootstrap nothing shows yet: no session has its generation.
            for (key,) in self._db.execute(
                "SELECT session FROM syncline_sessions WHERE gen=?", (self._gen,)
            ).fetchall():
                count_change(self._db, key)


def _stays(stored: StoredRecord, due: Sequence[_Due]) -> bool:
    """Whether quiet ops leave what shows as it is, and nothing else is pending.

    What shows then is the base. It is recognised by its vector: the last change's context and its
    dot, nothing of a later op and nothing of anybody else.
    """
    last = due[-1]
    if stored.base is None or last.context is None or stored.seq >= due[0].entry.seq:
        return False
    if any(one.context is None for one in due[:-1]):
        return False
    vector = {**last.context, last.entry.client: last.entry.n}
    return stored.state.startswith(_STATE_LEAD + pack(serialise(vector)))


def _accepted(entry: Entry, key: Key) -> AcceptedChange:
    """The change of a record in an entry, which has one."""
    for accepted in entry.read():
        change = accepted.change
        if isinstance(change, RecordChange) and (change.collection, change.id) == key:
            return accepted
    raise AssertionError(f"entry {entry.seq} does not touch {key}")


def _fields(record: Record | None) -> Value:
    return None if record is None else record.visible
