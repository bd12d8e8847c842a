"""Reading a session's past from the history of entries that a replica keeps.

A state at a seq is the fold of the entries up to it, so it takes the whole log from its beginning.
A replica that began with a bootstrap holds only what came after (and all events): its past can be
read once the older entries were fetched from the server; until then, only what the log says now.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from syncline.sync import (
    Diverged,
    Entry,
    HistoryMissing,
    NotFound,
    Record,
    RecordChange,
    Stamp,
    Value,
    copy_fields,
)
from syncline.sync.sessions import (
    Checkpoint,
    Fields,
    Key,
    apply_entry,
    settle_entry,
    visible,
)

from .._healing import hash_at
from .._rows import SessionState, pending_ops


@dataclass(frozen=True, slots=True)
class Place:
    """Where a state stands: after ``(epoch, seq)``, and after the own ops of ``by`` before it.

    ``hash`` is the log's there (None: of a session that was never synced), ``vector`` what tells
    the ops when the log was healed since; None when there is none.
    """

    epoch: int
    seq: int
    hash: bytes | None
    by: Stamp | None = None
    vector: Mapping[str, int] | None = None
    checkpoint: str | None = None
    rollback: str | None = None

    @staticmethod
    def of(checkpoint: Checkpoint) -> Place:
        c = checkpoint
        return Place(c.epoch, c.seq, c.hash, c.by, c.vector, checkpoint=c.id)


@dataclass(frozen=True, slots=True)
class StateAt:
    """What a session showed at a place of its log.

    ``(epoch, seq, hash)`` is the place; ``records`` the living records, the header among them.
    """

    epoch: int
    seq: int
    hash: bytes | None
    records: Mapping[Key, Fields] = field(repr=False)

    def get(self, collection: str, id: str) -> dict[str, Value] | None:
        """The fields of a record; None when there was none."""
        fields = self.records.get((collection, id))
        return None if fields is None else copy_fields(fields)

    def collection(self, name: str) -> dict[str, Fields]:
        """The records of a collection, by id."""
        return {id_: fields for (of, id_), fields in self.records.items() if of == name}

    @property
    def header(self) -> dict[str, Value]:
        return self.get("$session", "header") or {}


def place_at(db: sqlite3.Connection, session: SessionState, seq: int) -> Place:
    """The place of a seq. Raises NotFound (3113) beyond the log that is here."""
    if seq > session.seq or seq < 0:
        raise NotFound(
            f"session {session.id} has no seq {seq} here: its log reaches from 1 to {session.seq}",
            session=session.id,
            seq=session.seq,
        )
    if seq == session.seq:
        return Place(session.epoch, seq, session.hash)
    row = db.execute(
        "SELECT entry FROM syncline_entries WHERE session=? AND seq=?", (session.key, seq)
    ).fetchone()
    epoch = Entry.decode(row[0]).epoch if row is not None else 0
    return Place(epoch, seq, hash_at(db, session, seq))


def records_at(
    db: sqlite3.Connection, session: SessionState, client: str, place: Place
) -> dict[Key, Record]:
    """The records at a place, dead ones too.

    Raises HistoryMissing (3115) when the entries are not all here, NotFound (3113) for a place
    beyond the log, and Diverged (3015) when a healing has taken the place away.
    """
    if place.seq > session.seq:
        place_at(db, session, place.seq)
    there = session.hash if place.seq == session.seq else hash_at(db, session, place.seq)
    if place.seq and place.hash is not None and there is not None and there != place.hash:
        return _records_by_vector(db, session, client, place)
    records, held = _records_at_seq(db, session, place.seq)
    if place.by is not None:
        _add_own(db, session, client, place, records, held)
    return records


def state_at(db: sqlite3.Connection, session: SessionState, client: str, place: Place) -> StateAt:
    """What showed at a place; raises what ``records_at`` does."""
    shown = visible(records_at(db, session, client, place))
    return StateAt(place.epoch, place.seq, place.hash, shown)


def missing_seqs(db: sqlite3.Connection, session: SessionState) -> tuple[int, int] | None:
    """The first and last seq of the older history that is not here; None when all of it is."""
    (count,) = db.execute(
        "SELECT count(*) FROM syncline_entries WHERE session=? AND seq BETWEEN 1 AND ?",
        (session.key, session.seq),
    ).fetchone()
    if count == session.seq:
        return None
    seqs = [0]
    seqs += [
        seq
        for (seq,) in db.execute(
            "SELECT seq FROM syncline_entries WHERE session=? AND seq BETWEEN 1 AND ? ORDER BY seq",
            (session.key, session.seq),
        )
    ]
    seqs.append(session.seq + 1)
    gaps = [(low + 1, high - 1) for low, high in pairwise(seqs) if high > low + 1]
    return gaps[0][0], gaps[-1][1]


def _records_at_seq(
    db: sqlite3.Connection, session: SessionState, seq: int
) -> tuple[dict[Key, Record], dict[str, int]]:
    """The records at a seq, and the last number of each client that the log held then."""
    if seq == session.seq:
        return _base(db, session), dict(session.vector)
    records: dict[Key, Record] = {}
    held: dict[str, int] = {}
    for entry in _entries(db, session, seq):
        apply_entry(records, entry.read())
        held[entry.client] = entry.n
    return records, held


def _base(db: sqlite3.Connection, session: SessionState) -> dict[Key, Record]:
    """What the log says now, which every replica holds."""
    rows = db.execute(
        "SELECT collection, id, state, base FROM syncline_records WHERE gen=?", (session.gen,)
    )
    return {
        (collection, id_): Record.decode(state if base is None else base)
        for collection, id_, state, base in rows
        if (state if base is None else base)
    }


def _entries(db: sqlite3.Connection, session: SessionState, through: int) -> Iterator[Entry]:
    """The log from 1 on. Raises HistoryMissing (3115) at the first hole."""
    yield from _entries_after(db, session, 0, through)


def _entries_after(
    db: sqlite3.Connection, session: SessionState, after: int, through: int
) -> Iterator[Entry]:
    rows = db.execute(
        "SELECT seq, entry FROM syncline_entries WHERE session=? AND seq>? AND seq<=? ORDER BY seq",
        (session.key, after, through),
    )
    due = after + 1
    for seq, data in rows:
        if seq != due:
            break
        yield Entry.decode(data)
        due += 1
    if due <= through:
        raise HistoryMissing(
            f"the past of session {session.id} cannot be read here: the replica began with a"
            f" bootstrap and holds the log only after seq {session.floor}; without the older"
            f" entries its state can be read at seq {session.seq} alone",
            session=session.id,
            seq=due,
            floor=session.floor,
            readable_from=session.seq,
        )


def _add_own(
    db: sqlite3.Connection,
    session: SessionState,
    client: str,
    place: Place,
    records: dict[Key, Record],
    held: dict[str, int],
) -> None:
    """Settle what the author of a checkpoint had written by then and the log did not hold yet."""
    assert place.by is not None
    author, before = place.by.client, place.by.n
    for entry in _entries_after(db, session, place.seq, session.seq):
        if entry.client != author:
            continue
        if entry.n >= before:
            return
        changes = [(a.change, a.stamp) for a in entry.read() if isinstance(a.change, RecordChange)]
        settle_entry(records, changes, {**held, author: entry.n - 1})
    if author != client:
        return
    for op in pending_ops(db, session.key, through=before - 1):
        pairs = [
            (change, Stamp(at, author, op.n))
            for change, at in zip(op.changes, op.stamps, strict=True)
            if isinstance(change, RecordChange)
        ]
        settle_entry(records, pairs, {**held, author: op.n - 1})


def _records_by_vector(
    db: sqlite3.Connection, session: SessionState, client: str, place: Place
) -> dict[Key, Record]:
    """The records of the ops that a vector names, after a healing has given them other places."""
    if place.vector is None:
        raise Diverged(
            f"seq {place.seq} of session {session.id} is not what it was: the server was restored"
            " meanwhile, and the log was written anew from there",
            seq=place.seq,
        )
    records: dict[Key, Record] = {}
    held: dict[str, int] = {}
    by = place.by
    for entry in _entries(db, session, session.seq):
        through = place.vector.get(entry.client, 0)
        if by is not None and entry.client == by.client:
            through = max(through, by.n - 1)
        if entry.n <= through:
            changes = [
                (a.change, a.stamp) for a in entry.read() if isinstance(a.change, RecordChange)
            ]
            settle_entry(records, changes, held)
            held[entry.client] = entry.n
    return records
